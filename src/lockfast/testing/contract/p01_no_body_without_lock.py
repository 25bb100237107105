"""Promise 1: the body never runs without the lock. Not acquired in time means an exception, or `None`."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lockfast.errors import AcquireTimeout, BackendUnavailable, LockError
from lockfast.testing.awaited import AwaitedLease, AwaitedLock
from lockfast.testing.contract.story import Promise, about, needs, on_the_real_clock
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Actor, Stage


class NoBodyWithoutLock(Promise, about="engine"):
    async def test_a_body_whose_lock_is_not_acquired_in_time_never_runs(self, stage: Stage) -> None:
        await stage.locks().lock("door", ttl=60).take()
        ran: list[str] = []
        visitor = stage.start(_body(stage.locks().lock("door", wait=5), ran))
        await stage.queue("door", 1)
        with pytest.raises(AcquireTimeout):
            await _result_when_time_passed(stage, visitor)
        assert not ran

    @about("store")
    async def test_a_body_with_wait_zero_never_runs_when_the_lock_is_taken(self, stage: Stage) -> None:
        await stage.locks(holder="worker-7").lock("door").take()
        ran: list[str] = []
        with pytest.raises(AcquireTimeout, match=r"^lock 'door' is held by 'worker-7'$"):  # nothing was waited for
            await _body(stage.locks().lock("door", wait=0), ran)
        assert not ran

    @about("store")
    async def test_a_refusal_names_the_lock_its_holder_and_how_long_was_waited(self, stage: Stage) -> None:
        await stage.locks(holder="worker-7").lock("door", ttl=60).take()
        visitor = stage.start(_body(stage.locks().lock("door", wait=5), []))
        await stage.queue("door", 1)
        with pytest.raises(TimeoutError, match=r"'door' is still held by 'worker-7' after 5s") as refused:
            await _result_when_time_passed(stage, visitor)
        error = refused.value
        assert isinstance(error, AcquireTimeout)
        assert isinstance(error, LockError)
        assert (error.name, error.holder, error.waited) == ("door", "worker-7", 5.0)
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (AcquireTimeout, str(error), vars(error))

    async def test_acquire_returns_none_when_the_lock_is_not_acquired_in_time(self, stage: Stage) -> None:
        await stage.locks().lock("door", ttl=60).take()
        visitor = stage.start(stage.locks().lock("door").acquire(timeout=5))
        await stage.queue("door", 1)
        assert await stage.sleep_through(visitor) == pytest.approx(5)
        assert await visitor.result() is None

    async def test_a_wait_ends_in_time_though_the_waiter_fell_asleep_late(self, stage: Stage) -> None:
        await stage.locks().lock("door", ttl=60).take()
        slow = stage.locks()
        slow.faults.hang_request("wait")  # it knows how long it will sleep, and does not sleep yet
        visitor = stage.start(slow.lock("door").acquire(timeout=5))
        await stage.until(lambda: slow.faults.hanging, "the visitor to be about to sleep")
        stage.clock.advance(5)
        slow.faults.resume()
        assert await visitor.result() is None

    @pytest.mark.parametrize("once", [{"blocking": False}, {"timeout": 0}, {"timeout": 0.0}])
    async def test_trying_once_asks_once_and_does_not_wait(self, stage: Stage, once: dict[str, float]) -> None:
        await stage.locks().lock("door").take()
        visitor = stage.locks()
        assert await visitor.lock("door").acquire(**once) is None  # type: ignore[arg-type]
        assert visitor.faults.calls == {"acquire": 1}
        assert (await stage.info("door")).waiters == 0

    async def test_wait_zero_is_what_acquire_and_with_use_by_default(self, stage: Stage) -> None:
        await stage.locks().lock("door").take()
        visitor = stage.locks()
        assert await visitor.lock("door", wait=0).acquire() is None
        with pytest.raises(AcquireTimeout):
            await _body(visitor.lock("door", wait=0), [])
        assert visitor.faults.calls == {"acquire": 2}

    async def test_a_timeout_given_to_acquire_takes_the_place_of_wait(self, stage: Stage) -> None:
        holder = await stage.locks().lock("door", ttl=600).take()
        patient = stage.start(stage.locks().lock("door", wait=0).acquire(timeout=100))
        await stage.queue("door", 1)
        await stage.pass_time(99)
        await stage.queue("door", 1)
        await holder.release()
        assert await patient.result() is not None

    async def test_a_wait_shorter_than_any_interval_of_ours_is_honoured_and_no_longer(self, stage: Stage) -> None:
        await stage.locks().lock("door", ttl=60).take()
        visitor = stage.start(stage.locks().lock("door", wait=0.03).acquire())
        await stage.queue("door", 1)
        stage.clock.advance(0.02)
        await stage.queue("door", 1)  # not given up at once
        assert not visitor.done
        stage.clock.advance(0.01)
        assert await visitor.result() is None

    @about("store")
    async def test_a_short_wait_is_long_enough_for_a_lock_that_is_freed_meanwhile(self, stage: Stage) -> None:
        holder = await stage.locks().lock("door", ttl=60).take()
        visitor = stage.start(stage.locks().lock("door", wait=0.03).acquire())
        await stage.queue("door", 1)
        stage.clock.advance(0.02)
        await holder.release()
        assert await visitor.result() is not None

    @pytest.mark.parametrize("for_ever", [{}, {"timeout": None}, {"timeout": -1}])
    async def test_without_a_limit_it_waits_for_ever(self, stage: Stage, for_ever: dict[str, float]) -> None:
        holder = await stage.locks().lock("door", ttl=10 * 86400, renew=False).take()
        visitor = stage.start(stage.locks().lock("door").acquire(**for_ever))  # type: ignore[arg-type]
        for _ in range(5):
            await stage.queue("door", 1)
            stage.clock.advance(10)
        await stage.queue("door", 1)
        assert not visitor.done
        await holder.release()
        lease = await visitor.result()
        assert lease is not None
        assert lease.held

    async def test_a_backend_that_cannot_be_asked_is_an_error_and_not_a_busy_lock(self, stage: Stage) -> None:
        locks = stage.locks(patience=2)
        locks.faults.lose_request("acquire", ALWAYS)
        ran: list[str] = []
        with pytest.raises(BackendUnavailable):
            await stage.finish(_body(locks.lock("door", wait=1), ran))
        with pytest.raises(BackendUnavailable):
            await stage.finish(locks.lock("door").acquire(blocking=False))
        assert not ran

    @about("store")
    async def test_a_grant_whose_answer_took_longer_than_its_ttl_is_no_lease(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        locks.faults.hang_reply("acquire", ALWAYS)
        ran: list[str] = []
        visitor = stage.start(_body(locks.lock("door", ttl=10), ran))
        await stage.until(lambda: locks.faults.hanging == 1)
        stage.clock.advance(10)
        locks.faults.resume()
        with pytest.raises(BackendUnavailable, match="not held"):
            await visitor.result()
        assert not ran
        assert await stage.is_free("door")

    @needs("reserves")
    async def test_a_grant_is_looked_for_again_after_waiting_and_never_assumed(self, stage: Stage) -> None:
        """A waiter that slept through its reservation, or through all of its ttl, has to wait again."""
        holder = await stage.locks().lock("door").take()
        sleepy = stage.locks()
        sleepy.faults.hang_reply("wait")
        waiter = stage.start(sleepy.lock("door", ttl=10, wait=60).acquire())
        await stage.until(lambda: sleepy.faults.waiting == 1)
        await stage.queue("door", 1, dead=1)
        await holder.release()
        await stage.until(lambda: sleepy.faults.hanging == 1)
        stage.clock.advance(20)  # its ttl is over; or its reservation has lapsed, and its place in the queue too
        thief = await stage.locks().lock("door", wait=0).take()
        sleepy.faults.resume()
        await stage.queue("door", 1)
        assert not waiter.done
        assert thief.held
        await thief.release()
        lease = await waiter.result()
        assert lease is not None
        assert lease.fence > thief.fence

    @about("store")
    async def test_no_two_bodies_run_at_once(self, stage: Stage) -> None:
        shared = stage.locks()
        inside: list[int] = []
        contended: list[int] = []

        async def visit(lock: AwaitedLock) -> None:
            for _ in range(5):
                async with lock:
                    inside.append(1)
                    await stage.breathe()
                    contended.append(len(inside))
                    inside.pop()

        own = [stage.locks().lock("door") for _ in range(3)]
        visitors = [stage.start(visit(lock)) for lock in [*own, shared.lock("door"), shared.lock("door")]]
        for visitor in visitors:
            await visitor.result()
        assert contended == [1] * 25

    @about("store")
    @on_the_real_clock
    async def test_sub_second_lengths_work_on_the_real_clock(self, stage: Stage) -> None:
        locks, other = stage.locks(), stage.locks()
        for each in (locks, other):
            async with each.lock("window"):
                pass  # to connect may take longer than that
        await locks.lock("door", ttl=0.2, renew=False).take()
        with pytest.raises((AcquireTimeout, BackendUnavailable)):  # a busy store may not even say that it is held
            await _body(other.lock("door", ttl=0.5, wait=0.05), [])
        lease = await other.lock("door", ttl=0.5).take()
        assert lease.remaining <= lease.ttl == 0.5


async def _result_when_time_passed(stage: Stage, visitor: Actor[Any]) -> Any:
    """Alarm by alarm: else one that is about to sleep again would oversleep."""
    await stage.sleep_through(visitor)
    return await visitor.result()


async def _body(lock: AwaitedLock, ran: list[str]) -> AwaitedLease:
    async with lock as lease:
        ran.append("body")
        return lease
