"""What a migration does to the clients that use the table meanwhile, and to the transaction that it is run in."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from lockfast._connect import migration
from lockfast.backends.postgres_table import schema
from lockfast.cli import main
from tests.backends.postgres_table.adopted_table import TABLE, AdoptedDatabase
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

WAITS = """SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
    WHERE datname = current_database() AND relation = 'distributed_locks'::regclass AND NOT granted"""
NAMES = ("distributed_locks", "lockfast_queue", "lockfast_changes", "lockfast_limiters", "lockfast_cells")
FINDS = "SELECT to_regclass('public.distributed_locks_expires_at') IS NOT NULL"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[AdoptedDatabase]:
    made = AdoptedDatabase(tmp_path)
    yield made
    made.close()


@pytest.fixture
def database(empty: AdoptedDatabase) -> AdoptedDatabase:
    assert main(["migrate", empty.url]) == 0
    return empty


@pytest.fixture
def in_use(database: AdoptedDatabase) -> Iterator[psycopg.Connection]:
    """A transaction that stays open after it has used all tables."""
    with database.client() as other:
        other.autocommit = False
        assert other.execute("SELECT acquire_lock('a', 'me')").fetchone() == (True,)
        for name in NAMES:
            other.execute(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE".encode())
        yield other
        other.rollback()


@pytest.mark.usefixtures("in_use")
def test_a_migration_with_nothing_to_do_waits_for_no_transaction(database: AdoptedDatabase) -> None:
    assert main(["migrate", f"{database.url}?options=-clock_timeout%3D1"]) == 0
    assert database.ask("SELECT acquire_lock('b', 'me')") is True


def test_a_migration_with_something_to_do_lets_clients_pass_until_the_table_is_free(
    database: AdoptedDatabase, in_use: psycopg.Connection
) -> None:
    in_use.rollback()
    database.make("DROP INDEX distributed_locks_expires_at")
    assert in_use.execute("SELECT acquire_lock('a', 'me')").fetchone() == (True,)
    with ThreadPoolExecutor() as threads, database.client() as other:
        migrated = threads.submit(main, ["migrate", database.url])
        until(lambda: migrated.done() or database.ask(WAITS), "the migration to wait for the table")
        assert other.execute("SELECT acquire_lock('b', 'me')").fetchone() == (True,), "it was let past"
        assert not migrated.done()
        in_use.commit()
        assert migrated.result(LIMIT_S) == 0
    assert database.ask(FINDS) is True


def test_a_transaction_that_stays_in_the_way_is_named_and_nothing_is_changed(
    database: AdoptedDatabase,
    in_use: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_use.rollback()
    database.make("DROP INDEX distributed_locks_expires_at")
    assert in_use.execute("SELECT acquire_lock('a', 'me')").fetchone() == (True,)
    monkeypatch.setitem(schema._CONSTANTS, "TABLE_WAIT", "interval '0'")
    schema.script.cache_clear()
    try:
        assert main(["migrate", database.url]) == 69
    finally:
        schema.script.cache_clear()
    assert f"does not end (process {in_use.info.backend_pid})" in capsys.readouterr().err
    assert database.ask(FINDS) is False


# In a transaction of the user's own


def _printed(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["migrate", "--print", "postgresql://"]) == 0
    return capsys.readouterr().out


def test_the_printed_script_leaves_the_transaction_that_it_is_run_in_open(
    empty: AdoptedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Alembic and Django's RunSQL run it: what comes before and after it is committed with it, or rolled back."""
    text = _printed(capsys)
    made = "SELECT to_regclass('public.distributed_locks') IS NOT NULL, to_regclass('public.before') IS NOT NULL"
    with empty.client() as connection:
        connection.autocommit = False
        settings = "SELECT current_setting('search_path'), current_setting('client_min_messages')"
        before = connection.execute(settings.encode()).fetchone()
        connection.execute("CREATE TABLE before (id int)")
        connection.execute(text.encode())
        assert connection.execute(settings.encode()).fetchone() == before, "later statements are as they would be"
        connection.execute("SELECT acquire_lock('a', 'me')")
        connection.rollback()
        assert empty.ask(made) == (False, False)
        connection.execute(text.encode())
        connection.commit()
    assert empty.ask("SELECT acquire_lock('a', 'me')") is True


def test_the_printed_script_is_no_template_of_sqlalchemy(
    empty: AdoptedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which Alembic's op.execute() makes of a text."""
    text = _printed(capsys)
    engine = sqlalchemy.create_engine(empty.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(text))
    engine.dispose()
    assert empty.ask("SELECT acquire_lock('a', 'me')") is True


def test_the_printed_script_refuses_what_takes_two_transactions(
    empty: AdoptedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    empty.make(TABLE)
    with pytest.raises(psycopg.errors.RaiseException, match="lockfast migrate --print --adopt"):
        empty.make(_printed(capsys))
    assert main(["migrate", "--print", "--adopt", "postgresql://"]) == 0
    assert "ERROR" not in empty.pipe(capsys.readouterr().out)
    assert empty.ask("SELECT acquire_lock('a', 'me')") is True


def test_adopt_is_for_print_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--adopt", "postgresql://nowhere.invalid/db"]) == 64
    assert "--adopt is for --print" in capsys.readouterr().err


def test_the_settings_of_a_connection_are_as_before_after_a_migration(database: AdoptedDatabase) -> None:
    """It may be a pooler's, which gives it to the next client."""
    with database.client() as connection:
        before = connection.execute("SHOW search_path").fetchone()
        connection.execute(migration(database.url).adopting.encode())
        assert connection.execute("SHOW search_path").fetchone() == before
