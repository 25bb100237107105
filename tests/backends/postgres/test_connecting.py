"""How a connection to PostgreSQL is made, for either kind of locks: what a failure leaves, which host comes first."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import BackendUnavailable, Unsupported
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import Broken, no_connection
from tests.servers.postgres import USER
from tests.servers.postgres_pooler import Pooler
from tests.servers.postgres_tables import table
from tests.servers.server import HOST
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = pytest.mark.slow
SCHEMES = ("postgresql", "postgresql+advisory")
TRIES = 5

_OF_ME = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'me'"
_OURS = f"SELECT count(*) {_OF_ME}"

Fail = Callable[..., list[BaseException]]


def _fail(url: str, **options: Any) -> list[BaseException]:
    errors: list[BaseException] = []
    with lockfast.connect(url, **options) as locks:
        for _ in range(TRIES):
            with pytest.raises(BackendUnavailable) as caught:
                locks.lock("a", wait=0).acquire()
            errors.append(caught.value)
    return errors


def _fail_in_tasks(url: str, **options: Any) -> list[BaseException]:
    errors: list[BaseException] = []

    async def story() -> None:
        async with lockfast.aio.connect(url, **options) as locks:
            for _ in range(TRIES):
                with pytest.raises(BackendUnavailable) as caught:
                    await locks.lock("a", wait=0).acquire()
                errors.append(caught.value)

    asyncio.run(story())
    return errors


@pytest.fixture(params=["threads", "asyncio"])
def fail(request: pytest.FixtureRequest) -> Fail:
    return _fail if request.param == "threads" else _fail_in_tasks


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _sockets() -> int:
    """Of this process."""
    found = 0
    for number in range(1024):
        with suppress(OSError):  # no file has that number
            found += stat.S_ISSOCK(os.fstat(number).st_mode)
    return found


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_that_was_refused_leaves_no_socket_until_the_next_collection(
    tmp_path: Path, fail: Fail, scheme: str
) -> None:
    url = table().url(tmp_path).replace("postgresql:", f"{scheme}:").replace(f"{USER}@", "nobody_of_that_name@")
    fail(url)
    before = _sockets()
    kept = fail(url)  # as a caller that logs them later does
    assert _sockets() <= before
    assert len(kept) == TRIES


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_that_was_not_answered_leaves_no_socket_until_the_next_collection(fail: Fail, scheme: str) -> None:
    with socket.create_server((HOST, 0)) as mute:
        before = _sockets()
        kept = fail(f"{scheme}://{USER}@{HOST}:{mute.getsockname()[1]}/a", patience=0.05)
        assert _sockets() <= before
    assert len(kept) == TRIES


@pytest.mark.usefixtures("no_collection")
def test_a_session_that_finds_no_lock_table_leaves_no_socket_until_the_next_collection(
    tmp_path: Path, fail: Fail
) -> None:
    """It was connected, and is given up while it is set up."""
    url = f"{table().url(tmp_path)}?schema=nowhere"
    fail(url)
    before = _sockets()
    kept = fail(url)
    until(lambda: _sockets() <= before, "each connection to be closed")
    assert "has no lock table" in str(kept[0])
    assert [getattr(error, "sent", None) for error in kept] == [False] * TRIES, "so there is nothing to be abandoned"


@pytest.mark.usefixtures("no_collection")
def test_a_session_that_a_pooler_refuses_to_advisory_locks_leaves_no_socket_until_the_next_collection(
    tmp_path: Path,
) -> None:
    refused: list[BaseException] = []
    with Pooler(table().server.port, transactions=True) as pooler:
        url = table().url(tmp_path).replace(f":{table().server.port}/", f":{pooler.port}/")
        with lockfast.connect(f"{url}?application_name=me", advisory=True) as locks:
            for _ in range(TRIES):
                with pytest.raises(Unsupported) as caught:
                    locks.lock("a", wait=0).acquire()
                refused.append(caught.value)
            until(lambda: table().server.psql(_OURS, table().database(tmp_path)) == "0", "each connection to be closed")
    assert len(refused) == TRIES


# Several hosts, or several addresses of one


class _Ending:
    """A host that ends each connection at once. A silent one would cost real time, and is remembered alike."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.tries = 0
        self._listener = socket.create_server(address)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.tries += 1
                connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        join(self._thread)


