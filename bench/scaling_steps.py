"""One series of `scaling`, in a process of its own: fill the store up to a size, measure there, go on to the next.

Decides: what an acquire, a hand-over and a `list` are in each series. The process ends without cleaning up, since the
server is thrown away after it. What waits, what passes a lock on and what fills the store are clients of their own,
so that no hand-over stays within one client. All are in one process: what it scans of its own counts too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Final, NamedTuple

import lockfast
from bench.scaling_stores import OpenedStore
from lockfast.aio import AsyncLocks

QUEUED_AT_ONCE: Final = 500  # waiters, before it is checked that they are in the queue
TTL_S: Final = 3600.0  # so that no renewal is due while a series lasts
MAX_PROBES, MIN_PROBES = 200, 3
_PASSED_ON = 10  # hand-overs that are timed together
_SHOWN: Final = "shown:"  # of the few names that `list` is asked for

MakeLock = Callable[[AsyncLocks], Any]


class Point(NamedTuple):
    """Medians, in seconds."""

    n: int
    acquire_s: float
    hand_over_s: float
    list_s: float | None  # where it makes sense: of one name among n
    cpu_s: float | None  # the server's, for an acquire
    fill_s: float | None  # for each of those that were added, many at once; None if they were copied
    bytes_each: float
    first_list_s: float | None = None  # where only the first of several lists scans the store


def measure(opened: OpenedStore, key: str, sizes: Sequence[int], probes_s: float, pipe: Connection) -> None:
    """In a process of its own: send a point for each size."""
    logging.getLogger("lockfast").setLevel(
        logging.ERROR
    )  # a full server is slow to answer, and that is what is measured
    asyncio.run(_measure(opened, key, sizes, probes_s, pipe))


async def _measure(opened: OpenedStore, key: str, sizes: Sequence[int], probes_s: float, pipe: Connection) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(lockfast.aio.connect(opened.url)) for _ in range(4)]
        series = _SERIES[key](clients, opened, probes_s)
        await series.prepare()
        before = opened.bytes()
        for n in sizes:
            filled_in = await series.grow(n)
            copied = key == "names" and opened.copy_name is not None
            size = max(0, opened.bytes() - before)
            acquire, cpu = await series.acquire(n)
            pipe.send(
                Point(
                    n,
                    acquire,
                    await series.hand_over(n),
                    await series.list(),
                    cpu,
                    None if copied else filled_in,
                    size / n,
                    await series.first_list(),
                )
            )
        pipe.close()
        os._exit(0)


class _Passing:
    """Tasks that want one lock all the time and pass it on. While they pause, one of them keeps it."""

    def __init__(self, locks: Sequence[Any]) -> None:
        self._held, self._passed = asyncio.Event(), 0
        self._until, self._go_on = 1, asyncio.Event()
        self._tasks = [asyncio.create_task(self._work(lock)) for lock in locks]

    async def _work(self, lock: Any) -> None:
        while True:
            async with lock:
                self._passed += 1
                if self._passed >= self._until:
                    self._held.set()
                    await self._go_on.wait()

    def more(self, locks: Sequence[Any]) -> None:
        self._tasks += [asyncio.create_task(self._work(lock)) for lock in locks]

    async def paused(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()  # raises what went wrong
        await self._held.wait()

    async def once(self) -> float:
        """Seconds a hand-over."""
        go_on, started = self._go_on, time.perf_counter()
        self._until, self._held, self._go_on = self._passed + _PASSED_ON, asyncio.Event(), asyncio.Event()
        go_on.set()
        await self._held.wait()
        return (time.perf_counter() - started) / _PASSED_ON


class _Series:
    """What is common: probes are repeated until their time is over, and the median counts."""

    def __init__(self, clients: Sequence[AsyncLocks], store: OpenedStore, probes_s: float) -> None:
        self.filling, self.asking, *self.passing = clients
        self._store, self._probes_s = store, probes_s
        self._grown = 0

    async def prepare(self) -> None:
        """Connect everything, so that it is not counted."""
        for number, client in enumerate((self.filling, self.asking, *self.passing)):
            async with client.lock(f"prepare-{number}"):
                pass
        self._others = _Passing(self._pair("passed on"))
        await self._others.paused()
        self._one = self.asking.lock(f"{_SHOWN}one", ttl=TTL_S)
        await self._one.acquire()

    def _pair(self, name: str) -> list[Any]:
        return [client.lock(name, ttl=TTL_S) for client in (*self.passing, *self.passing)]

    async def grow(self, n: int) -> float:
        """Seconds for each that was added."""
        first, self._grown = self._grown, n
        started = time.perf_counter()
        await self._add(first, n)
        return (time.perf_counter() - started) / max(1, n - first)

    async def _add(self, first: int, n: int) -> None:
        raise NotImplementedError

    async def acquire(self, n: int) -> tuple[float, float | None]:
        """Its time, and the server's for it: of a name that is free, beside n others."""
        return await self._acquires(lambda number: self.asking.lock(f"probe-{number % 10}"))

    async def _acquires(self, lock_of: Callable[[int], Any]) -> tuple[float, float | None]:
        times: list[float] = []
        used, until = 0.0, time.perf_counter() + self._probes_s
        while len(times) < MIN_PROBES or (len(times) < MAX_PROBES and time.perf_counter() < until):
            lock, before = lock_of(len(times)), self._store.cpu()
            started = time.perf_counter()
            lease = await lock.acquire(blocking=False)
            times.append(time.perf_counter() - started)
            used += (self._store.cpu() or 0.0) - (before or 0.0)
            if lease is not None:
                await lease.release()
        return median(times), None if self._store.cpu() is None else used / len(times)

    async def hand_over(self, n: int) -> float:
        """Of a name with few waiters, beside n others."""
        return await self._repeated(self._others.once)

    async def list(self) -> float | None:
        """As in a view that is refreshed all the time: not the first one."""
        await self._list_once()
        return await self._repeated(self._list_once)

    async def first_list(self) -> float | None:
        forget = self._store.forget_lists
        if forget is None:
            return None

        async def once() -> float:
            forget(self._store.url)
            return await self._list_once()

        return await self._repeated(once)

    async def _list_once(self) -> float:
        started = time.perf_counter()
        found = await self.asking.list(_SHOWN)
        if len(found) != 1:
            raise RuntimeError(f"list found {len(found)} in place of one")
        return time.perf_counter() - started

    async def _repeated(self, once: Callable[[], Awaitable[float]]) -> float:
        times: list[float] = []
        until = time.perf_counter() + self._probes_s
        while len(times) < MIN_PROBES or (len(times) < MAX_PROBES and time.perf_counter() < until):
            times.append(await once())
        return median(times)


