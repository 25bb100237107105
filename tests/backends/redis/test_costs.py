"""What locks cost a Redis server: bytes that stay, and commands and bytes that do not grow with the waiters or permits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lockfast._connect import open_backend
from lockfast._ids import new_claim_id
from lockfast._model import EXCLUSIVE, GRACE_S, Busy, Claim, Grant, Mode, Terms
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.base import Backend
from lockfast.testing.clock import FakeClock
from tests.servers import binaries
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT, until

WITHIN = LIMIT
HELD = "lockfast:{x}:held"
SECRET = "secret" * 100
DAY_MS = 86_400_000
_OF_THE_TEST = {"config", "config|resetstat", "info"}


class Store:
    """One server, or three that vote, which no other test uses: so all that they count is ours."""

    def __init__(self, kind: str, servers: list[Server]) -> None:
        self.servers = servers
        self.clock = FakeClock()
        hosts = ",".join(f"{HOST}:{server.port}" for server in servers)
        url = f"redlock://{hosts}?rejoin=0&node_timeout={LIMIT:g}" if kind == "redlock" else servers[0].url
        self.backend: Backend = open_backend(url, ThreadWorld(self.clock), self.clock)

    def ask(self, claim: Claim, *, enqueue: bool = True) -> Grant | Busy:
        return drive(self.backend.acquire(claim, enqueue=enqueue, within=WITHIN))

    def release(self, claim: Claim) -> bool:
        return drive(self.backend.release(claim, linger=0.0, within=WITHIN))

    def take(self, claim: Claim) -> Claim:
        assert isinstance(self.ask(claim), Grant)
        return claim

    def queue_up(self, number: int) -> list[Claim]:
        claims = [claim_of("x") for _ in range(number)]
        for claim in claims:
            assert isinstance(self.ask(claim), Busy)
        return claims

    def commands(self, do: Callable[[], object]) -> dict[str, int]:
        """How often each command ran meanwhile, in scripts too, at the server where most did.

        A quorum does not wait for its slowest server, but a majority has carried it out.
        """
        for server in self.servers:
            server.command("CONFIG", "RESETSTAT")
        do()
        return max((counts_of(server) for server in self.servers), key=lambda counts: sum(counts.values()))


def counts_of(server: Server) -> dict[str, int]:
    found = re.findall(r"cmdstat_([\w|]+):calls=(\d+)", server.command("INFO", "commandstats").decode())
    return {name: int(calls) for name, calls in found if name not in _OF_THE_TEST}


def claim_of(key: str, mode: Mode = EXCLUSIVE, limit: int | None = None, metadata: str | None = None) -> Claim:
    return Claim(new_claim_id(), Terms(key, key, "worker", 60.0, mode, limit, metadata))


@pytest.fixture(params=["valkey", *(["redis6"] if binaries.HAS_REDIS_6 else []), "redlock"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    binary = binaries.redis_6() if request.param == "redis6" else binaries.valkey()
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(binary=binary)) for _ in range(3 if request.param == "redlock" else 1)]
        store = Store(request.param, servers)
        stack.callback(lambda: drive(store.backend.close()))
        yield store


def released(store: Store, claim: Claim) -> None:
    assert store.release(claim)


def broken(store: Store, claim: Claim) -> None:
    assert drive(store.backend.break_("x", within=WITHIN)).locked


def abandoned(store: Store, claim: Claim) -> None:
    drive(store.backend.abandon(claim, within=WITHIN))


def released_after_a_waiter_gave_up(store: Store, claim: Claim) -> None:
    (waiter,) = store.queue_up(1)
    drive(store.backend.abandon(waiter, within=WITHIN))
    assert store.release(claim)


class TestAFreeName:
    @pytest.mark.parametrize("end", [released, broken, abandoned, released_after_a_waiter_gave_up])
    def test_only_its_last_fence_stays(self, store: Store, end: Callable[[Store, Claim], None]) -> None:
        """Neither the metadata nor the holder can be read any more, and the fence is kept as long as before."""
        claim = claim_of("x", metadata=f'"{SECRET}"')
        grant: Any = store.ask(claim)
        for server in store.servers:
            until(lambda server=server: server.command("EXISTS", HELD), "the vote of each server")  # type: ignore[misc]
        end(store, claim)
        for server in store.servers:
            until(lambda server=server: len(server.command("GET", HELD)) == 17, "the number alone")  # type: ignore[misc]
            assert server.command("GET", HELD) >= b"%016d-" % grant.fence
            assert server.command("PTTL", HELD) > DAY_MS
            assert server.command("MEMORY", "USAGE", HELD) < 150

    def test_a_later_fence_is_above_it(self, store: Store) -> None:
        first: Any = store.ask(claim := claim_of("x"))
        assert store.release(claim)
        second: Any = store.ask(claim_of("x"))
        assert second.fence > first.fence
