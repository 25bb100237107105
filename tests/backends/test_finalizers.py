"""What the garbage collector or a signal handler does in the middle of an operation never hangs it, on any backend.

A finalizer may run between any two instructions, so it may run while its own thread holds a mutex of ours, is in a
transaction or has half a request on the wire. Here it does, at each line that an operation reaches.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.aio import AsyncLocks
from tests.backends.collecting import LOT, Collector, Releases, collect_all, holding
from tests.contract.backends import BACKENDS
from tests.scale import SOAK
from tests.servers.waiting import LIMIT_S, happens, join, until, until_async

URLS = {row.name: row.url for row in BACKENDS if not row.chapters}  # the others are the same code in another set-up
ROWS = {name: name if name == "memory" else pytest.param(name, marks=pytest.mark.slow) for name in URLS}
ROWS_IN_A_LOOP = [row for name, row in ROWS.items() if SOAK or name != "redlock3"]  # that takes as long as all others


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.over()


@pytest.fixture(params=ROWS.values())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param](tmp_path)


# What is done


def lock(locks: lockfast.Locks) -> None:
    with locks.lock("job", ttl=60) as lease:
        lease.extend(90)
        assert locks.lock("job").acquire(blocking=False) is None
        assert locks.lock("job").locked()


def names(locks: lockfast.Locks) -> None:
    with locks.all("a", "b", "c"):
        locks.inspect("b")
        locks.list()
    locks.lock("to be broken").acquire()
    locks.break_lock("to be broken")
    with locks.lock("again", reentrant=True) as lease, locks.lock("again", reentrant=True):
        assert lease.held


def wait_in_line(locks: lockfast.Locks) -> None:
    """The main thread acquires when another releases, and gives up once before."""
    held, asked = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.lock("line", ttl=60):
            held.set()
            happens(asked)
            until(lambda: locks.inspect("line").waiters)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    happens(held)
    try:
        with suppress(lockfast.BackendUnavailable):  # as much happens meanwhile, it may not even be asked in time
            assert locks.lock("line").acquire(timeout=0.2) is None
    finally:
        asked.set()
    with locks.lock("line"):
        pass
    join(thread)


def share(locks: lockfast.Locks) -> None:
    with locks.semaphore("pool", 2), locks.semaphore("pool", 2):
        pass


def read_and_write(locks: lockfast.Locks) -> None:
    with locks.rwlock("doc").read():
        pass
    with locks.rwlock("doc").write() as lease:
        lease.downgrade()


def elect(locks: lockfast.Locks) -> None:
    election = locks.election("lead")
    observing = election.observe()
    next(observing)
    election.campaign()
    next(observing)
    election.resign()
    observing.close()
    election.run(lambda lease: None)


def count_and_keep(locks: lockfast.Locks) -> None:
    limiter = locks.limiter("api", rate=1000, burst=5)
    limiter.try_acquire()
    limiter.acquire(5)
    cell = locks.cell("box")
    cell.write(1)
    cell.update(lambda before: (before or 0) + 1)
    cell.read()
    cell.delete()


WORK: list[Callable[[lockfast.Locks], None]] = [lock, names, wait_in_line, share, read_and_write, elect, count_and_keep]


def test_a_lease_that_the_collector_ends_at_any_line_of_any_verb_hangs_nothing_and_is_released(
    url: str, collector: Collector
) -> None:
    number, by_turns = itertools.count(), itertools.cycle((True, False))
    with lockfast.connect(url, patience=LIMIT_S) as locks, lockfast.connect(url, patience=LIMIT_S) as others:
        over = others.lock("over").acquire()
        assert over is not None
        over.release()

        def make() -> Any:
            lock = locks.lock(f"garbage {next(number)}", ttl=3600)
            if next(by_turns):
                body = holding(lock)
                next(body)
                return body
            lease = lock.acquire()
            assert lease is not None
            return Releases(locks, lease, over)

        for work in WORK:
            while True:
                while len(collector.stock) < LOT:
                    collector.stock.append(make())
                with suppress(lockfast.Unsupported), collector.watching():
                    work(locks)
                if not collector.short:
                    break
        assert collector.lines > 300
        collector.stock.clear()  # what is left is garbage too
        collect_all()
        until(lambda: not [info for info in others.list("garbage") if info.locked])


# The same in an event loop


async def lock_in_a_loop(locks: AsyncLocks) -> None:
    async with locks.lock("job", ttl=60) as lease:
        await lease.extend(90)
        assert await locks.lock("job").acquire(blocking=False) is None
    async with locks.all("a", "b", "c"):
        await locks.list()


async def wait_in_a_loop(locks: AsyncLocks) -> None:
    async def waits() -> bool:
        return (await locks.inspect("line")).waiters > 0

    async def hold(held: asyncio.Event) -> None:
        async with locks.lock("line", ttl=60):
            held.set()
            await until_async(waits)

    held = asyncio.Event()
    task = asyncio.create_task(hold(held))
    await held.wait()
    async with locks.lock("line"):
        pass
    await task


async def share_in_a_loop(locks: AsyncLocks) -> None:
    async with locks.rwlock("doc").write() as lease:
        await lease.downgrade()
    async with locks.semaphore("pool", 2), locks.semaphore("pool", 2):
        pass


async def elect_in_a_loop(locks: AsyncLocks) -> None:
    election = locks.election("lead")
    async with aclosing(election.observe()) as observing:
        await anext(observing)
        await election.campaign()
        await anext(observing)
        await election.resign()


async def count_in_a_loop(locks: AsyncLocks) -> None:
    await locks.limiter("api", rate=1000, burst=5).acquire(5)
    await locks.cell("box").update(lambda before: (before or 0) + 1)


IN_A_LOOP: list[Callable[[AsyncLocks], Awaitable[None]]] = [
    lock_in_a_loop,
    wait_in_a_loop,
    share_in_a_loop,
    elect_in_a_loop,
    count_in_a_loop,
]


async def _hold_for_ever(lock: Any, inside: asyncio.Event) -> None:
    async with lock:
        inside.set()
        await asyncio.get_running_loop().create_future()


async def _parked(lock: Any) -> Coroutine[Any, Any, None]:
    """A coroutine in the body of its `async with`, that no task goes on with."""
    inside = asyncio.Event()
    body = _hold_for_ever(lock, inside)
    while True:
        waits_for = body.send(None)
        if inside.is_set():
            return body
        if waits_for is None:  # it only lets others run
            await asyncio.sleep(0)
        else:
            waits_for._asyncio_future_blocking = False
            await asyncio.wait([waits_for])


@pytest.mark.parametrize("url", ROWS_IN_A_LOOP, indirect=True)
def test_a_lease_that_the_collector_ends_at_any_line_in_an_event_loop_hangs_nothing_and_is_released(
    url: str, collector: Collector
) -> None:
    async def main(others: lockfast.Locks) -> None:
        number, by_turns = itertools.count(), itertools.cycle((True, False))
        async with lockfast.aio.connect(url, patience=LIMIT_S) as locks:

            async def all_free() -> bool:
                return not any(info.locked for info in await locks.list("garbage"))

            async def make() -> Any:
                if next(by_turns):
                    return await _parked(locks.lock(f"garbage {next(number)}", ttl=3600))
                in_threads = holding(others.lock(f"garbage {next(number)}", ttl=3600))
                next(in_threads)
                return in_threads

            for work in IN_A_LOOP:
                while True:
                    while len(collector.stock) < LOT:
                        collector.stock.append(await make())
                    with suppress(lockfast.Unsupported), collector.watching():
                        await work(locks)
                    if not collector.short:
                        break
            assert collector.lines > 200
            collector.stock.clear()
            collect_all()
            await until_async(all_free)

    with lockfast.connect(url, patience=LIMIT_S) as others:
        asyncio.run(main(others))
