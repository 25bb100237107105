"""The lock table on a PostgreSQL server that is killed: what was granted is held on, and fences grow through it."""

from __future__ import annotations

import os
import signal

from lockfast import BackendUnavailable
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.stage import Stage
from tests.adversity.postgres_table.stage import OnTable
from tests.polling import HOUR
from tests.renewals import renewed
from tests.servers.waiting import LIMIT_S


class TestServersThatCrash(OnTable):
    async def test_locks_survive_kill_9_of_the_postmaster_and_fences_grow(self, stage: Stage) -> None:
        locks, other = await self.ready(stage), await self.ready(stage)
        kept = await locks.lock("kept", ttl=HOUR).take()
        before = kept.fence
        for _ in range(2):
            self.server.restart()
            await kept.extend()
            assert await stage.fences("kept") == [kept.fence]
            assert await other.lock("kept", wait=0).acquire() is None
            async with other.lock("x") as lease:
                assert lease.fence > before
                before = lease.fence
        assert await kept.release()

    async def test_a_lease_is_renewed_as_soon_as_the_server_is_back(self, stage: Stage) -> None:
        lease = await (await self.ready(stage)).lock("x", ttl=HOUR).take()
        self.server.restart()
        await renewed(stage, lease)
        assert lease.held
        assert await stage.fences("x") == [lease.fence]

    async def test_a_lease_whose_server_is_down_for_longer_than_its_ttl_is_lost_and_its_name_is_free(
        self, stage: Stage
    ) -> None:
        lease = await (await self.ready(stage)).lock("x", ttl=0.5).take()
        self.server.kill()
        await stage.until(lambda: lease.lost, "the holder to stop believing")
        self.server.start()
        following = await stage.locks().lock("x", wait=LIMIT_S).take()
        assert following.fence > lease.fence

    async def test_waiters_get_a_new_place_after_a_crash_and_are_served(self, stage: Stage) -> None:
        holder = await (await self.ready(stage)).lock("x", ttl=HOUR).take()
        waiters = [stage.start(_take_and_give_back(await self.ready(stage))) for _ in range(2)]
        await stage.queue("x", 2)
        self.server.restart()  # which empties the queue
        await stage.queue("x", 2)
        await holder.release()
        fences = [await waiter.result() for waiter in waiters]
        assert min(fences) > holder.fence
        assert len(set(fences)) == 2

    async def test_a_killed_backend_takes_all_connections_along_and_no_lock(self, stage: Stage) -> None:
        leases = [await (await self.ready(stage)).lock(name, ttl=HOUR).take() for name in "abc"]
        pid = self.ask("SELECT min(pid) FROM pg_stat_activity WHERE application_name = 'lockfast'")
        os.kill(int(pid), signal.SIGKILL)
        for lease in leases:
            await stage.until(lambda lease=lease: _extends(lease), "the server to be back")  # type: ignore[misc]
        assert [await stage.fences(name) for name in "abc"] == [[lease.fence] for lease in leases]

    async def test_an_orderly_restart_keeps_locks_and_places(self, stage: Stage) -> None:
        holder = await (await self.ready(stage)).lock("x", ttl=HOUR).take()
        waiter = stage.start((await self.ready(stage)).lock("x").take())
        await stage.queue("x", 1)
        self.server.stop()
        self.server.start()
        assert await holder.release()
        assert (await waiter.result()).fence > holder.fence


async def _take_and_give_back(locks: AwaitedLocks) -> int:
    async with locks.lock("x") as lease:
        fence: int = lease.fence
    return fence


async def _extends(lease: AwaitedLease) -> bool:
    try:
        await lease.extend()
    except BackendUnavailable:
        return False
    return True
