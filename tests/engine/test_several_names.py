"""Several names cancelled, interrupted or closed at any point: nothing is left held, and no loss is reported.

The same sweeps as for one lock, with as many requests as there are names in the middle of which it can happen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress

import pytest

import lockfast
from lockfast.aio import AsyncLocks
from lockfast.observe.events import Event
from lockfast.sync import Locks
from lockfast.testing.clock import FakeClock
from tests.engine.hooked import hooked, while_time_passes
from tests.engine.test_cancellation import CancelAt, suspend
from tests.engine.test_interrupts import InterruptAt, sweep
from tests.servers.waiting import join, until_async

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c")
AsyncStory = Callable[[AsyncLocks], Awaitable[None]]
Story = Callable[[Locks], None]


def lost(received: list[Event]) -> list[str]:
    return [event.name for event in received if event.kind == "lost"]


# Cancelled


async def taken(locks: AsyncLocks) -> None:
    lease = await locks.all(*NAMES).acquire()
    assert lease is not None
    assert lease.held


async def taken_and_released(locks: AsyncLocks) -> None:
    lease = await locks.all(*NAMES).acquire()
    assert lease is not None
    assert await lease.release()


async def a_body(locks: AsyncLocks) -> None:
    async with locks.all(*NAMES) as lease:
        await asyncio.sleep(0)
        lease.check()
        await asyncio.sleep(0)


async def a_body_that_fails(locks: AsyncLocks) -> None:
    with suppress(ZeroDivisionError):
        async with locks.all(*NAMES):
            await asyncio.sleep(0)
            raise ZeroDivisionError


async def in_vain(locks: AsyncLocks) -> None:
    assert await locks.all(*NAMES).acquire(timeout=5) is None


async def cancelled(story: AsyncStory, url: str, points: set[int], held: str, clock: FakeClock | None = None) -> bool:
    """Run the story, cancelled at these suspensions, while another holds a name; False if it ended before."""
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(lockfast.aio.connect(url, holder="them", clock=clock))
        opener = hooked(url, while_time_passes(suspend, clock, 5))
        locks = await stack.enter_async_context(lockfast.aio.connect(opener, holder="us", clock=clock))
        received: list[Event] = []
        locks.events.listen(received.append)
        if held:
            await other.lock(held).acquire()
        steps = CancelAt(story(locks), points)
        task = asyncio.ensure_future(steps)
        await asyncio.wait({task})
        if steps.suspensions < min(points):
            task.result()  # raises what went wrong, if anything did
        if steps.suspensions < max(points):
            return False
        assert task.cancelled(), f"the cancellation was swallowed: {task!r}"
        infos = [await other.inspect(name) for name in NAMES]
        assert [(info.name, info.waiters) for info in infos if info.locked] == ([(held, 0)] if held else [])
        assert locks._logic.engine.keeper.leases == {}
        assert lost(received) == []
    return True


async def cancelled_everywhere(
    story: AsyncStory, url: str, again: int, held: str = "", clock: FakeClock | None = None
) -> int:
    point = 1
    while await cancelled(story, url, set(range(point, point + again + 1)), held, clock):
        point += 1
    return point - 1


@pytest.mark.parametrize("again", [0, 1, 3])
@pytest.mark.parametrize("story", [taken, taken_and_released, a_body, a_body_that_fails])
def test_cancelled_at_any_point_of_several_names_nothing_is_left(story: AsyncStory, again: int, url: str) -> None:
    assert asyncio.run(cancelled_everywhere(story, url, again)) >= 6 - again


@pytest.mark.parametrize("again", [0, 1, 3])
def test_cancelled_at_any_point_while_the_last_of_several_is_missing_nothing_is_left(again: int, url: str) -> None:
    assert asyncio.run(cancelled_everywhere(in_vain, url, again, "c", FakeClock())) >= 8


# Interrupted


def take(locks: Locks) -> None:
    lease = locks.all(*NAMES).acquire()
    assert lease is not None
    assert lease.held


def take_and_release(locks: Locks) -> None:
    lease = locks.all(*NAMES).acquire()
    assert lease is not None
    assert lease.release()


def body(locks: Locks) -> None:
    with locks.all(*NAMES) as lease:
        lease.check()


def body_that_fails(locks: Locks) -> None:
    with suppress(ZeroDivisionError), locks.all(*NAMES):
        raise ZeroDivisionError


def wait_in_vain(locks: Locks) -> None:
    assert locks.all(*NAMES).acquire(timeout=5) is None


def interrupted(story: Story, url: str, point: int, held: str, clock: FakeClock | None = None) -> str | None:
    """Run the story, interrupted at that point; which one it was, or None if it ended before."""
    hook = InterruptAt(point)
    with ExitStack() as stack:
        other = stack.enter_context(lockfast.connect(url, holder="them", clock=clock))
        opener = hooked(url, while_time_passes(hook, clock, 5))
        locks = stack.enter_context(lockfast.connect(opener, holder="us", clock=clock))
        received: list[Event] = []
        locks.events.listen(received.append)
        if held:
            other.lock(held).acquire()
        try:
            story(locks)
        except KeyboardInterrupt:
            infos = [other.inspect(name) for name in NAMES]
            assert [(info.name, info.waiters) for info in infos if info.locked] == ([(held, 0)] if held else [])
            assert locks._logic.engine.keeper.leases == {}
            assert lost(received) == []
        else:
            assert hook.struck is None, f"the interrupt {hook.struck} was swallowed"
        finally:
            hook.armed = False
    return hook.struck


@pytest.mark.parametrize("story", [take, take_and_release, body, body_that_fails])
def test_interrupted_at_any_point_of_several_names_nothing_is_left(story: Story, url: str) -> None:
    points = sweep(lambda point: interrupted(story, url, point, held=""))
    assert points[:6] == ["before acquire", "after acquire"] * 3
    assert len(points) == 6 if story is take else 12


def test_interrupted_while_the_last_of_several_is_missing_nothing_is_left(url: str) -> None:
    clock = FakeClock()
    points = sweep(lambda point: interrupted(wait_in_vain, url, point, "c", clock))
    assert {"before wait", "after wait", "before abandon", "before release", "after release"} <= set(points)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_interrupted_just_after_a_grant_nothing_is_left(number: int, url: str) -> None:
    """By a listener, in place of a signal that comes when the lease is adopted and has reached no caller."""
    received: list[Event] = []

    def listen(event: Event) -> None:
        received.append(event)
        if event.kind == "granted" and [event.kind for event in received].count("granted") == number:
            raise KeyboardInterrupt

    with lockfast.connect(url) as locks:
        locks.events.listen(listen)
        with pytest.raises(KeyboardInterrupt):
            locks.all(*NAMES).acquire()
        assert [info.name for info in locks.list()] == []
        assert locks._logic.engine.keeper.leases == {}
        assert lost(received) == []


# Closed


@pytest.mark.parametrize("suspensions", [1, 2, 3, 4, 5, 6, 7])
def test_a_coroutine_that_is_closed_in_the_middle_leaves_nothing(suspensions: int, url: str) -> None:
    async def story() -> None:
        async with (
            lockfast.aio.connect(url, holder="them") as other,
            lockfast.aio.connect(hooked(url, suspend), holder="us") as locks,
        ):
            coroutine = a_body(locks)
            steps = coroutine.__await__()
            with suppress(StopIteration):
                for _ in range(suspensions):
                    waits_for = steps.send(None)
                    if isinstance(waits_for, asyncio.Future):
                        await asyncio.wait({waits_for})
            coroutine.close()

            async def nothing_is_held() -> bool:
                return not await other.list() and not locks._logic.engine.keeper.leases

            await until_async(nothing_is_held, "nothing to be left held")

    asyncio.run(story())


# What is remembered


def test_a_lease_that_was_released_by_itself_is_not_remembered(url: str) -> None:
    with lockfast.connect(url) as locks:
        several = locks.all(*NAMES)
        for _ in range(10):
            lease = several.acquire()
            assert lease is not None
            lease.release()
            with several:
                pass
        assert several._logic._current == []


def test_several_names_many_times_by_many_threads(url: str) -> None:
    with lockfast.connect(url) as locks:
        shared, inside, contended = locks.all(*NAMES), list[int](), list[int]()

        def visit() -> None:
            for _ in range(20):
                with shared as lease:
                    inside.append(1)
                    contended.append(len(inside))
                    lease.check()
                    inside.pop()

        threads = [threading.Thread(target=visit) for _ in range(4)]
        for thread in threads:
            thread.start()
        join(*threads)
        assert contended == [1] * 80
        assert shared._logic._current == []
