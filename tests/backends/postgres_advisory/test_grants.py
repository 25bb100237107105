"""A grant whose session has ended before it is read here: it never counts.

The server's end of a session stands in the stream behind the grant. Each story ends the session after the server has
granted the lock and before the grant is read, as if the process had been stopped or its event loop blocked meanwhile.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import LeaseLost, LockError
from lockfast.backends.postgres_advisory.io.session import AdvisorySession
from lockfast.backends.postgres_advisory.io.watch import SessionWatch
from lockfast.backends.postgres_advisory.keys import key_of
from tests.backends.postgres_advisory.transactions import WORLDS, entered, run_story, settled
from tests.servers.postgres_shared import HERE
from tests.servers.waiting import join, until

pytestmark = pytest.mark.slow
_WAITERS = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {HERE}"
_NUMBER = key_of("a").number


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


def _fetch(psql: psycopg.Connection, sql: str, *values: Any) -> Any:
    row = psql.execute(sql.encode(), values or None).fetchone()
    return row[0] if row else None


def _before_reading(monkeypatch: pytest.MonkeyPatch, name: bytes, then: Callable[[int], None]) -> threading.Event:
    """Call `then` with the pid once the answer to that statement has arrived, and before it is read."""
    usual, done = AdvisorySession.read_ready, threading.Event()

    def late(self: AdvisorySession) -> bool:
        in_flight = self.in_flight
        if in_flight is not None and in_flight.name == name and not done.is_set() and _is_readable(self.socket):
            then(self.pid)
            done.set()
        return usual(self)

    monkeypatch.setattr(AdvisorySession, "read_ready", late)
    monkeypatch.setattr(SessionWatch, "_read_ended", lambda self, ended: None)  # the thread that watches is late
    return done


def _is_readable(number: int) -> bool:
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


def _connect(world: str, plain: str) -> Any:
    url = plain.replace("postgresql:", "postgresql+advisory:")
    return lockfast.connect(url) if world == "blocking" else lockfast.aio.connect(url)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("statement", [b"lf_try_exclusive", b"lf_lock_exclusive"])
def test_a_grant_does_not_count_if_its_session_ended_behind_it(
    plain: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, world: str, statement: bytes
) -> None:
    acquired: list[int] = []

    def take_away(pid: int) -> None:
        with psycopg.connect(plain, autocommit=True) as connection:
            assert _fetch(connection, "SELECT pg_terminate_backend(%s, 5000)", pid)
        assert _fetch(psql, "SELECT pg_try_advisory_lock(%s)", _NUMBER)

    async def story() -> None:
        async with entered(_connect(world, plain)) as locks:
            async with entered(locks.lock("warm")):
                pass
            lease = await settled(locks.lock("a", ttl=600).acquire())
            acquired.append(lease.fence)
            assert await settled(lease.release())

    taken_away = _before_reading(monkeypatch, statement, take_away)
    if statement == b"lf_lock_exclusive":
        assert _fetch(psql, "SELECT pg_try_advisory_lock(%s)", _NUMBER)
    thread = threading.Thread(target=run_story, args=(world, story()))
    thread.start()
    if statement == b"lf_lock_exclusive":
        with psycopg.connect(plain, autocommit=True) as observer:
            until(lambda: _fetch(observer, _WAITERS) == 1)
        assert _fetch(psql, "SELECT pg_advisory_unlock(%s)", _NUMBER)
    until(taken_away.is_set)
    until(lambda: acquired or _fetch(psql, _WAITERS) == 1)
    assert not acquired, "two hold it"
    assert _fetch(psql, "SELECT pg_advisory_unlock(%s)", _NUMBER)
    join(thread)
    assert acquired


@pytest.mark.parametrize("world", WORLDS)
def test_a_lease_is_not_extended_if_its_session_ended_behind_the_answer(
    plain: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, world: str
) -> None:
    ended = _before_reading(
        monkeypatch, b"lf_ping", lambda pid: _fetch(psql, "SELECT pg_terminate_backend(%s, 5000)", pid)
    )

    async def story() -> None:
        async with entered(_connect(world, plain)) as locks:
            lease = await settled(locks.lock("a", ttl=60, renew=False).acquire())
            with pytest.raises((LeaseLost, LockError)):
                await settled(lease.extend(60))
            assert ended.is_set()
            assert lease.lost

    run_story(world, story())


def test_threads_of_one_locks_may_look_for_the_end_of_its_session_at_the_same_time(plain: str) -> None:
    failed: list[BaseException] = []
    with lockfast.connect(plain.replace("postgresql:", "postgresql+advisory:")) as locks:

        def take(name: str) -> None:
            try:
                for _ in range(150):
                    with locks.lock(name) as lease:
                        lease.extend()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=take, args=(f"of thread {number}",)) for number in range(6)]
        for thread in threads:
            thread.start()
        join(*threads)
    assert failed == []
