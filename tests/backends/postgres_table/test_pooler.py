"""The lock table behind a pooler: where LISTEN does not work, waiters poll; all else is as usual."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast._time import boot_now
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint, endpoint_of_url
from lockfast.backends.postgres_table.io.asyncio_ import AsyncioPostgres
from lockfast.backends.postgres_table.io.batching import Many
from lockfast.backends.postgres_table.io.blocking import BlockingPostgres
from lockfast.backends.postgres_table.io.session import PreparedStatement, TableSession
from lockfast.errors import BackendUnavailable
from tests.polling import HOUR, never_poll
from tests.servers.postgres_pooler import HOST, Pooler
from tests.servers.postgres_tables import table
from tests.servers.waiting import LIMIT_S, join, until, until_async

pytestmark = pytest.mark.slow

NOTHING = Many(PreparedStatement(b"many", b""), ())
PLACE = endpoint_of_url(urlsplit("postgresql://127.0.0.1:1/db"))


class Pooled:
    def __init__(self, folder: Path, pooler: Pooler) -> None:
        self.pooler = pooler
        self.direct = table().url(folder)
        self.url = f"postgresql://lockfast@{HOST}:{pooler.port}/{table().database(folder)}"


@pytest.fixture
def pooled(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pooled]:
    with Pooler(table().server.port, transactions=request.param == "transaction") as pooler:
        yield Pooled(tmp_path, pooler)


transaction_mode = pytest.mark.parametrize("pooled", ["transaction"], indirect=True)
session_mode = pytest.mark.parametrize("pooled", ["session"], indirect=True)
either_mode = pytest.mark.parametrize("pooled", ["transaction", "session"], indirect=True)


@pytest.fixture(autouse=True)
def _never_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """But waiters that cannot be woken do: their timer is another one."""
    never_poll(monkeypatch)


def _hand_over_to_thread(locks: lockfast.Locks, direct: str) -> None:
    """Another client releases, and then a waiter has it: only the server can wake that waiter."""
    with lockfast.connect(direct) as other:
        held = other.lock("a", ttl=HOUR).acquire()
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(locks.lock("a").acquire()))
        waiter.start()
        until(lambda: other.inspect("a").waiters, "one to wait")
        assert held is not None
        held.release()
        join(waiter)
        got[0].release()


async def _hand_over_to_task(locks: lockfast.aio.AsyncLocks, direct: str) -> None:
    async with lockfast.aio.connect(direct) as other:
        held = await other.lock("a", ttl=HOUR).acquire()
        waiter = asyncio.create_task(locks.lock("a").acquire())
        await until_async(lambda: _waiters(other), "one to wait")
        assert held is not None
        await held.release()
        lease = await waiter
        assert lease is not None
        await lease.release()


async def _waiters(locks: lockfast.aio.AsyncLocks) -> int:
    return (await locks.inspect("a")).waiters


@either_mode
def test_nothing_is_prepared_by_way_of_a_pooler(pooled: Pooled) -> None:
    with lockfast.connect(pooled.url) as locks:
        for _ in range(3):
            with locks.lock("a"), locks.semaphore("s", 2):
                pass
    assert pooled.pooler.prepared == 0


def test_statements_are_prepared_on_the_server_itself(tmp_path: Path) -> None:
    with psycopg.connect(table().url(tmp_path), autocommit=True) as connection:
        with lockfast.connect(connection) as locks, locks.lock("a"):
            driver: Any = locks._logic.engine.backend._driver  # type: ignore[attr-defined]
            (line,) = [line for line in driver._free if line is not None]
            assert b"lockfast_acquire" in line.session._prepared


@transaction_mode
def test_no_setting_stays_behind_for_the_next_client(pooled: Pooled) -> None:
    with lockfast.connect(f"{pooled.url}?synchronous_commit=off") as locks, locks.lock("a"):
        driver: Any = locks._logic.engine.backend._driver  # type: ignore[attr-defined]
        (line,) = [line for line in driver._free if line is not None]
        line.session.pg.nonblocking = 0
        setting = line.session.pg.exec_(b"SHOW synchronous_commit").get_value(0, 0)
        assert setting == b"on", "it is set for our transactions only"


@transaction_mode
def test_a_waiter_that_cannot_be_woken_polls_and_the_log_says_so_once(
    pooled: Pooled, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "lockfast"), lockfast.connect(pooled.url) as locks:
        for _ in range(3):
            _hand_over_to_thread(locks, pooled.direct)
    assert sum("LISTEN does not work there" in record.message for record in caplog.records) == 1


@transaction_mode
def test_a_task_that_cannot_be_woken_polls_and_the_log_says_so_once(
    pooled: Pooled, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(pooled.url) as locks:
            for _ in range(3):
                await _hand_over_to_task(locks, pooled.direct)

    with caplog.at_level(logging.WARNING, "lockfast"):
        asyncio.run(story())
    assert sum("LISTEN does not work there" in record.message for record in caplog.records) == 1


@session_mode
def test_where_listening_works_waiters_are_woken(pooled: Pooled, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(pooled.url) as locks:
            await _hand_over_to_task(locks, pooled.direct)
            assert locks._logic.engine.backend._driver.cannot_listen is False  # type: ignore[attr-defined]

    with caplog.at_level(logging.WARNING, "lockfast"), lockfast.connect(pooled.url) as locks:
        _hand_over_to_thread(locks, pooled.direct)
        assert locks._logic.engine.backend._driver.cannot_listen is False  # type: ignore[attr-defined]
        asyncio.run(story())
    assert not [record for record in caplog.records if "LISTEN" in record.message]


# Listening


def _channels(queries: list[str], word: str) -> list[str]:
    return sorted(query.partition(";")[0].removeprefix(f"{word} ") for query in queries if query.startswith(f"{word} "))


@transaction_mode
def test_no_session_of_the_pooler_is_left_listening(pooled: Pooled) -> None:
    """It lives on with other clients, and would be sent notifications for nobody."""

    async def story() -> None:
        async with lockfast.aio.connect(pooled.url) as locks:
            await _hand_over_to_task(locks, pooled.direct)

    with lockfast.connect(pooled.url) as locks:
        _hand_over_to_thread(locks, pooled.direct)
    asyncio.run(story())
    listened = _channels(pooled.pooler.queries, "LISTEN")
    assert len(listened) == 2
    assert _channels(pooled.pooler.queries, "UNLISTEN") == listened


def test_the_session_that_listens_is_asked_for_until_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = [b"7", b"8", b"42", b"42"]
    session = TableSession(None, PostgresEndpoint({}))
    asked: list[bytes] = []

    def simple_query(sql: bytes) -> Any:
        asked.append(sql)
        return [[reached[len(asked) - 1]]]
        yield

    monkeypatch.setattr(session, "simple_query", simple_query)
    assert list(session.stop_listening("here", b"42")) == []
    assert [sql.partition(b";")[0] for sql in asked] == [b"UNLISTEN here"] * 3


class _Listens(TableSession):
    """A session of a pooler that notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__(None, PLACE)
        self.pooled = True
        self.asked: list[bytes] = []

    def simple_query(self, sql: bytes) -> Any:
        self.asked.append(sql.split()[0])
        return [[b"42"]]
        yield

    def close(self) -> None:
        self.asked.append(b"the end")


