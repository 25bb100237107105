"""Why the lock table cannot be reached: in libpq's own words, at once if that stays, and in both worlds alike."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast._time import boot_now
from lockfast.backends.postgres.io.resolver import Names
from lockfast.backends.postgres.io.stepping import run
from lockfast.cli import main
from lockfast.errors import BackendUnavailable
from tests.servers.postgres_shared import own_name
from tests.servers.postgres_tables import table
from tests.servers.waiting import LIMIT_S, happens, join, until

pytestmark = pytest.mark.slow

PATIENCE_S = 3600.0  # seconds: what is reported at all is reported at once
TOO_LONG = "x" * 64 + ".invalid"  # a name that no resolver needs to be asked for
ADD_ROLE = "DO $$ BEGIN CREATE ROLE {} NOLOGIN; EXCEPTION WHEN duplicate_object THEN END $$"
ADD_DATABASE = "CREATE DATABASE {} ENCODING '{}' LOCALE 'C' TEMPLATE template0"

Take = Callable[..., int]


def _take(url: str, wait: float, **options: Any) -> int:
    with lockfast.connect(url, **options) as locks, locks.lock("a", wait=wait) as lease:
        return lease.fence


def _take_in_a_task(url: str, wait: float, **options: Any) -> int:
    async def story() -> int:
        async with lockfast.aio.connect(url, **options) as locks, locks.lock("a", wait=wait) as lease:
            return lease.fence

    return asyncio.run(story())


@pytest.fixture(params=["threads", "asyncio"])
def take(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Take]:
    yield _take if request.param == "threads" else _take_in_a_task
    assert not [record for record in caplog.records if record.name == "asyncio"], "a task failed unnoticed"


@pytest.mark.parametrize(
    ("where", "reason", "passes"),
    [
        (f"{TOO_LONG}/app", "could not translate host name", True),
        ("/app?host={folder}", "No such file or directory", True),
        ("127.0.0.1:1/app?sslmode=bogus", 'invalid sslmode value: "bogus"', False),
        ("127.0.0.1:1/app?keepalives=bogus", "integer", False),
        ("127.0.0.1:1/app?service=bogus", 'definition of service "bogus" not found', False),
    ],
)
def test_a_host_that_fails_at_once_is_reported_with_its_reason(
    take: Take, tmp_path: Path, where: str, reason: str, passes: bool
) -> None:
    url = f"postgresql://{where.format(folder=quote(str(tmp_path)))}"

    def reported() -> bool:
        with pytest.raises(BackendUnavailable) as caught:
            take(url, 0.2 if passes else PATIENCE_S)
        assert caught.value.transient == passes
        return reason in str(caught.value)  # of what passes another reason may come first: there was no time

    until(reported, f"the error to say {reason!r}")


@pytest.mark.parametrize("bad", [TOO_LONG, "/nowhere"])
def test_the_next_host_is_tried_after_one_that_fails_at_once(take: Take, tmp_path: Path, bad: str) -> None:
    there = psycopg.conninfo.conninfo_to_dict(table().url(tmp_path))
    hosts = f"host={bad},{there['host']}&port={there['port']},{there['port']}"
    assert take(f"postgresql://{there['user']}@/{there['dbname']}?{hosts}", PATIENCE_S)


def test_a_socket_that_is_not_there_yet_is_looked_for_until_the_time_is_over(take: Take, tmp_path: Path) -> None:
    """As while a server that is reached by its socket restarts."""
    server, name = table().server, table().database(tmp_path)
    file = f".s.PGSQL.{server.port}"
    comes = threading.Timer(0.3, (tmp_path / file).symlink_to, [server.folder / file])
    comes.start()
    try:
        assert take(f"postgresql://lockfast@/{name}?host={tmp_path}&port={server.port}", PATIENCE_S)
    finally:
        join(comes)


def test_a_slow_resolver_is_waited_for_no_longer_than_asked_and_asked_once(
    take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be interrupted; a later request uses what it found meanwhile."""
    there = psycopg.conninfo.conninfo_to_dict(table().url(tmp_path))
    url = f"postgresql://{there['user']}@slow.invalid:{there['port']}/{there['dbname']}"
    asked, answers, names = [], threading.Event(), Names()
    monkeypatch.setattr("lockfast.backends.postgres_table.io.blocking.Names", lambda: names)
    monkeypatch.setattr("lockfast.backends.postgres_table.io.asyncio_.Names", lambda: names)
    resolve = socket.getaddrinfo

    def slowly(host: Any, *args: Any, **options: Any) -> Any:
        if host != "slow.invalid":
            return resolve(host, *args, **options)
        asked.append(host)
        happens(answers)
        return resolve(str(there["host"]), *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    try:
        for _ in range(2):
            with pytest.raises(
                BackendUnavailable, match=r"cannot reach .*: (no answer in time|no address of 'slow\.invalid')"
            ):
                take(url, 0.1, patience=0.5)
            assert not answers.is_set()
    finally:
        answers.set()
    assert take(url, PATIENCE_S)
    assert asked == ["slow.invalid"]


def test_a_name_that_is_not_found_is_looked_up_again(
    take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = psycopg.conninfo.conninfo_to_dict(table().url(tmp_path))
    failures, resolve = [1, 2], socket.getaddrinfo

    def found_later(host: Any, *args: Any, **options: Any) -> Any:
        if host == "late.invalid" and failures:
            failures.pop()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(str(there["host"]) if host == "late.invalid" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", found_later)
    assert take(f"postgresql://{there['user']}@late.invalid:{there['port']}/{there['dbname']}", PATIENCE_S)
    assert not failures


def test_a_role_that_may_not_log_in_is_refused_at_once(take: Take, tmp_path: Path) -> None:
    url = table().url(tmp_path)
    role = own_name("no_guest")
    table().server.psql(ADD_ROLE.format(role))
    with pytest.raises(BackendUnavailable, match="is not permitted to log in") as caught:
        take(url.replace("lockfast@", f"{role}@"), PATIENCE_S)
    assert not caught.value.transient


def test_a_database_or_role_that_is_read_only_is_refused_at_once(take: Take, tmp_path: Path) -> None:
    url = f"{table().url(tmp_path)}?options=-cdefault_transaction_read_only%3Don"
    with pytest.raises(BackendUnavailable, match="default_transaction_read_only is on") as caught:
        take(url, PATIENCE_S)
    assert not caught.value.transient


def test_a_connection_that_became_read_only_is_replaced_and_reported_as_such(tmp_path: Path) -> None:
    """As when the primary has become a replica, and a proxy has kept the connection."""
    with lockfast.connect(table().url(tmp_path)) as locks:
        with locks.lock("a"):
            pass
        backend: Any = locks._logic.engine.backend
        driver = backend._driver
        (line,) = [line for line in driver._free if line is not None]
        run(line.session.simple_query(b"SET default_transaction_read_only = on"), boot_now() + LIMIT_S)
        request = backend._catalogue.request("throttle", "a", "1", "1", "1", "0", None)
        with pytest.raises(BackendUnavailable, match=r"is read-only: cannot execute \w+") as caught:
            driver._ask(request, LIMIT_S)
        assert caught.value.transient
        assert driver._ask(request, LIMIT_S)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_every_name_is_refused(
    take: Take, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    server, name = table().server, own_name(f"in_{encoding.lower()}")
    if server.psql(f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == "0":
        server.psql(ADD_DATABASE.format(name, encoding))
    with pytest.raises(BackendUnavailable, match=f"in {encoding}, and the lock table needs one in UTF8") as caught:
        take(server.url_of(name), PATIENCE_S)
    assert not caught.value.transient
    assert main(["migrate", server.url_of(name)]) != 0
    assert f"in {encoding}" in capsys.readouterr().err
