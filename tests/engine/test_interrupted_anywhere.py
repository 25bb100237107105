"""A KeyboardInterrupt at any instruction of an acquire: it comes out as what it is, and leaves nothing behind.

Each story is run again and again, interrupted at its first such instruction, at its second, and so on to its end.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

import lockfast
from lockfast import BackendUnavailable, LockInfo, Locks
from lockfast._reentry import start_thread
from lockfast.testing import FakeClock
from tests.engine.hooked import hooked
from tests.engine.interrupting import Interrupt
from tests.renewals import renewal_state
from tests.scale import by_scale
from tests.servers import run
from tests.servers.shared import valkey
from tests.servers.waiting import LIMIT_S, until

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),  # it was cut short before it began
    pytest.mark.filterwarnings("ignore:unclosed <socket"),  # no caller had it yet: it is closed when it is collected
]
_numbers = count()


@pytest.fixture(autouse=True)
def died(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What ended a thread; nothing may."""
    raised: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(repr(args.exc_value)))
    yield raised
    assert raised == []


def _ours(file: str) -> bool:
    return ("/src/lockfast/" in file and "/testing/" not in file) or file.endswith("/threading.py")


def _sweep(run_story: Callable[[int], str], step: int = 1) -> set[str]:
    """Which functions were interrupted, at each instruction or at a part of them, in each run at others."""
    points: list[str] = []
    for point in count(run.first_new_seed() % step + 1, step):
        struck = run_story(point)
        if not struck:
            break
        points.append(struck)
    gc.collect()  # what was cut short is gone before this test is over
    return {point.partition(":")[0] for point in points}


def _is_kept(locks: Locks, clock: FakeClock) -> None:
    """A lease that is taken now is looked at in time."""
    lease = locks.lock("next", ttl=30).acquire()
    assert lease is not None
    until(lambda: clock.next_alarm is not None and clock.next_alarm <= renewal_state(lease).renew_at)
    assert lease.release()


@pytest.mark.parametrize("listens", [False, True])
def test_interrupted_at_any_instruction_of_the_first_acquire_the_keeper_serves_the_next_one(listens: bool) -> None:
    def run_story(point: int) -> str:
        clock = FakeClock()
        with lockfast.connect(f"memory://anywhere-{next(_numbers)}", clock=clock) as locks:
            if listens:
                locks.events.listen(lambda event: None)
            lock = locks.lock("a", ttl=20)
            with Interrupt(point, _ours) as interrupt:
                try:
                    lock.acquire()
                except KeyboardInterrupt:
                    assert interrupt.struck
            if interrupt.struck:
                assert not locks.inspect("a").locked, interrupt.struck
                _is_kept(locks, clock)
                assert not locks._logic.engine.keeper.leases
            return interrupt.struck

    assert {"KeeperLoop.wake", "BackgroundJob.start", "Entry.adopt"} <= _sweep(run_story)


class Waiting:
    """Another client holds the lock that an acquire waits for, until there is a waiter or the acquire is over."""

    def __init__(self, url: str, clock: FakeClock, *, releases: bool) -> None:
        self.other = lockfast.connect(url, clock=clock, holder="other")
        self._releases = releases
        self._held, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()
        assert self._held.wait(LIMIT_S)

    def _hold(self) -> None:
        with self.other.lock("a", ttl=600):
            self._held.set()
            while not self._over.wait(0.0005):
                if self._releases and self.other.inspect("a").waiters:
                    return

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def nothing_is_left(self, locks: Locks, struck: str) -> None:
        """What is still done in the background ends; the clock stands still, so that no time clears anything away."""
        engine = locks._logic.engine
        until(lambda: self.other.inspect("a") == LockInfo("a"))
        until(lambda: not engine.keeper.leases)
        assert not engine.waiting, struck
        lease = locks.lock("a").acquire(blocking=False)
        assert lease is not None, struck
        assert lease.release()


class Fresh(NamedTuple):
    url: Callable[[], str]  # of a store of its own each time
    step: int = 1  # of that many instructions one is tried


@pytest.fixture(
    params=["memory", pytest.param("sqlite", marks=pytest.mark.slow), pytest.param("redis", marks=pytest.mark.soak)]
)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Fresh:
    if request.param == "memory":
        return Fresh(lambda: f"memory://anywhere-{next(_numbers)}", by_scale(1, soak=1, quick=6))
    if request.param == "redis":
        return Fresh(lambda: valkey().url(tmp_path))
    return Fresh(lambda: f"sqlite:///{tmp_path}/{next(_numbers)}.db", by_scale(4, soak=1))


