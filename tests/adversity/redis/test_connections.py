"""How many connections a `Locks` has to a Redis server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lockfast
from lockfast.backends.redis.io import blocking, resp
from tests.servers.proxy import Proxy
from tests.servers.server import Server
from tests.servers.waiting import LIMIT, join, until

pytestmark = pytest.mark.slow

MANY = 24  # threads


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def ask_together(locks: lockfast.Locks, server: Server) -> None:
    """Each of so many threads has a request under way at the same moment."""
    engine: Any = locks._logic.engine
    server.pause()
    threads = [
        threading.Thread(target=locks.lock(f"x{number}", renew=False).acquire, args=(False,)) for number in range(MANY)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(engine.outage.unanswered) == MANY, "all to ask")
    server.go_on()
    join(*threads)


def idle_connections(locks: lockfast.Locks) -> int:
    connections: Any = locks._logic.engine.backend._driver._connections  # type: ignore[attr-defined]
    return len(connections._idle[None])


def test_a_connection_is_kept_for_each_thread_that_asks_at_the_same_moment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resp, "SUSPECT_AFTER_S", LIMIT)
    with Proxy(server) as proxy, lockfast.connect(proxy.url) as locks:
        ask_together(locks, server)
        before = proxy.accepted
        assert idle_connections(locks) == MANY
        for _ in range(3):
            ask_together(locks, server)
        assert proxy.accepted == before


def test_connections_that_are_not_used_any_more_are_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with lockfast.connect(server.url) as locks:
        ask_together(locks, server)
        monkeypatch.setattr(blocking, "_UNUSED_S", 0.0)
        for _ in range(MANY):
            locks.lock("one").locked()
        assert idle_connections(locks) == blocking._MAX_IDLE_CONNECTIONS
        until(lambda: int(server.command("INFO", "clients").split(b"connected_clients:")[1].split()[0]) == 17)
