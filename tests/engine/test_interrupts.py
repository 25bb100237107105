"""A KeyboardInterrupt before or after the effect of any verb, and inside any wait, leaves nothing behind.

Each story is run again and again, interrupted at its first such point, at its second, and so on to its end. A real
SIGINT can fall between any two instructions: see `test_interrupted_primitives`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import lockfast
from lockfast._worlds import drive
from lockfast.backends.sqlite.io.blocking import BlockingSqlite
from lockfast.backends.sqlite.io.driver import SqliteTransaction
from lockfast.backends.sqlite.schema import SCHEMA
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.errors import BackendUnavailable
from lockfast.sync import Locks
from lockfast.testing.clock import FakeClock
from tests.engine.hooked import hooked, while_time_passes
from tests.servers.waiting import LIMIT_S, join, until

Story = Callable[[Locks], None]


pytestmark = pytest.mark.slow


class InterruptAt:
    """A hook that raises KeyboardInterrupt at its `point`-th call in the main thread, and only then."""

    def __init__(self, point: int) -> None:
        self._point = point
        self.struck: str | None = None
        self.armed = True
        self._calls = 0

    async def __call__(self, where: str) -> None:
        if self.armed and threading.current_thread() is threading.main_thread():
            self._calls += 1
            if self._calls == self._point:
                self.struck = where
                raise KeyboardInterrupt(where)


def acquire(locks: Locks) -> None:
    lease = locks.lock("a").acquire()
    assert lease is not None
    assert lease.held


def acquire_in_vain(locks: Locks) -> None:
    assert locks.lock("a").acquire(timeout=5) is None


def extend(locks: Locks) -> None:
    lease = locks.lock("a").acquire()
    assert lease is not None
    try:
        lease.extend(60)
    finally:
        assert lease.held, "an extension that was cut short takes nothing away"
        lease.release()


def release(locks: Locks) -> None:
    lease = locks.lock("a").acquire()
    assert lease is not None
    assert lease.release()


def body(locks: Locks) -> None:
    with locks.lock("a") as lease:
        lease.check()


def body_entered_twice(locks: Locks) -> None:
    with locks.lock("a", reentrant=True) as lease:
        with locks.lock("a", reentrant=True):
            lease.check()


def body_that_fails(locks: Locks) -> None:
    try:
        with locks.lock("a"):
            raise ZeroDivisionError
    except ZeroDivisionError:
        return
    pytest.fail("the error of the body was swallowed")


FREE = (acquire, extend, release, body, body_entered_twice, body_that_fails)
AFTER_A_WAIT = (acquire, body, body_entered_twice)


def nothing_left(locks: Locks, other: Locks) -> None:
    info = other.inspect("a")
    assert (info.holders, info.waiters) == ((), 0)
    engine = locks._logic.engine
    assert engine.keeper.leases == {}
    assert engine.entered == {}


def run(story: Story, url: str, point: int) -> str | None:
    """Run the story, interrupted at that point; which one it was, or None if it ended before."""
    hook = InterruptAt(point)
    with lockfast.connect(url, holder="them") as other, lockfast.connect(hooked(url, hook), holder="us") as locks:
        try:
            story(locks)
        except KeyboardInterrupt:
            assert hook.struck is not None
            nothing_left(locks, other)
        else:
            assert hook.struck is None, f"the interrupt {hook.struck} was swallowed"
        finally:
            hook.armed = False
    return hook.struck


def run_against_another(
    story: Story, url: str, point: int, releases: bool, clock: FakeClock | None = None
) -> str | None:
    with lockfast.connect(url, holder="other", clock=clock) as others:
        theirs = others.lock("a").acquire()
        assert theirs is not None
        hook = InterruptAt(point)
        opener = hooked(url, while_time_passes(hook, clock, 5))
        with lockfast.connect(opener, holder="us", clock=clock) as locks:
            enough = threading.Event()

            def release() -> None:
                until(lambda: enough.is_set() or (releases and others.inspect("a").waiters), "one to wait, or the end")
                theirs.release()

            thread = threading.Thread(target=release)
            thread.start()
            try:
                story(locks)
            except KeyboardInterrupt:
                assert hook.struck is not None
            else:
                assert hook.struck is None, f"the interrupt {hook.struck} was swallowed"
            finally:
                hook.armed = False
                enough.set()
                join(thread)
            if hook.struck is not None:
                nothing_left(locks, others)
    return hook.struck


def sweep(run_story: Callable[[int], str | None]) -> list[str]:
    """Interrupt at each point in turn; which points there were."""
    points: list[str] = []
    while (struck := run_story(len(points) + 1)) is not None:
        points.append(struck)
    return points


@pytest.mark.parametrize("story", FREE)
def test_interrupted_at_any_point_it_leaves_nothing_behind(story: Story, url: str) -> None:
    points = sweep(lambda point: run(story, url, point))
    assert points[:2] == ["before acquire", "after acquire"]


@pytest.mark.parametrize("story", AFTER_A_WAIT)
def test_interrupted_at_any_point_of_a_wait_it_leaves_nothing_behind(story: Story, url: str) -> None:
    points = sweep(lambda point: run_against_another(story, url, point, releases=True))
    assert {"before wait", "after wait", "after acquire"} <= set(points)


def test_interrupted_while_it_waits_in_vain_it_leaves_nothing_behind(url: str) -> None:
    clock = FakeClock()
    points = sweep(lambda point: run_against_another(acquire_in_vain, url, point, releases=False, clock=clock))
    assert {"before wait", "before abandon", "after abandon"} <= set(points)


def test_what_a_signal_handler_asks_in_the_middle_of_a_request_does_not_spoil_it(tmp_path: Path) -> None:
    """It is refused, and the request that was interrupted goes on."""
    driver = BlockingSqlite(tmp_path / "locks.db", SCHEMA, BlockingWakeups(None), None)

    def nested(t: SqliteTransaction) -> str:
        t.execute("UPDATE claims SET counter = counter + 1")
        with pytest.raises(BackendUnavailable, match="in the middle of another request"):
            drive(driver.transact((lambda _: "never", (), None, False), 0.01))
        assert drive_counter(t) == before + 1
        return "done"

    def drive_counter(t: SqliteTransaction) -> int:
        counter: int = t.execute("SELECT max(counter) FROM claims").fetchone()[0]
        return counter

    before, _ = drive(driver.transact((drive_counter, (), None, False), LIMIT_S))
    assert drive(driver.transact((nested, (), None, False), LIMIT_S))[0] == "done"
    assert drive(driver.transact((drive_counter, (), None, False), LIMIT_S))[0] == before + 1
    driver.shut()
