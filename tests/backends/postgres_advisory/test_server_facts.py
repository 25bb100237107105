"""What PostgreSQL's advisory locks rest on: facts about the server that the backend would be wrong without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg.pq import ExecStatus

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import VERSIONS
from tests.servers.waiting import until

pytestmark = pytest.mark.slow
_LAZY = {"wal_writer_delay": "10s"}  # so that a crash finds something that is not written yet


@pytest.fixture(params=VERSIONS, scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer(_LAZY, version=request.param) as server:
        yield server


def _connect(server: PostgresServer) -> closing[psycopg.Connection]:
    return closing(psycopg.connect(server.url, autocommit=True))


def _fetch(connection: psycopg.Connection, sql: str) -> object:
    row = connection.execute(sql.encode()).fetchone()
    return row[0] if row else None


def test_a_session_is_granted_again_what_it_holds(server: PostgresServer) -> None:
    """So one session must never be asked twice for one number."""
    with _connect(server) as one, _connect(server) as other:
        assert _fetch(one, "SELECT pg_try_advisory_lock(1)") is True
        assert _fetch(one, "SELECT pg_try_advisory_lock(1)") is True
        assert _fetch(other, "SELECT pg_try_advisory_lock(1)") is False


def test_a_session_that_shares_passes_a_writer_that_waits_and_another_does_not(server: PostgresServer) -> None:
    """So a second reader in one session is let in only if another session would be."""
    with _connect(server) as one, _connect(server) as other, _connect(server) as writer:
        assert _fetch(one, "SELECT pg_try_advisory_lock_shared(1)") is True
        writer.pgconn.send_query(b"SELECT pg_advisory_lock(1)")
        until(lambda: _fetch(one, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
        assert _fetch(other, "SELECT pg_try_advisory_lock_shared(1)") is False
        assert _fetch(one, "SELECT pg_try_advisory_lock_shared(1)") is True
        _fetch(one, "SELECT pg_advisory_unlock_all()")


def test_a_lock_taken_before_an_error_of_its_own_statement_stays(server: PostgresServer) -> None:
    """So a wait that ends in an error is settled by looking."""
    with _connect(server) as one, _connect(server) as other:
        with pytest.raises(psycopg.errors.DivisionByZero):
            one.execute("SELECT 1 / length(pg_advisory_lock(1)::text)")
        assert _fetch(other, "SELECT pg_try_advisory_lock(1)") is False


def test_a_snapshot_that_a_transaction_keeps_is_older_than_the_lock_that_its_first_statement_waits_for(
    server: PostgresServer,
) -> None:
    """So at these levels a lock protects nothing that the transaction reads."""
    with _connect(server) as writer, _connect(server) as reader, _connect(server) as other:
        writer.execute("CREATE TABLE IF NOT EXISTS facts (fact int)")
        for level in ("REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED"):
            writer.execute("TRUNCATE facts")
            _fetch(writer, "SELECT pg_advisory_lock(1)")
            reader.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
            reader.pgconn.send_query(b"SELECT pg_advisory_xact_lock(1)")
            until(lambda: _fetch(other, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
            writer.execute("INSERT INTO facts VALUES (7)")
            _fetch(writer, "SELECT pg_advisory_unlock(1)")
            assert [result.status for result in iter(reader.pgconn.get_result, None)] == [ExecStatus.TUPLES_OK]
            assert _fetch(reader, "SELECT count(*) FROM facts") == (level == "READ COMMITTED")
            reader.execute("ROLLBACK")


def test_a_place_in_the_log_and_the_number_of_a_transaction_come_again_after_a_crash(server: PostgresServer) -> None:
    """So a fence is made of neither: a holder from before the crash would have as high a number as one that is
    granted the lock after it. The clock goes on.
    """
    with _connect(server) as before, _connect(server) as writer:
        emit = "SELECT max(pg_logical_emit_message(false, 'lockfast', 'x'))::text FROM generate_series(1, {})"
        place = _fetch(before, emit.format(1000))
        writer.execute("BEGIN")
        number = int(str(_fetch(writer, "SELECT pg_current_xact_id()::text")))
        clock = _fetch(before, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8")
        server.restart()
    with _connect(server) as after:
        assert _fetch(after, f"SELECT '{_fetch(after, emit.format(1))}'::pg_lsn < '{place}'") is True
        assert int(str(_fetch(after, "SELECT pg_current_xact_id()::text"))) <= number
        assert int(str(_fetch(after, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"))) > int(
            str(clock)
        )


def test_client_and_server_know_the_same_pid_where_no_pooler_is_between(
    server: PostgresServer,
) -> None:
    """So a pooler is noticed: it gives out numbers of its own."""
    with _connect(server) as connection:
        assert _fetch(connection, "SELECT pg_backend_pid()") == connection.info.backend_pid
