"""New connections to a Redis server that are accepted and then silent, as by a proxy that has lost the server."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

import lockfast
from lockfast.backends.connecting import second_tries
from lockfast.backends.redis.io.urls import endpoint_of_url
from lockfast.testing.stage import Stage
from tests.adversity.redis.stage import OnAServer
from tests.adversity.redis.worlds import Anywhere
from tests.polling import HOUR, never_poll
from tests.servers.proxy import Proxy
from tests.servers.server import HOST, Server
from tests.servers.tls import Certificates, TlsFront
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = pytest.mark.slow

THREADS = 12


class TestSilentFromTheFirstByte(OnAServer):
    async def test_a_silent_connection_does_not_cost_the_whole_wait(self, stage: Stage) -> None:
        self.proxy.leave_unanswered(1)
        locks = stage.locks(patience=HOUR)
        lease = await locks.lock("x", wait=LIMIT_S).take()
        assert self.proxy.accepted == 2
        assert await lease.release()

    async def test_a_silent_subscription_does_not_cost_the_whole_wait(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never_poll(monkeypatch)
        holder = await self.beside_the_wire(stage).lock("x", ttl=HOUR).take()
        locks = await self.ready(stage, patience=HOUR)
        self.proxy.leave_unanswered(1)
        waiter = stage.start(locks.lock("x", wait=LIMIT_S).take())
        await self.waiting(stage, "x")
        assert await holder.release()
        assert (await waiter.result()).held

    async def test_two_silent_connections_cost_as_much_as_an_error(self, stage: Stage) -> None:
        self.proxy.leave_unanswered(2)
        with pytest.raises(lockfast.BackendUnavailable, match="cannot reach") as failed:
            await stage.locks().lock("x", wait=0.3).take()
        assert not failed.value.sent


class TestOverTls(Anywhere):
    async def test_a_silent_connection_does_not_cost_the_whole_wait(
        self, stage: Stage, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        certificates = Certificates(tmp_path_factory.mktemp("certificates"))
        with Server() as server, TlsFront(server, certificates) as front, Proxy(front) as proxy:  # type: ignore[arg-type]
            proxy.leave_unanswered(1)
            self.where = front.url(**certificates.trusting).replace(str(front.port), str(proxy.port))
            locks = stage.locks(patience=HOUR)
            lease = await locks.lock("x", wait=LIMIT_S).take()
            assert proxy.accepted == 2
            assert await lease.release()


def test_a_server_that_is_slow_gets_one_connection_more_and_not_one_for_each_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(second_tries, "SUSPECT_AFTER_S", 0.05)
    monkeypatch.setattr(second_tries, "SPACING_S", HOUR)
    with Server() as server, Proxy(server) as proxy, lockfast.connect(proxy.url, patience=LIMIT_S) as locks:
        proxy.black_hole()
        took: list[bool] = []

        def take(number: int) -> None:
            with locks.lock(f"x{number}"):
                took.append(True)

        threads = [threading.Thread(target=take, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        until(lambda: proxy.accepted == THREADS + 1, "a second connection")
        proxy.heal()
        join(*threads)
        assert len(took) == THREADS
        assert proxy.accepted == THREADS + 1


def read_to_end(connected: socket.socket) -> None:
    with connected.makefile("rb") as stream:
        stream.read()


class _Scripted:
    """A server that accepts a second connection before it answers on the first."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self.port = self._listening.getsockname()[1]
        self.first: Any = None
        self.second_closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="scripted", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        first, self.first = self._listening.accept()
        second, _ = self._listening.accept()
        with first, second:
            first.sendall(b"+OK\r\n" * 8)
            second.settimeout(LIMIT_S)
            read_to_end(second)
            self.second_closed.set()
            read_to_end(first)

    def close(self) -> None:
        self._listening.close()
        join(self._thread)


@pytest.mark.parametrize("world", ["threads", "asyncio"])
def test_a_slow_first_connection_counts_if_it_answers_before_the_second(
    world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_tries, "SUSPECT_AFTER_S", 0.01)
    server = _Scripted()
    endpoint = endpoint_of_url(urlsplit(f"redis://{HOST}:{server.port}/3"))

    async def dial() -> None:
        connection = await endpoint.dial_async(None, LIMIT_S)
        assert await asyncio.to_thread(server.second_closed.wait, LIMIT_S)
        assert connection._writer.get_extra_info("sockname") == server.first
        await connection.disconnect()

    if world == "asyncio":
        asyncio.run(dial())
    else:
        connection = endpoint.dial(None, LIMIT_S)
        assert server.second_closed.wait(LIMIT_S)
        assert connection._sock.getsockname() == server.first
        connection.disconnect()
    server.close()


def test_a_second_connection_that_the_server_does_not_accept_is_given_up_for_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where its backlog is full: the system would try for minutes, and nothing watches the first meanwhile."""
    allowed: list[float] = []
    connect = redis.Connection._connect

    def watched(connection: Any) -> socket.socket:
        allowed.append(connection.socket_connect_timeout)
        if len(allowed) == 1:
            connected: socket.socket = connect(connection)  # type: ignore[no-untyped-call]
            return connected
        first, _ = listening.accept()
        answered.append(first)
        first.sendall(b"+OK\r\n" * 8)
        raise TimeoutError("timed out")  # in the place of a SYN that no reply comes to

    monkeypatch.setattr(second_tries, "SUSPECT_AFTER_S", 0.01)
    monkeypatch.setattr(redis.Connection, "_connect", watched)
    answered: list[socket.socket] = []
    with socket.create_server((HOST, 0)) as listening:
        endpoint = endpoint_of_url(urlsplit(f"redis://{HOST}:{listening.getsockname()[1]}/3"))
        endpoint.dial(None, HOUR).disconnect()
        answered[0].close()
    assert len(allowed) == 2
    assert allowed[1] <= second_tries.SUSPECT_AFTER_S < HOUR / 2 < allowed[0]
