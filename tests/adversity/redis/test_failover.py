"""What a failover of Redis can lose, shown plainly, and what it cannot: the fence lets a resource refuse a late holder.

Replication is asynchronous: a primary that dies takes what it had not passed on with it, locks too. A program that
cannot accept that asks for `replicas=` (see test_replicas.py), or keeps its locks where a majority has to agree.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from lockfast import StaleFence, fencing
from lockfast.testing.awaited import AwaitedLease
from lockfast.testing.stage import Stage
from tests.adversity.redis.worlds import Anywhere, knows
from tests.polling import HOUR, never_poll
from tests.servers.proxy import Proxy
from tests.servers.server import HOST, Server

pytestmark = pytest.mark.slow


class TestLostInAFailover(Anywhere):
    @pytest.fixture(autouse=True)
    def _where(self) -> Iterator[None]:
        with Server() as self.primary, Server() as self.replica:
            self.replica.follow(self.primary)
            yield

    async def two_holders(self, stage: Stage) -> tuple[AwaitedLease, AwaitedLease]:
        """The first one's lock never reaches the replica, which is the primary from then on."""
        self.where = self.primary.url
        locks = stage.locks()
        early = await locks.lock("x").take()
        await stage.until(lambda: knows(self.replica, early), "the replica to know")
        assert await early.release()
        self.replica.follow_nobody()
        first = await locks.lock("x", ttl=60).take()
        assert not knows(self.replica, first)
        self.primary.kill()
        locks.raw._logic.engine.patience = 0.1  # at the end of the story it cannot release what it never gave back
        self.replica.lead()
        self.where = self.replica.url
        second = await stage.locks().lock("x", ttl=60).take()
        assert early.fence < first.fence
        return first, second

    async def test_a_lock_that_was_not_replicated_is_granted_again_with_a_higher_fence(self, stage: Stage) -> None:
        first, second = await self.two_holders(stage)
        assert first.held, "it cannot know"
        assert second.held
        assert second.fence > first.fence

    async def test_every_kind_of_resource_refuses_the_holder_that_lost(self, stage: Stage) -> None:
        first, second = await self.two_holders(stage)
        await self._cell_refuses(stage, first.fence, second.fence)
        self._key_refuses(first.fence, second.fence)
        _row_refuses(first.fence, second.fence)

    async def _cell_refuses(self, stage: Stage, old: int, new: int) -> None:
        cell = stage.locks().cell("balance")
        await cell.write("by the second", fence=new)
        with pytest.raises(StaleFence):
            await cell.write("by the first", fence=old)
        assert (await cell.read()).value == "by the second"

    def _key_refuses(self, old: int, new: int) -> None:
        with redis.Redis(HOST, self.replica.port) as client:
            fencing.redis_write(client, "balance", "by the second", new)
            with pytest.raises(StaleFence):
                fencing.redis_write(client, "balance", "by the first", old)
            assert client.hget("balance", "value") == b"by the second"


def _row_refuses(old: int, new: int) -> None:
    with closing(sqlite3.connect(":memory:")) as table:
        table.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance TEXT, fence INTEGER)")
        table.execute("INSERT INTO accounts VALUES (1, 'nobody''s', NULL)")
        fencing.guarded_update(table, "accounts", {"balance": "by the second"}, key={"id": 1}, fence=new)
        with pytest.raises(StaleFence):
            fencing.guarded_update(table, "accounts", {"balance": "by the first"}, key={"id": 1}, fence=old)
        assert table.execute("SELECT balance FROM accounts").fetchone() == ("by the second",)


class TestBehindALoadBalancer(Anywhere):
    @pytest.fixture(autouse=True)
    def _where(self) -> Iterator[None]:
        with Server() as self.primary, Server() as self.replica, Proxy(self.primary) as self.proxy:
            self.replica.follow(self.primary)
            self.where = self.proxy.url
            yield

    def fail_over(self) -> None:
        """The old primary lives on as a replica, and connections to it too."""
        self.replica.lead()
        self.primary.follow(self.replica)
        self.proxy.lead_to(self.replica)

    async def test_the_subscription_of_waiters_moves_to_the_new_primary_with_their_requests(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        locks, holder = stage.locks(), await stage.locks().lock("x", ttl=HOUR).take()
        waiter = stage.start(locks.lock("x", ttl=HOUR).take())
        await stage.queue("x", 1)
        (channel,) = self.primary.command("PUBSUB", "CHANNELS")
        await stage.until(lambda: knows(self.replica, holder), "the replica to know")
        self.fail_over()
        await locks.lock("another", ttl=HOUR).take()
        await stage.until(
            lambda: self.replica.command("PUBSUB", "NUMSUB", channel)[1] == 1, "the subscription at the new primary"
        )
        assert await holder.release()
        assert (await waiter.result()).fence > holder.fence

    async def test_a_client_that_begins_at_a_replica_asks_until_it_finds_the_primary(self, stage: Stage) -> None:
        """It began in the middle of a failover: the server that it found is a replica by now, or is none soon."""
        self.proxy.lead_to(self.replica)
        asking = stage.start(stage.locks().lock("x", ttl=HOUR).take())
        await stage.until(lambda: self.proxy.accepted > 1, "a second connection: the first led to a replica")
        self.proxy.lead_to(self.primary)
        assert (await asking.result()).held
