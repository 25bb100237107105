"""`locks.limiter`: never more than the rate, on the store's clock alone.

In any stretch of `t` seconds at most `burst + t * rate / per` permits are given, to all clients together. Waiters
are served in order (see `s10_rate_limits_waiting`), and whatever goes wrong costs permits and never gives any.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lockfast._facades.primitives import AsyncLimiter
from lockfast.errors import BackendUnavailable, LockError
from lockfast.primitives.limiter import rate_of
from lockfast.primitives.names import qualify
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.clock import FakeClock
from lockfast.testing.contract.story import Promise, about
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage

BAD: dict[str, dict[str, Any]] = {
    "rate zero": {"rate": 0},
    "rate below": {"rate": -1},
    "rate true": {"rate": True},
    "rate infinite": {"rate": float("inf")},
    "rate text": {"rate": "10"},
    "per zero": {"rate": 1, "per": 0},
    "burst zero": {"rate": 1, "burst": 0},
    "burst half": {"rate": 1, "burst": 1.5},
    "too slow": {"rate": 1e-12},
    "far too slow": {"rate": 1e-320},
    "too many": {"rate": 1, "burst": 10**400},
}


def api(locks: AwaitedLocks, **options: Any) -> AsyncLimiter:
    return locks.limiter("api", **({"rate": 1, "per": 7} | options))


class RateLimits(Promise, about="store", needs=("limiter",)):
    # What is allowed

    async def test_permits_come_at_even_intervals_and_one_at_a_time(self, stage: Stage) -> None:
        limiter = stage.locks().limiter("api", rate=4, per=2)
        for _ in range(10):
            assert await limiter.try_acquire() == (True, 0, 0.0)
            assert await limiter.try_acquire() == (False, 0, 0.5)
            stage.clock.advance(0.2)
            denied = await limiter.try_acquire()
            assert not denied
            assert denied.retry_after == pytest.approx(0.3)
            stage.clock.advance(0.3)

    async def test_after_a_rest_a_whole_burst_can_be_had_and_then_the_rate(self, stage: Stage) -> None:
        limiter = stage.locks().limiter("api", rate=1, per=1, burst=3)
        stage.clock.advance(1000)  # however long the rest was
        assert [(await limiter.try_acquire()).remaining for _ in range(3)] == [2, 1, 0]
        assert await limiter.try_acquire() == (False, 0, 1.0)
        stage.clock.advance(2)
        assert [bool(await limiter.try_acquire()) for _ in range(3)] == [True, True, False]

    async def test_a_cost_counts_as_so_many_permits(self, stage: Stage) -> None:
        limiter = stage.locks().limiter("api", rate=1, per=1, burst=5)
        assert await limiter.try_acquire(cost=3) == (True, 2, 0.0)
        assert await limiter.try_acquire(cost=4) == (False, 2, 2.0)
        assert await limiter.try_acquire(cost=2) == (True, 0, 0.0)  # what was refused took nothing
        stage.clock.advance(4.5)
        assert await limiter.try_acquire(cost=5) == (False, 4, 0.5)

    @pytest.mark.parametrize("rate", [3, 7, 1000, 0.3])
    async def test_retry_after_is_exact(self, stage: Stage, rate: float) -> None:
        """Denied a nanosecond before, allowed then."""
        limiter = stage.locks().limiter("api", rate=rate, burst=2)
        started = stage.clock.now()
        await limiter.try_acquire(cost=2)
        retry_after = (await limiter.try_acquire()).retry_after
        assert retry_after == pytest.approx(1 / rate, abs=2e-9)
        stage.clock.advance_to(started + retry_after - 1e-9)
        denied = await limiter.try_acquire()
        assert not denied
        assert denied.retry_after == pytest.approx(1e-9, rel=0.1)
        stage.clock.advance_to(started + retry_after)
        assert await limiter.try_acquire()

    async def test_never_more_than_the_bound_however_it_is_asked(self, stage: Stage) -> None:
        """Of every stretch of time, whatever its ends."""
        clients = [stage.locks().limiter("api", rate=10, per=3, burst=4) for _ in range(3)]
        random, started = Random(7), stage.clock.now()
        given: list[float] = []
        for step in range(300):
            stage.clock.advance(random.choice((0.0, 0.01, 0.07, 0.3, 1.3)))
            if await clients[step % 3].try_acquire():
                given.append(stage.clock.now())
        assert len(given) > (stage.clock.now() - started) * 10 / 3 * 0.6
        for first, begin in enumerate(given):
            for last in range(first, len(given)):
                assert last - first + 1 <= 4 + (given[last] - begin) * 10 / 3 + 1e-6

    async def test_all_clients_share_one_limiter_and_each_name_and_namespace_has_its_own(self, stage: Stage) -> None:
        assert await api(stage.locks()).try_acquire()
        assert not await api(stage.locks()).try_acquire()
        assert await stage.locks().limiter("other", rate=1, per=7).try_acquire()
        assert await api(stage.locks(namespace=f"{stage.namespace}-2")).try_acquire()

    async def test_a_limiter_is_no_lock_of_the_same_name(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("api").take()
        assert await api(locks).try_acquire()
        waiter = stage.start(api(stage.locks()).acquire())
        await sleeps_until(stage, stage.clock.now() + 7)
        assert [info.name for info in await locks.list()] == ["api"]  # the lock, and no turn of the limiter
        assert (await stage.info("api")).waiters == 0
        await lease.release()
        assert await locks.list() == []
        assert not waiter.done

    @about("engine")
    @pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
    async def test_a_rate_that_makes_no_sense_is_refused(self, stage: Stage, bad: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"must be|too slow"):
            stage.locks().limiter("api", **bad)

    @about("engine")
    @pytest.mark.parametrize("cost", [0, -1, 1.5, True, 4])
    async def test_a_cost_that_makes_no_sense_or_never_fits_is_refused(self, stage: Stage, cost: Any) -> None:
        locks = stage.locks()
        limiter = locks.limiter("api", rate=1, burst=3)
        for ask in (limiter.try_acquire, limiter.acquire):
            with pytest.raises(ValueError, match="cost"):
                await ask(cost)
        assert not locks.faults.calls

    async def test_any_rate_that_is_fast_enough_is_counted(self, stage: Stage) -> None:
        assert await stage.locks().limiter("fast", rate=10**400).try_acquire()
        assert await stage.locks().limiter("slow", rate=1, per=50 * 365 * 86400).try_acquire()

    @about("engine")
    async def test_the_limiter_of_a_closed_locks_says_so(self, stage: Stage) -> None:
        locks = stage.locks()
        limiter = api(locks)
        await locks.close()
        for ask in (limiter.try_acquire, limiter.acquire):
            with pytest.raises(LockError, match="closed"):
                await ask()

    # What goes wrong

    async def test_a_lost_request_costs_nothing_and_a_lost_reply_costs_permits(self, stage: Stage) -> None:
        locks = stage.locks()
        limiter = locks.limiter("api", rate=1, per=100, burst=3)
        locks.faults.lose_request("throttle")
        assert (await stage.finish(limiter.try_acquire())).remaining == 2
        locks.faults.lose_reply("throttle")
        assert (await stage.finish(limiter.try_acquire())).remaining == 0
        assert not await limiter.try_acquire()

    async def test_a_store_that_cannot_be_asked_is_an_error_and_not_a_permit(self, stage: Stage) -> None:
        locks = stage.locks(patience=2)
        locks.faults.lose_request("throttle", ALWAYS)
        for ask in (api(locks).try_acquire, api(locks).acquire):
            with pytest.raises(BackendUnavailable):
                await stage.finish(ask())

    async def test_a_client_whose_clock_is_wrong_gets_no_more_and_no_less(self, stage: Stage) -> None:
        theirs = FakeClock(9e8)
        ahead, usual = api(stage.locks(clock=theirs)), api(stage.locks())
        assert await ahead.try_acquire()
        theirs.advance(86400)
        assert await ahead.try_acquire() == await usual.try_acquire() == (False, 0, 7.0)
        stage.clock.advance(7)
        assert await ahead.try_acquire()
        assert not await usual.try_acquire()

    async def test_limiters_that_are_not_used_leave_nothing_in_the_store(self, stage: Stage) -> None:
        locks = stage.locks()
        for number in range(500):
            assert await locks.limiter(f"once-{number}", rate=1).try_acquire()
            stage.clock.advance(0.1)
        assert stage.records() < 150  # though only ten of them are of any use

    async def test_a_limiter_that_is_in_use_is_never_forgotten(self, stage: Stage) -> None:
        locks = stage.locks()
        assert await api(locks, per=1000).try_acquire()
        for number in range(300):
            await locks.limiter(f"once-{number}", rate=1000).try_acquire()
            stage.clock.advance(1)
        assert (await api(locks, per=1000).try_acquire()).retry_after == pytest.approx(700)

    async def test_what_is_given_back_is_given_once(self, stage: Stage) -> None:
        """A repeat, or one that comes too late, gives nothing."""
        verbs, key, rate = stage.locks().faults, qualify(stage.namespace, "api"), rate_of(1, 7, 3)

        async def free() -> int:
            probe = await verbs.throttle(key, rate, cost=3, patience=0.0, within=5)
            return probe.allowance.remaining

        first = await verbs.throttle(key, rate, cost=2, patience=0.0, within=5)
        await verbs.unthrottle(key, rate, cost=2, until=first.until, within=5)
        await verbs.throttle(key, rate, cost=1, patience=0.0, within=5)
        assert await free() == 2
        for _ in range(2):
            await verbs.unthrottle(key, rate, cost=2, until=first.until, within=5)
        assert await free() == 2


async def sleeps_until(stage: Stage, moment: float) -> None:
    """Until a waiter sleeps up to that very moment."""

    def sleeps() -> bool:
        return any(at == pytest.approx(moment, abs=1e-6, rel=0) for at in stage.clock.alarms)

    await stage.until(sleeps, f"a waiter to sleep until {moment}")