def test_interrupted_at_any_instruction_of_a_wait_it_leaves_no_place_in_line(fresh: Fresh) -> None:
    def run_story(point: int) -> str:
        url, clock, error = fresh.url(), FakeClock(), None
        with lockfast.connect(url, clock=clock) as locks, Waiting(url, clock, releases=True) as waiting:
            locks.list()  # it is open
            lock = locks.lock("a")
            with Interrupt(point, _ours) as interrupt:
                try:
                    lock.acquire()
                except KeyboardInterrupt as raised:
                    error = raised  # kept: what it refers to must not be in the way of what follows
            assert (error is not None) == bool(interrupt.struck)
            waiting.__exit__()
            if interrupt.struck:
                waiting.nothing_is_left(locks, interrupt.struck)
            waiting.other.close()
            error = None  # no reference from its frames to itself: it ends here, and not in a collection somewhere else
            return interrupt.struck

    assert "_ask" in _sweep(run_story, fresh.step) or fresh.step > 1


class InterruptOnce:
    """A hook of `hooked`: raises KeyboardInterrupt at one place in the main thread, and arms what follows."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.struck = False

    async def __call__(self, where: str) -> None:
        if where == self._where and not self.struck and threading.current_thread() is threading.main_thread():
            self.struck = True
            raise KeyboardInterrupt(where)


@pytest.mark.parametrize("first", ["before wait", "after acquire"])
def test_interrupted_again_at_any_instruction_of_leaving_the_line_it_leaves_no_place_there(
    fresh: Fresh, first: str
) -> None:
    def run_story(point: int) -> str:
        url, clock, error = fresh.url(), FakeClock(), None
        hook = InterruptOnce(first)
        with (
            lockfast.connect(hooked(url, hook), clock=clock) as locks,
            Waiting(url, clock, releases=False) as waiting,
        ):
            locks.list()
            lock = locks.lock("a")
            with Interrupt(point, _ours, armed=lambda: hook.struck) as interrupt:
                try:
                    lock.acquire()
                except KeyboardInterrupt as raised:
                    error = raised
            assert error is not None
            waiting.__exit__()
            waiting.nothing_is_left(locks, interrupt.struck)
            waiting.other.close()
            error = None  # no reference from its frames to itself: it ends here, and not in a collection somewhere else
            return interrupt.struck

    assert "abandon" in _sweep(run_story, fresh.step) or fresh.step > 1


def test_interrupted_again_at_any_instruction_of_a_release_it_is_released(fresh: Fresh) -> None:
    def run_story(point: int) -> str:
        hook, url, clock, error = InterruptOnce("before release"), fresh.url(), FakeClock(), None
        with lockfast.connect(hooked(url, hook), clock=clock) as locks:
            lease = locks.lock("a").acquire()
            assert lease is not None
            with Interrupt(point, _ours, armed=lambda: hook.struck) as interrupt:
                try:
                    lease.release()
                except KeyboardInterrupt as raised:
                    error = raised
            assert error is not None
            until(lambda: not locks.inspect("a").locked)
            assert not lease.held
            assert not lease.lost, interrupt.struck
            until(lambda: not locks._logic.engine.keeper.leases)
            error = None
            return interrupt.struck

    assert "_finish" in _sweep(run_story, fresh.step) or fresh.step > 1


@pytest.mark.parametrize("url", ["sqlite:///{}/locks.db", pytest.param("redis://127.0.0.1:1", marks=pytest.mark.slow)])
def test_interrupted_at_any_instruction_of_a_request_it_is_not_taken_for_one_that_is_unanswered(
    url: str, tmp_path: Path
) -> None:
    with lockfast.connect(url.format(tmp_path)) as locks:
        outage = locks._logic.engine.outage

        def run_story(point: int) -> str:
            with Interrupt(point, _ours) as interrupt:
                try:
                    locks.inspect("a")
                except KeyboardInterrupt:
                    assert interrupt.struck
                except BackendUnavailable:
                    assert url.startswith("redis")
            assert outage.unanswered == {}, interrupt.struck
            return interrupt.struck

        assert {"watched", "Outage.sent"} <= _sweep(run_story)


def test_interrupted_at_any_instruction_of_the_start_of_a_thread_it_runs_once_at_most() -> None:
    def run_story(point: int) -> str:
        done: list[str] = []
        with Interrupt(point, _ours) as interrupt:
            try:
                start_thread("work", done.append, "once")
            except KeyboardInterrupt:
                assert interrupt.struck
        until(lambda: all(thread.name != "work" for thread in threading.enumerate()))
        start_thread("work", done.append, "next").join()
        assert done in (["once", "next"], ["next", "once"], ["next"]), interrupt.struck
        return interrupt.struck

    assert "BackgroundJob.start" in _sweep(run_story)
