"""A holder whose Redis server is out of reach: no lease is lost too early, and no loss is reported too late."""

from __future__ import annotations

import pytest

from lockfast import BackendUnavailable, LeaseLost
from lockfast._time import boot_now
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.stage import Stage
from tests.adversity.redis.stage import OnAServer
from tests.patience import impatient
from tests.renewals import renew_soon, renewal_state, renewed

pytestmark = pytest.mark.slow

DRIFT = {"drift": 0.005}  # as the backend has it; the stage would leave it out


class TestUnreachable(OnAServer):
    async def test_renewal_rides_out_connections_that_are_cut_again_and_again(self, stage: Stage) -> None:
        losses: list[object] = []
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60, on_lost=losses.append).take()
        for _ in range(6):
            self.proxy.cut()
            await renewed(stage, lease)
        assert lease.held
        assert losses == []
        assert await lease.release()

    async def test_renewal_rides_out_a_server_that_refuses_for_less_than_the_ttl(self, stage: Stage) -> None:
        losses: list[object] = []
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=30, on_lost=losses.append).take()
        self.proxy.refuse()
        renew_soon(lease)
        await stage.until(lambda: renewal_state(lease).failures > 1, "renewals in vain")
        self.proxy.heal()
        await renewed(stage, lease)
        assert lease.held
        assert losses == []

    async def test_a_holder_behind_a_black_hole_stops_believing_before_the_next_is_granted(self, stage: Stage) -> None:
        lost_at: list[float] = []
        locks, next_one = await self.ready(stage, capabilities=DRIFT), self.beside_the_wire(stage)
        lease = await locks.lock("x", ttl=0.8, on_lost=lambda _: lost_at.append(boot_now())).take()
        waiter = stage.start(_take_and_note_when(next_one))
        await stage.until(lambda: self.truth(stage, "x").waiters == 1 or waiter.done, "one to wait")
        self.proxy.black_hole()
        granted, granted_at = await waiter.result()
        assert lease._deadline < granted_at, "from that moment on it did not believe"
        assert not lease.held
        assert granted.fence > lease.fence
        await stage.until(lambda: lost_at, "the loss to be reported to a body that never checks")
        assert lost_at[0] >= lease._deadline
        with pytest.raises(LeaseLost):
            lease.check()
        self.proxy.heal()
        assert not await lease.release()
        assert [holder.fence for holder in self.truth(stage, "x").holders] == [granted.fence]

    async def test_an_extension_that_cannot_be_sent_is_an_error_and_changes_nothing(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        lease = await locks.lock("x", ttl=60).take()
        self.proxy.refuse()
        with impatient(locks), pytest.raises(BackendUnavailable):
            await lease.extend(120)
        assert lease.held
        self.proxy.heal()
        await lease.extend(120)
        assert lease.remaining > 60


async def _take_and_note_when(locks: AwaitedLocks) -> tuple[AwaitedLease, float]:
    lease = await locks.lock("x").take()
    return lease, boot_now()
