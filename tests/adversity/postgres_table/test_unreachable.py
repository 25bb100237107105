"""A holder or a caller whose wire to the lock table's server leads nowhere, or ends."""

from __future__ import annotations

import pytest

from lockfast import BackendUnavailable, LeaseLost
from lockfast._time import boot_now
from lockfast.backends.postgres_table.backend import PostgresTableBackend
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.stage import Stage
from tests.adversity.postgres_table.stage import OnTable
from tests.patience import impatient
from tests.polling import HOUR

DRIFT = {"drift": PostgresTableBackend.capabilities.drift}  # the stage would leave it out


class TestUnreachable(OnTable):
    async def test_a_holder_behind_a_black_hole_stops_believing_before_the_next_is_granted(self, stage: Stage) -> None:
        lost_at: list[float] = []
        with self.wire() as wire:
            locks = await self.ready(stage, capabilities=DRIFT)
            with self.straight():
                next_one = await self.ready(stage)
                assert await self.free(stage, "x")()
            lease = await locks.lock("x", ttl=0.8, on_lost=lambda _: lost_at.append(boot_now())).take()
            waiter = stage.start(_take_and_note_when(next_one))
            await stage.until(self.queued(stage, waiter), "one to wait")
            wire.black_hole()
            granted, granted_at = await waiter.result()
            assert lease._deadline < granted_at, "from that moment on it did not believe"
            assert not lease.held
            assert granted.fence > lease.fence
            await stage.until(lambda: lost_at, "the loss to be reported to a body that never checks")
            assert lost_at[0] >= lease._deadline
            with pytest.raises(LeaseLost):
                lease.check()
            wire.heal()
            assert not await lease.release()
            assert await stage.fences("x") == [granted.fence]

    @pytest.mark.parametrize("blocking", [True, False])
    async def test_a_server_that_is_down_is_not_reported_as_a_held_lock(self, stage: Stage, blocking: bool) -> None:
        with self.wire() as wire:
            locks = await self.ready(stage)
            with self.straight():
                holder = await stage.locks().lock("x", ttl=HOUR).take()
            assert await locks.lock("x").acquire(blocking=False) is None
            wire.refuse()
            with impatient(locks), pytest.raises(BackendUnavailable, match=str(wire.port)):
                await locks.lock("x").acquire(blocking)
            wire.heal()
            assert holder.held
            assert await holder.release()


async def _take_and_note_when(locks: AwaitedLocks) -> tuple[AwaitedLease, float]:
    lease = await locks.lock("x").take()
    return lease, boot_now()
