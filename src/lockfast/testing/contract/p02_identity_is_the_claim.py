"""Promise 2: identity is the claim, not the thread, task or process.

Nothing but the claim's own lease, `break_lock` or expiry ends a hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
import uuid

import pytest

from lockfast._model import Grant, Renewal
from lockfast.errors import LeaseLost, LockError, NotHeld
from lockfast.testing.awaited import AwaitedLease, AwaitedLock
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.stage import LIMIT_S, Stage
from lockfast.testing.stage_asyncio import AsyncioStage


class IdentityIsTheClaim(Promise, about="store"):
    @about("engine")
    async def test_every_acquire_makes_a_fresh_uuid7(self, stage: Stage) -> None:
        lock = stage.locks().lock("safe")
        ids: list[str] = []
        for _ in range(20):
            async with lock as lease:
                ids.append(lease.claim_id)
        assert len(set(ids)) == 20
        assert {uuid.UUID(id).version for id in ids} == {7}

    async def test_two_clients_that_call_themselves_the_same_are_still_two(self, stage: Stage) -> None:
        lease = await stage.locks(holder="twin").lock("safe").take()
        twin = stage.locks(holder="twin").lock("safe")
        assert await twin.acquire(blocking=False) is None
        with pytest.raises(NotHeld):
            await twin.release()
        assert lease.held
        assert await stage.fences("safe") == [lease.fence]

    @about("engine")
    async def test_the_same_object_in_the_same_thread_or_task_cannot_enter_twice(self, stage: Stage) -> None:
        lock = stage.locks().lock("safe")
        lease = await lock.take()
        assert await lock.acquire(blocking=False) is None
        assert lease.held

    @about("engine")
    async def test_a_failed_second_try_leaves_the_owner_able_to_release(self, stage: Stage) -> None:
        lock = stage.locks().lock("safe")
        await lock.take()
        assert await lock.acquire(blocking=False) is None
        assert await stage.start(lock.acquire(blocking=False)).result() is None
        await lock.release()
        assert await stage.is_free("safe")

    async def test_a_failed_try_of_a_stranger_changes_nothing_for_the_holder(self, stage: Stage) -> None:
        lease = await stage.locks().lock("safe").take()
        before = await stage.info("safe")
        for _ in range(3):
            assert await stage.locks().lock("safe").acquire(blocking=False) is None
        after = await stage.info("safe")
        assert [holder.claim_id for holder in after.holders] == [lease.claim_id]
        assert after.waiters == before.waiters == 0
        assert await lease.release()

    @about("engine")
    async def test_a_lease_taken_by_one_actor_can_be_released_by_another(self, stage: Stage) -> None:
        lease = await stage.start(stage.locks().lock("safe").take()).result()
        assert lease.held
        assert await lease.release()
        assert await stage.is_free("safe")

    async def test_a_lease_outlives_the_thread_or_task_that_took_it(self, stage: Stage) -> None:
        lease = await stage.start(stage.locks().lock("safe", ttl=3).take()).result()
        await stage.asleep()
        await stage.pass_time(10)
        assert lease.held

    @about("engine")
    @pytest.mark.parametrize("several", [False, True])
    async def test_a_lease_can_be_neither_copied_nor_pickled(self, stage: Stage, several: bool) -> None:
        locks = stage.locks()
        lease = await (locks.all("till", "drawer") if several else locks.lock("till")).take()
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                copied(lease.raw)
        assert lease.held

    @about("engine")
    @needs("asyncio")
    async def test_acquiring_inside_wait_for_keeps_working(self, stage: Stage) -> None:
        lock = stage.locks().lock("safe")
        lease = await asyncio.wait_for(lock.acquire(), LIMIT_S)
        assert lease is not None
        assert lease.held
        await asyncio.wait_for(lock.release(), LIMIT_S)
        assert await stage.is_free("safe")

    async def test_a_stranger_cannot_release_it(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("safe").take()
        for stranger in (locks.lock("safe"), stage.locks().lock("safe")):
            with pytest.raises(NotHeld, match="'safe'"):
                await stranger.release()
        assert await stage.fences("safe") == [lease.fence]

    async def test_a_broken_hold_is_not_renewed_by_a_later_grant_of_the_same_claim(self, stage: Stage) -> None:
        claim, verbs = stage.claim("safe"), stage.locks().faults
        before = await verbs.acquire(claim, enqueue=False, within=5)
        await stage.observer.break_lock("safe")
        after = await verbs.acquire(claim, enqueue=False, within=5)  # the same request, delivered once more, late
        assert isinstance(before, Grant)
        assert await verbs.renew([Renewal(claim, 60, before.fence)], within=5) == [False]
        if isinstance(after, Grant):  # a quorum refuses a claim that was broken
            assert await verbs.renew([Renewal(claim, 60, after.fence)], within=5) == [True]

    @needs("expires")
    async def test_another_claim_ends_and_renews_nothing_at_the_store(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("safe", ttl=10, renew=False).take()
        stranger, verbs = stage.claim("safe"), locks.faults
        assert await verbs.release(stranger, linger=0.0, within=5) is False
        assert await verbs.release(stranger, linger=5.0, within=5) is False
        assert await verbs.renew([Renewal(stranger, 60, lease.fence)], within=5) == [False]
        await verbs.abandon(stranger, within=5)
        assert await stage.fences("safe") == [lease.fence]
        stage.clock.advance(10)
        assert await stage.is_free("safe")

    @about("engine")
    async def test_actors_that_share_one_lock_object_leave_only_their_own_with(self, stage: Stage) -> None:
        """The first one's lease has ended; leaving its `with` must not end the second one's."""
        lock = stage.locks().lock("safe", ttl=10, renew=False, wait=60)
        inside, leave = _Steps(), _Steps()
        first = stage.start(_visit(stage, lock, "first", inside, leave))
        await stage.until(lambda: "first" in inside)
        await stage.asleep()
        stage.clock.advance(10)
        second = stage.start(_visit(stage, lock, "second", inside, leave))
        await stage.until(lambda: "second" in inside)
        leave.add("first")
        await first.result()
        assert await stage.fences("safe") == [inside["second"].fence]
        assert inside["second"].held
        leave.add("second")
        await second.result()
        assert await stage.is_free("safe")

    @about("engine")
    async def test_actors_that_share_one_lock_object_release_only_their_own(self, stage: Stage) -> None:
        """As above with `acquire` and `release`, where only the caller distinguishes the leases."""
        lock = stage.locks().lock("safe", ttl=10, renew=False)
        inside, leave = _Steps(), _Steps()

        async def act(who: str) -> None:
            inside[who] = await lock.take()
            await stage.until(lambda: who in leave)
            await lock.release()

        first = stage.start(act("first"))
        await stage.until(lambda: "first" in inside)
        await stage.asleep()
        stage.clock.advance(10)
        second = stage.start(act("second"))
        await stage.until(lambda: "second" in inside)
        leave.add("first")
        with pytest.raises(LockError):
            await first.result()
        assert await stage.fences("safe") == [inside["second"].fence]
        leave.add("second")
        await second.result()
        assert await stage.is_free("safe")

    @about("engine")
    async def test_a_release_between_two_holders_of_one_object_ends_one_of_them(self, stage: Stage) -> None:
        lock = stage.locks().lock("safe", wait=60)
        async with lock as first:
            second = stage.start(lock.take())
            await stage.queue("safe", 1)
            assert await stage.fences("safe") == [first.fence]
        lease = await second.result()
        assert await stage.fences("safe") == [lease.fence]

    async def test_releasing_twice_changes_nothing_for_the_next_holder(self, stage: Stage) -> None:
        lock = stage.locks().lock("safe")
        lease = await lock.take()
        assert await lease.release()
        following = await stage.locks().lock("safe").take()
        assert await lease.release() is False
        with pytest.raises(NotHeld):
            await lock.release()
        assert following.held
        assert await stage.fences("safe") == [following.fence]

    @about("engine")
    async def test_a_lock_object_keeps_nothing_of_released_leases(self, stage: Stage) -> None:
        lock = stage.locks().lock("safe")
        for _ in range(50):
            lease = await lock.take()
            await lease.release()
        assert not lock.raw._logic._current

    async def test_breaking_ends_every_hold(self, stage: Stage) -> None:
        await stage.locks(holder="stuck").lock("safe").take()
        broken = await stage.locks().break_lock("safe")
        assert [holder.holder for holder in broken.holders] == ["stuck"]
        assert await stage.is_free("safe")

    async def test_an_expiry_ends_the_lease(self, stage: Stage) -> None:
        await stage.locks().lock("safe", ttl=10, renew=False).take()
        stage.clock.advance(9.99)
        assert await stage.locks().lock("safe").acquire(blocking=False) is None
        stage.clock.advance(0.01)
        assert await stage.is_free("safe")
        assert await stage.locks().lock("safe").acquire(blocking=False) is not None

    @needs("asyncio")
    async def test_a_thread_and_a_task_contend_for_one_lock(self, stage: AsyncioStage) -> None:
        blocking = stage.blocking_locks()
        held = blocking.lock("safe").acquire()
        assert held is not None
        waiter = stage.start(stage.locks().lock("safe").take())
        await stage.queue("safe", 1)
        held.release()
        lease = await waiter.result()
        assert lease.fence > held.fence
        assert blocking.lock("safe").acquire(blocking=False) is None


class _Steps(dict[str, AwaitedLease]):
    """Who came this far, with what."""

    def add(self, who: str) -> None:
        self[who] = None  # type: ignore[assignment]


async def _visit(stage: Stage, lock: AwaitedLock, who: str, inside: _Steps, leave: _Steps) -> None:
    with contextlib.suppress(LeaseLost):
        async with lock as lease:
            inside[who] = lease
            await stage.until(lambda: who in leave)
