"""A subscription whose sign of life has arrived, and is not read yet, is sound: the process stood still meanwhile.

uvloop runs timers before it looks at sockets, and a thread may be stopped between its poll and its look at the clock.
"""

from __future__ import annotations

import asyncio
import select
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop

from lockfast.backends.connecting.arrived import has_arrived
from lockfast.backends.redis.io.asyncio_wakeups import AsyncioSubscription
from lockfast.backends.redis.io.blocking_connection import BlockingConnection
from lockfast.backends.redis.io.resp import PING
from lockfast.backends.redis.io.urls import endpoint_of_url
from lockfast.backends.wakeups.asyncio_ import AsyncioWaiters
from tests.polling import HOUR
from tests.servers.server import Server
from tests.servers.waiting import LIMIT_S, until_async

pytestmark = pytest.mark.slow


def _await_bytes(number: int) -> None:
    """Until something has arrived at that socket; no event loop runs meanwhile."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    assert poll.poll(LIMIT_S * 1000)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_in_an_event_loop(new_loop: Any) -> None:
    async def story(url: str) -> None:
        subscription: Any = AsyncioSubscription(AsyncioWaiters(None), endpoint_of_url(urlsplit(url)), None)
        await subscription.connect(LIMIT_S)
        await subscription.subscribe("channel", LIMIT_S)
        subscription._next_check.cancel()
        subscription._transport.write(PING)
        _await_bytes(subscription.socket.fileno())
        subscription._received_at -= 2 * HOUR
        subscription._pinged_at = subscription._received_at + HOUR
        subscription._check_alive()
        assert subscription.alive
        await until_async(lambda: not has_arrived(subscription.socket.fileno()), "it to be read")
        subscription._received_at -= 2 * HOUR
        subscription._pinged_at = subscription._received_at + HOUR
        subscription._check_alive()
        assert not subscription.alive, "nothing has arrived"
        await subscription.gone()

    with Server() as server, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story(server.url))


def test_in_a_thread() -> None:
    with Server() as server:
        connection: Any = BlockingConnection(endpoint_of_url(urlsplit(server.url)), None, LIMIT_S)
        connection.subscribe("channel", LIMIT_S)
        connection._send(PING)
        _await_bytes(connection.socket.fileno())
        connection._received_at -= 2 * HOUR
        connection.asked_at = connection._received_at + HOUR
        assert not connection.is_dead()
        connection.read_all()
        connection._received_at -= 2 * HOUR
        connection.asked_at = connection._received_at + HOUR
        assert connection.is_dead(), "nothing has arrived"
        connection.close()
