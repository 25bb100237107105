"""What PostgreSQL 16 and 18 do, as far as the lock table, the drivers and the docs rest on it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import NEWEST
from tests.servers.waiting import LIMIT_S, until


@pytest.fixture(scope="module", params=[16, NEWEST])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer(version=request.param) as server:
        yield server


@pytest.fixture
def two(server: PostgresServer) -> Iterator[tuple[psycopg.Connection, psycopg.Connection]]:
    server.psql("DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, v int)")
    with psycopg.connect(server.url, autocommit=True) as one, psycopg.connect(server.url, autocommit=True) as other:
        yield one, other


Two = tuple[psycopg.Connection, psycopg.Connection]


def ask(connection: psycopg.Connection, sql: str) -> object:
    row = connection.execute(sql.encode()).fetchone()
    return row[0] if row else None


def test_a_lock_of_a_transaction_can_be_taken_again_by_it_and_ends_with_it(two: Two) -> None:
    one, other = two
    with one.transaction():
        assert ask(one, "SELECT pg_try_advisory_xact_lock(1, 2)") is True
        assert ask(one, "SELECT pg_try_advisory_xact_lock(1, 2)") is True
        assert ask(other, "SELECT pg_try_advisory_xact_lock(1, 2)") is False
        assert ask(other, "SELECT pg_try_advisory_xact_lock((1::bigint << 32) + 2)") is True, "another space of keys"
    assert ask(other, "SELECT pg_try_advisory_xact_lock(1, 2)") is True


def test_a_statement_of_a_function_sees_what_was_committed_while_an_earlier_one_waited(two: Two) -> None:
    one, other = two
    one.execute(
        "CREATE OR REPLACE FUNCTION waits() RETURNS bigint LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(1, 2); RETURN (SELECT count(*) FROM t); END $$"
    )
    with other.transaction():
        other.execute("SELECT pg_advisory_xact_lock(1, 2)")
        one.pgconn.send_query(b"SELECT waits()")
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: ask(other, waits), "the first statement to wait")
        other.execute("INSERT INTO t VALUES (1)")
    result = one.pgconn.get_result()
    assert result is not None
    assert result.get_value(0, 0) == b"1"
    assert one.pgconn.get_result() is None


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_do_nothing_fails_if_the_row_in_the_way_is_younger_than_the_snapshot(two: Two, level: str) -> None:
    one, other = two
    with one.transaction(force_rollback=True):
        one.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        assert ask(one, "SELECT count(*) FROM t") == 0
        other.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(psycopg.errors.SerializationFailure):
            one.execute("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_row_that_is_gone_since_the_snapshot_cannot_be_locked(two: Two, level: str) -> None:
    one, other = two
    other.execute("INSERT INTO t VALUES (1)")
    with one.transaction(force_rollback=True):
        one.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        assert ask(one, "SELECT count(*) FROM t") == 1
        other.execute("DELETE FROM t")
        with pytest.raises(psycopg.errors.SerializationFailure):
            one.execute("SELECT FROM t WHERE id = 1 FOR KEY SHARE")


def test_an_update_checks_a_row_again_that_it_had_to_wait_for(two: Two) -> None:
    one, other = two
    one.execute("INSERT INTO t VALUES (1, 5)")
    with other.transaction():
        other.execute("UPDATE t SET v = 9 WHERE id = 1")
        one.pgconn.send_query(b"DELETE FROM t WHERE id = 1 AND v = 5")
        until(lambda: ask(other, "SELECT count(*) FROM pg_locks WHERE NOT granted"), "the statement to wait")
    result = one.pgconn.get_result()
    assert result is not None
    assert result.command_tuples == 0
    assert one.pgconn.get_result() is None


def test_a_number_of_a_sequence_is_not_given_back_by_a_rollback(two: Two) -> None:
    one, _ = two
    one.execute("CREATE SEQUENCE IF NOT EXISTS s")
    before = ask(one, "SELECT nextval('s')")
    with one.transaction(force_rollback=True):
        one.execute("SELECT nextval('s')")
    assert ask(one, "SELECT nextval('s')") == int(str(before)) + 2


def test_only_clock_timestamp_moves_inside_a_transaction(two: Two) -> None:
    one, _ = two
    with one.transaction():
        moved = "SELECT clock_timestamp() > now() + interval '10 ms', now() = statement_timestamp()"
        one.execute("SELECT pg_sleep(0.02)")
        row = one.execute(moved).fetchone()
        assert row is not None
        assert row[0] is True


def test_a_notification_comes_with_the_commit_and_to_its_channel_alone(two: Two) -> None:
    one, other = two
    one.execute("LISTEN mine")
    with other.transaction():
        other.execute("SELECT pg_notify('mine', 'a'), pg_notify('yours', 'b')")
        assert ask(one, "SELECT 1") == 1
        assert one.pgconn.notifies() is None
    assert [note.payload for note in one.notifies(timeout=LIMIT_S, stop_after=1)] == ["a"]


def test_a_server_process_sends_its_own_number_at_the_start(two: Two) -> None:
    one, _ = two
    assert one.pgconn.backend_pid == ask(one, "SELECT pg_backend_pid()"), "else something stands between"


def test_a_setting_for_a_transaction_ends_with_it_and_counts_for_its_commit(two: Two) -> None:
    one, _ = two
    assert ask(one, "SELECT set_config('lock_timeout', '123', true)") == "123ms"
    assert ask(one, "SELECT current_setting('lock_timeout')") == "0"


@pytest.mark.slow
def test_a_crash_empties_unlogged_tables_and_keeps_all_else() -> None:
    with PostgresServer() as server:
        server.psql("CREATE TABLE l (v int); CREATE UNLOGGED TABLE u (v int); CREATE SEQUENCE s")
        server.psql("INSERT INTO l VALUES (1); INSERT INTO u VALUES (1)")
        before = int(server.psql("SELECT nextval('s')"))
        server.restart()
        assert server.psql("SELECT (SELECT count(*) FROM l), (SELECT count(*) FROM u)") == "1|0"
        assert int(server.psql("SELECT nextval('s')")) > before
