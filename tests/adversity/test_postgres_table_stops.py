"""The lock table on a PostgreSQL server that stands still (SIGSTOP), or that has no room for one more connection."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast import BackendUnavailable
from holdfast._time import boot_now
from holdfast.testing.awaited import AwaitedLock
from holdfast.testing.stage import Stage
from tests.adversity.postgres_table_stage import OnTable

WAIT = 0.3
OVER = 0.05  # seconds that a `wait` may be exceeded by
TRIES = 10  # this machine may stand still too, but not each time


class TestStandsStill(OnTable):
    async def test_wait_is_kept_to_by_one_that_is_connected(self, stage: Stage) -> None:
        locks, best = await self.ready(stage), WAIT + 10.0
        for number in range(TRIES):
            self.server.pause()
            best = min(best, await _refused_after(locks.lock(f"x{number}", wait=WAIT)))
            self.server.go_on()
            if best <= WAIT + OVER:
                break
            locks = await self.ready(stage)
        assert WAIT / 2 < best <= WAIT + OVER

    async def test_wait_is_kept_to_by_one_that_has_to_connect(self, stage: Stage) -> None:
        best = WAIT + 10.0
        self.server.pause()
        for number in range(TRIES):
            best = min(best, await _refused_after(stage.locks(patience=0.01).lock(f"x{number}", wait=WAIT)))
            if best <= WAIT + OVER:
                break
        assert WAIT / 10 < best <= WAIT + OVER  # a pause that would end too late is not begun
        self.server.go_on()

    async def test_wait_is_kept_to_by_one_that_stands_in_the_queue(self, stage: Stage) -> None:
        locks, best = await self.ready(stage), WAIT + 10.0
        await stage.locks().lock("x", ttl=600).take()
        for _ in range(TRIES):
            waiter = stage.start(_refused_after(locks.lock("x", wait=WAIT)))
            await stage.queue("x", 1)
            await self.pause(stage)
            best = min(best, await waiter.result())
            self.server.go_on()
            await stage.queue("x", 0)
            if best <= WAIT + OVER:
                break
        assert WAIT / 2 < best <= WAIT + OVER

    async def test_what_the_server_does_late_leaves_no_orphan(self, stage: Stage) -> None:
        for number in range(3):
            locks = await self.ready(stage)
            self.server.pause()
            await _refused_after(locks.lock(f"x{number}", ttl=60, wait=0.1))
            self.server.go_on()
        for number in range(3):
            await stage.until(self.free(stage, f"x{number}"), "the late grant to be taken back")

    async def test_a_holder_on_a_server_that_stood_still_past_the_ttl_has_lost_and_nobody_is_let_in_twice(
        self, stage: Stage
    ) -> None:
        lease = await (await self.ready(stage)).lock("x", ttl=0.5).take()
        waiter = stage.start((await self.ready(stage)).lock("x", ttl=60).take())
        await stage.queue("x", 1)
        self.server.pause()
        await stage.until(lambda: lease.lost, "the holder to stop believing")
        self.server.go_on()
        granted = await waiter.result()
        assert granted.fence > lease.fence
        assert not await lease.release()
        assert await stage.fences("x") == [granted.fence]

    async def test_a_short_stop_is_ridden_out(self, stage: Stage) -> None:
        lease = await (await self.ready(stage)).lock("x", ttl=1.5).take()
        self.server.pause()
        await stage.until(lambda: lease.remaining < 0.8, "a renewal to hang")
        self.server.go_on()
        await self.renewed(stage, lease)
        assert lease.held


class TestFull(OnTable):
    settings = {"max_connections": "4", "superuser_reserved_connections": "1", "max_wal_senders": "0"}  # noqa: RUF012

    def _as_guest(self) -> None:
        """Not as a superuser, for whom there is always room."""
        self.ask("DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
        self.ask(
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO guest"
        )
        self.where = self.where.replace("holdfast@", "guest@")

    async def test_a_full_server_is_told_and_asked_again_and_costs_no_lease(self, stage: Stage) -> None:
        self._as_guest()
        filling = [await self.ready(stage) for _ in range(3)]
        lease = await filling[0].lock("kept").take()
        late = stage.locks()

        async def told() -> bool:
            with pytest.raises(BackendUnavailable, match="cannot reach") as caught:
                await late.lock("x", wait=0.2).acquire()
            return caught.value.transient and "connection slots" in str(caught.value)

        await stage.until(told, "the reason to be told: a busy machine may have no time for it in one try")
        patient = stage.start(late.lock("x", wait=60).take())
        await filling[2].close()
        assert (await patient.result()).held
        await lease.extend()

    async def test_one_that_finds_no_room_to_be_woken_by_is_served_when_there_is(self, stage: Stage) -> None:
        self._as_guest()
        filling = [await self.ready(stage) for _ in range(3)]
        holder = await filling[0].lock("x").take()
        waiter = stage.start(filling[1].lock("x", wait=60).take())
        await stage.until(lambda: filling[1].faults.calls["acquire"] > 2, "a second try to find room")
        await filling[2].close()
        await holder.release()
        assert (await waiter.result()).fence > holder.fence


async def _refused_after(lock: AwaitedLock) -> float:
    started = boot_now()
    with suppress(BackendUnavailable):
        assert await lock.acquire() is None
    return boot_now() - started
