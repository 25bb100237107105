"""A name that an open transaction of another client has locked: an answer, and no error in the server's log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import lockfast
from lockfast.backends.postgres.io.refusals import NameInUse
from tests.servers.postgres_tables import table
from tests.servers.waiting import join, until

pytestmark = pytest.mark.slow

CALLS = (
    "lockfast_acquire('', 'a', 'c', 'h', 60, p_patience => 1)",
    "lockfast_acquire('', 'a', 'c', 'h', 60, p_address => '', p_patience => 1)",
    "lockfast_release('', 'a', 'c', p_patience => 1)",
    "lockfast_abandon('', 'a', 'c', p_patience => 1)",
    "lockfast_observe('', 'a', 'c', 0, '', p_patience => 1)",
    "lockfast_break('', 'a', p_patience => 1)",
    "lockfast_many('{}', '{}', '{}', '{}', '{}', '{}', "
    "'{\"\"}', '{a}', '{c}', '{h}', '{60}', '{exclusive}', '{NULL}', '{NULL}', '{NULL}', 1)",
)
ROLLED_BACK = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"
ASKED = """SELECT pid, query_start FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'lockfast' AND query LIKE '%lockfast_acquire%'"""
OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'lockfast'"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with psycopg.connect(table().url(tmp_path)) as open_transaction:
        assert open_transaction.execute("SELECT acquire_lock('a', 'psql')").fetchone() == (True,)
        yield table().url(tmp_path)
        open_transaction.rollback()


@pytest.mark.parametrize("call", CALLS)
def test_each_function_answers_that_the_name_is_in_use(url: str, call: str) -> None:
    with psycopg.connect(url, autocommit=True) as client:
        assert client.execute(f"SELECT {call}".encode()).fetchone() == ({"in_use": True},)
        locked = client.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'")
        assert locked.fetchone() == (0,)


def test_a_caller_without_patience_of_ours_gets_an_error_by_its_own_limit(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as client:
        client.execute("SET lock_timeout = 1")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            client.execute("SELECT extend_lock('a', 'psql', 60)")
        assert client.execute("SELECT acquire_lock('a', 'other')").fetchone() == (False,)


def test_clients_that_find_the_name_in_use_cause_no_error_at_the_server(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as client:

        def count(sql: str) -> int:
            (number,) = client.execute(sql.encode()).fetchone() or (0,)
            return int(number)

        before = count(ROLLED_BACK)
        with lockfast.connect(url) as locks:
            for _ in range(3):
                assert locks.lock("a").acquire(blocking=False) is None
            with psycopg.connect(url) as busy:
                busy.execute("SELECT acquire_lock('b', 'psql')")
                waiter = threading.Thread(target=lambda: locks.lock("b").acquire())
                waiter.start()
                asked: set[object] = set()

                def asked_again() -> bool:
                    asked.update(client.execute(ASKED))
                    return len(asked) > 2

                until(asked_again, "it to be asked for more than once")
                busy.execute("SELECT release_lock('b', 'psql')")
                busy.commit()
                join(waiter)
            with pytest.raises(NameInUse, match="has locked that name"):
                locks.break_lock("a")
        until(lambda: not count(OURS))  # they report their transactions when they end
        assert count(ROLLED_BACK) == before