async def _many(first: int, n: int, at_once: int, one: Callable[[int], Awaitable[object]]) -> None:
    """`one(number)` for each."""
    numbers = iter(range(first, n))

    async def work() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*[work() for _ in range(min(at_once, n - first))])


class _Names(_Series):
    """Names that were used once."""

    async def _add(self, first: int, n: int) -> None:
        async def use(number: int) -> None:
            async with self.filling.lock(f"name-{number}"):
                pass

        copy = self._store.copy_name
        used = n if copy is None else 1
        if used > first:
            await _many(first, used, self._store.at_once, use)
        if copy is not None and n > 1:
            copy(self._store.url, "name", max(1, first), n)


class _Leases(_Series):
    """Names that are held."""

    async def _add(self, first: int, n: int) -> None:
        def take(number: int) -> Awaitable[object]:
            return self.filling.lock(f"name-{number}", ttl=TTL_S).acquire()

        await _many(first, n, self._store.at_once, take)


class _Waiters(_Series):
    """Waiters of one name. An acquire is an attempt on that name that does not wait."""

    _line: _Passing

    async def prepare(self) -> None:
        await super().prepare()
        self._line = _Passing([self.passing[0].lock("contended", ttl=TTL_S)])
        await self._line.paused()

    async def _add(self, first: int, n: int) -> None:
        locks = [self.passing[number % 2].lock("contended", ttl=TTL_S) for number in range(first, n)]
        for some in range(0, len(locks), QUEUED_AT_ONCE):
            self._line.more(locks[some : some + QUEUED_AT_ONCE])
            while (await self.asking.inspect("contended")).waiters < first + len(locks[: some + QUEUED_AT_ONCE]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def acquire(self, n: int) -> tuple[float, float | None]:
        return await self._acquires(lambda _: self.asking.lock("contended"))

    async def hand_over(self, n: int) -> float:
        await self._line.paused()
        return await self._repeated(self._line.once)


class _Permits(_Series):
    """Permits of a semaphore for n, of which all but one are held. A hand-over is one of the last permit."""

    async def _add(self, first: int, n: int) -> None:
        semaphore = self.filling.semaphore
        await _many(0, n - 1, self._store.at_once, lambda _: semaphore(f"semaphore-{n}", n, ttl=TTL_S).acquire())

    async def acquire(self, n: int) -> tuple[float, float | None]:
        return await self._acquires(lambda _: self.asking.semaphore(f"semaphore-{n}", n))

    async def hand_over(self, n: int) -> float:
        passing = _Passing([client.semaphore(f"semaphore-{n}", n, ttl=TTL_S) for client in self.passing * 2])
        await passing.paused()
        return await self._repeated(passing.once)

    async def list(self) -> float | None:
        return None

    async def first_list(self) -> float | None:
        return None


_SERIES: Final = {"names": _Names, "leases": _Leases, "waiters": _Waiters, "permits": _Permits}
