"""A signal handler that raises while a thread waits for a Redis server: the connection of its request is closed, and
what cleans up travels on another one.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockfast
from lockfast.backends.redis.requests import script
from tests.polling import HOUR, never_poll
from tests.servers.proxy import Proxy
from tests.servers.server import Server
from tests.servers.waiting import happens, join, until

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server) as proxy:
        yield proxy


def interrupt(when: Callable[[], None]) -> threading.Thread:
    """The main thread is interrupted then."""

    def strike() -> None:
        when()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    return thread


def scripts_run(server: Server) -> int:
    stats: dict[str, str] = dict(
        line.split(":", 1) for line in server.command("INFO", "commandstats").decode().splitlines() if ":" in line
    )
    return int(stats["cmdstat_evalsha"].partition("calls=")[2].partition(",")[0])


def test_a_waiter_that_is_interrupted_as_it_asks_again_leaves_nothing_held(
    server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request overtaken by what cleans up, and carried out afterwards."""
    never_poll(monkeypatch)
    with lockfast.connect(proxy.url) as locks, lockfast.connect(server.url) as others:
        holder = others.lock("x", ttl=HOUR).acquire()
        assert holder is not None

        def asks_again() -> None:
            until(lambda: others.inspect("x").waiters == 1, "it to wait")
            kept_back = proxy.keep_back(script("acquire").digest)
            (channel,) = server.command("PUBSUB", "CHANNELS")
            engine: Any = locks._logic.engine
            assert server.command("PUBLISH", channel, *engine.waiting) == 1
            happens(kept_back, "it to ask again")

        thread = interrupt(asks_again)
        with pytest.raises(KeyboardInterrupt):
            locks.lock("x", ttl=HOUR).acquire()
        join(thread)
        assert others.inspect("x").waiters == 0, "it has cleaned up, on another connection"
        assert holder.release()
        before = scripts_run(server)
        proxy.let_pass()
        until(lambda: scripts_run(server) > before, "its request to arrive late")
        assert not others.inspect("x").locked
