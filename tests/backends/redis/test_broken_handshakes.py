"""A handshake of redis-py that is broken off in its middle: nothing of it is left, and its error is reported once."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from lockfast._worlds.asyncio_ import background_tasks
from lockfast.backends.redis.io.connections import hang_up
from lockfast.backends.redis.io.urls import endpoint_of_url
from lockfast.backends.redlock.io.members import members_of
from tests.polling import HOUR
from tests.servers.server import HOST

STEPS = 40  # of the event loop; a handshake has sent everything after fewer


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


@pytest.mark.parametrize("kind", ["server", "member of a quorum"])
def test_one_that_is_cancelled_at_any_step_is_broken_off_there(kind: str) -> None:
    """Python 3.11's `wait_for` may swallow a cancellation, and the handshake would go on for its whole time."""
    received: list[bytes] = []

    async def story(port: int, mute: socket.socket) -> None:
        for step in range(STEPS):
            endpoints = [endpoint_of_url(urlsplit(f"redis://{HOST}:{each}/3")) for each in (port, 1, 2)]
            endpoint = endpoints[0] if kind == "server" else members_of(endpoints)[0]
            caller = asyncio.create_task(endpoint.dial_async(None, HOUR))
            for _ in range(step):
                await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert [task.get_name() for task in background_tasks()] == [], f"after step {step}"
            if step:
                accepted, _ = mute.accept()
                with accepted, accepted.makefile("rb") as stream:
                    received.append(stream.read())

    with socket.create_server((HOST, 0)) as mute:
        asyncio.run(story(mute.getsockname()[1], mute))
    assert not received[0]
    assert b"SELECT" in received[-1]
