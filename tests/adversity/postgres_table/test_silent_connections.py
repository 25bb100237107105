"""New connections to the lock table's server that are accepted and then silent, as by a pooler that has lost it."""

from __future__ import annotations

import pytest

from lockfast.testing.stage import Stage
from tests.adversity.postgres_table.stage import OnTable
from tests.polling import HOUR, never_poll
from tests.servers.waiting import LIMIT_S


class TestSilentFromTheFirstByte(OnTable):
    async def test_a_silent_connection_does_not_cost_the_whole_wait(self, stage: Stage) -> None:
        with self.wire() as wire:
            wire.leave_unanswered(1)
            lease = await stage.locks(patience=HOUR).lock("x", wait=LIMIT_S).take()
            assert wire.accepted == 2
            assert await lease.release()

    async def test_a_silent_connection_for_wake_ups_does_not_cost_them(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder = await stage.locks().lock("x", ttl=HOUR).take()
        with self.wire() as wire:
            locks = await self.ready(stage, patience=HOUR)
            wire.leave_unanswered(1)
            waiter = stage.start(locks.lock("x", wait=LIMIT_S).take())
            await stage.until(self.queued(stage, waiter), "one to wait")
            assert await holder.release()
            assert await (await waiter.result()).release()
