"""How requests share a connection in an event loop: what is written when, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

import pytest

from lockfast.backends.redis.io.asyncio_connection import AsyncioConnection
from lockfast.backends.redis.io.urls import endpoint_of_url
from lockfast.errors import BackendUnavailable
from tests.servers.waiting import LIMIT_S

OK = b"+OK\r\n"


class Transport:
    """Keeps what is written, a list entry for each call."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None: ...


def connected(loop: asyncio.AbstractEventLoop) -> tuple[AsyncioConnection, list[bytes]]:
    """A connection as after its handshake, and what is written to it."""
    connection = AsyncioConnection(endpoint_of_url(urlsplit("redis://server")), None, loop)
    transport = connection._transport = Transport()
    connection.alive = True
    return connection, transport.written


def receive(connection: AsyncioConnection, data: bytes) -> None:
    """As a transport does."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_the_only_request_is_written_at_once() -> None:
    async def story() -> None:
        connection, written = connected(asyncio.get_running_loop())
        for request in (b"first", b"second"):
            reply = connection.ask(request, LIMIT_S)
            assert written == [request]
            receive(connection, OK)
            assert await reply == b"OK"
            written.clear()
            await asyncio.sleep(0)
            assert not written
        connection.close()

    run(story())


def test_requests_beside_others_are_written_together_in_their_order() -> None:
    async def story() -> None:
        connection, written = connected(asyncio.get_running_loop())
        first = connection.ask(b"a", LIMIT_S)
        first.cancel()  # it is still carried out before every later request
        replies = [
            connection.ask(b"b", LIMIT_S),
            connection.ask_several(b"cd", 2, LIMIT_S),
            connection.ask(b"e", LIMIT_S),
        ]
        assert written == [b"a"]
        await asyncio.sleep(0)
        assert written == [b"a", b"bcde"]
        receive(connection, b"+1\r\n+2\r\n+3\r\n+4\r\n+5\r\n")
        assert await asyncio.gather(*replies) == [b"2", [b"3", b"4"], b"5"]
        connection.close()

    run(story())


def test_an_event_loop_may_make_futures_of_its_own() -> None:
    class Reply(asyncio.Future[Any]):
        pass

    class Loop(asyncio.SelectorEventLoop):
        def create_future(self) -> asyncio.Future[Any]:
            return Reply(loop=self)

    async def story() -> None:
        connection, _ = connected(asyncio.get_running_loop())
        assert isinstance(connection.ask(b"a", LIMIT_S), Reply)
        connection.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(story())


def test_an_interrupt_that_falls_into_a_request_closes_the_connection() -> None:
    """It may be sent or not, so no later reply can be counted on to be for the request that waits for it."""

    def interrupted(_: bytes) -> None:
        raise KeyboardInterrupt

    async def story() -> None:
        for alone in (True, False):
            connection, _ = connected(asyncio.get_running_loop())
            others = [] if alone else [connection.ask(b"a", LIMIT_S)]
            step = connection._transport if alone else connection
            setattr(step, "write" if alone else "_flush_soon", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.ask(b"b", LIMIT_S)
            assert not connection.alive
            for reply in others:
                with pytest.raises(BackendUnavailable):
                    await reply

    run(story())


def test_a_reply_that_arrives_slice_by_slice_is_read_whole() -> None:
    """As TLS in asyncio decrypts it: into slices of one buffer."""

    async def story() -> None:
        connection, _ = connected(asyncio.get_running_loop())
        reply = connection.ask(b"a", LIMIT_S)
        buffer = connection.get_buffer(-1)
        buffer[:3] = b"$6\r"
        buffer[3:][:9] = b"\nanswer\r\n"
        connection.buffer_updated(12)
        assert await reply == b"answer"
        connection.close()

    run(story())