def _at_second(url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, _Ending]:
    """A URL that leads to another host, or address, first."""
    there = psycopg.conninfo.conninfo_to_dict(url)
    if kind == "hosts":
        first = _Ending((HOST, 0))
        return url.replace(f"{HOST}:", f"{HOST}:{first.port},{HOST}:"), first
    first, resolve = _Ending(("127.0.0.2", int(there["port"] or 0))), socket.getaddrinfo

    def both(host: Any, *rest: Any, **options: Any) -> Any:
        if host != "both.invalid":
            return resolve(host, *rest, **options)
        return [*resolve("127.0.0.2", *rest, **options), *resolve(HOST, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    return url.replace(HOST, "both.invalid"), first


_END = f"SELECT count(pg_terminate_backend(pid)) {_OF_ME}"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["hosts", "addresses"])
def test_a_host_that_failed_is_not_tried_again_while_another_one_works(
    tmp_path: Path, scheme: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, first = _at_second(table().url(tmp_path), kind, monkeypatch)
    url = f"{url.replace('postgresql:', f'{scheme}:')}?application_name=me"
    try:
        with lockfast.connect(url, patience=LIMIT_S) as locks:
            with locks.lock("a"):
                assert first.tries
            before = first.tries
            for _ in range(3):
                table().server.psql(_END, table().database(tmp_path))
                with locks.lock("a"):
                    assert first.tries == before
    finally:
        first.close()


@pytest.mark.parametrize("kind", ["hosts", "addresses"])
def test_a_host_that_failed_is_not_tried_again_by_a_task(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, first = _at_second(table().url(tmp_path), kind, monkeypatch)

    async def story() -> None:
        async with lockfast.aio.connect(f"{url}?application_name=me", patience=LIMIT_S) as locks:
            async with locks.lock("a"):
                before = first.tries
                assert before
            await asyncio.to_thread(table().server.psql, _END, table().database(tmp_path))
            async with locks.lock("a"):
                assert first.tries == before

    try:
        asyncio.run(story())
    finally:
        first.close()


# Which store it is


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://?service=a", "postgresql://?service=b"),
        ("postgresql://h/db?hostaddr=10.0.0.1", "postgresql://h/db?hostaddr=10.0.0.2"),
        ("postgresql://alice@h/", "postgresql://bob@h/"),  # whose database has the name of the user
    ],
)
def test_what_leads_to_different_servers_or_databases_is_not_one_store(
    one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGDATABASE", raising=False)
    with lockfast.connect(one) as first, lockfast.connect(other) as second, lockfast.connect(one) as third:
        ids = [locks._logic.engine.backend.store_id for locks in (first, second, third)]
    assert ids[0] != ids[1]
    assert ids[0] == ids[2]


def test_users_of_one_database_share_a_store() -> None:
    with lockfast.connect("postgresql://alice@h/db") as one, lockfast.connect("postgresql://bob@h/db") as other:
        assert one._logic.engine.backend.store_id == other._logic.engine.backend.store_id


# What lasts


@pytest.mark.parametrize(
    "text",
    [
        'FATAL:  pg_hba.conf rejects connection for host "10.0.0.2", user "app", database "app", no encryption',
        'FATAL:  no pg_hba.conf entry for host "10.0.0.2", user "app", database "app", no encryption',
    ],
)
def test_a_server_that_rejects_a_role_or_host_is_not_asked_again(text: str) -> None:
    endpoint = PostgresEndpoint({"host": "h"})
    assert not no_connection(endpoint, [Broken(text)]).transient
    assert no_connection(endpoint, [Broken(text), Broken("Connection refused")]).transient
