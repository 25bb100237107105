"""What is true of the lock table alone: its schema is a contract with every client that speaks SQL."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast._reentry import run_to_end
from lockfast.backends.postgres_table.schema import VERSION, script
from lockfast.cli import main
from lockfast.errors import BackendUnavailable, Unsupported
from tests.polling import never_poll
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_shared import own_name
from tests.servers.postgres_tables import table
from tests.servers.waiting import LIMIT_S, join, until

ADD_ROLE = 'DO $$ BEGIN CREATE ROLE "{}" LOGIN; EXCEPTION WHEN duplicate_object THEN END $$'
COLUMNS = {
    "lock_name": "character varying(255)",
    "holder_id": "text",
    "acquired_at": "timestamp with time zone",
    "expires_at": "timestamp with time zone",
    "metadata": "jsonb",
    "claim": "text",
    "mode": "text",
    "fence": "bigint",
}


class Database:
    """An empty lock table, and a way to ask the server by other means than ours."""

    def __init__(self, folder: Path) -> None:
        self.url = table().url(folder)
        self.name = table().database(folder)
        self.connection = psycopg.connect(self.url, autocommit=True)

    def ask(self, sql: str, *values: object) -> Any:
        row = self.connection.execute(sql.encode(), values).fetchone()
        return row[0] if row and len(row) == 1 else row

    def psql(self, sql: str) -> str:
        return table().server.psql(sql, self.name)

    def role(self, name: str) -> str:
        """A role of that name, or nearly, that may log in."""
        own = own_name(name)
        self.connection.execute(ADD_ROLE.format(own).encode())
        return own


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.connection.close()


# A client with nothing but SQL


def test_psql_excludes_python(database: Database) -> None:
    assert database.psql("SELECT acquire_lock('report', 'psql')") == "t"
    with lockfast.connect(database.url) as locks:
        assert locks.lock("report").acquire(blocking=False) is None
        assert locks.inspect("report").holders[0].holder == "psql"
        assert database.psql("SELECT release_lock('report', 'psql')") == "t"
        assert locks.lock("report").acquire(blocking=False) is not None


def test_python_excludes_psql(database: Database) -> None:
    with lockfast.connect(database.url, holder="python") as locks:
        with locks.lock("report", metadata={"job": 7}):
            assert database.psql("SELECT acquire_lock('report', 'psql')") == "f"
            assert database.psql("SELECT lock_name, holder_id, metadata FROM distributed_locks") == (
                'report|python|{"job": 7}'
            )
        assert database.psql("SELECT acquire_lock('report', 'psql')") == "t"


def test_a_waiter_in_python_is_woken_by_a_release_in_psql(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    never_poll(monkeypatch)
    database.psql("SELECT acquire_lock('report', 'psql', 3600)")
    with lockfast.connect(database.url) as locks:
        got: list[lockfast.Lease] = []
        waiter = threading.Thread(target=lambda: got.append(locks.lock("report").acquire(timeout=LIMIT_S)))  # type: ignore[arg-type]
        waiter.start()
        until(lambda: locks.inspect("report").waiters, "one to wait")
        assert database.psql("SELECT acquire_lock('report', 'other')") == "f", "no caller passes a waiter"
        assert database.psql("SELECT release_lock('report', 'psql')") == "t"
        join(waiter)
        assert got[0].held


def test_the_same_holder_asking_again_extends_and_gets_true(database: Database) -> None:
    assert database.ask("SELECT acquire_lock('a', 'me', 10)") is True
    fence, first = database.ask("SELECT fence, expires_at FROM distributed_locks")
    assert database.ask("SELECT acquire_lock('a', 'me', 60)") is True
    again, second = database.ask("SELECT fence, expires_at FROM distributed_locks")
    assert (again, second > first) == (fence, True)
    assert database.ask("SELECT acquire_lock('a', 'you', 60)") is False


def test_extend_and_release_answer_only_the_holder(database: Database) -> None:
    database.ask("SELECT acquire_lock('a', 'me')")
    assert database.ask("SELECT extend_lock('a', 'you', 60), release_lock('a', 'you')") == (False, False)
    assert database.ask("SELECT extend_lock('a', 'me', 3600)") is True
    assert database.ask("SELECT expires_at > clock_timestamp() + interval '50 minutes' FROM distributed_locks") is True
    assert database.ask("SELECT release_lock('a', 'me')") is True
    assert database.ask("SELECT release_lock('a', 'me')") is False
    assert database.ask("SELECT extend_lock('a', 'me', 60)") is False


def test_what_has_expired_is_neither_extended_nor_in_the_way(database: Database) -> None:
    database.ask("SELECT acquire_lock('a', 'me', 0.001)")
    database.ask("SELECT pg_sleep(0.01)")
    assert database.ask("SELECT extend_lock('a', 'me', 60)") is False
    assert database.ask("SELECT acquire_lock('a', 'you')") is True
    assert database.ask("SELECT release_lock('a', 'me')") is False


def test_no_release_in_sql_ends_what_python_holds(database: Database) -> None:
    with lockfast.connect(database.url, holder="python") as locks, locks.lock("a") as lease:
        assert database.ask("SELECT release_lock('a', 'python')") is False
        assert database.ask("SELECT extend_lock('a', 'python', 1)") is False
        lease.check()


@pytest.mark.parametrize(
    "call",
    [
        "acquire_lock('', 'me')",
        "acquire_lock(NULL, 'me')",
        "acquire_lock(repeat('x', 256), 'me')",
        "acquire_lock(E'a\\x1fb', 'me')",
        "acquire_lock('a', '')",
        "acquire_lock('a', 'me', 0)",
        "acquire_lock('a', 'me', -1)",
        "acquire_lock('a', 'me', 'nan')",
        "extend_lock('a', 'me', 0)",
    ],
)
def test_bad_input_in_sql_is_refused(database: Database, call: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        database.ask(f"SELECT {call}")


def test_another_namespace_is_another_lock(database: Database) -> None:
    with lockfast.connect(database.url, namespace="billing") as locks, locks.lock("a"):
        assert database.ask("SELECT namespace, lock_name FROM distributed_locks") == ("billing", "a")
        assert database.ask("SELECT acquire_lock('a', 'me')") is True


# Time, fences, and what is left


def test_time_goes_on_inside_a_long_transaction(database: Database) -> None:
    with database.connection.transaction():
        database.ask("SELECT now(), pg_sleep(0.2)")
        assert database.ask("SELECT acquire_lock('a', 'me', 60), acquire_lock('b', 'me', 0.1)") == (True, True)
        lasts = "SELECT expires_at >= now() + interval '60.2 s' FROM distributed_locks WHERE lock_name = 'a'"
        assert database.ask(lasts) is True, "it lasts from when it was granted, not from when the transaction began"
        database.ask("SELECT pg_sleep(0.15)")
        assert database.ask("SELECT extend_lock('b', 'me', 60)") is False, "it expired, though now() stands still"
        assert database.ask("SELECT acquire_lock('b', 'you', 60)") is True


def test_fences_grow_though_every_row_is_deleted(database: Database) -> None:
    fences = []
    for _ in range(3):
        with lockfast.connect(database.url) as locks, locks.lock("a") as lease:
            fences.append(lease.fence)
        database.ask("DELETE FROM distributed_locks RETURNING 1")
    database.connection.execute(script("public").encode())
    with lockfast.connect(database.url) as locks, locks.lock("a") as lease:
        fences.append(lease.fence)
    assert fences == sorted(set(fences))


def test_expired_rows_go_as_a_side_effect_and_a_few_at_a_time(database: Database) -> None:
    database.connection.execute(
        "INSERT INTO distributed_locks (lock_name, holder_id, expires_at, claim, fence)"
        " SELECT 'old-' || n, 'h', clock_timestamp() - interval '1 day', 'c' || n, n FROM generate_series(1, 100) AS n"
    )
    left = [100]
    with lockfast.connect(database.url) as locks:
        for _ in range(10 * 64):
            with locks.lock("busy"):
                pass
            if (count := database.ask("SELECT count(*) FROM distributed_locks WHERE fence <= 100")) != left[-1]:
                left.append(count)
    assert left[-1] == 0
    assert all(0 < before - after <= 16 for before, after in pairwise(left)), left


@pytest.mark.parametrize("metadata", ["a\0b", "\ud800", "😀", 1e300, {"k": [1.0, 2, None]}, {"lockfast:json": 1}])
def test_metadata_comes_back_as_it_was(database: Database, metadata: Any) -> None:
    with lockfast.connect(database.url) as locks, locks.lock("a", metadata=metadata):
        assert locks.inspect("a").holders[0].metadata == metadata
        assert type(locks.inspect("a").holders[0].metadata) is type(metadata)


# The schema


def test_whether_a_lock_is_held_is_asked_without_its_queue(database: Database) -> None:
    with lockfast.connect(database.url) as locks, locks.lock("a"):
        database.ask("SELECT lockfast_acquire('', 'a', 'c1', 'waiter', 30, 'exclusive', NULL, NULL, '')")
        assert locks.inspect("a").queue == ("waiter",)
        backend: Any = locks._logic.engine.backend
        info = run_to_end(backend.inspect_holders("\x1fa", within=LIMIT_S))
        assert ([each.holder for each in info.holders], info.queue) == ([locks.holder], ())
        assert locks.lock("a").locked()


def test_the_columns_are_the_ones_that_other_clients_rely_on(database: Database) -> None:
    rows = database.connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'distributed_locks'::regclass AND attnum > 0"
    ).fetchall()
    assert COLUMNS.items() <= dict(rows).items()
    assert database.ask(
        "SELECT count(*) FROM pg_indexes WHERE tablename = 'distributed_locks' AND indexdef LIKE '%%(expires_at)'"
    )


def test_migrating_again_changes_nothing_and_keeps_what_is_held(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with lockfast.connect(database.url) as locks, locks.lock("a") as lease:
        assert main(["migrate", database.url]) == 0
        assert capsys.readouterr().out == "the lock table is there, and up to date\n"
        lease.extend()
    assert database.ask("SELECT count(*), max(version) FROM lockfast_schema") == (VERSION, VERSION)


def test_the_printed_script_is_what_is_run(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "--print", "--schema", "printed", "postgresql://nowhere.invalid/db"]) == 0
    database.psql(capsys.readouterr().out)
    with lockfast.connect(database.url, schema="printed") as locks, locks.lock("a"):
        assert database.ask("SELECT lock_name FROM printed.distributed_locks") == "a"
        assert database.ask("SELECT count(*) FROM public.distributed_locks") == 0
        assert database.ask("SELECT printed.acquire_lock('a', 'me'), acquire_lock('a', 'me')") == (False, True)
        assert repr(locks).count("schema=printed") == 1


def test_a_chosen_schema_is_made_and_found_by_the_url_too(database: Database) -> None:
    url = f"{database.url}?schema=more-locks"
    assert main(["migrate", url]) == 0
    with lockfast.connect(url) as locks, locks.lock("a"):
        assert database.ask('SELECT lock_name FROM "more-locks".distributed_locks') == "a"


def test_a_missing_schema_gives_an_error_that_says_what_to_run(database: Database) -> None:
    with lockfast.connect(f"{database.url}?schema=nothing_here") as locks:
        with pytest.raises(
            BackendUnavailable, match=r"has no lock table; run: lockfast migrate 'postgresql://.*schema=nothing_here'"
        ) as caught:
            locks.lock("a").acquire()
        assert not caught.value.transient
        command = re.search(r"run: lockfast (.*) \(as ", str(caught.value))
        assert command
        assert main(shlex.split(command[1])) == 0  # pasted as it is, with the name of the user
        with locks.lock("a"):
            assert locks.inspect("a").locked


def test_an_old_schema_gives_an_error_that_says_what_to_run(database: Database) -> None:
    database.connection.execute(script("aged").encode())
    database.connection.execute("SELECT aged.acquire_lock('held', 'me')")
    for version in range(VERSION):
        database.connection.execute("DELETE FROM aged.lockfast_schema WHERE version > %s", (version,))
        with lockfast.connect(database.url, schema="aged") as locks:
            with pytest.raises(BackendUnavailable, match="has an old lock table; run: lockfast migrate"):
                locks.lock("a").acquire()
            assert main(["migrate", "--schema", "aged", database.url]) == 0
            with locks.lock("a") as lease:
                lease.extend()
                assert locks.inspect("held").locked


def test_a_schema_of_a_newer_release_is_used_with_a_warning_and_not_taken_back(
    database: Database, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    database.connection.execute(script("newer").encode())
    database.connection.execute("INSERT INTO newer.lockfast_schema VALUES (%s)", (VERSION + 1,))
    assert main(["migrate", "--schema", "newer", database.url]) == 69
    assert "a newer lockfast has been here" in capsys.readouterr().err
    with lockfast.connect(database.url, schema="newer") as locks, locks.lock("a"), locks.lock("b"):
        pass
    (warning,) = [record.message for record in caplog.records if record.name == "lockfast"]
    assert f"has version {VERSION + 1}, and this lockfast knows version {VERSION}" in warning


def test_missing_rights_give_an_error_that_says_what_to_run(
    database: Database,
) -> None:
    guest = database.role("guest")
    database.connection.execute(f'REVOKE ALL ON ALL TABLES IN SCHEMA public FROM "{guest}"'.encode())
    url = database.url.replace("//lockfast@", f"//{guest}@")
    with lockfast.connect(url) as locks:
        with pytest.raises(BackendUnavailable, match=r"permission denied.*GRANT ALL ON ALL TABLES") as caught:
            locks.lock("a").acquire()
        assert not caught.value.transient
        grants = str(caught.value).partition("can run: ")[2].partition("; for more")[0]
        assert "GRANT EXECUTE ON ALL FUNCTIONS" in grants
        database.connection.execute(grants.encode())
        with locks.lock("a"):
            pass


@pytest.mark.parametrize("there", [False, True])
def test_a_role_that_may_not_migrate_reads_which_grant_is_missing(
    database: Database, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    hired = database.role("new-hire")
    database.connection.execute("DROP SCHEMA IF EXISTS private CASCADE")
    if there:
        database.connection.execute("CREATE SCHEMA private")
    where = "SCHEMA private" if there else f"DATABASE {database.connection.info.dbname}"
    words = ["migrate", "--schema", "private", database.url.replace("//lockfast@", f"//{hired}@")]
    assert main(words) == 69
    printed = capsys.readouterr().err
    grant = re.search(rf'GRANT [A-Z, ]*CREATE ON {where} TO "{hired}"', printed)
    assert grant, printed
    assert "permission denied" in printed
    database.connection.execute(grant[0].encode())
    assert main(words) == 0
    database.connection.execute("DROP SCHEMA private CASCADE")
    database.connection.execute(f'DROP OWNED BY "{hired}"'.encode())


def test_a_role_that_may_not_replace_the_functions_reads_who_owns_them(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    hired = database.role("new-hire")
    database.connection.execute(f'GRANT CREATE ON SCHEMA public TO "{hired}"'.encode())
    assert main(["migrate", database.url.replace("//lockfast@", f"//{hired}@")]) == 69
    assert "belongs to lockfast: run it as that role" in capsys.readouterr().err
    database.connection.execute(f'DROP OWNED BY "{hired}"'.encode())


def test_a_migration_that_is_refused_does_not_advise_to_migrate(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    database.connection.execute("DROP SCHEMA IF EXISTS taken CASCADE; CREATE SCHEMA taken")
    database.connection.execute("CREATE TABLE taken.lockfast_queue (ours boolean)")
    assert main(["migrate", "--schema", "taken", database.url]) == 69
    error = capsys.readouterr().err
    assert "does not exist" in error
    assert "run:" not in error
    assert "old one" not in error


@pytest.mark.parametrize("schema", ["", "a b", 'x"y', "1x", "x" * 64, "x'y", "$$"])
def test_a_schema_whose_name_needs_care_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="a schema is letters"):
        lockfast.connect("postgresql://localhost/db", schema=schema)


@pytest.mark.parametrize("schema", ["information_schema", "pg_catalog", "pg_temp", "pg_mine"])
def test_a_schema_of_the_servers_own_is_refused(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="is PostgreSQL's own"):
        lockfast.connect("postgresql://localhost/db", schema=schema)
    assert main(["migrate", "--schema", schema, "postgresql://localhost:1/db"]) == 64
    assert "is PostgreSQL's own" in capsys.readouterr().err


def test_only_a_lock_table_has_a_schema() -> None:
    with pytest.raises(Unsupported, match="no schema"):
        lockfast.connect("memory://", schema="x")


@pytest.mark.parametrize("url", ["memory://", "sqlite:///x.db", "nonsense"])
def test_only_postgresql_is_migrated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", url]) == 64
    assert "only postgresql://" in capsys.readouterr().err


def test_migrate_needs_to_know_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("LOCKFAST_URL", raising=False)
    assert main(["migrate"]) == 64
    assert "which database?" in capsys.readouterr().err


# Durability


def test_a_grant_is_as_durable_as_the_server_has_it_unless_the_url_says_otherwise(database: Database) -> None:
    database.connection.execute("CREATE TABLE IF NOT EXISTS seen (level text)")
    database.connection.execute(
        "CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    database.connection.execute("CREATE TRIGGER note AFTER INSERT ON distributed_locks EXECUTE FUNCTION note()")
    try:
        for url in (database.url, f"{database.url}?synchronous_commit=off"):
            with lockfast.connect(url) as locks, locks.lock("a"):
                pass
        seen = [level for (level,) in database.connection.execute("SELECT level FROM seen")]
    finally:
        database.connection.execute("DROP FUNCTION note() CASCADE; DROP TABLE seen")
    assert seen == ["on", "off"]


@pytest.mark.slow
def test_what_was_granted_survives_a_crash_of_the_server() -> None:
    with PostgresServer() as server:
        assert main(["migrate", server.url]) == 0
        with lockfast.connect(server.url) as locks:
            lease = locks.lock("a", ttl=3600).acquire()
            assert lease is not None
            server.restart()
            assert locks.inspect("a").holders[0].fence == lease.fence
            assert server.psql("SELECT acquire_lock('a', 'psql')") == "f"
            assert lease.release()
            with locks.lock("a") as following:
                assert following.fence > lease.fence


def test_the_table_is_the_same_on_the_oldest_server_that_is_tested() -> None:
    with PostgresServer(version=16) as server:
        assert main(["migrate", server.url]) == 0
        with lockfast.connect(server.url) as locks, locks.lock("a"), locks.semaphore("s", 2), locks.rwlock("r").read():
            assert json.loads(server.psql("SELECT lockfast_inspect('', 'a')"))["holders"][0][0] == locks.holder
            assert [info.name for info in locks.list()] == ["a", "r", "s"]