def test_a_session_of_the_pooler_does_not_go_on_listening_if_the_echo_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, session = BlockingPostgres(PLACE, None, NOTHING, 0), _Listens()

    def receives_echo(session: TableSession, until: float) -> bool:
        raise BackendUnavailable("no echo")

    monkeypatch.setattr(driver, "_connect", lambda until, version: session)
    monkeypatch.setattr(driver, "_receives_echo", receives_echo)
    with pytest.raises(BackendUnavailable):
        driver._listen(boot_now() + LIMIT_S)
    assert session.asked == [b"LISTEN", b"UNLISTEN", b"the end"]


def test_a_session_of_the_pooler_does_not_go_on_listening_if_the_echo_of_a_task_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        driver, session = AsyncioPostgres(PLACE, None, NOTHING, 0), _Listens()

        async def connect(within: float, version: int) -> TableSession:
            return session

        async def receives_echo(session: TableSession, within: float) -> bool:
            raise BackendUnavailable("no echo")

        monkeypatch.setattr(driver, "_connect", connect)
        monkeypatch.setattr(driver, "_receives_echo", receives_echo)
        with pytest.raises(BackendUnavailable):
            await driver._listen(LIMIT_S)
        assert session.asked == [b"LISTEN", b"UNLISTEN", b"the end"]

    asyncio.run(story())
