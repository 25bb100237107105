"""The lock table on a primary with a streaming replica: what a failover keeps, what it can lose, and what it cannot.

Replication is asynchronous unless the server is configured otherwise: a primary that dies takes with it what it had not
passed on, locks too. What is left then is the fence: the next grant has a higher one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast import BackendUnavailable, StaleFence, fencing
from lockfast.testing.awaited import AwaitedLease
from lockfast.testing.stage import Stage
from tests.adversity.postgres_advisory.stage import OnPostgres
from tests.patience import refused_for
from tests.servers.postgres import USER, PostgresServer
from tests.servers.postgres_tables import empty_table
from tests.servers.server import HOST
from tests.servers.waiting import LIMIT_S, until

MANY = 100  # grants: the log records a sequence thirty-two numbers ahead


class TestFailover(OnPostgres):
    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        with PostgresServer() as self.server:
            empty_table(self.server.url)
            with self.server.replica() as self.replica:
                yield

    def _both(self) -> str:
        hosts = ",".join(f"{HOST}:{server.port}" for server in (self.server, self.replica))
        return f"postgresql://{USER}@{hosts}/postgres"

    def _knows(self, lease: AwaitedLease) -> bool:
        return self.replica.psql(f"SELECT count(*) FROM distributed_locks WHERE fence = {lease.fence}") == "1"

    def _part(self) -> None:
        """From now on the replica receives nothing; the primary goes on."""
        self.replica.psql("ALTER SYSTEM SET primary_conninfo = ''")
        self.replica.psql("SELECT pg_reload_conf()")
        until(lambda: self.replica.psql("SHOW primary_conninfo") == "", "the new settings")
        until(lambda: self.server.psql("SELECT count(*) FROM pg_stat_replication") == "0", "the replica to be cut off")

    async def test_a_lock_that_was_passed_on_is_held_on_after_the_failover(self, stage: Stage) -> None:
        self.where = self._both()
        locks = stage.locks()
        lease = await locks.lock("x", ttl=600).take()
        await stage.until(lambda: self._knows(lease), "the replica to know")
        self.server.kill()
        self.replica.promote()
        await stage.until(lambda: _extends(lease), "the new primary to be found")
        assert await stage.locks().lock("x", wait=0).acquire() is None
        assert await lease.release()
        async with locks.lock("x") as following:
            assert following.fence > lease.fence

    async def test_a_replica_is_refused_until_it_is_promoted(self, stage: Stage) -> None:
        self.where = self.replica.url
        locks = stage.locks()
        await stage.until(lambda: refused_for(locks, "x", "it is a replica"), "the reason to be reported")
        self.replica.promote()
        async with locks.lock("x", wait=LIMIT_S) as lease:
            assert lease.held

    async def _not_replicated(self, stage: Stage) -> AwaitedLease:
        """A lock that never reaches the replica, which is the primary from then on."""
        self.where = self.server.url
        locks = stage.locks()
        early = await locks.lock("early", ttl=600).take()
        await stage.until(lambda: self._knows(early), "the replica to know")
        self._part()
        for _ in range(MANY):
            async with locks.lock("busy"):
                pass
        first = await locks.lock("x", ttl=600).take()
        assert not self._knows(first)
        self.server.kill()
        locks.raw._logic.engine.patience = 0.3  # when the story is over, it cannot release what it never gave back
        self.replica.promote()
        self.where = self.replica.url
        return first

    async def test_a_lock_that_was_not_replicated_is_granted_again_and_the_fence_shows_the_late_holder(
        self, stage: Stage
    ) -> None:
        first = await self._not_replicated(stage)
        second = await stage.locks().lock("x", ttl=600).take()
        assert first.held, "it cannot know"
        assert second.held
        assert second.fence > first.fence
        with psycopg.connect(self.replica.url, autocommit=True) as resource:
            _resource_refuses(resource, first.fence, second.fence)
        cell = stage.locks().cell("balance")
        await cell.write("by the second", fence=second.fence)
        with pytest.raises(StaleFence):
            await cell.write("by the first", fence=first.fence)

    async def test_an_sql_client_that_comes_first_after_a_failover_gets_a_higher_fence(self, stage: Stage) -> None:
        first = await self._not_replicated(stage)
        assert self.replica.psql("SELECT acquire_lock('x', 'psql', 600)") == "t"
        assert int(self.replica.psql("SELECT fence FROM distributed_locks WHERE lock_name = 'x'")) > first.fence


def _resource_refuses(resource: psycopg.Connection[Any], old: int, new: int) -> None:
    resource.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance text, fence bigint)")
    resource.execute("INSERT INTO accounts VALUES (1, 'nobody''s', NULL)")
    fencing.guarded_update(resource, "accounts", {"balance": "by the second"}, key={"id": 1}, fence=new)
    with pytest.raises(StaleFence):
        fencing.guarded_update(resource, "accounts", {"balance": "by the first"}, key={"id": 1}, fence=old)
    assert resource.execute("SELECT balance FROM accounts").fetchone() == ("by the second",)


async def _extends(lease: AwaitedLease) -> bool:
    try:
        await lease.extend()
    except BackendUnavailable:
        return False
    return True


@pytest.mark.slow
def test_a_crash_that_forgets_commits_hands_out_no_fence_again() -> None:
    """With synchronous_commit off it may forget the last moments: then a lock is free, but its number is used up."""
    with PostgresServer({"synchronous_commit": "off", "wal_writer_delay": "10s"}) as server:
        empty_table(server.url)
        server.psql("CHECKPOINT")
        with lockfast.connect(server.url) as locks:
            before = [locks.lock(f"x{number}").acquire() for number in range(MANY)]
            server.restart()
            left = int(server.psql("SELECT count(*) FROM distributed_locks"))
            assert left < MANY, "nothing was forgotten: this shows nothing"
            with locks.lock("y") as lease:
                assert lease.fence > max(one.fence for one in before if one)
