"""Semaphores: at most `limit` hold a name at once, each permit a lease of its own, first come first served."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from lockfast._model import PRESENCE_S, Busy, Grant, Renewal
from lockfast.errors import LeaseLost, LimitMismatch, LockError
from lockfast.testing.awaited import AwaitedLease, AwaitedLock
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.stage import Actor, Stage


async def _fill(stage: Stage, limit: int, **options: Any) -> list[AwaitedLease]:
    """All permits of the pool, each taken by a client of its own."""
    return [await stage.locks().semaphore("pool", limit, **options).take() for _ in range(limit)]


class Semaphores(Promise, about="store", needs=("limits",)):
    # How many

    @pytest.mark.parametrize("limit", [1, 2, 5])
    async def test_as_many_hold_a_semaphore_as_its_limit_says_and_no_more(self, stage: Stage, limit: int) -> None:
        permits = await _fill(stage, limit)
        assert all(permit.held for permit in permits)
        late = stage.locks().semaphore("pool", limit)
        assert await late.acquire(blocking=False) is None
        await permits[0].release()
        assert (await late.take()).held
        assert await stage.locks().semaphore("pool", limit).acquire(blocking=False) is None

    async def test_never_more_bodies_run_at_once_than_the_limit(self, stage: Stage) -> None:
        inside: list[int] = []
        counts: list[int] = []

        async def visit(permit: AwaitedLock) -> None:
            for _ in range(5):
                async with permit:
                    inside.append(1)
                    await stage.breathe()
                    counts.append(len(inside))
                    inside.pop()

        shared = stage.locks()
        clients = [stage.locks(), stage.locks(), shared, shared, shared]
        visitors = [stage.start(visit(locks.semaphore("pool", 2))) for locks in clients]
        for visitor in visitors:
            await visitor.result()
        assert len(counts) == 25
        assert max(counts) <= 2

    async def test_a_semaphore_of_one_and_a_lock_of_the_same_name_exclude_each_other(self, stage: Stage) -> None:
        permit = await stage.locks().semaphore("pool", 1).take()
        lock = stage.locks().lock("pool")
        assert await lock.acquire(blocking=False) is None
        await permit.release()
        await lock.take()
        assert await stage.locks().semaphore("pool", 1).acquire(blocking=False) is None

    @about("engine")
    async def test_one_client_can_hold_all_permits_through_one_object(self, stage: Stage) -> None:
        pool = stage.locks().semaphore("pool", 3)
        first, second, third = await pool.take(), await pool.take(), await pool.take()
        await pool.release()
        assert (first.held, second.held, third.held) == (True, True, False)  # the last one first
        await pool.release()
        await pool.release()
        assert await stage.is_free("pool")

    async def test_a_lost_reply_costs_no_second_permit(self, stage: Stage) -> None:
        locks = stage.locks()
        locks.faults.lose_reply("acquire")
        permit = await stage.finish(locks.semaphore("pool", 2).take())
        assert await stage.fences("pool") == [permit.fence]

    async def test_a_permit_stays_taken_for_its_min_hold(self, stage: Stage) -> None:
        await (await stage.locks().semaphore("pool", 1, min_hold=5).take()).release()
        late = stage.locks().semaphore("pool", 1)
        assert await late.acquire(blocking=False) is None
        stage.clock.advance(5)
        assert (await late.take()).held

    # Each permit is a lease of its own

    async def test_each_permit_has_a_fence_of_its_own_and_all_only_grow(self, stage: Stage) -> None:
        permits = await _fill(stage, 3)
        fences = [permit.fence for permit in permits]
        assert fences == sorted(set(fences))
        assert await stage.fences("pool") == fences
        await permits[0].release()
        assert (await stage.locks().semaphore("pool", 3).take()).fence > fences[-1]

    async def test_releasing_one_permit_leaves_the_others(self, stage: Stage) -> None:
        permits = await _fill(stage, 3)
        assert await permits[1].release()
        assert [permit.held for permit in permits] == [True, False, True]
        assert await stage.fences("pool") == [permits[0].fence, permits[2].fence]

    @about("engine")
    async def test_each_permit_is_renewed_by_itself(self, stage: Stage) -> None:
        locks = stage.locks()
        kept, left = [await locks.semaphore("pool", 2, ttl=30, renew=renew).take() for renew in (True, False)]
        await stage.asleep()
        await stage.pass_time(100)
        assert kept.held
        assert left.lost
        assert await stage.fences("pool") == [kept.fence]

    @about("engine")
    async def test_extending_one_permit_extends_no_other(self, stage: Stage) -> None:
        longer, other = await _fill(stage, 2, ttl=10, renew=False)
        await longer.extend(60)
        stage.clock.advance(10)
        assert (longer.held, other.held) == (True, False)
        assert await stage.fences("pool") == [longer.fence]

    @about("engine")
    async def test_a_lost_permit_is_reported_to_its_holder_alone(self, stage: Stage) -> None:
        reported: list[str] = []
        locks = stage.locks()
        short = await locks.semaphore("pool", 2, ttl=10, renew=False, on_lost=lambda _: reported.append("short")).take()
        long = await locks.semaphore("pool", 2, ttl=60, renew=False, on_lost=lambda _: reported.append("long")).take()
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: reported, "the loss to be reported")
        await stage.breathe()
        assert reported == ["short"]
        assert (short.lost, long.held) == (True, True)
        with pytest.raises(LeaseLost, match="'pool'"):
            short.check()

    @about("engine")
    @needs("cancellation")
    async def test_the_loss_of_a_permit_cancels_its_own_body_alone(self, stage: Stage) -> None:
        locks, inside, cancelled = stage.locks(), list[str](), list[str]()

        async def work(who: str, ttl: float) -> None:
            async with locks.semaphore("pool", 2, ttl=ttl, renew=False):
                inside.append(who)
                try:
                    await stage.for_ever()
                except asyncio.CancelledError:
                    cancelled.append(who)
                    raise

        unlucky, other = stage.start(work("unlucky", 10)), stage.start(work("other", 60))
        await stage.until(lambda: len(inside) == 2)
        await stage.asleep()
        stage.clock.advance(10)
        with pytest.raises(LeaseLost):
            await unlucky.result()
        assert cancelled == ["unlucky"]
        assert not other.done

    async def test_a_permit_that_was_lost_never_frees_another_s(self, stage: Stage) -> None:
        lost = await stage.locks().semaphore("pool", 1, ttl=10, renew=False).take()
        stage.clock.advance(10)
        following = await stage.locks().semaphore("pool", 1).take()
        assert await lost.release() is False
        with pytest.raises(LeaseLost):
            await lost.extend(60)
        assert await stage.fences("pool") == [following.fence]

    async def test_a_claim_without_a_permit_frees_and_renews_none_at_the_store(self, stage: Stage) -> None:
        permits = await _fill(stage, 2)
        verbs, stranger = stage.locks().faults, stage.claim("pool", mode="shared", limit=2)
        assert await verbs.release(stranger, linger=0.0, within=5) is False
        assert await verbs.renew([Renewal(stranger, 60, permits[0].fence)], within=5) == [False]
        await verbs.abandon(stranger, within=5)
        assert await stage.fences("pool") == [permit.fence for permit in permits]
        assert await stage.locks().semaphore("pool", 2).acquire(blocking=False) is None

    async def test_inspect_shows_every_holder_of_a_semaphore(self, stage: Stage) -> None:
        for name in ("worker-1", "worker-2"):
            await stage.locks(holder=name).semaphore("pool", 3, metadata={"who": name}).take()
        holders = (await stage.info("pool")).holders
        reported = [(held.holder, held.mode, held.metadata) for held in holders]
        assert reported == [(name, "shared", {"who": name}) for name in ("worker-1", "worker-2")]

    # A crash, and an operator

    async def test_the_permit_of_a_crashed_holder_comes_back_after_its_ttl(self, stage: Stage) -> None:
        dead = stage.claim("pool", ttl=7.5, mode="shared", limit=2)  # granted, and its client sends nothing any more
        assert isinstance(await stage.observer.faults.acquire(dead, enqueue=False, within=5), Grant)
        other = await stage.locks().semaphore("pool", 2, ttl=60).take()
        waiter = stage.start(stage.locks().semaphore("pool", 2).take())
        await stage.queue("pool", 1)
        assert await stage.sleep_through(waiter) == pytest.approx(7.5)
        assert other.held
        assert await stage.fences("pool") == [other.fence, (await waiter.result()).fence]

    async def test_breaking_a_semaphore_ends_every_permit_and_lets_the_next_in(self, stage: Stage) -> None:
        permits = await _fill(stage, 3)
        waiters = []
        for number in range(2):
            waiters.append(stage.start(stage.locks().semaphore("pool", 3).take()))
            await stage.queue("pool", number + 1)
        before = await stage.observer.break_lock("pool")
        assert [held.fence for held in before.holders] == [permit.fence for permit in permits]
        following = [(await waiter.result()).fence for waiter in waiters]
        assert min(following) > max(permit.fence for permit in permits)
        for permit in permits:
            with pytest.raises(LeaseLost):
                await permit.extend()
            assert await permit.release() is False
        assert sorted(await stage.fences("pool")) == sorted(following)

    # The queue

    @pytest.mark.parametrize("clients", ["each their own", "one for all"])
    async def test_waiters_for_a_permit_are_served_in_the_order_in_which_they_came(
        self, stage: Stage, clients: str
    ) -> None:
        one = stage.locks()
        permits = await _fill(stage, 2, ttl=600)
        order: list[int] = []

        async def pass_through(pool: AwaitedLock, number: int) -> None:
            permit = await pool.take()
            order.append(number)
            await permit.release()

        waiters = []
        for number in range(6):
            locks = one if clients == "one for all" else stage.locks()
            waiters.append(stage.start(pass_through(locks.semaphore("pool", 2, ttl=600), number)))
            await stage.queue("pool", number + 1)
        await permits[0].release()  # the other stays, so they pass one by one
        for waiter in waiters:
            await waiter.result()
        assert order == [0, 1, 2, 3, 4, 5]

    async def test_a_released_permit_wakes_one_waiter_and_the_others_sleep_on(self, stage: Stage) -> None:
        permits = await _fill(stage, 2, ttl=600)
        clients = [stage.locks() for _ in range(4)]
        waiters: list[Actor[AwaitedLease]] = []
        for number, locks in enumerate(clients):
            waiters.append(stage.start(locks.semaphore("pool", 2, ttl=600).take()))
            await stage.queue("pool", number + 1)
        before = [locks.faults.calls["acquire"] for locks in clients]
        await permits[0].release()
        assert (await waiters[0].result()).held
        await stage.queue("pool", 3)
        asked = [locks.faults.calls["acquire"] - was for locks, was in zip(clients, before, strict=True)]
        assert asked == [0 if stage.hands_over else 1, 0, 0, 0]
        await permits[1].release()
        assert (await waiters[1].result()).held
        await stage.queue("pool", 2)
        assert [waiter.done for waiter in waiters] == [True, True, False, False]

    async def test_a_newcomer_does_not_take_the_permit_of_a_waiter_that_was_woken(self, stage: Stage) -> None:
        permits = await _fill(stage, 2)
        slow = stage.locks()
        slow.faults.hang_reply("wait")
        waiter = stage.start(slow.semaphore("pool", 2).take())
        await stage.queue("pool", 1)
        await permits[0].release()
        await stage.until(lambda: slow.faults.hanging == 1)
        assert await stage.locks().semaphore("pool", 2).acquire(blocking=False) is None
        slow.faults.resume()
        assert (await waiter.result()).held

    @needs("cancellation")
    async def test_a_cancelled_waiter_for_a_permit_hands_on_to_the_next(self, stage: Stage) -> None:
        permits = await _fill(stage, 2)
        unlucky = stage.locks()
        unlucky.faults.hang_reply("wait")
        first = stage.start(unlucky.semaphore("pool", 2).take())
        await stage.queue("pool", 1)
        second = stage.start(stage.locks().semaphore("pool", 2).take())
        await stage.queue("pool", 2)
        await permits[0].release()
        await stage.until(lambda: unlucky.faults.hanging == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first.result()
        assert (await second.result()).held
        assert len(await stage.fences("pool")) == 2

    # Another limit

    async def test_another_limit_for_a_name_in_use_is_an_error_that_names_both(self, stage: Stage) -> None:
        permit = await stage.locks().semaphore("pool", 3).take()
        other = stage.locks().semaphore("pool", 5)
        with pytest.raises(LimitMismatch, match=r"'pool'.* limit 3\b.* limit 5\b") as refused:
            await other.acquire()
        error = refused.value
        assert isinstance(error, LockError)
        assert isinstance(error, ValueError)
        assert (error.name, error.limit, error.asked) == ("pool", 3, 5)
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (LimitMismatch, str(error), vars(error))
        with pytest.raises(LimitMismatch):
            await other.acquire(blocking=False)
        with pytest.raises(LimitMismatch):
            async with other:
                pytest.fail("the body ran without the lock")
        info = await stage.info("pool")
        assert ([held.fence for held in info.holders], info.waiters) == ([permit.fence], 0)

    async def test_the_limit_of_those_who_wait_counts_too(self, stage: Stage) -> None:
        lock = await stage.locks().lock("pool").take()
        waiter = stage.start(stage.locks().semaphore("pool", 2).take())
        await stage.queue("pool", 1)
        with pytest.raises(LimitMismatch, match=r"limit 2\b.* limit 4\b"):
            await stage.locks().semaphore("pool", 4).acquire()
        await stage.queue("pool", 1)
        await lock.release()
        assert (await waiter.result()).held

    async def test_a_waiter_that_was_silent_for_too_long_is_held_to_the_limit_of_those_who_came_since(
        self, stage: Stage
    ) -> None:
        verbs = stage.locks().faults
        held, silent = stage.claim("pool", ttl=600), stage.claim("pool", mode="shared", limit=2)
        assert isinstance(await verbs.acquire(held, enqueue=False, within=5), Grant)
        assert isinstance(await verbs.acquire(silent, enqueue=True, within=5), Busy)
        stage.clock.advance(PRESENCE_S)  # its place is void
        await verbs.release(held, linger=0, within=5)
        since = stage.claim("pool", ttl=600, mode="shared", limit=1)
        assert isinstance(await verbs.acquire(since, enqueue=False, within=5), Grant)
        with pytest.raises(LimitMismatch, match=r"limit 1\b.* limit 2\b"):
            await verbs.acquire(silent, enqueue=True, within=5)

    @pytest.mark.parametrize("end", ["release", "expiry", "break"])
    async def test_another_limit_is_fine_when_all_have_gone(self, stage: Stage, end: str) -> None:
        permits = await _fill(stage, 2, ttl=10, renew=False)
        other = stage.locks().semaphore("pool", 3)
        if end == "release":
            await permits[0].release()
            with pytest.raises(LimitMismatch):  # one is still there
                await other.acquire()
            await permits[1].release()
        elif end == "expiry":
            stage.clock.advance(10)
        else:
            await stage.observer.break_lock("pool")
        assert (await other.take()).held

    async def test_a_semaphore_and_the_readers_of_the_same_name_refuse_each_other(self, stage: Stage) -> None:
        await stage.locks().rwlock("pool").read().take()
        with pytest.raises(LimitMismatch, match=r"without a limit.* limit 2\b"):
            await stage.locks().semaphore("pool", 2).acquire()

    @about("engine")
    @pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3", None])
    async def test_a_limit_that_makes_no_sense_is_refused_before_anything_is_sent(
        self, stage: Stage, limit: Any
    ) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="limit"):
            locks.semaphore("pool", limit)
        assert not locks.faults.calls
