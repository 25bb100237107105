"""A `Locks` of advisory locks that is closed while claims wait: their callers learn of it, and nothing stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import BackendUnavailable, LockError, Locks
from lockfast.backends.postgres_advisory import acquiring as acquiring_module
from lockfast.backends.postgres_advisory.io import asyncio_ as asyncio_module
from lockfast.backends.postgres_advisory.io import blocking as blocking_module
from lockfast.backends.postgres_advisory.io.session import dial
from tests.servers.postgres import PostgresServer
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = pytest.mark.slow
_OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'me'"
_WAIT = f"{_OURS} AND wait_event_type = 'Lock'"
WAITERS = 6


@pytest.fixture
def me(url: str) -> str:
    return f"{url}?application_name=me"


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


def _count(psql: psycopg.Connection, sql: str) -> int:
    (number,) = psql.execute(sql.encode()).fetchone() or (0,)
    return int(number)


class Waiters:
    """Threads that wait for a name, and what came of it."""

    def __init__(self, locks: Locks, count: int) -> None:
        self._locks = locks
        self._raised: list[object] = []
        self._threads = [threading.Thread(target=self._wait) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _wait(self) -> None:
        try:
            self._raised.append(self._locks.lock("a").acquire())
        except LockError as error:
            self._raised.append(error)

    def were_refused(self) -> None:
        join(*self._threads)
        assert len(self._raised) == len(self._threads), "a thread still waits"
        for error in self._raised:
            _is_refused(error)


def _is_refused(error: object) -> None:
    assert isinstance(error, LockError), error
    assert not isinstance(error, BackendUnavailable), error
    assert "is closed" in str(error)


def test_waiting_threads_learn_of_the_close_and_nothing_stays(url: str, me: str, psql: psycopg.Connection) -> None:
    with lockfast.connect(url) as other, other.lock("a"):
        for _ in range(3):
            locks = lockfast.connect(me)
            assert locks.lock("own").acquire() is not None
            waiters = Waiters(locks, WAITERS)
            until(lambda: _count(psql, _WAIT) == WAITERS)
            locks.close()
            waiters.were_refused()
            until(lambda: _count(psql, _OURS) == 0)
            with other.lock("own", wait=0):
                pass  # what it held is free


def test_a_thread_that_waits_at_a_silent_server_learns_of_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquiring_module, "FIRST_POLL_S", 3600.0)  # it is woken by nothing else
    with PostgresServer() as server:
        url = server.url.replace("postgresql:", "postgresql+advisory:")
        locks, other = lockfast.connect(url), lockfast.connect(url)
        assert other.lock("a").acquire() is not None
        waiters = Waiters(locks, 1)
        until(lambda: other.inspect("a").waiters)
        server.pause()
        locks._logic.engine.patience = 0.2
        locks.close()
        waiters.were_refused()
        server.go_on()
        other.close()


class SlowDial:
    """Connects, and keeps the session back until it may go on."""

    def __init__(self, dial: Callable[..., Any]) -> None:
        self._dial = dial
        self.dialled, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        made = self._dial(*args)
        self.dialled.set()
        assert self.go_on.wait(LIMIT_S)
        return made


def test_a_session_that_is_made_while_a_thread_closes_is_closed_too(
    me: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDial(dial)
    monkeypatch.setattr(blocking_module, "dial", slow)
    locks = lockfast.connect(me)
    waiters = Waiters(locks, WAITERS)
    assert slow.dialled.wait(LIMIT_S)
    locks.close()
    slow.go_on.set()
    waiters.were_refused()
    until(lambda: _count(psql, _OURS) == 0)


def test_tasks_that_wait_for_a_session_learn_of_the_close(
    me: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDial(dial)
    monkeypatch.setattr(asyncio_module, "dial", slow)

    async def story() -> None:
        locks = lockfast.aio.connect(me)
        tasks = [asyncio.ensure_future(locks.lock("a").acquire()) for _ in range(WAITERS)]
        await asyncio.to_thread(slow.dialled.wait)
        await locks.close()
        slow.go_on.set()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            _is_refused(error)

    asyncio.run(story())
    until(lambda: _count(psql, _OURS) == 0)


def test_waiting_tasks_learn_of_the_close_and_nothing_stays(url: str, me: str, psql: psycopg.Connection) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url) as other, other.lock("a"):
            locks = lockfast.aio.connect(me)
            tasks = [asyncio.ensure_future(locks.lock("a").acquire()) for _ in range(WAITERS)]
            await asyncio.to_thread(until, lambda: _count(psql, _WAIT) == WAITERS)
            await locks.close()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                _is_refused(error)
            await asyncio.to_thread(until, lambda: _count(psql, _OURS) == 0)

    asyncio.run(story())
