"""Promise 10: only the server's clock decides expiry. Clients' wall clocks are never compared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from lockfast._model import Grant, Renewal
from lockfast.errors import LeaseLost
from lockfast.testing.clock import FakeClock
from lockfast.testing.contract.story import Promise, needs, on_the_real_clock
from lockfast.testing.stage import Stage

YEAR_S = 365 * 86400.0


class OnlyTheServerClock(Promise, about="store"):
    @needs("expires")
    @pytest.mark.parametrize("step", [YEAR_S, -YEAR_S])
    async def test_a_step_of_the_wall_clock_ends_no_hold_and_lengthens_none(self, stage: Stage, step: float) -> None:
        lease = await stage.locks().lock("hour", ttl=10, renew=False).take()
        rival = stage.locks().lock("hour")
        with _wall_clock_stepped(step):
            assert lease.held
            assert lease.remaining == pytest.approx(10)
            assert await rival.acquire(blocking=False) is None
            stage.clock.advance(9.9)
            assert lease.held
            assert await rival.acquire(blocking=False) is None
            stage.clock.advance(0.1)
            assert not lease.held
            taken = await rival.acquire(blocking=False)
            assert taken is not None
            assert taken.fence > lease.fence

    @pytest.mark.parametrize("step", [YEAR_S, -YEAR_S])
    async def test_a_step_of_the_wall_clock_does_not_disturb_renewal(self, stage: Stage, step: float) -> None:
        lease = await stage.locks().lock("hour", ttl=30).take()
        await stage.asleep()
        with _wall_clock_stepped(step):
            await stage.pass_time(100)
        assert lease.held
        assert await stage.fences("hour") == [lease.fence]

    @pytest.mark.parametrize("step", [YEAR_S, -YEAR_S])
    async def test_a_step_of_the_wall_clock_does_not_disturb_the_queue(self, stage: Stage, step: float) -> None:
        holder = await stage.locks().lock("hour", ttl=600).take()
        waiter = stage.start(stage.locks().lock("hour", wait=20).take())
        await stage.queue("hour", 1)
        with _wall_clock_stepped(step):
            stage.clock.advance(10)
            await stage.queue("hour", 1)
            assert not waiter.done
            await holder.release()
            assert (await waiter.result()).held

    @pytest.mark.parametrize("step", [YEAR_S, -YEAR_S])
    async def test_clients_whose_wall_clocks_differ_do_not_meet(self, stage: Stage, step: float) -> None:
        with _wall_clock_stepped(step):
            lease = await stage.locks().lock("hour", ttl=10, renew=False).take()
        assert await stage.locks().lock("hour").acquire(blocking=False) is None
        stage.clock.advance(10)
        following = await stage.locks().lock("hour").take()
        assert following.fence > lease.fence

    @on_the_real_clock
    @pytest.mark.parametrize("step", [YEAR_S, -YEAR_S])
    async def test_the_machine_s_own_clock_is_not_its_wall_clock(self, stage: Stage, step: float) -> None:
        lease = await stage.locks().lock("hour", ttl=60).take()
        short = await stage.locks().lock("minute", ttl=0.05, renew=False).take()
        with _wall_clock_stepped(step):
            assert lease.held
            assert await stage.locks().lock("hour").acquire(blocking=False) is None
            await lease.extend(120)
            assert lease.remaining > 60
            assert await stage.locks().lock("hour").acquire(blocking=False) is None
            await stage.until(lambda: not short.held)
            assert await stage.locks().lock("minute", wait=5).acquire() is not None

    @needs("expires")
    async def test_a_client_whose_clock_stands_still_cannot_keep_a_lock_for_ever(self, stage: Stage) -> None:
        stopped = await stage.locks(clock=FakeClock()).lock("hour", ttl=10).take()
        stage.clock.advance(10)
        following = await stage.locks().lock("hour").take()
        assert following.fence > stopped.fence
        with pytest.raises(LeaseLost):
            await stopped.extend(10)
        assert await stage.fences("hour") == [following.fence]

    @needs("expires")
    async def test_a_client_whose_clock_runs_ahead_ends_nothing_but_its_own_belief(self, stage: Stage) -> None:
        ahead = FakeClock()
        lease = await stage.locks(clock=ahead).lock("hour", ttl=10, renew=False).take()
        ahead.advance(100)
        assert not lease.held
        assert await stage.locks(clock=ahead).lock("hour").acquire(blocking=False) is None
        stage.clock.advance(10)
        assert await stage.is_free("hour")
        assert await stage.locks().lock("hour").acquire(blocking=False) is not None

    async def test_clients_whose_clocks_have_nothing_in_common_share_a_lock(self, stage: Stage) -> None:
        early, late = FakeClock(start=5.0), FakeClock(start=9e8)
        lease = await stage.locks(clock=late).lock("hour", ttl=10, renew=False).take()
        rival = stage.locks(clock=early).lock("hour", ttl=10, renew=False)
        assert await rival.acquire(blocking=False) is None
        await lease.release()
        taken = await rival.acquire(blocking=False)
        assert taken is not None
        assert taken.remaining == pytest.approx(10)

    @needs("expires")
    async def test_expiry_counts_from_when_a_request_took_effect_at_the_store(self, stage: Stage) -> None:
        """Not from when it was sent, nor from when a transaction was begun."""
        locks = stage.locks()
        locks.faults.hang_request("acquire")
        asker = stage.start(locks.lock("hour", ttl=10, renew=False).take())
        await stage.until(lambda: locks.faults.hanging == 1)
        stage.clock.advance(5)
        locks.faults.resume()
        lease = await asker.result()
        stage.clock.advance(9)
        assert not lease.held
        assert (await stage.info("hour")).locked
        stage.clock.advance(1)
        assert await stage.is_free("hour")

    @needs("expires")
    async def test_a_renewal_never_shortens_at_the_store(self, stage: Stage) -> None:
        verbs, claim = stage.locks().faults, stage.claim("hour", ttl=60)
        grant = await verbs.acquire(claim, enqueue=False, within=5)
        assert isinstance(grant, Grant)
        assert await verbs.renew([Renewal(claim, 1, grant.fence)], within=5) == [True]
        stage.clock.advance(59)
        assert (await stage.info("hour")).locked
        stage.clock.advance(1)
        assert await stage.is_free("hour")
        assert await verbs.renew([Renewal(claim, 60, grant.fence)], within=5) == [False]


@contextmanager
def _wall_clock_stepped(seconds: float) -> Iterator[None]:
    wall, wall_ns = time.time, time.time_ns

    def stepped() -> float:
        return wall() + seconds

    def stepped_ns() -> int:
        return wall_ns() + int(seconds * 1e9)

    with mock.patch("time.time", stepped), mock.patch("time.time_ns", stepped_ns):
        yield
