"""Promise 8: on loss, `on_lost` is called, the async body is cancelled, and LeaseLost is raised from the `with`.

The sync body learns from `check()`, at the latest on exit. Releasing or extending what was lost raises or returns
False, and never touches the next holder's lock.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from lockfast.errors import LeaseLost, LockError
from lockfast.testing.awaited import AwaitedLease, AwaitedLock, AwaitedLocks
from lockfast.testing.clock import FakeClock
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage


async def _expired(stage: Stage, name: str = "watch") -> tuple[AwaitedLock, AwaitedLease]:
    """A lease whose time ran out, with the lock object that it was taken through."""
    lock = stage.locks().lock(name, ttl=10, renew=False)
    lease = await lock.take()
    stage.clock.advance(10)
    return lock, lease


class _Body:
    """The body of a `with`, which runs until the story ends it."""

    def __init__(self, stage: Stage, lock: AwaitedLock) -> None:
        self._stage, self._lock = stage, lock
        self._runs = self._ends = False
        self._actor = stage.start(self._run())

    async def _run(self) -> str:
        try:
            async with self._lock:
                self._runs = True
                await self._stage.until(lambda: self._ends, "its end")
        except LeaseLost as lost:
            return lost.reason
        return "not lost"

    async def begun(self) -> None:
        await self._stage.until(lambda: self._runs, "the body to begin")

    async def end(self) -> str:
        """Why its lease was lost."""
        self._ends = True
        return await self._actor.result()


class LossIsReported(Promise, about="engine"):
    # Reporting

    @about("store")
    @pytest.mark.parametrize("cause", ["deadline", "broken"])
    async def test_on_lost_is_called_once_with_the_lease(self, stage: Stage, cause: str) -> None:
        reported: list[Any] = []
        locks = stage.locks()
        lease = await locks.lock("watch", ttl=30, on_lost=reported.append).take()
        await _lose(stage, locks, "watch", cause, lambda: reported)
        with pytest.raises(LeaseLost):
            lease.check()
        assert await lease.release() is False
        assert [lost.claim_id for lost in reported] == [lease.claim_id]
        assert reported[0].lost

    @about("store")
    async def test_closing_takes_the_lock_from_a_running_body_and_reports_the_loss(self, stage: Stage) -> None:
        reported: list[Any] = []
        locks, others = stage.locks(), stage.locks()

        body = _Body(stage, locks.lock("watch", ttl=30, on_lost=reported.append))
        await body.begun()
        await locks.close()
        assert [lost.name for lost in reported] == ["watch"], "reported before it is closed"
        assert (await others.lock("watch", wait=0).take()).held
        assert await body.end() == "its Locks was closed"

    async def test_closing_under_several_names_is_reported_once(self, stage: Stage) -> None:
        reported: list[Any] = []
        locks = stage.locks()

        body = _Body(stage, locks.all("a", "b", ttl=30, on_lost=reported.append))
        await body.begun()
        await locks.close()
        assert await body.end() == "its Locks was closed"
        assert len(reported) == 1
        assert await stage.is_free("a")
        assert await stage.is_free("b")

    async def test_a_callback_may_close_the_locks_of_the_lost_lease(self, stage: Stage) -> None:
        closed: list[bool] = []
        locks = stage.locks()

        def close(_: Any) -> Any:
            if stage.world == "threads":
                locks.raw.close()
                closed.append(True)
                return None
            return _close()

        async def _close() -> None:
            await locks.close()
            closed.append(True)

        await locks.lock("watch", ttl=10, renew=False, on_lost=close).take()
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: closed, "the callback to come back")

    async def test_on_lost_is_not_called_for_a_release(self, stage: Stage) -> None:
        reported: list[Any] = []
        async with stage.locks().lock("watch", ttl=30, on_lost=reported.append):
            pass
        stage.clock.advance(100)
        await stage.breathe()
        assert not reported

    async def test_a_loss_is_reported_at_the_deadline_even_while_a_renewal_hangs(self, stage: Stage) -> None:
        reported: list[float] = []
        locks = stage.locks()
        await locks.lock("watch", ttl=30, on_lost=lambda _: reported.append(stage.clock.now())).take()
        locks.faults.hang_request("renew", ALWAYS)
        deadline = stage.clock.now() + 30
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: locks.faults.hanging == 1)
        await stage.pass_time(19.9)
        assert not reported
        stage.clock.advance(0.1)
        await stage.until(lambda: reported, "the loss to be reported")
        assert reported == [pytest.approx(deadline)]

    @needs("breaks_alone")
    async def test_an_on_lost_that_fails_does_not_end_the_keeper(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        reported: list[str] = []

        def fail(lease: Any) -> None:
            reported.append(lease.name)
            raise ZeroDivisionError

        locks = stage.locks()
        await locks.lock("watch", ttl=30, on_lost=fail).take()
        other = await locks.lock("other", ttl=30).take()
        await stage.locks().break_lock("watch")
        await stage.asleep()
        with caplog.at_level(logging.CRITICAL):
            stage.clock.advance(10)
            await stage.until(lambda: reported)
        await stage.asleep()
        await stage.pass_time(100)
        assert other.held

    @needs("cancellation")
    async def test_an_on_lost_that_can_be_awaited_is_awaited(self, stage: Stage) -> None:
        reported: list[str] = []

        async def report(lease: Any) -> None:
            await stage.step()
            reported.append(lease.name)

        locks = stage.locks()
        await locks.lock("watch", ttl=30, on_lost=report).take()
        await _lose(stage, locks, "watch", "broken", lambda: reported)
        assert reported == ["watch"]

    async def test_a_loss_is_an_event_and_a_warning_with_its_facts(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        locks = stage.locks(holder="worker-7")
        received = stage.record(locks)
        lease = await locks.lock("watch", ttl=30).take()
        with caplog.at_level(logging.WARNING, "lockfast"):
            await _lose(stage, locks, "watch", "deadline", lambda: [e for e in received if e.kind == "lost"])
        (event,) = [event for event in received if event.kind == "lost"]
        facts = (event.name, event.holder, event.claim_id, event.fence)
        assert facts == ("watch", "worker-7", lease.claim_id, lease.fence)
        assert event.held_for == pytest.approx(30)
        assert [r.levelname for r in caplog.records if r.message.startswith("lock lost:")] == ["WARNING"]

    async def test_the_error_names_what_was_lost_and_survives_pickling(self, stage: Stage) -> None:
        _, lease = await _expired(stage)
        with pytest.raises(LeaseLost, match=rf"'watch' \(fence {lease.fence}\) was lost 10s after") as raised:
            lease.check()
        error = raised.value
        assert (error.name, error.fence, error.holder) == ("watch", lease.fence, lease.holder)
        assert error.held_for == pytest.approx(10)
        assert error.reason
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (LeaseLost, str(error), vars(error))

    # The body

    async def test_a_body_learns_from_check(self, stage: Stage) -> None:
        reached: list[str] = []

        async def work() -> None:
            async with stage.locks().lock("watch", ttl=10, renew=False) as lease:
                lease.check()
                stage.clock.advance(10)
                lease.check()
                reached.append("after the loss")

        with pytest.raises(LeaseLost):
            await work()
        assert not reached

    async def test_a_body_learns_on_exit_at_the_latest(self, stage: Stage) -> None:
        async def work() -> None:
            async with stage.locks().lock("watch", ttl=10, renew=False):
                stage.clock.advance(10)

        with pytest.raises(LeaseLost):
            await work()

    @about("store")
    async def test_a_body_whose_lock_was_broken_learns_on_exit(self, stage: Stage) -> None:
        async def work() -> None:
            async with stage.locks().lock("watch"):
                await stage.locks().break_lock("watch")

        with pytest.raises(LeaseLost):
            await work()

    @about("store")
    @needs("cancellation")
    @pytest.mark.parametrize("cause", ["deadline", "broken"])
    async def test_the_async_body_is_cancelled_and_lease_lost_is_raised(self, stage: Stage, cause: str) -> None:
        locks, seen = stage.locks(), _BodyState()
        worker = stage.start(_work(stage, locks.lock("watch", ttl=30), seen))
        await stage.until(lambda: seen.inside)
        await _lose(stage, locks, "watch", cause, lambda: seen.cancelled)
        with pytest.raises(LeaseLost):
            await worker.result()
        assert seen.cancelling == 0  # the task is as good as before

    @needs("cancellation")
    async def test_a_cancellation_from_outside_is_never_swallowed(self, stage: Stage) -> None:
        locks, seen = stage.locks(), _BodyState()
        worker = stage.start(_work(stage, locks.lock("watch", ttl=30), seen))
        await stage.until(lambda: seen.inside)
        worker.cancel()  # in the same moment in which the lease is lost
        stage.clock.advance(30)
        with pytest.raises(asyncio.CancelledError):
            await worker.result()

    @needs("cancellation")
    async def test_a_cancellation_after_the_loss_is_never_swallowed(self, stage: Stage) -> None:
        locks, seen = stage.locks(), _BodyState()
        worker = stage.start(_work(stage, locks.lock("watch", ttl=30), seen, slow_to_stop=True))
        await stage.until(lambda: seen.inside)
        await _lose(stage, locks, "watch", "deadline", lambda: seen.cancelled)
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker.result()

    @needs("cancellation")
    async def test_nested_the_outer_loss_ends_both_bodies(self, stage: Stage) -> None:
        outer, inner = stage.locks(), stage.locks()
        seen = _BodyState()

        async def work() -> None:
            async with outer.lock("outer", ttl=30):
                await _work(stage, inner.lock("inner", ttl=300), seen)

        worker = stage.start(work())
        await stage.until(lambda: seen.inside)
        await _lose(stage, outer, "outer", "broken", lambda: seen.cancelled)
        with pytest.raises(LeaseLost, match="'outer'"):
            await worker.result()
        assert await stage.is_free("inner")

    @needs("cancellation")
    async def test_nested_the_inner_loss_leaves_the_outer_body_running(self, stage: Stage) -> None:
        outer, inner = stage.locks(), stage.locks()
        seen = _BodyState()

        async def work() -> bool:
            async with outer.lock("outer", ttl=300) as lease:
                with pytest.raises(LeaseLost, match="'inner'"):
                    await _work(stage, inner.lock("inner", ttl=30), seen)
                await stage.step()  # no cancellation is left over
                held: bool = lease.held
                return held

        worker = stage.start(work())
        await stage.until(lambda: seen.inside)
        await _lose(stage, inner, "inner", "broken", lambda: seen.cancelled)
        assert await worker.result() is True
        assert await stage.is_free("outer")

    @needs("cancellation")
    async def test_nested_both_lost_at_once_ends_as_lost(self, stage: Stage) -> None:
        locks, seen = stage.locks(), _BodyState()

        async def work() -> None:
            async with locks.lock("outer", ttl=30):
                await _work(stage, locks.lock("inner", ttl=30), seen)

        worker = stage.start(work())
        await stage.until(lambda: seen.inside)
        locks.faults.lose_request("renew", ALWAYS)
        await stage.asleep()
        stage.clock.advance(30)
        with pytest.raises(LeaseLost):
            await worker.result()

    @needs("asyncio")
    async def test_a_loss_inside_a_task_group_comes_out_as_lease_lost(self, stage: Stage) -> None:
        locks, seen = stage.locks(), _BodyState()

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(_work(stage, locks.lock("watch", ttl=30), seen))

        worker = stage.start(work())
        await stage.until(lambda: seen.inside)
        await _lose(stage, locks, "watch", "broken", lambda: seen.cancelled)
        with pytest.raises(ExceptionGroup) as raised:
            await worker.result()
        assert [type(error) for error in raised.value.exceptions] == [LeaseLost]

    @needs("asyncio")
    async def test_a_timeout_within_the_body_stays_a_timeout(self, stage: Stage) -> None:
        async def work() -> str:
            async with stage.locks().lock("watch") as lease:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await asyncio.Event().wait()
                return "held" if lease.held else "lost"

        assert await work() == "held"

    @needs("cancellation")
    async def test_a_body_that_went_on_past_its_cancellation_still_ends_as_lost(self, stage: Stage) -> None:
        locks, seen = stage.locks(), _BodyState()

        async def stubborn() -> None:
            async with locks.lock("watch", ttl=30):
                seen.inside = True
                try:
                    await stage.for_ever()
                except asyncio.CancelledError:
                    seen.cancelled = True  # and swallows it

        worker = stage.start(stubborn())
        await stage.until(lambda: seen.inside)
        await _lose(stage, locks, "watch", "broken", lambda: seen.cancelled)
        with pytest.raises(LeaseLost):
            await worker.result()

    # What was lost

    @about("store")
    async def test_releasing_what_was_lost_returns_false_and_touches_nobody(self, stage: Stage) -> None:
        _, lease = await _expired(stage)
        following = await stage.locks().lock("watch").take()
        assert await lease.release() is False
        assert await stage.fences("watch") == [following.fence]

    async def test_releasing_what_was_lost_through_the_lock_object_raises(self, stage: Stage) -> None:
        lock, _ = await _expired(stage)
        following = await stage.locks().lock("watch").take()
        with pytest.raises(LockError):
            await lock.release()
        assert await stage.fences("watch") == [following.fence]

    @about("store")
    async def test_extending_what_was_lost_raises_and_touches_nobody(self, stage: Stage) -> None:
        _, lease = await _expired(stage)
        following = await stage.locks().lock("watch", ttl=20, renew=False).take()
        with pytest.raises(LeaseLost):
            await lease.extend(100)
        stage.clock.advance(20)
        assert await stage.is_free("watch")
        assert following.lost

    @about("store")
    async def test_extending_never_takes_an_expired_lock_again(self, stage: Stage) -> None:
        _, lease = await _expired(stage)
        with pytest.raises(LeaseLost):
            await lease.extend(100)
        assert await stage.is_free("watch")

    @about("store")
    @needs("expires")
    async def test_the_store_never_brings_back_what_has_expired(self, stage: Stage) -> None:
        """Though the client's clock lags: only the store knows that it is over."""
        lease = await stage.locks(clock=FakeClock()).lock("watch", ttl=10, renew=False).take()
        stage.clock.advance(10)
        assert lease.held  # as far as its own clock shows
        with pytest.raises(LeaseLost):
            await lease.extend(100)
        assert await stage.is_free("watch")

    @about("store")
    async def test_a_broken_lock_s_former_holder_leaves_the_next_one_alone(self, stage: Stage) -> None:
        lease = await stage.locks().lock("watch").take()
        await stage.locks().break_lock("watch")
        following = await stage.locks().lock("watch").take()
        assert await lease.release() is False
        assert lease.lost
        assert await stage.fences("watch") == [following.fence]


class _BodyState:
    """What became of a body."""

    inside = False
    cancelled = False
    cancelling: int | None = None


async def _work(stage: Stage, lock: AwaitedLock, seen: _BodyState, *, slow_to_stop: bool = False) -> None:
    try:
        async with lock:
            seen.inside = True
            try:
                await stage.for_ever()
            except asyncio.CancelledError:
                seen.cancelled = True
                if slow_to_stop:
                    await stage.for_ever()
                raise
    finally:
        seen.cancelling = stage._here().cancelling()


async def _lose(stage: Stage, locks: AwaitedLocks, name: str, cause: str, reported: Callable[[], object]) -> None:
    """Let a lease with a ttl of 30 be lost, and wait until that is reported."""
    await stage.asleep()
    if cause == "broken":
        await stage.observer.break_lock(name)
        stage.clock.advance(10)
    else:
        locks.faults.lose_request("renew", ALWAYS)
        stage.clock.advance(30)
    await stage.until(reported, "the loss to be reported")
