"""What is true of either kind of locks in PostgreSQL: whose connections they are, and which refusals last."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import BackendUnavailable
from tests.no_threads import no_thread_left
from tests.renewals import renew
from tests.servers.postgres import USER
from tests.servers.postgres_shared import own_name
from tests.servers.postgres_tables import table
from tests.servers.server import HOST
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow
SCHEMES = ("postgresql", "postgresql+advisory")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return table().url(tmp_path)


@pytest.fixture
def psql(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


# Refusals


@pytest.fixture
def role(psql: psycopg.Connection) -> Iterator[str]:
    name = own_name("few")
    psql.execute(f"DROP ROLE IF EXISTS {name}".encode())
    psql.execute(f"CREATE ROLE {name}".encode())
    yield name
    psql.execute(f"DROP ROLE {name}".encode())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("rights", "says", "passes"),
    [
        ("LOGIN CONNECTION LIMIT 0", "too many connections", True),
        ("NOLOGIN", "is not permitted to log in", False),
        (None, "does not exist", False),
    ],
)
def test_a_transient_refusal_is_distinguished_from_a_permanent_one(
    url: str, psql: psycopg.Connection, role: str, scheme: str, rights: str | None, says: str, passes: bool
) -> None:
    if rights is not None:
        psql.execute(f"ALTER ROLE {role} {rights}".encode())
    who = role if rights is not None else "nobody_of_that_name"
    where = url.replace("postgresql:", f"{scheme}:").replace(f"{USER}@", f"{who}@")
    with lockfast.connect(where, patience=0.3 if passes else 3600) as locks:

        def reported() -> bool:
            with pytest.raises(BackendUnavailable) as refused:
                locks.lock("a", wait=0).acquire()
            assert refused.value.transient is passes
            return says in str(refused.value)  # of what passes another reason may come first: there was no time

        until(reported, f"the error to say {says!r}")


# Names of hosts


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tasks_go_on_while_the_name_of_a_host_is_looked_up(
    url: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(host: str, *rest: Any, **options: Any) -> Any:
        asked.set()
        assert answer.wait(LIMIT_S), "nothing else was done meanwhile"
        return found(HOST, *rest, **options)

    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def story() -> None:
        where = url.replace("postgresql:", f"{scheme}:").replace(HOST, "known-to-nobody-else.invalid")
        async with lockfast.aio.connect(where) as locks:
            taken = asyncio.ensure_future(locks.lock("a", wait=LIMIT_S).acquire())
            assert await asyncio.to_thread(asked.wait, LIMIT_S)
            answer.set()
            assert await taken is not None

    asyncio.run(story())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_that_cannot_even_be_begun_is_reported_as_any_other(scheme: str, tmp_path: Path) -> None:
    where = f"{scheme}:///a?host={tmp_path / 'nothing-there'}"
    with lockfast.connect(where, patience=0.1) as locks:
        with pytest.raises(BackendUnavailable, match="cannot reach"):
            locks.lock("a", wait=0).acquire()

    async def story() -> None:
        async with lockfast.aio.connect(where, patience=0.1) as awaited:
            with pytest.raises(BackendUnavailable, match="cannot reach"):
                await awaited.lock("a", wait=0).acquire()

    asyncio.run(story())


# URLs


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rest", ["://", ":///", ":///{database}", ":///{database}?host={folder}", "://?host={folder}"])
def test_what_a_url_does_not_say_comes_from_the_environment(
    url: str, scheme: str, rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, database = table().server, url.rpartition("/")[2]
    for name, value in {"HOST": HOST, "PORT": server.port, "USER": USER, "DATABASE": database}.items():
        monkeypatch.setenv(f"PG{name}", str(value))
    where = scheme + rest.format(database=database, folder=server.folder)
    with lockfast.connect(where) as locks, locks.lock("a", wait=LIMIT_S) as lease:
        assert lease.held


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("host:99999/a", "a port is a number"),
        ("host:abc/a", "a port is a number"),
        ("host/a?port=0", "a port is a number"),
        ("one:1,two:99999/a", "a port is a number"),
        ("host/a?no_such_option=1", "no option 'no_such_option'"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_before_anything_is_sent(scheme: str, rest: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        lockfast.connect(f"{scheme}://{rest}")


# Forks

_DIALS = """
from lockfast.backends.postgres_advisory.io import blocking as module
from threading import Event
usual, dialled, go_on = module.dial, Event(), Event()
def dial(*args):
    made = usual(*args)
    dialled.set()
    go_on.wait()
    return made
module.dial = dial
"""
_FORKS = """
import os, signal, sys, threading
import lockfast
{prepare}
locks = lockfast.connect(sys.argv[1])
threading.Thread(target=lambda: locks.lock("a").acquire(), daemon=True).start()
{ready}
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
{go_on}
signal.pause()
"""
_SESSIONS = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'forks'"""


def _count(psql: psycopg.Connection, sql: str) -> int:
    (number,) = psql.execute(sql.encode()).fetchone() or (0,)
    return int(number)


@contextmanager
def _parent(program: str, url: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-W", "ignore", "-c", program, f"{url}?application_name=forks"]
    with subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        try:
            yield parent
        finally:
            parent.kill()


def _ends_with_its_parent(psql: psycopg.Connection, parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        until(lambda: _count(psql, _SESSIONS) == 0)
    finally:
        os.kill(child, signal.SIGKILL)  # it lived until now


def test_a_child_that_is_forked_while_a_session_is_made_keeps_nothing_of_it(url: str, psql: psycopg.Connection) -> None:
    program = _FORKS.format(prepare=_DIALS, ready="dialled.wait()", go_on="go_on.set()")
    with _parent(program, url.replace("postgresql:", "postgresql+advisory:")) as parent:
        _ends_with_its_parent(psql, parent)


def test_a_child_that_is_forked_while_a_connection_is_in_use_keeps_nothing_of_it(
    url: str, psql: psycopg.Connection
) -> None:
    program = _FORKS.format(prepare="", ready="sys.stdin.readline()", go_on="")
    with psycopg.connect(url) as blocker, _parent(program, url) as parent:
        blocker.execute("LOCK TABLE distributed_locks")
        until(lambda: _count(psql, f"{_SESSIONS} AND wait_event_type = 'Lock'"))
        assert parent.stdin is not None
        parent.stdin.write("now\n")
        parent.stdin.flush()
        _ends_with_its_parent(psql, parent)


# Threads

_OURS = _SESSIONS.replace("forks", "me")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_thread_that_could_not_be_started_costs_one_try(url: str, scheme: str, psql: psycopg.Connection) -> None:
    with no_thread_left(once=True) as refused, lockfast.connect(_by_name(url, scheme), holder="me") as locks:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        renew(lease)
    assert {"lockfast-lookup", "lockfast-keeper"} <= set(refused)
    until(lambda: _count(psql, _OURS) == 0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_thread_of_an_event_loop_that_could_not_be_started_costs_one_try(
    url: str, scheme: str, psql: psycopg.Connection
) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(_by_name(url, scheme), holder="me") as locks:
            with no_thread_left(once=True) as refused:
                lease = await locks.lock("x").acquire()
            assert lease is not None
            assert refused

    asyncio.run(main())
    until(lambda: _count(psql, _OURS) == 0)


def _by_name(url: str, scheme: str) -> str:
    """The name of the host is looked up in a thread."""
    return url.replace("postgresql", scheme, 1).replace(HOST, "localhost", 1)
