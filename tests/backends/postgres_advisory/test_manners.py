"""What other users of a server see of sessions that wait for advisory locks, and what these cost them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import Lease, Locks
from tests.servers.postgres_shared import HERE
from tests.servers.waiting import join, until

pytestmark = pytest.mark.slow
_WAITERS = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {HERE}"
_OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'me'"


@pytest.fixture
def url(plain: str) -> str:
    return plain.replace("postgresql:", "postgresql+advisory:") + "?application_name=me"


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


def _count(psql: psycopg.Connection, sql: str) -> int:
    (number,) = psql.execute(sql.encode()).fetchone() or (0,)
    return int(number)


def _acquire(locks: Locks, taken: list[Lease | None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: taken.append(locks.lock("gate").acquire()))
    thread.start()
    return thread


def test_pg_stat_activity_shows_the_statement_that_waits_and_not_all_that_were_prepared(
    url: str, psql: psycopg.Connection
) -> None:
    """The server's log shows the same text when a wait is given up."""
    taken: list[Lease | None] = []
    with lockfast.connect(url) as locks, lockfast.connect(url) as other:
        with other.lock("gate"):
            waiter = _acquire(locks, taken)
            until(lambda: _count(psql, _WAITERS) == 1)
            shown = [query for (query,) in psql.execute(f"SELECT query {_OURS}".encode()).fetchall()]
            assert len(shown) == 3
            (waits,) = [query for query in shown if "pg_advisory_lock($1)" in query]
            assert waits.startswith("SELECT f, pg_advisory_lock_shared($2")
            assert not any("PREPARE" in query for query in shown)
            assert "pg_locks" not in waits
        join(waiter)
    assert taken[0] is not None


def test_where_no_session_may_wait_a_waiter_keeps_no_snapshot_and_is_served(url: str, psql: psycopg.Connection) -> None:
    """So the holder of a lock for migrations can run CREATE INDEX CONCURRENTLY, which waits for all older snapshots."""
    psql.execute("CREATE TABLE things (id int)")
    taken: list[Lease | None] = []
    with lockfast.connect(f"{url}&waiting=0") as locks, lockfast.connect(url) as other:
        with other.lock("gate"):
            waiter = _acquire(locks, taken)
            until(lambda: any(hold.polls > 1 for hold in locks._logic.engine.backend._holds.by_id.values()))  # type: ignore[attr-defined]
            assert _count(psql, _WAITERS) == 0
            psql.execute("CREATE INDEX CONCURRENTLY ON things (id)")
            assert not taken
        join(waiter)
        assert taken[0] is not None
        assert locks.rwlock("page").read().acquire() is not None
        assert locks.rwlock("page").read().acquire(blocking=False) is not None  # beside the first, in its own session


def test_where_no_session_may_wait_a_task_is_served_too(url: str, psql: psycopg.Connection) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(f"{url}&waiting=0") as locks, lockfast.aio.connect(url) as other:
            async with other.lock("gate"):
                waiter = asyncio.ensure_future(locks.lock("gate").acquire())
                holds = locks._logic.engine.backend._holds  # type: ignore[attr-defined]
                await asyncio.to_thread(until, lambda: any(hold.polls > 1 for hold in list(holds.by_id.values())))
                assert _count(psql, _WAITERS) == 0
                assert not waiter.done()
            assert await waiter is not None

    asyncio.run(story())
