"""The lock table at every isolation level: a transaction with an old snapshot is granted nothing that is held.

Each story is one of a transaction that began, and has seen the table, before something happened there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast._time import boot_now
from lockfast.testing.history import Hold, judge
from tests.servers.postgres_tables import table
from tests.servers.waiting import join, until

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
Connection = psycopg.Connection[Any]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return table().url(tmp_path)


@contextmanager
def old_transaction(url: str, level: str) -> Iterator[Connection]:
    """One that has seen the table as it is now, and sees it so from here on."""
    with psycopg.connect(url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        connection.execute("SELECT count(*) FROM distributed_locks, lockfast_queue")
        yield connection
        connection.rollback()


def taken(connection: Connection, name: str) -> bool:
    try:
        (answer,) = connection.execute("SELECT acquire_lock(%s, 'psql')", (name,)).fetchone() or (None,)
    except psycopg.errors.SerializationFailure:
        return False
    connection.commit()
    return bool(answer)


@pytest.mark.parametrize("level", LEVELS)
def test_a_transaction_with_an_old_snapshot_is_not_granted_a_name_that_a_reader_took_since(
    url: str, level: str
) -> None:
    with lockfast.connect(url) as locks:
        early = locks.rwlock("x", ttl=0.5, renew=False).read().acquire()
        with old_transaction(url, level) as old:
            late = locks.rwlock("x").read().acquire()
            assert early is not None
            assert late is not None
            until(lambda: locks.inspect("x").holders[0].claim_id == late.claim_id, "the early reader to be over")
            assert not taken(old, "x")
            assert late.held


@pytest.mark.parametrize("level", LEVELS)
def test_an_old_snapshot_lets_no_more_in_than_the_limit(url: str, level: str) -> None:
    ask = "SELECT lockfast_acquire('', 'x', 'one more', 'psql', 30, 'shared', 2) ->> 'fence'"
    with lockfast.connect(url) as locks, locks.semaphore("x", 2), old_transaction(url, level) as old:
        with locks.semaphore("x", 2):
            try:
                assert old.execute(ask).fetchone() == (None,)
            except psycopg.errors.SerializationFailure:
                assert level != "READ COMMITTED"
            old.rollback()  # as long as it is open no other claim gets the name


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_waiter_keeps_its_place_if_a_transaction_with_an_old_snapshot_goes_past(url: str, level: str) -> None:
    """That cannot be kept from happening: nothing is there that such a transaction could see, or run into."""
    enqueued = "SELECT lockfast_acquire('', 'x', %s, 'waits', 30, 'exclusive', NULL, NULL, '') ->> %s"
    with psycopg.connect(url, autocommit=True) as waiter, old_transaction(url, level) as old:
        with lockfast.connect(url) as locks, locks.lock("x"):
            assert waiter.execute(enqueued, ("first", "fence")).fetchone() == (None,)
            assert waiter.execute(enqueued, ("second", "fence")).fetchone() == (None,)
        assert taken(old, "x")
        assert waiter.execute(enqueued, ("first", "position")).fetchone() == ("0",), "answered as busy"
        old.execute("SELECT release_lock('x', 'psql')")
        old.commit()
        assert waiter.execute(enqueued, ("second", "fence")).fetchone() == (None,)
        assert waiter.execute(enqueued, ("first", "fence")).fetchone() != (None,)


def _take_in_a_transaction(connection: psycopg.Connection[Any], level: str, holder: str) -> int | None:
    """The fence, once it is committed; None if it was held, or another transaction was quicker."""
    try:
        with connection.transaction():
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            connection.execute("SELECT count(*) FROM distributed_locks")
            (taken,) = connection.execute("SELECT acquire_lock('x', %s)", (holder,)).fetchone() or (None,)
            if not taken:
                return None
            own = "SELECT fence FROM distributed_locks WHERE claim = %s"  # it may still see the row of one before it
            (fence,) = connection.execute(own, (f"sql:{holder}",)).fetchone() or (0,)
            return int(fence)
    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
        return None


@pytest.mark.slow
def test_a_lock_is_not_granted_twice_at_any_mixture_of_isolation_levels(url: str) -> None:
    holds: list[Hold] = []
    enough = threading.Event()

    def by_sql(level: str, number: int) -> None:
        dice, holder = random.Random(number), f"{level}-{number}"
        with psycopg.connect(url, autocommit=True) as connection:
            while not enough.wait(dice.uniform(0, 0.004)):
                fence = _take_in_a_transaction(connection, level, holder)
                if fence is not None:
                    holds.append(Hold("x", holder, fence, boot_now(), boot_now()))
                    connection.execute("SELECT release_lock('x', %s)", (holder,))

    def by_python() -> None:
        with lockfast.connect(url) as locks:
            while not enough.is_set():
                lease = locks.lock("x", wait=1).acquire()
                if lease is not None:
                    begin = boot_now()
                    holds.append(Hold("x", lease.claim_id, lease.fence, begin, boot_now()))
                    lease.release()

    threads = [threading.Thread(target=by_sql, args=(level, number)) for level in LEVELS for number in range(2)]
    threads.append(threading.Thread(target=by_python))
    for thread in threads:
        thread.start()
    until(lambda: all(sum(hold.holder.startswith(level) for hold in list(holds)) > 20 for level in LEVELS))
    enough.set()
    join(*threads)
    assert judge(holds) == []
