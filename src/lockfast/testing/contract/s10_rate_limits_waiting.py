"""`limiter.acquire`: waiters are served in order, each at the very moment.

A waiter that gives up, is cancelled or dies holds up the others for a bounded time at most, and takes no permit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockfast._facades.primitives import AsyncLimiter
from lockfast._time import pause_before_retry
from lockfast._values import NS_PER_S, Rate
from lockfast.primitives.locks import TURN_TTL_S
from lockfast.primitives.names import aside, qualify
from lockfast.testing.contract.s10_rate_limits import api, sleeps_until
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Actor, Stage


class WaitingForRateLimits(Promise, about="engine", needs=("limiter",)):
    async def test_a_waiting_caller_is_allowed_at_the_very_moment(self, stage: Stage) -> None:
        limiter = api(stage.locks())
        await limiter.try_acquire()
        waiter = stage.start(limiter.acquire())
        await sleeps_until(stage, stage.clock.now() + 7)
        assert await stage.sleep_through(waiter) == pytest.approx(7)
        assert await waiter.result() == (True, 0, 0.0)

    async def test_a_caller_that_need_not_wait_asks_once(self, stage: Stage) -> None:
        locks = stage.locks()
        assert await api(locks).acquire() == (True, 0, 0.0)
        assert locks.faults.calls == {"throttle": 1}

    @about("store")
    async def test_waiters_are_served_in_order_at_the_rate(self, stage: Stage) -> None:
        start = stage.clock.now()
        await api(stage.locks()).try_acquire()
        order: list[int] = []
        waiters = await _waiters(stage, 4, order)
        await _serve(stage, waiters, start)
        assert order == [0, 1, 2, 3]

    @about("store")
    async def test_a_timeout_that_cannot_be_met_is_refused_at_once_and_takes_nothing(self, stage: Stage) -> None:
        locks = stage.locks()
        await api(locks).try_acquire()
        assert await api(locks).acquire(timeout=6.9) == (False, 0, 7.0)
        assert await api(locks).acquire(timeout=0) == (False, 0, 7.0)
        assert locks.faults.calls == {"throttle": 3}
        stage.clock.advance(7)
        assert await api(locks).try_acquire()

    @pytest.mark.parametrize("per", [7, 0.3])
    async def test_a_timeout_that_can_just_be_met_is_met(self, stage: Stage, per: float) -> None:
        await api(stage.locks(), per=per).try_acquire()
        waiter = stage.start(api(stage.locks(), per=per).acquire(timeout=per))
        await sleeps_until(stage, stage.clock.now() + per)
        assert await stage.sleep_through(waiter) == pytest.approx(per)
        assert await waiter.result()

    async def test_a_caller_too_far_back_learns_so_on_its_turn_and_takes_nothing(self, stage: Stage) -> None:
        start = stage.clock.now()
        await api(stage.locks()).try_acquire()
        before = await _waiters(stage, 2, [])
        late = stage.start(api(stage.locks()).acquire(timeout=15))  # as it looks now there is one at 14
        await stage.until(_waiters_in_turn(stage, 2))
        await _serve(stage, before, start)
        assert await late.result() == (False, 0, 7.0)
        assert stage.clock.now() == start + 14
        stage.clock.advance_to(start + 21)
        assert await api(stage.locks()).try_acquire()

    async def test_a_caller_that_does_not_get_its_turn_gives_up_in_time(self, stage: Stage) -> None:
        start = stage.clock.now()
        await api(stage.locks()).try_acquire()
        before = await _waiters(stage, 3, [])
        late = stage.start(api(stage.locks()).acquire(timeout=15))
        await stage.until(_waiters_in_turn(stage, 3))
        await _serve(stage, before[:2], start)
        await sleeps_until(stage, start + 21)  # the third has its turn
        await _pass_time(stage, late, before=start + 21)
        assert not await late.result()
        stage.clock.advance_to(start + 21)
        assert await before[2].result()

    @about("store")
    @needs("cancellation")
    async def test_a_caller_that_is_cancelled_while_it_waits_gives_back_what_it_booked(self, stage: Stage) -> None:
        start = stage.clock.now()
        await api(stage.locks()).try_acquire()
        first, second = await _waiters(stage, 2, [])
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first.result()
        await sleeps_until(stage, start + 7)  # the second one, in its place
        stage.clock.advance_to(start + 7)
        assert await second.result()

    @needs("cancellation")
    async def test_a_cancellation_is_raised_even_if_nothing_can_be_given_back(self, stage: Stage) -> None:
        locks = stage.locks()
        await api(locks).try_acquire()
        locks.faults.lose_request("unthrottle", ALWAYS)
        waiter = stage.start(api(locks).acquire())
        await sleeps_until(stage, stage.clock.now() + 7)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter.result()

    @needs("cancellation")
    async def test_a_caller_that_is_cancelled_in_the_queue_leaves_nothing(self, stage: Stage) -> None:
        start = stage.clock.now()
        await api(stage.locks()).try_acquire()
        waiters = await _waiters(stage, 3, [])
        waiters[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiters[1].result()
        await _serve(stage, [waiters[0], waiters[2]], start)

    async def test_one_that_died_while_it_waited_holds_up_the_others_for_a_bounded_time(self, stage: Stage) -> None:
        verbs = stage.locks().faults
        rate, key = Rate(1 * NS_PER_S, 1), qualify(stage.namespace, "api")
        turn = stage.claim("api", ttl=TURN_TTL_S)
        turn = turn._replace(terms=turn.terms._replace(key=aside(key, "turn")))
        await verbs.throttle(key, rate, cost=1, patience=0.0, within=5)
        await verbs.acquire(turn, enqueue=True, within=5)
        await verbs.throttle(key, rate, cost=1, patience=60.0, within=5)
        waiter = stage.start(api(stage.locks(), per=1).acquire())
        await stage.until(lambda: stage._waiting() == 1)
        await stage.asleep(1)
        stage.clock.advance(TURN_TTL_S)
        assert await waiter.result()

    @pytest.mark.parametrize("cause", ["paused", "broken"])
    async def test_a_caller_that_lost_its_turn_still_has_what_it_booked(self, stage: Stage, cause: str) -> None:
        start = stage.clock.now()
        locks = stage.locks()
        await api(locks, per=60).try_acquire()
        waiter = stage.start(api(locks, per=60).acquire())
        await sleeps_until(stage, start + 60)
        await stage.asleep()
        if cause == "broken":
            await stage.observer.faults.break_(aside(qualify(stage.namespace, "api"), "turn"), within=60.0)
        else:
            locks.faults.lose_request("renew", ALWAYS)
        received = stage.record(locks)
        stage.clock.advance(TURN_TTL_S)
        await stage.until(lambda: [event for event in received if event.kind == "lost"])
        assert not waiter.done
        stage.clock.advance_to(start + 60)
        assert await waiter.result() == (True, 0, 0.0)

    async def test_a_lost_reply_of_one_that_waits_makes_it_wait_longer_and_never_less(self, stage: Stage) -> None:
        start = stage.clock.now()
        await api(stage.locks()).try_acquire()
        waiter = await _booked_without_reply(stage)
        await sleeps_until(stage, start + 14)
        await stage.sleep_through(waiter)
        assert await waiter.result()
        assert stage.clock.now() == pytest.approx(start + 14)

    async def test_a_repeated_request_has_only_the_time_that_is_left(self, stage: Stage) -> None:
        start = stage.clock.now()
        await api(stage.locks()).try_acquire()
        waiter = await _booked_without_reply(stage, timeout=13.99)  # the second booking would be for 14
        assert not await waiter.result()
        assert stage.clock.now() < start + 1


async def _waiters(stage: Stage, number: int, order: list[int]) -> list[Actor[Any]]:
    """So many, each with a client of its own, in that order; the first one has its turn."""
    at = stage.clock.now() + 7

    async def wait(limiter: AsyncLimiter, number: int) -> Any:
        answer = await limiter.acquire()
        order.append(number)
        return answer

    waiters = []
    for place in range(number):
        waiters.append(stage.start(wait(api(stage.locks()), place)))
        if place == 0:
            await sleeps_until(stage, at)
        else:
            await stage.until(_waiters_in_turn(stage, place), f"{place} in the queue behind the first")
    return waiters


def _waiters_in_turn(stage: Stage, number: int) -> Callable[[], bool]:
    return lambda: stage._waiting() == number


async def _pass_time(stage: Stage, actor: Actor[Any], before: float) -> None:
    """Alarm by alarm until the actor is done, and not up to that moment."""

    def done() -> bool:
        at = stage.clock.next_alarm
        if not actor.done and at is not None and at < before and not stage._under_way():
            stage.clock.advance_to(at)
        return actor.done

    await stage.until(done, f"the actor to be done before {before}")


async def _serve(stage: Stage, waiters: list[Actor[Any]], start: float) -> None:
    """Each at its time, and no other before them."""
    for number, waiter in enumerate(waiters):
        at = start + 7 * (number + 1)
        await sleeps_until(stage, at)
        assert not await api(stage.locks()).try_acquire()
        await _let_them_poll_until(stage, at)
        assert await waiter.result()


async def _let_them_poll_until(stage: Stage, moment: float) -> None:
    """Alarm by alarm: of the waiters in the queue, one that is silent for too long would be passed over."""
    clock, in_line = stage.clock, stage._waiting()
    while (at := clock.next_alarm) is not None and at < moment:
        clock.advance_to(at)
        await stage.until(lambda: stage._waiting() == in_line and stage._calm(), "the waiters to wait again")
    clock.advance_to(moment)


async def _booked_without_reply(stage: Stage, timeout: float | None = None) -> Actor[Any]:
    """One whose booking was answered, though the answer was lost, and who asks again now."""
    locks = stage.locks()
    locks.raw._logic.engine.world.chance = lambda: 0.5  # type: ignore[method-assign]
    locks.faults.hang_reply("throttle")
    waiter = stage.start(api(locks).acquire(timeout=timeout))
    await stage.until(lambda: locks.faults.hanging == 1)
    locks.faults.lose_reply("throttle")
    locks.faults.resume()
    asks_again_at = stage.clock.now() + pause_before_retry(1, 0.5)
    await sleeps_until(stage, asks_again_at)
    stage.clock.advance_to(asks_again_at)
    return waiter
