"""A cancellation at any suspension point leaves nothing behind and is never swallowed.

Each story is run again and again, cancelled at its first suspension, at its second, and so on to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

import lockfast
from lockfast.aio import AsyncLocks
from lockfast.testing.clock import FakeClock
from tests.engine.hooked import hooked, while_time_passes
from tests.servers.waiting import until_async

Story = Callable[[AsyncLocks], Awaitable[None]]


pytestmark = pytest.mark.slow


class CancelAt:
    """Awaits the work, and cancels the task that does so at its `points`-th suspensions."""

    def __init__(self, work: Awaitable[Any], points: set[int]) -> None:
        self._work = work
        self._points = points
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        value, error = None, None
        while True:
            try:
                waits_for = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            if self.suspensions in self._points:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            value, error = None, None
            try:
                value = yield waits_for
            except BaseException as thrown:
                error = thrown


async def suspend(point: str) -> None:
    await asyncio.sleep(0)


async def acquire(locks: AsyncLocks) -> None:
    lease = await locks.lock("a").acquire()
    assert lease is not None
    assert lease.held


async def acquire_in_vain(locks: AsyncLocks) -> None:
    assert await locks.lock("a").acquire(timeout=5) is None


async def extend(locks: AsyncLocks) -> None:
    lease = await locks.lock("a").acquire()
    assert lease is not None
    try:
        await lease.extend(600)
        assert lease.remaining > 60
    finally:
        assert lease.held, "an extension that was cut short takes nothing away"
        await lease.release()


async def release(locks: AsyncLocks) -> None:
    lease = await locks.lock("a").acquire()
    assert lease is not None
    assert await lease.release()


async def body(locks: AsyncLocks) -> None:
    async with locks.lock("a") as lease:
        await asyncio.sleep(0)
        lease.check()
        await asyncio.sleep(0)


async def body_entered_twice(locks: AsyncLocks) -> None:
    async with locks.lock("a", reentrant=True) as lease:
        async with locks.lock("a", reentrant=True):
            await asyncio.sleep(0)
        lease.check()
        await asyncio.sleep(0)


async def body_that_fails(locks: AsyncLocks) -> None:
    try:
        async with locks.lock("a"):
            await asyncio.sleep(0)
            raise ZeroDivisionError
    except ZeroDivisionError:
        return
    pytest.fail("the error of the body was swallowed")


FREE = (acquire, extend, release, body, body_entered_twice, body_that_fails)
AFTER_A_WAIT = (acquire, body, body_entered_twice)  # another claim holds it, and is released once it is waited for


class Others:
    """Another client, which holds the lock when the story begins."""

    def __init__(self, locks: AsyncLocks, releases: bool) -> None:
        self._locks, self._releases = locks, releases

    async def __aenter__(self) -> None:
        self._lease = await self._locks.lock("a").acquire()
        self._task = asyncio.get_running_loop().create_task(self._release())

    async def _release(self) -> None:
        await until_async(self._may_release, "one to wait, or the end of the story")
        if self._releases and self._lease is not None:
            await self._lease.release()

    async def _may_release(self) -> bool:
        return not self._releases or bool((await self._locks.inspect("a")).waiters)

    async def __aexit__(self, *exc: object) -> None:
        self._releases = False
        await self._task
        if self._lease is not None:
            await self._lease.release()


async def nothing_left(locks: AsyncLocks, other: AsyncLocks) -> None:
    info = await other.inspect("a")
    assert (info.holders, info.waiters) == ((), 0)
    engine = locks._logic.engine
    assert engine.keeper.leases == {}
    assert engine.entered == {}


async def run(
    story: Story,
    url: str,
    points: set[int],
    *,
    held: bool = False,
    releases: bool = True,
    clock: FakeClock | None = None,
) -> bool:
    """Run the story, cancelled at these suspensions; False if it ended before the last of them."""
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(lockfast.aio.connect(url, holder="them", clock=clock))
        opener = hooked(url, while_time_passes(suspend, clock, 5))
        locks = await stack.enter_async_context(lockfast.aio.connect(opener, holder="us", clock=clock))
        async with Others(other, releases) if held else contextlib.nullcontext():
            steps = CancelAt(story(locks), points)
            task = asyncio.ensure_future(steps)
            await asyncio.wait({task})
        if steps.suspensions < max(points):
            if not steps.suspensions >= min(points):
                task.result()  # raises what went wrong, if anything did
            return False
        assert task.cancelled(), f"the cancellation was swallowed: {task!r}"
        await nothing_left(locks, other)
    return True


async def sweep(story: Story, url: str, again: int = 0, **others: Any) -> int:
    """Cancel at each point in turn, and at the `again` next ones too; how many points there are."""
    point = 1
    while await run(story, url, set(range(point, point + again + 1)), **others):
        point += 1
    return point - 1


@pytest.mark.parametrize("again", [0, 2])
@pytest.mark.parametrize("story", FREE)
def test_cancelled_at_any_point_it_leaves_nothing_behind(story: Story, again: int, url: str) -> None:
    assert asyncio.run(sweep(story, url, again)) >= 2 - again


@pytest.mark.parametrize("again", [0, 2])
@pytest.mark.parametrize("story", AFTER_A_WAIT)
def test_cancelled_at_any_point_of_a_wait_it_leaves_nothing_behind(story: Story, again: int, url: str) -> None:
    assert asyncio.run(sweep(story, url, again, held=True)) >= 4  # before and after the request, and the wait


@pytest.mark.parametrize("again", [0, 2])
def test_cancelled_while_it_waits_in_vain_it_leaves_nothing_behind(again: int, url: str) -> None:
    sweeping = sweep(acquire_in_vain, url, again, held=True, releases=False, clock=FakeClock())
    assert asyncio.run(sweeping) >= 5
