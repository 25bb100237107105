"""Locks on the primary that Sentinels report: found, lost in a failover, and found again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import redis.asyncio.sentinel
import redis.sentinel

from lockfast import BackendUnavailable
from lockfast.backends.redis.io.endpoints import Address
from lockfast.backends.redis.io.urls import endpoint_of_url
from lockfast.backends.redis.requests import script
from lockfast.testing.stage import Stage
from tests.adversity.redis.worlds import Anywhere, knows
from tests.patience import refused_for
from tests.renewals import renewed
from tests.servers.proxy import Proxy
from tests.servers.sentinel import SERVICE, Watched
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def calm() -> Iterator[Watched]:
    """A set-up for the stories that leave it as it was."""
    with Watched() as watched:
        yield watched


class TestFound(Anywhere):
    @pytest.fixture(autouse=True)
    def _where(self, calm: Watched) -> Iterator[None]:
        self.calm, self.where = calm, calm.url
        yield
        for sentinel in calm.sentinels:
            sentinel.go_on()

    async def test_locks_are_on_the_primary_that_the_sentinels_report(self, stage: Stage) -> None:
        await self.works(stage)
        lease = await stage.locks().lock("x").take()
        assert knows(self.calm.primary, lease)

    async def test_the_url_names_the_database(self, stage: Stage) -> None:
        self.where = f"{self.calm.url}/3"
        lease = await stage.locks().lock("x").take()
        (found,) = self.calm.primary.command("KEYS", "lockfast:*", db=3)
        assert lease.claim_id.encode() in self.calm.primary.command("GET", found, db=3)
        assert await lease.release()
        self.calm.primary.command("FLUSHDB", db=3)

    async def test_a_sentinel_that_is_not_there_does_not_stop_anybody(self, stage: Stage) -> None:
        with Server() as gone:
            port = gone.port
        self.where = self.calm.url.replace("://", f"://{HOST}:{port},")
        await self.works(stage)

    async def test_a_sentinel_that_hangs_does_not_stop_anybody(self, stage: Stage) -> None:
        await stage.info("x")
        hanging, *others = self.calm.sentinels
        with Proxy(hanging) as proxy:
            hosts = ",".join(f"{HOST}:{port}" for port in (proxy.port, *(sentinel.port for sentinel in others)))
            self.where = f"redis+sentinel://{hosts}/{SERVICE}"
            proxy.black_hole()
            locks = stage.locks()
            lease = await locks.lock("x").take()
            asked = proxy.accepted
            assert asked, "it is the first that is asked"
            waiter = stage.start(locks.lock("x").take())  # by a connection of its own
            await stage.queue("x", 1)
            assert proxy.accepted == asked, "it was not asked first again"
            assert await lease.release()
            await waiter.result()
            await locks.close()

    async def test_wait_is_kept_to_though_all_sentinels_hang(self, stage: Stage) -> None:
        for sentinel in self.calm.sentinels:
            sentinel.pause()
        with pytest.raises(BackendUnavailable):
            await stage.locks().lock("x", wait=0.5).take()

    async def test_an_unknown_service_is_named_in_the_error(self, stage: Stage) -> None:
        self.where = self.calm.url.replace(f"/{SERVICE}", "/nobody")
        locks = stage.locks()
        await stage.until(lambda: refused_for(locks, "x", "nobody"), "the reason to be given")

    async def test_a_login_that_all_sentinels_refuse_stays_refused(self, stage: Stage) -> None:
        self.where = f"{self.calm.url}?sentinel_username=nobody&sentinel_password=wrong"
        with pytest.raises(BackendUnavailable, match="invalid username-password pair") as refused:
            await stage.locks().lock("x").take()
        assert not refused.value.transient
        assert "wrong" not in str(refused.value)

    async def test_no_connection_to_a_sentinel_looks_up_the_version_of_its_library(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked_up: list[str] = []
        monkeypatch.setattr("importlib.metadata.version", looked_up.append)
        await self.works(stage)
        assert looked_up == []

    @pytest.mark.parametrize("kind", [redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel])
    async def test_a_client_of_sentinels_leads_to_the_same_locks(self, stage: Stage, kind: Any) -> None:
        sentinels = kind([(HOST, sentinel.port) for sentinel in self.calm.sentinels], socket_timeout=LIMIT_S)
        self.where = sentinels.master_for(SERVICE, db=0)
        await self.works(stage)
        lease = await stage.locks().lock("x").take()
        assert knows(self.calm.primary, lease)


def test_a_service_is_found_by_any_name_and_beside_any_other(calm: Watched) -> None:
    names = (SERVICE.encode(), "grün und rot/1".encode(), b"not \xff UTF-8")
    with Server(sentinel=True) as sentinel:
        for name in names:
            sentinel.command("SENTINEL", "MONITOR", name, HOST, calm.primary.port, 1)
        for name in names:
            endpoint = endpoint_of_url(urlsplit(f"redis+sentinel://{HOST}:{sentinel.port}/{quote(name, safe='')}"))
            for same in (endpoint, endpoint_of_url(urlsplit(endpoint.url))):
                assert same.find(LIMIT_S) == Address(HOST, calm.primary.port)


class TestFailover(Anywhere):
    @pytest.fixture(autouse=True)
    def _where(self) -> Iterator[None]:
        with Watched() as self.watched:
            self.where = self.watched.url
            yield

    async def test_holders_and_waiters_go_on_at_the_new_primary(self, stage: Stage) -> None:
        replica = self.watched.replica
        lease = await stage.locks().lock("x", ttl=60).take()
        waiter = stage.start(stage.locks().lock("x").take())
        await stage.queue("x", 1)
        await stage.until(lambda: knows(replica, lease), "the lease to be replicated")
        assert not _knows_script(replica, "acquire"), "else it would not be loaded anew"
        self.watched.kill_primary()
        await renewed(stage, lease)
        assert _role(replica) == b"master"
        found = await stage.locks().inspect("x")
        assert [holder.fence for holder in found.holders] == [lease.fence], "what was replicated is kept"
        assert (await stage.locks().lock("x", wait=0).acquire()) is None
        assert await lease.release()
        granted = await waiter.result()
        assert granted.fence > lease.fence
        assert knows(replica, granted)
        assert _knows_script(replica, "acquire")

    async def test_new_locks_are_granted_while_and_after_the_primary_is_replaced(self, stage: Stage) -> None:
        locks = stage.locks()
        first = await locks.lock("x").take()
        assert await first.release()
        self.watched.kill_primary()
        second = await locks.lock("x", wait=LIMIT_S).take()  # it asks until there is a new one
        assert _role(self.watched.replica) == b"master"
        assert second.fence > first.fence

    async def test_a_demoted_primary_that_refuses_leads_to_the_new_one(self, stage: Stage) -> None:
        primary, replica = self.watched.primary, self.watched.replica
        locks = stage.locks()
        lease = await locks.lock("x", ttl=60).take()
        waiter = stage.start(stage.locks().lock("x").take())
        await stage.queue("x", 1)
        await stage.until(lambda: knows(replica, lease), "the lease to be replicated")
        self._swap_roles(primary, replica)
        with pytest.raises(redis.ReadOnlyError):
            primary.command("SET", "x", "y")
        other = await locks.lock("y").take()
        assert knows(replica, other)
        await renewed(stage, lease)
        assert await lease.release()
        granted = await waiter.result()
        assert knows(replica, granted)

    def _swap_roles(self, primary: Server, replica: Server) -> None:
        """Without notice to the clients: Sentinels would have cut their connections."""
        for sentinel in self.watched.sentinels:
            sentinel.command("SENTINEL", "REMOVE", SERVICE)
        replica.lead()
        primary.follow(replica)
        for sentinel in self.watched.sentinels:
            self.watched.watch(sentinel, replica)


def _role(server: Server) -> bytes:
    return bytes(server.command("ROLE")[0])


def _knows_script(server: Server, verb: str) -> bool:
    sha = script(verb).digest.split(b"\r\n")[3]
    return bool(server.command("SCRIPT", "EXISTS", sha)[0])
