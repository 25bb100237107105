"""A ready client in place of a URL: what it says about the server counts, what it says about itself does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import lockfast
import lockfast.aio
from lockfast.testing.stage import Stage
from tests.adversity.redis.worlds import Anywhere
from tests.servers.server import HOST, Server
from tests.servers.tls import Certificates, TlsFront

pytestmark = pytest.mark.slow

MANY = 6  # more than a client below allows connections


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        server.command("ACL", "SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all")
        yield server


@pytest.fixture(scope="module")
def front(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsFront]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with TlsFront(server, certificates) as front:
        yield front


Made = Callable[[Any, Server, TlsFront], Any]  # from redis.Redis or redis.asyncio.Redis

CLIENTS: dict[str, Made] = {
    "host and port": lambda kind, server, front: kind(host=HOST, port=server.port, db=5),
    "url": lambda kind, server, front: kind.from_url(f"redis://{HOST}:{server.port}/5"),
    "user": lambda kind, server, front: kind(host=HOST, port=server.port, db=5, username="ann", password="secret"),
    "path": lambda kind, server, front: kind(unix_socket_path=str(server.socket), db=5),
    "tls": lambda kind, server, front: kind(host=HOST, port=front.port, db=5, ssl=True, **front.certificates.trusting),
    "tls url": lambda kind, server, front: kind.from_url(
        front.url(**front.certificates.trusting).replace("/0?", "/5?")
    ),
    "decoding": lambda kind, server, front: kind(host=HOST, port=server.port, db=5, decode_responses=True),
    "protocol 3": lambda kind, server, front: kind(host=HOST, port=server.port, db=5, protocol=3),
    "short of breath": lambda kind, server, front: kind(
        host=HOST, port=server.port, db=5, max_connections=1, socket_timeout=0.2, health_check_interval=1
    ),
    "single": lambda kind, server, front: kind(host=HOST, port=server.port, db=5, single_connection_client=True),
}


class TestClients(Anywhere):
    """Each client, of either kind, for locks of either world."""

    @pytest.fixture(autouse=True)
    def _client(self, request: pytest.FixtureRequest, server: Server, front: TlsFront) -> Iterator[None]:
        self.server = server
        callspec = request.node.callspec.params
        kind = redis.Redis if callspec.get("kind", "blocking") == "blocking" else redis.asyncio.Redis
        self.where = self.client = CLIENTS[callspec.get("client", "url")](kind, server, front)
        yield
        if kind is redis.Redis:
            self.client.close()
        server.command("FLUSHALL")

    @pytest.mark.parametrize("kind", ["blocking", "asyncio"])
    @pytest.mark.parametrize("client", CLIENTS)
    async def test_its_locks_are_where_it_would_have_put_them(self, stage: Stage, client: str, kind: str) -> None:
        await self.works(stage)
        lease = await stage.locks().lock("x").take()
        records = [self.server.command("GET", key, db=5) for key in self.server.command("KEYS", "*:held", db=5)]
        assert any(lease.claim_id.encode() in record for record in records)

    async def test_no_connection_looks_up_the_version_of_its_library(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the file system: it would take as long as all the rest of a handshake."""

        def version(package: str) -> str:
            looked_up.append(package)
            return "1.0"

        looked_up: list[str] = []
        monkeypatch.setattr("importlib.metadata.version", version)
        await self.works(stage)
        assert looked_up == []

    @pytest.mark.parametrize("client", ["short of breath"])
    async def test_its_limits_are_not_inherited(self, stage: Stage, client: str) -> None:
        holder, waiting = stage.locks(), stage.locks()
        leases = [await holder.lock(f"x{number}").take() for number in range(MANY)]
        waiters = [stage.start(waiting.lock(f"x{number}").take()) for number in range(MANY)]
        for number in range(MANY):
            await stage.queue(f"x{number}", 1)
        self.server.pause()
        try:
            slow = [stage.start(lease.release()) for lease in leases]
            await _for_real(stage, 0.4)  # twice as long as the client would have waited for an answer
            assert not any(one.done for one in slow)
        finally:
            self.server.go_on()
        assert all([await one.result() for one in slow])
        assert all([(await waiter.result()).held for waiter in waiters])


async def _for_real(stage: Stage, seconds: float) -> None:
    """Let real time pass: nothing else shows that no waiter gave up."""
    until = stage._moment() + seconds
    await stage.until(lambda: stage._moment() > until)


def test_the_client_stays_open_and_usable(server: Server) -> None:
    with redis.Redis(host=HOST, port=server.port) as client:
        client.set("mine", "1")
        before = client.client_id()
        with lockfast.connect(client) as locks, locks.lock("x"):
            assert client.get("mine") == b"1"
        assert client.get("mine") == b"1"
        assert client.client_id() == before, "not even its connection has been touched"


def test_the_client_for_asyncio_stays_open_and_usable(server: Server) -> None:
    async def use() -> None:
        async with redis.asyncio.Redis(host=HOST, port=server.port) as client:
            await client.set("mine", "1")
            before = await client.client_id()
            async with lockfast.aio.connect(client) as locks, locks.lock("x"):
                assert await client.get("mine") == b"1"
            assert await client.get("mine") == b"1"
            assert await client.client_id() == before

    asyncio.run(use())


@pytest.mark.parametrize("thing", [object(), 5, b"redis://localhost", {"redis://localhost"}])
@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
def test_what_is_no_client_is_refused_by_its_kind(connect: Any, thing: Any) -> None:
    with pytest.raises(ValueError, match=f"URL or a client, not {type(thing).__name__}"):
        connect(thing)


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
def test_what_is_redis_but_no_client_is_refused_too(connect: Any) -> None:
    with pytest.raises(ValueError, match="URL or a client, not Retry"):
        connect(redis.retry.Retry(redis.backoff.NoBackoff(), 0))


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis, redis.cluster.RedisCluster])
def test_the_class_of_a_client_is_no_client(kind: type) -> None:
    with pytest.raises(ValueError, match=f"not its class {kind.__name__}"):
        lockfast.connect(kind)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("redis://localhost:0", "port 0"),
        ("redis://:pw@localhost:port", "the port of a redis:// URL is a number from 1 to 65535$"),
        ("redis+sentinel://:pw@one,two:port/locks", "the port of a redis.sentinel:// URL is a number from 1 to 65535$"),
        ("redis://localhost:65536", "is a number from 1 to 65535$"),
        ("redis://:p/w@localhost:port", "is a number from 1 to 65535; is something in its password not percent-enc"),
        ("redis://:pw@localhost?db=two", "whose option 'db' has no sensible value$"),
        ("redis+cluster://one:7000,two:0", "port 0"),
        ("redis+cluster://one,two/3", "no database to choose"),
        ("redis://one,two", "names one server"),
        ("redis://localhost/three", "is a number"),
        ("redis://localhost?retry_on_timeout=yes", "no option 'retry_on_timeout'"),
        ("redis+sentinel://one,two", "names the service"),
        ("unix://localhost/tmp/x.sock", "names the socket"),
    ],
)
@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
def test_a_url_that_makes_no_sense_is_refused_before_anything_is_sent(connect: Any, url: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        connect(url)
