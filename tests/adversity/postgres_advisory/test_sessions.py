"""Advisory locks on a PostgreSQL server in trouble: sessions that are ended, servers that crash, hang or are full."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import lockfast
from lockfast import BackendUnavailable, LeaseLost
from lockfast.testing.contract import needs
from lockfast.testing.stage import Stage
from tests.adversity.actor import Actor
from tests.adversity.postgres_advisory.stage import OnPostgres, advisory_url
from tests.patience import impatient, refused_for
from tests.renewals import renew_soon
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import VERSIONS
from tests.servers.proxy import Proxy
from tests.servers.waiting import LIMIT_S


class TestSessionsThatEnd(OnPostgres):
    async def test_a_terminated_session_is_a_loss_at_once_and_not_at_the_next_renewal(self, stage: Stage) -> None:
        reported: list[Any] = []
        locks = stage.locks()
        leases = [await locks.lock(name, ttl=3600, on_lost=reported.append).take() for name in ("a", "b")]
        self.terminate()
        await stage.until(lambda: len(reported) == 2, "both losses to be reported")
        for lease in leases:
            assert lease.lost
            with pytest.raises(LeaseLost, match="the session that held it has ended"):
                lease.check()
            assert await lease.release() is False
        async with locks.lock("a") as again:  # and it goes on with a new session
            assert again.fence > leases[0].fence

    @needs("asyncio")
    async def test_a_body_whose_session_is_terminated_is_cancelled(self, stage: Stage) -> None:
        async def body() -> None:
            async with stage.locks().lock("a", ttl=3600):
                self.terminate()
                await asyncio.Event().wait()

        with pytest.raises(LeaseLost):
            await body()

    async def test_a_lock_that_was_waited_for_is_lost_with_its_session_too(self, stage: Stage) -> None:
        first = await stage.locks().lock("a").take()
        waiter = stage.start(stage.locks().lock("a", ttl=3600).take())
        await stage.queue("a", 1)
        await first.release()
        lease = await waiter.result()
        self.terminate()
        await stage.until(lambda: lease.lost, "the loss to be noticed")

    async def test_a_waiter_whose_session_is_terminated_waits_on_and_is_served(self, stage: Stage) -> None:
        holder = await stage.locks().lock("a").take()
        waiter = stage.start(stage.locks().lock("a").take())
        await stage.queue("a", 1)
        for _ in range(3):
            self.terminate(only="wait_event_type = 'Lock'")
            await stage.queue("a", 1)
        assert holder.held
        await holder.release()
        assert (await waiter.result()).fence > holder.fence

    async def test_a_cut_wire_is_a_loss_at_once(self, stage: Stage) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            lease = await self.through(proxy, stage).lock("a", ttl=3600).take()
            proxy.cut()
            await stage.until(lambda: lease.lost, "the loss to be noticed")
            await stage.until(self.nothing_left(), "the server to notice too")

    @pytest.mark.parametrize("blocking", [True, False])
    async def test_a_server_that_is_down_is_not_reported_as_a_held_lock(self, stage: Stage, blocking: bool) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            holder = await stage.locks().lock("a").take()
            locks = self.through(proxy, stage)
            assert await locks.lock("a").acquire(blocking=False) is None
            proxy.refuse()
            with impatient(locks), pytest.raises(BackendUnavailable, match=str(proxy.port)):
                await locks.lock("a").acquire(blocking)
            proxy.heal()
            assert holder.held
            assert await holder.release()

    async def test_a_wire_that_swallows_everything_is_a_loss_when_the_ttl_has_passed(self, stage: Stage) -> None:
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            lease = await self.through(proxy, stage).lock("a", ttl=1).take()
            proxy.black_hole()
            await stage.until(lambda: lease.lost, "the holder to stop believing")
            proxy.heal()
            await stage.until(self.nothing_left(), "what no lease stands for to be released")


class TestServersThatCrash(OnPostgres):
    @pytest.mark.parametrize("version", VERSIONS)
    async def test_a_crash_of_the_server_is_a_loss_at_once_and_fences_grow_through_it(
        self, stage: Stage, version: int
    ) -> None:
        with PostgresServer(version=version) as server:
            self.where = advisory_url(server)
            locks, fences = stage.locks(), []
            for _ in range(3):
                lease = await locks.lock("a", ttl=3600).take()
                fences.append(lease.fence)
                server.kill()
                await stage.until(lambda lease=lease: lease.lost, "the loss to be noticed")  # type: ignore[misc]
                server.start()
            async with locks.lock("a") as last:
                assert sorted({*fences, last.fence}) == [*fences, last.fence]

    async def test_a_crash_of_one_session_resets_all_and_each_holder_learns_of_the_loss(self, stage: Stage) -> None:
        leases = [await stage.locks().lock(name, ttl=3600).take() for name in ("a", "b", "c")]
        pid = self.server.psql("SELECT min(pid) FROM pg_locks WHERE locktype = 'advisory'")
        os.kill(int(pid), signal.SIGKILL)
        await stage.until(lambda: all(lease.lost for lease in leases), "all losses to be noticed")
        await stage.until(lambda: self._takes(stage), "the server to be back")

    async def _takes(self, stage: Stage) -> bool:
        lease = await stage.locks().lock("a", wait=LIMIT_S).acquire()
        return lease is not None and await lease.release()

    async def test_an_orderly_restart_is_a_loss_too(self, stage: Stage) -> None:
        lease = await stage.locks().lock("a", ttl=3600).take()
        self.server.stop()
        await stage.until(lambda: lease.lost, "the loss to be noticed")
        self.server.start()
        async with stage.locks().lock("a") as again:
            assert again.fence > lease.fence


class TestServersThatHang(OnPostgres):
    async def test_a_server_that_hangs_for_less_than_the_ttl_costs_nothing(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("a", ttl=60).take()
        self.server.pause()
        deadline = lease._deadline
        with impatient(locks, 0.3):
            renew_soon(lease)
            await stage.until(lambda: locks.faults.calls["renew"] > 1, "a renewal to go unanswered, and the next")
        self.server.go_on()
        await stage.until(lambda: lease._deadline > deadline, "a renewal to come through")
        assert lease.held
        assert await lease.release()

    async def test_a_server_that_hangs_longer_is_a_loss_and_nothing_stays_behind(self, stage: Stage) -> None:
        lease = await stage.locks().lock("a", ttl=1).take()
        self.server.pause()
        await stage.until(lambda: lease.lost, "the holder to stop believing")
        self.server.go_on()
        await stage.until(self.nothing_left(), "what no lease stands for to be released")

    async def test_what_a_hanging_server_grants_later_is_released(self, stage: Stage) -> None:
        locks = stage.locks()
        async with locks.lock("ready"):
            pass
        self.server.pause()
        with impatient(locks, 0.3):
            with pytest.raises(BackendUnavailable):
                await locks.lock("a", wait=0.3).acquire()
            with pytest.raises(BackendUnavailable):
                await locks.lock("a", wait=0).acquire()
        self.server.go_on()
        async with stage.locks().lock("other"):
            await stage.until(lambda: self.held() == 1, "what was granted without a reply to be released")
        async with locks.lock("a", wait=LIMIT_S):
            assert self.held() == 1

    async def test_a_waiter_is_served_when_the_server_answers_again(self, stage: Stage) -> None:
        holder = await stage.locks().lock("a", ttl=60).take()
        locks = stage.locks()
        waiter = stage.start(locks.lock("a", ttl=60).take())
        await stage.queue("a", 1)
        before = locks.faults.calls["acquire"]
        self.server.pause()
        await stage.until(lambda: locks.faults.calls["acquire"] > before, "it to poll again, in vain")
        self.server.go_on()
        await holder.release()
        assert (await waiter.result()).fence > holder.fence


class TestServersThatAreFull(OnPostgres):
    settings = {"max_connections": "4", "superuser_reserved_connections": "1", "max_wal_senders": "0"}  # noqa: RUF012

    async def test_a_full_server_is_reported_and_asked_again(self, stage: Stage) -> None:
        self.server.psql(self.guest)
        self.where = self.where.replace("lockfast@", "guest@") + "?waiting=1"
        first = [await stage.locks().lock(name).take() for name in ("a", "b", "c")]
        late = stage.locks()
        await stage.until(lambda: refused_for(late, "d", "cannot reach "), "the reason to be reported")
        await late.close()  # a connection of its own that is still being made would take the room
        patient = stage.start(stage.locks().lock("d", wait=LIMIT_S).take())
        await stage.breathe()
        await first[0].release()
        await stage._opened[0].close()
        assert (await patient.result()).held

    async def test_one_that_finds_no_room_to_wait_in_is_served_when_there_is(self, stage: Stage) -> None:
        self.server.psql(self.guest)
        self.where = self.where.replace("lockfast@", "guest@")
        locks = [stage.locks() for _ in range(3)]
        for number, one in enumerate(locks):
            async with one.lock(f"warm-{number}"):
                pass  # three sessions: there is room for no other
        holder = await locks[0].lock("a").take()
        waiter = stage.start(locks[1].lock("a").take())
        await stage.until(lambda: locks[1].faults.calls["acquire"] > 1, "a second try to find room")
        await locks[2].close()
        await holder.release()
        assert (await waiter.result()).fence > holder.fence


class TestReplicas(OnPostgres):
    async def test_a_replica_is_refused_and_after_its_promotion_it_is_not(self, stage: Stage) -> None:
        with self.server.replica() as replica:
            self.where = advisory_url(replica)
            locks = stage.locks()
            await stage.until(lambda: refused_for(locks, "a", "is a replica"), "the reason to be reported")
            replica.promote()
            async with locks.lock("a", wait=LIMIT_S) as lease:
                assert lease.held

    async def test_a_failover_is_a_loss_at_once_and_fences_go_on(self, stage: Stage) -> None:
        with self.server.replica() as replica:
            self.where = advisory_url(self.server, replica)
            locks = stage.locks()
            lease = await locks.lock("a", ttl=3600).take()
            assert self.held() == 1
            self.server.kill()
            await stage.until(lambda: lease.lost, "the loss to be noticed")
            replica.promote()
            async with locks.lock("a", wait=LIMIT_S) as again:
                assert again.fence > lease.fence


@pytest.mark.slow
def test_a_client_that_is_killed_frees_its_locks_at_once(start: Callable[..., Actor]) -> None:
    with PostgresServer() as server, lockfast.connect(advisory_url(server)) as locks:
        actor = start(on=advisory_url(server))
        actor.ask("acquire", name="a", ttl=3600)
        assert locks.lock("a", wait=0).acquire() is None
        actor.signal(signal.SIGKILL)
        assert locks.lock("a", wait=LIMIT_S).acquire() is not None
