"""How long a server keeps the session of a client that has fallen silent: longer than the client believes in its locks.

A proxy cannot play a network that drops everything: its own kernel would answer the server. So the client's socket gets
a filter: the kernel drops whatever arrives there, and answers nothing.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast import Locks
from lockfast._time import boot_now
from lockfast.backends.postgres_advisory.backend import MAX_TTL_S
from lockfast.backends.postgres_advisory.io import session as session_module
from lockfast.backends.postgres_advisory.io.session import KEPT_S, PendingStatement, keeping, kept_for
from lockfast.backends.postgres_advisory.keys import key_of
from lockfast.testing.contract import Promise, on_the_real_clock
from lockfast.testing.stage import Stage
from tests.capabilities import SOCKET_FILTERS, USER_TIMEOUT
from tests.servers.postgres_shared import advisory
from tests.servers.waiting import join, until

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER


def _session(locks: Any, *, of_its_only_claim: bool = False) -> Any:
    """The main session, or the one that its only claim waits or holds in."""
    backend = locks.faults.inner if hasattr(locks, "faults") else locks._logic.engine.backend
    if not of_its_only_claim:
        return backend._sessions.ready
    (hold,) = backend._holds.by_id.values()
    return hold.session


def _settings(session: Any) -> dict[str, int]:
    """As the server's socket has them."""
    rows = session.pgconn.exec_(
        b"SELECT name, setting FROM pg_settings WHERE name LIKE 'tcp_keepalives_%' OR name = 'tcp_user_timeout'"
    )
    return {rows.get_value(row, 0).decode(): int(rows.get_value(row, 1)) for row in range(rows.ntuples)}


def test_a_session_is_kept_for_longer_than_any_ttl_is_believed_in() -> None:
    for ttl in (0.01, 1, 30, 100, 120, 121, 600, 86400, MAX_TTL_S):
        settings = keeping(kept_for(ttl))
        probes = settings["tcp_keepalives_interval"] * settings["tcp_keepalives_count"]
        assert settings["tcp_user_timeout"] >= ttl * 1020
        assert settings["tcp_keepalives_idle"] + probes >= ttl * 1.02
        assert settings["tcp_keepalives_interval"] <= 32767  # more than that a kernel does not take
        assert settings["tcp_user_timeout"] < 2**31
    assert kept_for(30) == KEPT_S == 120


@pytest.mark.slow
@USER_TIMEOUT.needed
def test_a_client_gives_up_a_silent_server_after_a_minute_also_if_it_has_sent_something(tmp_path: Path) -> None:
    with lockfast.connect(advisory().url(tmp_path), advisory=True) as locks, locks.lock("a"):
        number = os.dup(_session(locks).socket)
        with socket.socket(fileno=number) as copy:
            assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


class TestSessionsOfTheSilent(Promise):
    can = frozenset()

    def url(self, tmp_path: Path) -> str:
        return advisory().url(tmp_path).replace("postgresql:", "postgresql+advisory:")

    @pytest.mark.slow
    @on_the_real_clock
    async def test_a_long_ttl_is_outlasted_from_before_the_grant(self, stage: Stage) -> None:
        locks = stage.locks()
        async with locks.lock("short", ttl=30):
            assert _settings(_session(locks)) == keeping(KEPT_S)
        async with locks.lock("long", ttl=600):
            assert _settings(_session(locks)) == keeping(kept_for(600))
        async with locks.lock("short", ttl=200):  # the other may still be held
            assert _settings(_session(locks)) == keeping(kept_for(600))

    @pytest.mark.slow
    @on_the_real_clock
    async def test_the_ttl_of_an_extension_and_of_a_waiter_is_outlasted_too(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("a", ttl=30).take()
        await lease.extend(900)
        assert _settings(_session(locks)) == keeping(kept_for(900))
        others = stage.locks()
        waiter = stage.start(others.lock("a", ttl=700).take())
        await stage.queue("a", 1)
        await lease.release()
        await waiter.result()
        assert _settings(_session(others, of_its_only_claim=True)) == keeping(kept_for(700))

    @pytest.mark.slow
    @on_the_real_clock
    async def test_a_waiter_that_waited_long_believes_only_after_the_server_has_answered_again(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server counts from the last bytes of the session: that may be the moment when the wait began."""
        asked: list[bytes] = []
        for number in range(2):
            monkeypatch.setattr(session_module, "SLACK_S", 0 if number else 10)
            monkeypatch.setattr(session_module, "KEPT_S", 60 if number else 120)
            first, second = stage.locks(), stage.locks()
            lease = await first.lock(f"a{number}", ttl=30).take()
            waiter = stage.start(second.lock(f"a{number}", ttl=59).take())
            await stage.queue(f"a{number}", 1)
            session = _session(second, of_its_only_claim=True)
            monkeypatch.setattr(session, "send", partial(_send, session.send, asked))
            session.in_flight.sent_at -= 20  # so long it has waited
            await lease.release()
            await waiter.result()
            assert asked == [b"lf_ping"] * number


def _send(send: Callable[[PendingStatement], None], asked: list[bytes], statement: PendingStatement) -> None:
    asked.append(statement.name)
    send(statement)


@pytest.mark.slow
@SOCKET_FILTERS.needed
def test_a_holder_that_receives_nothing_stops_believing_before_the_server_grants_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = {"KEPT_S": 2, "SLACK_S": 1, "_KEEPALIVE_IDLE_S": 1, "_KEEPALIVE_PROBES": 1}  # that kernels take
    for name, value in smallest.items():
        monkeypatch.setattr(session_module, name, value)
    monkeypatch.setitem(session_module._OF_CLIENT, "keepalives", "0")
    plain = advisory().url(tmp_path)
    with psycopg.connect(plain, autocommit=True) as other, lockfast.connect(plain, advisory=True) as locks:
        lease = locks.lock("a", ttl=5, renew=False).acquire()
        assert lease is not None
        granted: list[float] = []
        waiter = threading.Thread(target=_wait_for, args=(other, "a", granted))
        waiter.start()
        until(lambda: locks.inspect("a").waiters == 1)
        believes_until = lease._deadline
        locks._logic.engine.patience = 0.5  # from here on nothing that it says is answered
        _drop_everything(_session(locks).socket)
        join(waiter)
        assert granted[0] >= believes_until


def _wait_for(connection: psycopg.Connection, name: str, granted: list[float]) -> None:
    connection.execute("SELECT pg_advisory_lock(%s)", (key_of(name).number,))
    granted.append(boot_now())


def _drop_everything(number: int) -> None:
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0: keep no byte of it
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    with socket.socket(fileno=number) as filtered:
        filtered.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        filtered.detach()


def test_a_ttl_that_no_kernel_can_outlast_is_refused() -> None:
    with lockfast.connect("postgresql+advisory://127.0.0.1:1/nowhere") as locks:
        _makes(locks, MAX_TTL_S)
        with pytest.raises(ValueError, match="ttl"):
            _makes(locks, MAX_TTL_S + 1)


def _makes(locks: Locks, ttl: float) -> None:
    locks.lock("a", ttl=ttl)
