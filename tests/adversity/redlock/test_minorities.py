"""Workers on a quorum of which a minority is killed, stopped, emptied or cut off: no two holds overlap, fences grow,
and the work goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import combinations

import pytest

import lockfast
from lockfast import AcquireTimeout, BackendUnavailable, LeaseLost
from lockfast._time import boot_now
from lockfast.testing.history import Hold, judge
from tests.adversity.redlock.servers import Quorum
from tests.scale import SOAK, by_scale
from tests.servers.waiting import LIMIT_S, join, moment, until

pytestmark = pytest.mark.slow

WORKERS = by_scale(6, soak=16)
TTL_S = 1.0


class Workers:
    """Workers that take one of two locks, again and again; what they believed is kept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.holds: list[Hold] = []
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def believe(self, name: str, lease: lockfast.Lease, start: float, until: float) -> None:
        end = min(until, lease._deadline)
        self.holds.append(Hold(name, lease.holder, lease.fence, start, end, claim_id=lease.claim_id))

    def more(self, number: int) -> None:
        """Until that many more holds have ended."""
        goal = len(self.holds) + number
        until(lambda: len(self.holds) >= goal or self.errors, f"hold {goal} of the workers")
        assert not self.errors

    def _thread(self, number: int) -> None:
        try:
            with lockfast.connect(self._url, holder=f"thread{number}") as locks:
                while not self._stop.is_set():
                    name = f"name{number % 2}"
                    with suppress(AcquireTimeout, BackendUnavailable, LeaseLost):
                        with locks.lock(name, ttl=TTL_S, wait=LIMIT_S) as lease:
                            start = boot_now()
                            self._stop.wait(0.001)
                            self.believe(name, lease, start, boot_now())
        except BaseException as error:
            self.errors.append(error)

    async def _task(self, locks: lockfast.aio.AsyncLocks, number: int) -> None:
        name = f"name{number % 2}"
        while not self._stop.is_set():
            with suppress(AcquireTimeout, BackendUnavailable, LeaseLost):
                async with locks.lock(name, ttl=TTL_S, wait=LIMIT_S) as lease:
                    start = boot_now()
                    await moment(0.001)
                    self.believe(name, lease, start, boot_now())  # type: ignore[arg-type]

    async def _tasks(self) -> None:
        async with lockfast.aio.connect(self._url) as one, lockfast.aio.connect(self._url) as two:
            await asyncio.gather(*(self._task((one, two)[number // 2 % 2], number) for number in range(WORKERS)))

    def _loop(self) -> None:
        try:
            asyncio.run(self._tasks())
        except BaseException as error:
            self.errors.append(error)

    @contextmanager
    def at_work(self, world: str) -> Iterator[None]:
        if world == "asyncio":
            self._threads = [threading.Thread(target=self._loop)]
        else:
            self._threads = [threading.Thread(target=self._thread, args=(n,)) for n in range(WORKERS)]
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            join(*self._threads)
        assert not self.errors


def kill(quorum: Quorum, node: int) -> Callable[[], None]:
    quorum.servers[node].kill_for_a_while()

    def start() -> None:
        quorum.servers[node].start()

    return start


def stop(quorum: Quorum, node: int) -> Callable[[], None]:
    quorum.servers[node].pause()
    return quorum.servers[node].go_on


def restart_empty(quorum: Quorum, node: int) -> Callable[[], None]:
    quorum.servers[node].restart(empty=True)
    return lambda: None


def black_hole(quorum: Quorum, node: int) -> Callable[[], None]:
    quorum.proxies[node].black_hole()
    return quorum.proxies[node].heal


FAULTS = {"kill": kill, "stop": stop, "restart empty": restart_empty, "black hole": black_hole}
SIZES = by_scale((3,), soak=(3, 5))


@pytest.mark.parametrize("world", ["threads", "asyncio"])
@pytest.mark.parametrize(("size", "fault"), [(size, fault) for fault in FAULTS for size in SIZES])
def test_no_minority_can_stop_the_work_or_let_two_in(size: int, fault: str, world: str) -> None:
    options = "node_timeout=0.5" if fault == "restart empty" else "rejoin=0&node_timeout=0.5"
    with Quorum(size) as quorum:
        workers = Workers(quorum.url(options))
        with workers.at_work(world):
            workers.more(20)
            for minority in _minorities(size, fault):
                heal = [FAULTS[fault](quorum, node) for node in minority]
                workers.more(20)
                for each in heal:
                    each()
                if fault == "restart empty":  # until it counts again, another one would be one too many
                    _old_enough(quorum, minority)
                workers.more(10)
        assert judge(workers.holds) == []
        assert len({hold.holder for hold in workers.holds}) > 1


def _minorities(size: int, fault: str) -> list[tuple[int, ...]]:
    """All of them in the long search. One that restarts empty counts again only after a ttl, so one is enough here."""
    found = list(combinations(range(size), size // 2))
    if SOAK:
        return found
    return found[:1] if fault == "restart empty" else found


def _old_enough(quorum: Quorum, nodes: tuple[int, ...]) -> None:
    for node in nodes:
        until(lambda node=node: int(_fact(quorum, node, "uptime_in_seconds")) >= TTL_S + 1)  # type: ignore[misc]


def _fact(quorum: Quorum, node: int, name: str) -> str:
    lines = quorum.servers[node].command("INFO", "server").decode().splitlines()
    return str(next(line.partition(":")[2] for line in lines if line.startswith(name + ":")))
