"""Where the servers of a quorum are, and how they are reached: TLS, passwords, clients of either world."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest
import redis
import redis.asyncio

import lockfast
from lockfast._connect import open_backend
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.testing.contract import Promise, on_the_real_clock
from lockfast.testing.stage import Stage
from tests.adversity.redlock.servers import Quorum
from tests.servers.server import HOST, Server
from tests.servers.tls import Certificates, TlsFront
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = pytest.mark.slow


class TestEndpoints(Promise):
    can = frozenset()

    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            self.servers = [self.stack.enter_context(Server()) for _ in range(3)]
            yield

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        return open_backend(self.where, world, clock)

    async def works(self, stage: Stage) -> None:
        held = await stage.locks().lock("x", wait=LIMIT_S).take()
        waiter = stage.start(stage.locks().lock("x", wait=LIMIT_S).take())
        await stage.queue("x", 1)
        assert await held.release()
        granted = await waiter.result()
        assert granted.fence > held.fence
        assert await granted.release()

    @on_the_real_clock
    async def test_over_tls_with_a_user_and_a_password(self, stage: Stage, tmp_path: Path) -> None:
        certificates = Certificates(tmp_path)
        for server in self.servers:
            server.command("ACL", "SETUSER", "ann", "on", ">secret word", "~*", "&*", "+@all")
        fronts = [self.stack.enter_context(TlsFront(server, certificates)) for server in self.servers]
        hosts = ",".join(f"{HOST}:{front.port}" for front in fronts)
        options = urlencode({**certificates.trusting, "rejoin": 0, "node_timeout": LIMIT_S})
        self.where: object = f"redlocks://ann:secret%20word@{hosts}/3?{options}"
        await self.works(stage)
        assert [server.command("INFO", "keyspace").count(b"db3") for server in self.servers].count(1) >= 2

    @on_the_real_clock
    @pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
    async def test_by_clients_of_either_world(self, stage: Stage, kind: type) -> None:
        self.where = [kind(host=HOST, port=server.port) for server in self.servers]
        for server in self.servers:
            server.keep_all()  # else it would have to be as old as the ttl
        held = await stage.locks().lock("x", wait=LIMIT_S).take()
        assert held.held
        assert await held.release()


def test_two_servers_that_hang_when_they_are_connected_to_are_waited_for_together() -> None:
    async def in_a_loop(url: str) -> None:
        async with lockfast.aio.connect(url) as locks, locks.lock("x"):
            pass

    def in_a_thread(url: str) -> None:
        with lockfast.connect(url) as locks, locks.lock("x"):
            pass

    with Quorum(5) as quorum:
        hanging = quorum.proxies[0], quorum.proxies[3]
        for go in (in_a_thread, lambda url: asyncio.run(in_a_loop(url))):
            for proxy in hanging:
                proxy.black_hole()
                proxy.accepted = 0
            asking = threading.Thread(target=go, args=(quorum.url(f"rejoin=0&node_timeout={LIMIT_S}"),))
            asking.start()
            until(lambda: all(proxy.accepted for proxy in hanging), "both to be connected to, at the same time")
            for proxy in hanging:
                proxy.heal()
            join(asking)
