"""A connection that breaks in the middle of redis-py's handshake: its error is reported once, to the caller."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest

from lockfast.backends.redis.io.connections import hang_up


class _Connection:
    """Like one of redis-py's, with the streams of asyncio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Any = reader
        self._writer: Any = writer


@pytest.mark.parametrize("hangs_up", ["before the error", "after the error"])
def test_the_error_of_a_broken_connection_is_not_left_in_a_future(hangs_up: str) -> None:
    reported: list[dict[str, Any]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        ours, server = socket.socketpair()
        connection = _Connection(*await asyncio.open_connection(sock=ours))
        with server, pytest.MonkeyPatch.context() as patch:
            protocol = connection._writer._protocol
            patch.delattr(type(protocol), "__del__")  # as if the future were finalized first
            if hangs_up == "before the error":
                hang_up(connection)
            error = BrokenPipeError(32, "Broken pipe")
            protocol.connection_lost(error)
            hang_up(connection)
            if hangs_up == "after the error":
                connection._writer = None
            await asyncio.sleep(0)  # what is to be called back is
            del protocol, connection
            gc.collect()

    asyncio.run(story())
    assert not reported


def test_one_whose_event_loop_is_closed_is_hung_up_without_an_error() -> None:
    """As the garbage collector does, which ends the handshake that was under way."""
    ours, server = socket.socketpair()
    loop = asyncio.new_event_loop()
    connection = _Connection(*loop.run_until_complete(asyncio.open_connection(sock=ours)))
    loop.close()
    hang_up(connection)
    del connection, loop
    with server, pytest.warns(ResourceWarning):  # of asyncio's transport
        gc.collect()
    ours.close()
