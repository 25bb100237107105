"""How many connections a `Locks` has to a Redis server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._worlds import drive
from lockfast.backends.redis.io import blocking, resp
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from tests.servers.proxy import Proxy
from tests.servers.server import Server
from tests.servers.waiting import LIMIT_S, join, stand_still, until

pytestmark = pytest.mark.slow

MANY = 24  # threads
PING = resp.command("PING")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def ask_together(locks: lockfast.Locks, server: Server) -> None:
    """Each of that many threads has a request under way at the same moment."""
    engine: Any = locks._logic.engine
    server.pause()
    threads = [
        threading.Thread(target=locks.lock(f"x{number}", renew=False).acquire, args=(False,)) for number in range(MANY)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(engine.outage.unanswered) == MANY, "all to ask")
    stand_still(*threads)  # each has sent its request
    server.go_on()
    join(*threads)


def connections_of(locks: lockfast.Locks) -> Any:
    return locks._logic.engine.backend._driver._connections  # type: ignore[attr-defined]


def idle_connections(locks: lockfast.Locks) -> int:
    return len(connections_of(locks)._idle[None])


def test_a_connection_is_kept_for_each_thread_that_asks_at_the_same_moment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resp, "SUSPECT_AFTER_S", LIMIT_S)
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


def test_all_that_were_idle_as_long_as_a_dead_connection_are_closed_with_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no later request has to find out that the next one leads nowhere too."""
    with Proxy(server) as proxy, lockfast.connect(proxy.url) as locks:
        with monkeypatch.context() as patch:
            patch.setattr(resp, "SUSPECT_AFTER_S", LIMIT_S)
            ask_together(locks, server)
        before = set(connections_of(locks)._idle[None])
        assert len(before) == MANY
        proxy.forsake()
        monkeypatch.setattr(resp, "SUSPECT_AFTER_S", 0.1)
        assert locks.lock("y", wait=LIMIT_S).acquire() is not None
        assert not before & set(connections_of(locks)._idle[None])


@pytest.mark.parametrize("within", [0.01, 0.03, 0.05])
def test_a_request_without_time_for_a_new_connection_closes_no_other(
    server: Server, monkeypatch: pytest.MonkeyPatch, within: float
) -> None:
    monkeypatch.setattr(resp, "SUSPECT_AFTER_S", LIMIT_S)
    with lockfast.connect(server.url) as locks:
        ask_together(locks, server)
        before = idle_connections(locks)
        server.pause()
        try:
            with pytest.raises(BackendUnavailable, match="did not answer in time") as failed:
                connections_of(locks)._ask(None, PING, 1, within)
        finally:
            server.go_on()
        assert failed.value.sent
        assert idle_connections(locks) == before - 1, "the connection of the request is closed"


class _Stall:
    """Threads of which each has sent a request to a server that does not answer, and has become suspicious."""

    def __init__(self, locks: lockfast.Locks, monkeypatch: pytest.MonkeyPatch) -> None:
        self._connections = connections_of(locks)
        self.replies: list[Any] = []
        all_wait = threading.Barrier(MANY + 1)
        not_in_time = self._connections._not_in_time

        def together(*args: Any) -> list[Any]:
            all_wait.wait(LIMIT_S)
            return cast("list[Any]", not_in_time(*args))

        monkeypatch.setattr(resp, "SUSPECT_AFTER_S", 0.05)
        monkeypatch.setattr(self._connections, "_not_in_time", together)
        self.threads = [threading.Thread(target=self._ask) for _ in range(MANY)]
        for thread in self.threads:
            thread.start()
        all_wait.wait(LIMIT_S)

    def _ask(self) -> None:
        try:
            self.replies += self._connections._ask(None, PING, 1, LIMIT_S)
        except BackendUnavailable as error:
            self.replies.append(error)


def test_one_thread_makes_a_new_connection_for_all_that_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(server) as proxy, lockfast.connect(proxy.url) as locks:
        with monkeypatch.context() as patch:
            patch.setattr(resp, "SUSPECT_AFTER_S", LIMIT_S)
            ask_together(locks, server)
        idle = idle_connections(locks)
        for _ in range(3):
            before = proxy.accepted
            with monkeypatch.context() as patch:
                server.pause()
                try:
                    stall = _Stall(locks, patch)
                    until(lambda before=before: proxy.accepted > before, "a new connection")  # type: ignore[misc]
                finally:
                    server.go_on()
                join(*stall.threads)
            assert stall.replies == [b"PONG"] * MANY
            assert proxy.accepted == before + 1
            assert idle_connections(locks) == idle, "the new connection replaces one of them"


def test_what_one_thread_learns_of_a_server_counts_for_all_that_wait(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(server) as proxy, lockfast.connect(proxy.url) as locks:
        with monkeypatch.context() as patch:
            patch.setattr(resp, "SUSPECT_AFTER_S", LIMIT_S)
            ask_together(locks, server)
        before = proxy.accepted
        server.pause()
        try:
            proxy.refuse_others()
            stall = _Stall(locks, monkeypatch)
            join(*stall.threads)
        finally:
            server.go_on()
            proxy.heal()
        assert proxy.accepted == before + 1
        assert len({id(error) for error in stall.replies}) == MANY, "each thread has an error of its own"
        for error in stall.replies:
            assert isinstance(error, BackendUnavailable)
            assert "cannot reach" in str(error)
            assert error.sent, "on the old connection"


def test_a_new_connection_that_a_thread_had_no_time_for_shows_nothing_to_others(server: Server) -> None:
    with lockfast.connect(server.url) as locks:
        assert not locks.lock("x").locked()
        connections = connections_of(locks)
        (connection,) = connections._idle[None]
        server.pause()
        try:
            connection.send(PING, LIMIT_S)
            short = connections._dial_another(None, connection, connection.asked_at + 0.1)
        finally:
            server.go_on()
        assert short is None or short.error is not None
        answer = connections._dial_another(None, connection, connection.asked_at + LIMIT_S)
        assert answer.error is None


def test_servers_that_hang_when_they_are_connected_to_leave_the_others_of_a_cluster_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In threads servers without an idle connection are asked one after the other."""
    now, given = 0.0, list[float]()

    def hang(address: Address, request: bytes, replies: int, within: float) -> list[Any]:
        nonlocal now
        now += within
        given.append(within)
        raise BackendUnavailable("no answer")

    with lockfast.connect("redis+cluster://h1,h2,h3") as locks:
        connections = connections_of(locks)
        monkeypatch.setattr(blocking, "boot_now", lambda: now)
        monkeypatch.setattr(connections, "_ask", hang)
        drive(connections.ask_each([(Address(f"h{number}", 6379), PING, 1) for number in (1, 2, 3)], 9.0))
    assert given == [3.0, 3.0, 3.0]


def test_redis_py_has_nothing_to_close_while_a_connection_is_in_use(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py 5.1 closes it in a finalizer: that fails after the end of the loop, and prints a traceback."""
    dialled: list[Any] = []
    dial = RedisEndpoint.dial_async

    async def noted(*args: Any) -> Any:
        dialled.append(await dial(*args))
        return dialled[-1]

    async def story() -> None:
        async with lockfast.aio.connect(server.url) as locks, locks.lock("a"):
            assert dialled
            assert [(one._reader, one._writer) for one in dialled] == [(None, None)] * len(dialled)

    monkeypatch.setattr(RedisEndpoint, "dial_async", noted)
    asyncio.run(story())
