"""Many tasks that give up while the server takes its time: their requests are repeated, and nothing of that stays.

Threads have a connection each, and so cannot know in which order their requests arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lockfast import BackendUnavailable
from lockfast._connect import open_backend
from lockfast._ids import new_claim_id
from lockfast._model import Busy, Claim, Grant, Terms
from lockfast._worlds.asyncio_ import AsyncioWorld
from lockfast.backends.base import Backend
from lockfast.backends.redis.io import asyncio_ as redis_asyncio
from lockfast.backends.redis.io import asyncio_connection
from tests.polling import HOUR
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S, until_async

pytestmark = pytest.mark.slow

MANY = 20
HELD, QUEUE = "lockfast:{x}:held", "lockfast:{x}:queue"


@pytest.fixture(params=["redis", "redlock"])
def servers(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Server()) for _ in range(1 if request.param == "redis" else 3)]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is replaced because a server, or this machine, stands still."""
    monkeypatch.setattr(asyncio_connection, "_SILENCE_S", HOUR)
    monkeypatch.setattr(redis_asyncio.AsyncioConnections, "suspect", lambda *_: None)


def open_at(servers: list[Server]) -> Backend:
    hosts = ",".join(f"{HOST}:{server.port}" for server in servers)
    url = servers[0].url if len(servers) == 1 else f"redlock://{hosts}?rejoin=0&node_timeout={LIMIT_S:g}"
    return open_backend(url, AsyncioWorld(), None)


def claim() -> Claim:
    id = new_claim_id()
    return Claim(id, Terms("x", "x", f"worker {id}", 600.0))


def test_claims_that_are_abandoned_again_on_the_same_connection_leave_no_tombstone(servers: list[Server]) -> None:
    async def story() -> None:
        backend = open_at(servers)
        try:
            await give_up(backend, [claim() for _ in range(MANY)])
        finally:
            await backend.close()

    async def give_up(backend: Backend, waiters: list[Claim]) -> None:
        assert isinstance(await backend.acquire(claim(), enqueue=True, within=LIMIT_S), Grant)

        async def all_wait() -> bool:
            """A server of a quorum that was connected to last may have been sent no request yet: waiters ask again."""
            for waiter in waiters:
                assert isinstance(await backend.acquire(waiter, enqueue=True, within=LIMIT_S), Busy)
            return {server.command("ZCARD", QUEUE) for server in servers} == {MANY}

        await until_async(all_wait, "all to wait at every server")
        for server in servers:
            server.pause()
        hasty = [backend.abandon(waiter, within=0.01) for waiter in waiters]
        assert {type(one) for one in await asyncio.gather(*hasty, return_exceptions=True)} == {BackendUnavailable}
        for server in servers:
            server.go_on()
        for _ in range(2):
            await asyncio.gather(*[backend.abandon(waiter, within=LIMIT_S) for waiter in waiters])
        for server in servers:
            await until_async(lambda server=server: server.command("ZCARD", QUEUE) == 0, "all to be gone")  # type: ignore[misc]
            assert b"!" not in server.command("GET", HELD)

    asyncio.run(story())
