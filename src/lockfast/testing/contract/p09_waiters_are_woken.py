"""Promise 9: waiters are woken, not polled for. FIFO within a name, no starvation, no thundering herd.

Polling exists only as repair. A dead waiter costs its ttl if it was made the holder, as any holder does; else a short
grace. However many of them stand in the queue, the next live one waits for one ttl,
or for a few seconds where that is shorter.
"""

from __future__ import annotations

import pytest

from lockfast._model import GRACE_S, MAX_POLL_S, POLL_SPREAD_S, PRESENCE_S, Busy, Grant, poll_after
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.contract.story import Promise, needs
from lockfast.testing.stage import Actor, Stage

_TTL_OF_THE_DEAD_S = 8.0


class WaitersAreWoken(Promise, about="store"):
    async def test_a_waiter_is_woken_by_release_and_not_by_its_timer(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate").take()
        waiter = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 1)
        await holder.release()
        assert (await waiter.result()).held  # and the clock has not moved

    async def test_a_waiter_is_woken_by_a_break(self, stage: Stage) -> None:
        await stage.locks().lock("gate").take()
        waiter = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 1)
        await stage.locks().break_lock("gate")
        assert (await waiter.result()).held

    async def test_a_waiter_is_woken_by_the_end_of_a_with(self, stage: Stage) -> None:
        async with stage.locks().lock("gate"):
            waiter = stage.start(stage.locks().lock("gate").take())
            await stage.queue("gate", 1)
        assert (await waiter.result()).held

    async def test_a_waiter_is_woken_by_close(self, stage: Stage) -> None:
        locks = stage.locks()
        await locks.lock("gate").take()
        waiter = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 1)
        await locks.close()
        assert (await waiter.result()).held

    @needs("expires")
    async def test_the_first_waiter_comes_in_at_the_moment_of_expiry(self, stage: Stage) -> None:
        await stage.locks().lock("gate", ttl=7.3, renew=False).take()
        waiter = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 1)
        assert await stage.sleep_through(waiter) == pytest.approx(7.3)

    @pytest.mark.parametrize("clients", ["each their own", "one for all"])
    async def test_waiters_are_served_in_the_order_in_which_they_came(self, stage: Stage, clients: str) -> None:
        one = stage.locks()
        holder = await stage.locks().lock("gate").take()
        order: list[int] = []
        waiters = []
        for number in range(6):
            locks = one if clients == "one for all" else stage.locks()
            waiters.append(stage.start(_pass_through(locks, order, number)))
            await stage.queue("gate", number + 1)
        await holder.release()
        for waiter in waiters:
            await waiter.result()
        assert order == [0, 1, 2, 3, 4, 5]

    async def test_a_newcomer_does_not_overtake_a_waiter_that_was_woken(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate").take()
        slow = stage.locks()
        slow.faults.hang_reply("wait")
        waiter = stage.start(slow.lock("gate").take())
        await stage.queue("gate", 1)
        await holder.release()
        await stage.until(lambda: slow.faults.hanging == 1)
        assert await stage.locks().lock("gate").acquire(blocking=False) is None
        slow.faults.resume()
        assert (await waiter.result()).held

    async def test_a_greedy_holder_does_not_starve_a_waiter(self, stage: Stage) -> None:
        greedy = stage.locks().lock("gate")
        lease = await greedy.take()
        waiter = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 1)
        await lease.release()
        assert await greedy.acquire(blocking=False) is None  # it is the waiter's turn
        assert (await waiter.result()).held

    @needs("wakes_once")
    @pytest.mark.parametrize("waiters", [2, 16])
    async def test_requests_per_hand_over_do_not_grow_with_the_waiters(self, stage: Stage, waiters: int) -> None:
        holder = await stage.locks().lock("gate").take()
        clients = [stage.locks() for _ in range(waiters)]
        order: list[int] = []
        actors: list[Actor[None]] = []
        for number, locks in enumerate(clients):
            actors.append(stage.start(_pass_through(locks, order, number)))
            await stage.queue("gate", number + 1)
        before = sum(sum(locks.faults.calls.values()) for locks in clients)
        await holder.release()
        for actor in actors:
            await actor.result()
        after = sum(sum(locks.faults.calls.values()) for locks in clients)
        assert order == list(range(waiters))
        confirms = 0 if stage.hands_over else 1  # one acquire of each that is granted
        assert after - before == (confirms + 1) * waiters  # and one release

    async def test_waiting_asks_rarely_and_hardly_more_for_a_longer_queue(self, stage: Stage) -> None:
        await stage.locks().lock("gate", ttl=3600, renew=False).take()
        clients = [stage.locks() for _ in range(16)]
        for number, locks in enumerate(clients):
            stage.start(_pass_through(locks, [], number))
            await stage.queue("gate", number + 1)
        before = sum(locks.faults.calls["acquire"] for locks in clients)
        await stage.pass_time(20)
        asked = sum(locks.faults.calls["acquire"] for locks in clients) - before
        assert 0 < asked <= 20 * 8

    async def test_a_timeout_does_not_start_again_when_the_holder_changes(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate", ttl=600).take()
        first = stage.start(stage.locks().lock("gate", ttl=600).take())
        await stage.queue("gate", 1)
        second = stage.start(stage.locks().lock("gate").acquire(timeout=10))
        await stage.queue("gate", 2)
        stage.clock.advance(6)
        await stage.queue("gate", 2)
        await holder.release()
        await first.result()
        await stage.queue("gate", 1)
        assert await stage.sleep_through(second) == pytest.approx(4)
        assert await second.result() is None

    async def test_a_lost_wake_up_is_repaired(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate", ttl=600).take()
        unwoken = stage.locks()
        unwoken.faults.loses_wakeups = True
        first = stage.start(unwoken.lock("gate", ttl=600).take())
        await stage.queue("gate", 1)
        second = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 2)
        await holder.release()
        assert await stage.sleep_through(first) <= MAX_POLL_S
        await (await first.result()).release()
        assert (await second.result()).held

    async def test_a_waiter_that_gives_up_in_the_moment_it_is_woken_hands_on_to_the_next(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate", ttl=600).take()
        unwoken = stage.locks()
        unwoken.faults.loses_wakeups = True
        first = stage.start(unwoken.lock("gate").acquire(timeout=0.4))
        await stage.queue("gate", 1)
        second = stage.start(stage.locks().lock("gate", ttl=600).take())
        await stage.queue("gate", 2)
        stage.clock.advance(0.3)
        await holder.release()  # it is the first one's now, which is not woken
        stage.clock.advance(0.1)
        taken = await first.result()
        if taken is not None:
            await taken.release()
        assert (await second.result()).held

    async def test_a_wake_up_between_the_answer_and_the_wait_is_not_missed(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate").take()
        late = stage.locks()
        late.faults.hang_reply("acquire")
        waiter = stage.start(late.lock("gate").take())
        await stage.until(lambda: late.faults.hanging == 1)
        await holder.release()
        late.faults.resume()
        assert (await waiter.result()).held

    # A wake-up that carries the grant

    @needs("hands_over")
    async def test_a_waiter_is_the_holder_before_it_asks_again(self, stage: Stage) -> None:
        holder, late = await stage.locks().lock("gate").take(), stage.locks(holder="late")
        late.faults.hang_reply("wait")
        waiter = stage.start(late.lock("gate", metadata={"job": 7}).take())
        await stage.queue("gate", 1)
        await holder.release()
        info = await stage.info("gate")
        assert [(each.holder, each.metadata) for each in info.holders] == [("late", {"job": 7})]
        assert info.waiters == 0
        late.faults.resume()
        lease = await waiter.result()
        assert [lease.fence] == [each.fence for each in info.holders]
        assert late.faults.calls["acquire"] == 1

    @needs("hands_over")
    async def test_a_grant_in_a_wake_up_counts_from_before_the_last_request(self, stage: Stage) -> None:
        holder, locks = await stage.locks().lock("gate", ttl=600).take(), stage.locks()
        waiter = stage.start(locks.lock("gate", ttl=30).take())
        await stage.queue("gate", 1)
        stage.clock.advance(0.5)  # it does not ask before 0.75 s have passed
        await holder.release()
        lease = await waiter.result()
        assert locks.faults.calls["acquire"] == 1
        assert lease.remaining <= 29.5

    @needs("hands_over")
    async def test_a_wake_up_that_comes_when_little_of_the_ttl_is_left_is_confirmed(self, stage: Stage) -> None:
        holder, late = await stage.locks().lock("gate", ttl=600).take(), stage.locks()
        late.faults.hang_reply("wait")
        waiter = stage.start(late.lock("gate", ttl=30).take())
        await stage.queue("gate", 1)
        await holder.release()
        await stage.until(lambda: late.faults.hanging == 1)
        stage.clock.advance(16)
        late.faults.resume()
        lease = await waiter.result()
        assert late.faults.calls["acquire"] == 2
        assert lease.remaining > 29

    @needs("hands_over")
    async def test_a_lease_that_is_not_renewed_is_confirmed_so_that_it_lasts_for_its_ttl(self, stage: Stage) -> None:
        holder, locks = await stage.locks().lock("gate", ttl=600).take(), stage.locks()
        waiter = stage.start(locks.lock("gate", ttl=30, renew=False).take())
        await stage.queue("gate", 1)
        stage.clock.advance(0.5)
        await holder.release()
        assert (await waiter.result()).remaining > 29.9

    @needs("hands_over")
    async def test_a_waiter_that_was_silent_for_too_long_is_not_granted_without_asking(self, stage: Stage) -> None:
        verbs, silent = stage.locks().faults, stage.claim("gate", ttl=8)
        holder = await stage.locks().lock("gate", ttl=600).take()
        assert isinstance(await verbs.acquire(silent, enqueue=True, within=5), Busy)
        stage.clock.advance(2.5)
        await holder.release()
        assert not (await stage.info("gate")).holders
        assert isinstance(await verbs.acquire(silent, enqueue=True, within=5), Grant)

    @needs("hands_over")
    async def test_however_many_dead_stand_in_line_they_cost_the_ttl_of_one(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate", ttl=600).take()
        for _ in range(3):
            await _die_waiting(stage)
        waiter = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 4, dead=3)
        await holder.release()
        assert await stage.sleep_through(waiter) <= _TTL_OF_THE_DEAD_S + POLL_SPREAD_S

    @needs("hands_over")
    async def test_a_break_ends_no_grant_that_the_same_step_has_made(self, stage: Stage) -> None:
        verbs, waiter = stage.locks().faults, stage.claim("gate")
        short = stage.claim("gate", ttl=2)
        assert isinstance(await verbs.acquire(short, enqueue=False, within=5), Grant)
        assert isinstance(await verbs.acquire(waiter, enqueue=True, within=5), Busy)
        stage.clock.advance(3)  # and no request comes, so that the break is the first to notice
        broken = await stage.locks().faults.break_(waiter.terms.key, within=5)
        assert broken.holders == ()
        assert [each.claim_id for each in (await stage.info("gate")).holders] == [waiter.id]

    @needs("hands_over")
    async def test_an_abandoned_waiter_is_granted_nothing_by_that_same_step(self, stage: Stage) -> None:
        verbs, first, second = stage.locks().faults, stage.claim("gate"), stage.claim("gate")
        short = stage.claim("gate", ttl=2)
        assert isinstance(await verbs.acquire(short, enqueue=False, within=5), Grant)
        for claim in (first, second):
            assert isinstance(await verbs.acquire(claim, enqueue=True, within=5), Busy)
        observer = stage.claim("gate")
        (before,) = (await verbs.observe(observer, after=0, within=5)).changes
        stage.clock.advance(3)
        await verbs.abandon(first, within=5)
        changes = (await verbs.observe(observer, after=before.number, within=5)).changes
        assert [change.holder is None for change in changes] == [True, False], "an end, and one grant"
        assert [each.claim_id for each in (await stage.info("gate")).holders] == [second.id]
        (fence,) = await stage.fences("gate")
        assert isinstance(again := await verbs.acquire(second, enqueue=True, within=5), Grant)
        assert again.fence == fence

    @needs("hands_over")
    async def test_a_waiter_that_is_abandoned_after_it_was_made_the_holder_leaves_nothing(self, stage: Stage) -> None:
        verbs, first, second = stage.locks().faults, stage.claim("gate"), stage.claim("gate")
        holder = await stage.locks().lock("gate").take()
        for claim in (first, second):
            assert isinstance(await verbs.acquire(claim, enqueue=True, within=5), Busy)
        await holder.release()
        await verbs.abandon(first, within=5)
        assert [each.claim_id for each in (await stage.info("gate")).holders] == [second.id]

    # Dead waiters

    @needs("reserves")
    async def test_a_waiter_that_is_dead_for_a_while_holds_up_the_queue_for_a_short_grace_at_most(
        self, stage: Stage
    ) -> None:
        holder = await stage.locks().lock("gate", ttl=600).take()
        await _die_waiting(stage)
        waiter = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 2, dead=1)
        await _stay_dead(stage)
        await holder.release()
        assert await stage.sleep_through(waiter) <= 2 * GRACE_S

    @needs("expires")
    async def test_every_waiter_polls_soon_after_the_holder_s_time_is_up_because_earlier_waiters_may_be_dead(
        self, stage: Stage
    ) -> None:
        await stage.locks().lock("gate", ttl=2, renew=False).take()
        for _ in range(12):
            answer = await stage.observer.faults.acquire(stage.claim("gate"), enqueue=True, within=5)
            assert isinstance(answer, Busy)
            assert answer.retry_after <= 2.5

    @needs("expires", "shared")
    async def test_an_exclusive_waiter_polls_when_the_last_shared_hold_is_over_and_not_at_each_end(
        self, stage: Stage
    ) -> None:
        for ttl in (1, 2, 60):
            await stage.observer.faults.acquire(stage.claim("gate", ttl=ttl, mode="shared"), enqueue=False, within=5)
        answers = [await stage.observer.faults.acquire(stage.claim("gate"), enqueue=True, within=5) for _ in range(8)]
        pauses = [answer.retry_after for answer in answers if isinstance(answer, Busy)]
        assert pauses == [poll_after(position) for position in range(8)]

    @needs("reserves")
    async def test_a_dead_waiter_holds_up_the_queue_once_and_not_at_every_hand_over(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate", ttl=600).take()
        await _die_waiting(stage)
        first = stage.start(stage.locks().lock("gate", ttl=600).take())
        await stage.queue("gate", 2, dead=1)
        second = stage.start(stage.locks().lock("gate", ttl=600).take())
        await stage.queue("gate", 3, dead=1)
        await _stay_dead(stage)
        await holder.release()
        await stage.sleep_through(first)
        await (await first.result()).release()
        assert (await second.result()).held  # at once: no waiter waits for the dead one again

    @needs("reserves")
    async def test_a_waiter_that_is_dead_for_a_while_holds_up_a_newcomer_for_a_short_grace_at_most(
        self, stage: Stage
    ) -> None:
        holder = await stage.locks().lock("gate", ttl=600).take()
        await _die_waiting(stage)
        await _stay_dead(stage)
        await holder.release()
        assert await stage.locks().lock("gate").acquire(blocking=False) is None
        stage.clock.advance(GRACE_S)
        assert await stage.locks().lock("gate").acquire(blocking=False) is not None

    @needs("reserves")
    async def test_a_dead_waiter_is_forgotten_after_a_while(self, stage: Stage) -> None:
        await stage.locks().lock("gate", ttl=600, renew=False).take()
        await _die_waiting(stage)
        assert (await stage.info("gate")).waiters == 1
        stage.clock.advance(PRESENCE_S)
        assert (await stage.info("gate")).waiters == 0

    async def test_a_live_waiter_keeps_its_place_however_long_it_waits(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate", ttl=3600, renew=False).take()
        first = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 1)
        second = stage.start(stage.locks().lock("gate").take())
        await stage.queue("gate", 2)
        await stage.pass_time(4 * PRESENCE_S)
        await stage.queue("gate", 2)
        await holder.release()
        assert (await first.result()).held
        assert not second.done

    async def test_a_waiter_that_slept_through_its_turn_is_served_when_it_asks_again(self, stage: Stage) -> None:
        verbs, sleepy = stage.locks().faults, stage.claim("gate")
        holder = await stage.locks().lock("gate", ttl=600).take()
        assert isinstance(await verbs.acquire(sleepy, enqueue=True, within=5), Busy)
        await holder.release()
        stage.clock.advance(GRACE_S + 1)
        assert isinstance(await verbs.acquire(sleepy, enqueue=True, within=5), Grant)
        assert (await stage.info("gate")).waiters == 0

    @needs("cancellation")
    async def test_a_cancelled_waiter_in_the_middle_does_not_hold_up_the_rest(self, stage: Stage) -> None:
        holder = await stage.locks().lock("gate").take()
        order: list[int] = []
        waiters = []
        for number in range(4):
            waiters.append(stage.start(_pass_through(stage.locks(), order, number)))
            await stage.queue("gate", number + 1)
        waiters[0].cancel()
        waiters[2].cancel()
        await stage.queue("gate", 2)
        await holder.release()
        for waiter in (waiters[1], waiters[3]):
            await waiter.result()
        assert order == [1, 3]


async def _pass_through(locks: AwaitedLocks, order: list[int], number: int) -> None:
    lease: AwaitedLease = await locks.lock("gate", ttl=600).take()
    order.append(number)
    await lease.release()


async def _die_waiting(stage: Stage) -> None:
    """Take a place in the queue, and never ask again."""
    answer = await stage.observer.faults.acquire(stage.claim("gate", ttl=_TTL_OF_THE_DEAD_S), enqueue=True, within=5)
    assert isinstance(answer, Busy)


async def _stay_dead(stage: Stage) -> None:
    """For longer than a quarter of the ttl: a waiter that has not asked for so long has to confirm."""
    await stage.pass_time(_TTL_OF_THE_DEAD_S / 2)
