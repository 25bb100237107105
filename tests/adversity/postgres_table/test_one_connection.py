"""The lock table for one that gets no more than a single connection: it works, and its waiters poll."""

from __future__ import annotations

import pytest

from lockfast import BackendUnavailable
from lockfast._time import boot_now
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.stage import Stage
from tests.adversity.postgres_table.stage import OnTable
from tests.patience import impatient
from tests.polling import HOUR
from tests.servers.waiting import LIMIT_S

LISTENS = "query LIKE 'LISTEN %'"
ADD_ROLE = "DO $$ BEGIN CREATE ROLE lone LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"
RIGHTS = "GRANT ALL ON ALL TABLES IN SCHEMA public TO lone; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO lone"


class TestNoRoom(OnTable):
    def _room_for(self, connections: int) -> None:
        self.ask(f"{ADD_ROLE}; {RIGHTS}; ALTER ROLE lone CONNECTION LIMIT {connections}")

    async def _lone(self, stage: Stage) -> AwaitedLocks:
        before, self.where = self.where, self.where.replace("lockfast@", "lone@")
        try:
            return await self.ready(stage)
        finally:
            self.where = before

    async def test_waiters_that_cannot_be_woken_poll_and_are_served_in_turn(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        self._room_for(1)
        holder = await (await self.ready(stage)).lock("x", ttl=HOUR).take()
        locks = await self._lone(stage)
        waiters = [stage.start(locks.lock("x", wait=LIMIT_S).take()) for _ in range(2)]
        await stage.queue("x", 2)
        await holder.release()
        await stage.until(lambda: any(waiter.done for waiter in waiters), "the first of them")
        first, second = sorted(waiters, key=lambda waiter: not waiter.done)
        lease = await first.result()
        await lease.release()
        assert (await second.result()).fence > lease.fence
        logged = [record for record in caplog.records if "waiters poll" in record.getMessage()]
        assert len(logged) == 1
        assert "too many connections" in logged[0].getMessage()

    async def test_waiters_are_woken_again_once_there_is_room_for_a_connection(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("blocking", "asyncio_"):
            monkeypatch.setattr(f"lockfast.backends.postgres_table.io.{module}.LISTEN_AGAIN_AFTER_S", 0.2)
        self._room_for(1)
        holder = await (await self.ready(stage)).lock("x", ttl=HOUR).take()
        waiter = stage.start((await self._lone(stage)).lock("x", wait=LIMIT_S).take())
        await stage.queue("x", 1)
        assert self.ours(f"{LISTENS} AND usename = 'lone'") == 0
        self._room_for(10)
        await stage.until(lambda: self.ours(f"{LISTENS} AND usename = 'lone'") == 1, "it to listen")
        await holder.release()
        assert (await waiter.result()).held


class TestOneTry(OnTable):
    async def test_one_try_at_a_server_that_hangs_takes_as_long_as_its_patience(self, stage: Stage) -> None:
        locks = await self.ready(stage)
        self.server.pause()
        started = boot_now()
        with impatient(locks, 0.3), pytest.raises(BackendUnavailable):
            await locks.lock("x", wait=0).acquire()
        assert boot_now() >= started + 0.2
        self.server.go_on()
