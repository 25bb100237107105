"""The sessions of advisory locks: which are ours, how many there are, when they end, and what an error leaves there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import Lease, Locks
from tests.servers.postgres import USER
from tests.servers.postgres_shared import advisory
from tests.servers.postgres_wire import Pooler
from tests.servers.server import HOST
from tests.servers.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def plain(tmp_path: Path) -> str:
    return advisory().url(tmp_path)


@pytest.fixture
def url(plain: str) -> str:
    return plain.replace("postgresql:", "postgresql+advisory:")


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    """Somebody who looks from outside."""
    with psycopg.connect(plain, autocommit=True, application_name="somebody") as connection:
        yield connection


def _count(psql: psycopg.Connection, sql: str) -> int:
    (number,) = psql.execute(sql.encode()).fetchone() or (0,)
    return int(number)


def _wait_for(locks: Locks, other: Locks, name: str) -> Lease:
    """A lock that was waited for."""
    first = other.lock(name).acquire()
    assert first is not None
    taken: list[Lease | None] = []
    thread = threading.Thread(target=lambda: taken.append(locks.lock(name).acquire()))
    thread.start()
    until(lambda: other.inspect(name).waiters)
    first.release()
    thread.join()
    assert taken[0] is not None
    return taken[0]


# By way of a pooler that gives out whole sessions, and numbers of its own for them


@pytest.fixture
def pooled(plain: str) -> Iterator[str]:
    with Pooler(advisory().server) as pooler:
        yield f"postgresql+advisory://{USER}@{HOST}:{pooler.port}/{plain.rpartition('/')[2]}?pooler=session"


def test_a_wait_that_is_given_up_leaves_nobody_in_line_though_a_pooler_invents_numbers(
    pooled: str, url: str, psql: psycopg.Connection
) -> None:
    with holdfast.connect(pooled) as locks, holdfast.connect(url) as other:
        _wait_for(locks, other, "door")  # so that there is a session to wait in
        assert other.lock("gate").acquire() is not None
        assert locks.lock("gate", wait=0.3).acquire() is None
        assert _count(psql, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 0


def test_ones_own_locks_are_known_and_broken_alone_though_a_pooler_invents_numbers(pooled: str) -> None:
    with holdfast.connect(pooled) as locks:
        mine, bystander = locks.lock("mine").acquire(), locks.lock("bystander").acquire()
        assert mine is not None
        assert bystander is not None
        assert [holder.claim_id for holder in locks.inspect("mine").holders] == [mine.claim_id]
        locks.break_lock("mine")
        assert mine.lost
        assert bystander.held
        assert bystander.release()
