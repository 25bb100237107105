"""Integers as keys of advisory locks: the server's own numbers, shared with programs that know nothing but SQL."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import AcquireTimeout, Locks
from lockfast.backends.postgres_advisory.keys import integer_in, is_tag_of, key_of, name_of_integer
from tests.servers.waiting import join, until

pytestmark = pytest.mark.slow
INTEGERS = (42, 0, -1, 256, 2**63 - 1, -(2**63))


class Job(IntEnum):
    REPORT = 42


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with lockfast.connect(url, holder="worker-7") as locks:
        yield locks


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(plain, autocommit=True, application_name="legacy") as connection:
        yield connection


def _fetch(connection: psycopg.Connection, sql: str, *values: Any) -> Any:
    row = connection.execute(sql.encode(), values or None).fetchone()
    return row[0] if row else None


# The key of an integer


@pytest.mark.parametrize("number", INTEGERS)
def test_an_integer_is_its_own_key_in_every_namespace(number: int) -> None:
    name = name_of_integer(number)
    assert key_of(name) == key_of(f"shop\x1f{name}")
    assert key_of(name).number == number
    assert is_tag_of(key_of(name).tag, number)


@pytest.mark.parametrize(
    "name", ["42", "key", "key 042", "key +4", "key -0", "key 4 2", "KEY 42", "key \u0664", f"key {2**63}", "my key 42"]
)
def test_every_other_name_is_hashed(name: str) -> None:
    assert integer_in(name) is None
    digest = hashlib.sha256(name.encode()).digest()
    assert key_of(name).number == int.from_bytes(digest[:8], "big", signed=True)
    assert key_of(name).tag == int.from_bytes(digest[7:11], "big", signed=True)


# With programs that know nothing but SQL


@pytest.mark.parametrize("number", INTEGERS)
def test_a_lock_on_an_integer_excludes_pg_advisory_lock_and_is_excluded_by_it(
    locks: Locks, psql: psycopg.Connection, number: int
) -> None:
    with locks.lock(number) as lease:
        assert lease.name == f"key {number}"
        assert _fetch(psql, "SELECT pg_try_advisory_lock(%s)", number) is False
    assert _fetch(psql, "SELECT pg_try_advisory_lock(%s)", number) is True
    assert locks.lock(number).acquire(blocking=False) is None
    _fetch(psql, "SELECT pg_advisory_unlock(%s)", number)
    assert locks.lock(number).acquire(blocking=False) is not None


def test_a_waiter_for_an_integer_is_granted_when_pg_advisory_unlock_is_called(
    locks: Locks, psql: psycopg.Connection
) -> None:
    _fetch(psql, "SELECT pg_advisory_lock(42)")
    fences: list[int] = []

    def take() -> None:
        with locks.lock(42) as lease:
            fences.append(lease.fence)

    waiter = threading.Thread(target=take)
    waiter.start()
    until(lambda: locks.inspect(42).waiters == 1)
    assert not fences
    _fetch(psql, "SELECT pg_advisory_unlock(42)")
    join(waiter)
    assert len(fences) == 1


def test_readers_of_an_integer_share_it_with_pg_advisory_lock_shared(locks: Locks, psql: psycopg.Connection) -> None:
    with locks.rwlock(42).read():
        assert _fetch(psql, "SELECT pg_try_advisory_lock_shared(42)") is True
        assert _fetch(psql, "SELECT pg_try_advisory_lock(42)") is False
    assert locks.rwlock(42).write().acquire(blocking=False) is None


def test_a_session_with_locks_of_two_integers_is_taken_for_no_other_name(
    locks: Locks, psql: psycopg.Connection, plain: str
) -> None:
    """The tags of lockfast are of that form; for 256 they would begin as (7, 42) does."""
    _fetch(psql, "SELECT pg_advisory_lock(256), pg_advisory_lock_shared(7, 42)")
    with pytest.raises(AcquireTimeout, match="held by 'legacy'"):
        locks.lock(256, wait=0).__enter__()
    with psycopg.connect(plain) as connection, pytest.raises(AcquireTimeout, match="held by 'legacy'"):
        locks.in_transaction(connection, 256, wait=0)


def test_an_integer_means_the_same_lock_in_every_namespace_and_a_name_of_digits_does_not(
    url: str, locks: Locks
) -> None:
    with lockfast.connect(url, namespace="shop") as shop, shop.lock(42), locks.lock("42"):
        assert locks.lock(42).acquire(blocking=False) is None
        assert locks.lock("key 42").acquire(blocking=False) is None
        assert locks.lock(Job.REPORT).acquire(blocking=False) is None
        assert [info.name for info in shop.list("orders")] == ["key 42"]


def test_several_integers_are_taken_in_one_order_and_each_once(locks: Locks, psql: psycopg.Connection) -> None:
    with locks.all(42, "order:42", 7):
        assert _fetch(psql, "SELECT pg_try_advisory_lock(7)") is False
    with pytest.raises(ValueError, match="twice: 'key 42'"):
        locks.all(42, "key 42")


# In transactions


def test_an_integer_in_a_transaction_excludes_pg_advisory_lock_until_its_end(
    locks: Locks, psql: psycopg.Connection, plain: str
) -> None:
    with psycopg.connect(plain) as connection:
        assert locks.in_transaction(connection, 42, "order:42") > 0
        assert _fetch(psql, "SELECT pg_try_advisory_lock(42)") is False
        connection.commit()
        assert _fetch(psql, "SELECT pg_try_advisory_lock(42)") is True
        with pytest.raises(AcquireTimeout, match="'key 42' is held by 'legacy'"):
            locks.in_transaction(connection, 42, wait=0)
        with pytest.raises(ValueError, match="each name once"):
            locks.in_transaction(connection, 42, "key 42")


def test_tasks_take_integers_too(url: str, psql: psycopg.Connection, plain: str) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url) as locks:
            async with locks.lock(42), locks.rwlock(7).read():
                assert _fetch(psql, "SELECT pg_try_advisory_lock(42)") is False
                assert (await locks.inspect(42)).locked
            async with await psycopg.AsyncConnection.connect(plain) as connection:
                await locks.in_transaction(connection, 42)
                assert _fetch(psql, "SELECT pg_try_advisory_lock(42)") is False

    asyncio.run(story())


# What operators see


def test_what_sql_holds_is_inspected_listed_and_broken_by_its_integer(locks: Locks, psql: psycopg.Connection) -> None:
    _fetch(psql, "SELECT pg_advisory_lock(42)")
    info = locks.inspect(42)
    assert (info.name, info.holders[0].holder) == ("key 42", "legacy")
    assert [one.name for one in locks.list()] == ["key 42"]
    assert locks.break_lock(42).holders[0].holder == "legacy"
    until(lambda: not locks.inspect(42).locked)


def test_the_command_line_takes_an_integer_as_it_lists_it(url: str, locks: Locks) -> None:
    def run(*words: str) -> Any:
        env = {**os.environ, "LOCKFAST_URL": url}
        command = [sys.executable, "-m", "lockfast", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=50, check=False)

    with locks.lock(42, ttl=3600):
        (listed,) = json.loads(run("ls", "--json").stdout)
        assert listed["name"] == "key 42"
        shown = json.loads(run("show", "--json", "key 42").stdout)
        assert (shown["locked"], shown["holders"][0]["holder"]) == (True, "worker-7")
    assert run("run", "key 42", "--", "true").returncode == 0


# What is refused


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_an_integer_that_postgresql_has_no_key_for_is_refused(locks: Locks, number: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        locks.lock(number)
    with pytest.raises(ValueError, match="64 bits"):
        locks.inspect(number)


@pytest.mark.parametrize("name", [True, 4.2, (7, 42), None])
def test_whatever_is_neither_a_name_nor_an_integer_is_refused(locks: Locks, name: Any) -> None:
    with pytest.raises(ValueError, match="a lock name must be a string"):
        locks.lock(name)


def test_other_backends_take_no_integers() -> None:
    with lockfast.connect("memory://") as locks:
        for refused in (lambda: locks.lock(42), lambda: locks.rwlock(42), lambda: locks.inspect(42)):
            with pytest.raises(ValueError, match="a lock name must be a string, not 42"):
                refused()
        with pytest.raises(ValueError, match="a lock name must be a string, not 42"):
            locks.break_lock(42)
        with pytest.raises(ValueError, match="a lock name must be a string, not 42"):
            locks.all(42)
