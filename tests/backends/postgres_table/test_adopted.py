"""A lock table of the user's own becomes ours while it is in use: no two callers hold a lock, and no call fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import psycopg
import pytest

import lockfast
from lockfast._connect import migration
from lockfast.backends.postgres_table.schema import script
from lockfast.cli import main
from tests.backends.postgres_table.adopted_table import ACQUIRE, RELEASE, TABLE, AdoptedDatabase
from tests.servers.waiting import LIMIT_S, join, until

Release = Callable[[], bool]

HOUR = "SELECT acquire_lock(%s, %s, 3600)"
AT_THE_TABLE = """SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
    WHERE datname = current_database() AND mode = 'AccessExclusiveLock' AND NOT granted"""
GETTER = "CREATE FUNCTION get_lock(text) RETURNS SETOF distributed_locks LANGUAGE sql AS 'TABLE distributed_locks'"
AUDIT = "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
AUDIT += "CREATE TRIGGER audit AFTER INSERT ON distributed_locks EXECUTE FUNCTION audit()"
COLUMNS = """SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname"""


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[AdoptedDatabase]:
    made = AdoptedDatabase(tmp_path)
    yield made
    made.close()


@pytest.fixture
def theirs(empty: AdoptedDatabase) -> AdoptedDatabase:
    empty.make(TABLE, ACQUIRE, RELEASE)
    return empty


# Their callers


def test_callers_that_hold_wait_and_extend_go_on_through_it(theirs: AdoptedDatabase) -> None:
    reader, waiter, beating = theirs.client(), theirs.client(), theirs.client()
    assert theirs.ask(HOUR, "held", "old")
    reader.autocommit = False
    reader.execute("SELECT FROM distributed_locks")  # stands in the way of the migration until it commits
    with ThreadPoolExecutor() as threads:
        migrated = threads.submit(main, ["migrate", theirs.url])
        until(lambda: theirs.ask(AT_THE_TABLE), "the migration to wait for the table")
        busy = threads.submit(lambda: waiter.execute(HOUR, ("held", "new")).fetchone())
        beat = "UPDATE distributed_locks SET expires_at = now() + interval '2 hours' WHERE holder_id = 'old'"
        beats = threads.submit(lambda: beating.execute(beat.encode()).rowcount)
        until(lambda: theirs.waits(waiter) and theirs.waits(beating), "their callers to wait")
        assert reader.execute(HOUR, ("more", "reader")).fetchone() == (True,), "it is waited for, and need not wait"
        reader.commit()
        assert migrated.result(LIMIT_S) == 0
        assert busy.result(LIMIT_S) == (False,)
        assert beats.result(LIMIT_S) == 1
    assert waiter.execute("SELECT acquire_lock('free', 'new'), acquire_lock('more', 'new')").fetchone() == (True, False)
    assert waiter.execute("SELECT release_lock('held', 'new'), release_lock('held', 'old')").fetchone() == (False, True)
    assert waiter.execute(HOUR, ("held", "new")).fetchone() == (True,)


def test_a_transaction_that_began_before_may_still_call(theirs: AdoptedDatabase) -> None:
    caller = theirs.client()
    caller.prepare_threshold = 0  # a statement that is prepared remembers the function that it found
    for _ in range(2):
        assert caller.execute(HOUR, ("a", "me")).fetchone() == (True,)
    caller.autocommit = False
    caller.execute("SELECT 1")
    long = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    long += " AND clock_timestamp() > xact_start + interval '700 milliseconds'"
    with ThreadPoolExecutor() as threads:
        migrated = threads.submit(main, ["migrate", theirs.url])
        until(lambda: migrated.done() or theirs.ask(long), "the migration to wait for the transaction")
        assert caller.execute(HOUR, ("a", "me")).fetchone() == (True,)
        caller.commit()
        assert migrated.result(LIMIT_S) == 0
    assert theirs.ask(HOUR, "a", "other") is False


def test_a_lock_is_not_granted_twice_while_its_table_is_adopted(theirs: AdoptedDatabase) -> None:
    inside: list[str] = []
    wrong: list[str] = []
    entered = dict.fromkeys(("a", "b", "c", "ours"), 0)
    done = threading.Event()

    def work(name: str, enter: Callable[[], Release | None]) -> None:
        while not done.is_set():
            if leave := enter():
                inside.append(name)
                wrong.extend([f"{inside} at once"] if len(inside) > 1 else [])
                entered[name] += 1
                inside.remove(name)
                wrong.extend([] if leave() else [f"{name} had lost it"])

    def call(name: str) -> None:
        connection = theirs.client()

        def ask(sql: str) -> bool:
            return connection.execute(sql.encode(), ("job", name)).fetchone() == (True,)

        work(name, lambda: (lambda: ask("SELECT release_lock(%s, %s)")) if ask(HOUR) else None)

    def take() -> None:
        with lockfast.connect(theirs.url) as locks:
            work("ours", lambda: lease.release if (lease := locks.lock("job").acquire(timeout=LIMIT_S)) else None)

    def each_enters(*names: str) -> None:
        before = dict(entered)
        until(lambda: done.is_set() or all(entered[name] > before[name] for name in names), "each to get in")

    with ThreadPoolExecutor() as threads:
        callers = [threads.submit(call, name) for name in "abc"]
        for caller in callers:
            caller.add_done_callback(lambda _: done.set())  # a call that failed is raised below
        try:
            each_enters("a", "b", "c")
            assert main(["migrate", theirs.url]) == 0
            each_enters("a", "b", "c")
            callers.append(threads.submit(take))
            each_enters("ours")
        finally:
            done.set()
        for caller in callers:
            caller.result(LIMIT_S)
    assert not wrong


@pytest.mark.parametrize("kind", ["jsonb", "json"])
@pytest.mark.parametrize("named", ["p_lock_name p_holder_id p_ttl_seconds p_metadata", "name who seconds info"])
def test_every_call_of_their_functions_finds_one_afterwards(empty: AdoptedDatabase, named: str, kind: str) -> None:
    names = named.split()
    acquire, release = ACQUIRE.replace("jsonb", kind), RELEASE
    for ours, other in zip(("p_lock_name", "p_holder_id", "p_ttl_seconds", "p_metadata"), names, strict=True):
        acquire, release = acquire.replace(ours, other), release.replace(ours, other)
    empty.make(TABLE, acquire.replace("DEFAULT 30", "DEFAULT 3600"), release)
    assert main(["migrate", empty.url]) == 0
    texts, numbers = ("", "::text", "::varchar"), ["", "::smallint"]
    numbers += [] if kind == "json" else ["::bigint", "::numeric", "::float8"]  # which theirs did not take
    for first, second, number, tail in product(texts, texts, (None, *numbers), ("", ", '{}'", f", '{{}}'::{kind}")):
        third = "" if number is None else f", 3600{number}{tail}"
        assert empty.ask(f"SELECT acquire_lock('a'{first}, 'me'{second}{third})") is True
        assert empty.ask(f"SELECT release_lock('a'{first}, 'me'{second})") is True
    assert empty.ask(f"SELECT acquire_lock({names[1]} => 'me', {names[0]} => 'a')") is True
    left = "SELECT expires_at > now() + interval '1800 seconds' FROM distributed_locks WHERE lock_name = %s"
    assert empty.ask(left, "a") is True, "the usual ttl is theirs"
    assert empty.ask("SELECT acquire_lock('b', 'me')") is True
    assert empty.ask(left, "b") is True
    assert main(["migrate", empty.url]) == 0
    assert empty.ask("SELECT acquire_lock('c', 'me')") is True
    assert empty.ask(left, "c") is True


def test_functions_that_extend_or_return_nothing_are_replaced_too(empty: AdoptedDatabase) -> None:
    extend = "CREATE FUNCTION extend_lock(text, text, bigint) RETURNS void BEGIN ATOMIC UPDATE distributed_locks"
    extend += " SET expires_at = now() + $3 * interval '1 second' WHERE lock_name = $1 AND holder_id = $2; END"
    empty.make(TABLE, ACQUIRE, RELEASE.replace("boolean", "void").replace("RETURN FOUND;", ""), extend)
    first, commit, _ = script("public").partition("COMMIT;\n")
    for sql in (first + commit, script("public")):
        empty.make(sql)
        assert empty.ask("SELECT acquire_lock('a', 'me', 60)") is True
        empty.ask("SELECT extend_lock('a', 'me', 7200)")
        assert empty.ask("SELECT expires_at > now() + interval '1 hour' FROM distributed_locks") is True
        empty.ask("SELECT release_lock('a', 'me')")
        assert empty.ask("SELECT count(*) FROM distributed_locks") == 0


def test_their_holder_extends_and_releases_by_hand(theirs: AdoptedDatabase) -> None:
    assert theirs.ask("SELECT acquire_lock('a', 'me', 60)")
    assert main(["migrate", theirs.url]) == 0
    assert theirs.ask("SELECT acquire_lock('b', 'me', 60)")
    theirs.connection.execute("UPDATE distributed_locks SET expires_at = now() + interval '1 day'")
    for otherwise in ("", "ON CONFLICT DO NOTHING", "ON CONFLICT (lock_name) DO NOTHING"):
        insert = (
            f"INSERT INTO distributed_locks (lock_name, holder_id, expires_at) VALUES ('c', 'me', now()) {otherwise}"
        )
        with pytest.raises(psycopg.Error):  # rather than a hold without a claim
            theirs.make(insert)
    with lockfast.connect(theirs.url) as locks:
        for name in "ab":
            assert locks.semaphore(name, 2).acquire(blocking=False) is None  # which looks at everything
            left = "SELECT expires_at > now() + interval '1 hour' FROM distributed_locks WHERE lock_name = %s"
            assert theirs.ask(left, name) is True
            theirs.connection.execute(
                "DELETE FROM distributed_locks WHERE lock_name = %s AND holder_id = 'me'", (name,)
            )
            assert locks.lock(name).acquire(blocking=False) is not None


def test_roles_that_could_acquire_still_can(theirs: AdoptedDatabase) -> None:
    worker, auditor = theirs.role("worker"), theirs.role("auditor")
    theirs.connection.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_locks TO "{worker}"'.encode())
    theirs.connection.execute(f'GRANT SELECT (holder_id) ON distributed_locks TO "{auditor}"'.encode())
    assert main(["migrate", theirs.url]) == 0
    with theirs.client(user=worker) as connection:
        assert connection.execute(HOUR, ("a", "me")).fetchone() == (True,)
    with theirs.client(user=auditor) as connection:
        assert connection.execute("SELECT holder_id FROM distributed_locks").fetchone() == ("me",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(HOUR, ("b", "me"))


def test_roles_that_could_call_their_functions_still_can_where_public_may_not(theirs: AdoptedDatabase) -> None:
    worker = theirs.role("worker")
    theirs.make(f'GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_locks TO "{worker}"')
    theirs.make("REVOKE EXECUTE ON FUNCTION acquire_lock, release_lock FROM PUBLIC")
    theirs.make(f'GRANT EXECUTE ON FUNCTION acquire_lock, release_lock TO "{worker}"')
    theirs.make("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    first, commit, _ = script("public").partition("COMMIT;\n")
    try:
        with theirs.client(user=worker) as connection:
            for sql in (first + commit, script("public")):
                theirs.make(sql)
                assert connection.execute(HOUR, ("a", "me")).fetchone() == (True,)
                assert connection.execute("SELECT release_lock('a', 'me')").fetchone() == (True,)
    finally:  # the database is used again
        theirs.make("ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC")
    with lockfast.connect(theirs.url.replace("//lockfast@", f"//{worker}@")) as locks, locks.lock("a") as lease:
        assert lease.held


# What is moved


def test_what_was_acquired_while_it_waited_is_kept_at_every_isolation_level(theirs: AdoptedDatabase) -> None:
    with ThreadPoolExecutor() as threads, theirs.client() as writer:
        writer.autocommit = False
        assert writer.execute(HOUR, ("held", "me")).fetchone() == (True,)
        level = "options=-cdefault_transaction_isolation%3Drepeatable%5C%20read"
        migrated = threads.submit(main, ["migrate", f"{theirs.url}?{level}"])
        until(lambda: theirs.ask(AT_THE_TABLE), "the migration to wait for the table")
        writer.commit()
        assert migrated.result(LIMIT_S) == 0
    assert theirs.ask("SELECT array_agg(lock_name) FROM distributed_locks") == ["held"]


def test_what_is_held_is_ours_from_then_on_and_what_has_expired_is_gone(
    theirs: AdoptedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs.ask("SELECT acquire_lock('held', 'me', 3600, '{\"job\": 7}'), acquire_lock('over', 'me', -1)")
    before = theirs.ask("SELECT acquired_at, expires_at FROM distributed_locks WHERE lock_name = 'held'")
    assert main(["migrate", theirs.url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        '"public".distributed_locks is a lock table of your own: rows that have not expired become holds of ours; our '
        "functions replace public.acquire_lock(character varying,character varying,integer,jsonb), "
        "public.release_lock(character varying,character varying)",
        "1 held and kept, 1 expired and dropped",
        "the lock table is there, and up to date",
    ]
    assert theirs.ask("SELECT acquired_at, expires_at FROM distributed_locks") == before
    with lockfast.connect(theirs.url) as locks:
        (holder,) = locks.inspect("held").holders
        assert (holder.holder, holder.metadata, bool(holder.fence)) == ("me", {"job": 7}, True)
        with locks.lock("over") as lease:
            assert lease.fence > (holder.fence or 0)
    theirs.connection.execute(script("locks").encode())
    same = [theirs.connection.execute(COLUMNS, (f"{schema}.distributed_locks",)) for schema in ("public", "locks")]
    assert same[0].fetchall() == same[1].fetchall()
    left = "SELECT count(*) FROM pg_class WHERE relname ~ 'theirs|idx_locks'"
    assert theirs.ask(f"{left} OR relname ~ 'distributed_locks_pkey.'") == 0
    assert theirs.ask("SELECT count(*) FROM pg_proc WHERE proname ~ '_theirs_'") == 0


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        (",\n    metadata jsonb DEFAULT '{}'", ""),
        ("acquired_at timestamptz NOT NULL DEFAULT now(),", ""),
        ("NOT NULL DEFAULT now()", ""),
        ("timestamptz", "timestamp"),
        ("varchar(255)", "text"),
        ("metadata jsonb DEFAULT '{}'", "metadata json, team text DEFAULT 'red', host text NOT NULL DEFAULT ''"),
        ("varchar(255) PRIMARY KEY", "varchar(255) UNIQUE, id serial PRIMARY KEY"),
        ("varchar(255) PRIMARY KEY", "text UNIQUE, id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    ],
)
def test_tables_that_differ_a_little_are_adopted(empty: AdoptedDatabase, what: str, instead: str) -> None:
    assert what in TABLE
    empty.make(TABLE.replace(what, instead))
    empty.connection.execute(
        "INSERT INTO distributed_locks (lock_name, holder_id, expires_at)"
        " VALUES ('held', 'me', now() + interval '1 hour'), ('over', 'me', now() - interval '1 second')"
    )
    assert main(["migrate", empty.url]) == 0
    assert empty.ask("SELECT array_agg(lock_name) FROM distributed_locks") == ["held"]
    with lockfast.connect(empty.url) as locks:
        assert locks.lock("held").acquire(blocking=False) is None
        assert empty.ask("SELECT release_lock('held', 'me')") is True
        with locks.lock("held"), locks.semaphore("s", 2), locks.semaphore("s", 2):
            if "team" in instead:
                assert empty.ask("SELECT DISTINCT team, host FROM distributed_locks") == ("red", "")


def test_rows_without_an_end_or_a_holder_still_exclude(
    empty: AdoptedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    empty.make(TABLE.replace("holder_id varchar(255) NOT NULL", "holder_id text").replace("NOT NULL,", ","))
    empty.make("INSERT INTO distributed_locks VALUES ('a'), ('b'), ('\t')")
    empty.make("UPDATE distributed_locks SET expires_at = 'infinity' WHERE lock_name = 'b'")
    assert main(["migrate", empty.url]) == 69
    assert r"the lock '\t' is held, and cannot be kept" in capsys.readouterr().err
    empty.make("DELETE FROM distributed_locks WHERE lock_name = '\t'")
    assert main(["migrate", empty.url]) == 0
    with lockfast.connect(empty.url) as locks:
        assert [info.holders[0].holder for info in locks.list()] == ["unknown", "unknown"]
        assert locks.lock("a").acquire(blocking=False) is None


def test_times_without_an_end_become_such_as_can_be_counted_with(empty: AdoptedDatabase) -> None:
    empty.make(TABLE, "INSERT INTO distributed_locks VALUES ('a', 'me', '-infinity', 'infinity')")
    assert main(["migrate", empty.url]) == 0
    with lockfast.connect(empty.url) as locks:
        for again in (False, True):
            if again:  # a heartbeat of theirs
                empty.make("UPDATE distributed_locks SET expires_at = 'infinity'")
            (held,) = locks.inspect("a").holders
            assert not locks.inspect("a").damage
            assert held.holder == "me"
            assert empty.ask("SELECT ttl <= interval '3653 days' AND isfinite(expires_at) FROM distributed_locks")
            assert locks.lock("a").acquire(blocking=False) is None
        assert empty.ask("SELECT release_lock('a', 'me')") is True


def test_a_table_is_adopted_in_the_schema_where_it_is(theirs: AdoptedDatabase) -> None:
    for what in (
        "CREATE SCHEMA app",
        "ALTER TABLE distributed_locks SET SCHEMA app",
        "ALTER FUNCTION acquire_lock SET SCHEMA app",
        "ALTER FUNCTION release_lock SET SCHEMA app",
    ):
        theirs.connection.execute(what.encode())
    with theirs.client(options="-csearch_path=app") as connection:
        assert connection.execute(HOUR, ("a", "me")).fetchone() == (True,)
        assert main(["migrate", "--schema", "app", theirs.url]) == 0
        assert connection.execute(HOUR, ("a", "other")).fetchone() == (False,)
        assert connection.execute("SELECT release_lock('a', 'me')").fetchone() == (True,)


# Once, twice, half


def test_a_table_is_adopted_once_however_many_migrate(theirs: AdoptedDatabase) -> None:
    assert theirs.ask(HOUR, "a", "me")
    said: list[str] = []
    runs = [threading.Thread(target=migration(theirs.url).run, args=(said.append,)) for _ in range(2)]
    for run in runs:
        run.start()
    join(*runs)
    assert said.count("1 held and kept, 0 expired and dropped") == 1
    assert main(["migrate", theirs.url]) == 0
    assert theirs.ask("SELECT release_lock('a', 'me')") is True


@pytest.mark.parametrize("parts", [[], [TABLE, ACQUIRE, RELEASE]])
def test_a_migration_in_the_middle_of_its_checks_is_not_overtaken_by_another(
    empty: AdoptedDatabase, parts: list[str]
) -> None:
    empty.make(*parts, "SELECT pg_advisory_lock(7)")
    condition = "IF v_is_legacy THEN"
    slow = script("public").replace(condition, f"PERFORM pg_advisory_xact_lock(7);\n{condition}", 1)
    first, second = empty.client(), empty.client()
    with ThreadPoolExecutor() as threads:
        looking = threads.submit(first.execute, slow.encode())
        until(lambda: empty.waits(first), "the first to be in the middle of its checks")
        beside = threads.submit(second.execute, script("public").encode())
        until(lambda: beside.done() or empty.waits(second), "the second to end, or to wait for the first")
        empty.make("SELECT pg_advisory_unlock(7)")
        looking.result(LIMIT_S)
        beside.result(LIMIT_S)
    assert empty.ask(HOUR, "a", "me") is True


def test_a_table_that_is_made_meanwhile_is_not_adopted_unseen(empty: AdoptedDatabase) -> None:
    first, commit, then = script("public").partition("COMMIT;\n")
    empty.make(first + commit, TABLE)
    with pytest.raises(psycopg.Error, match="by another client meanwhile"):
        empty.make(then)


def test_one_that_was_interrupted_changes_nothing_for_callers_and_can_be_finished(theirs: AdoptedDatabase) -> None:
    first, commit, _ = script("public").partition("COMMIT;\n")
    theirs.connection.execute((first + commit).encode())
    assert theirs.ask("SELECT acquire_lock('a', 'me'), acquire_lock('a', 'other', 30, '{}')") == (True, False)
    assert theirs.ask("SELECT release_lock('a', 'other'), release_lock('a', 'me')") == (False, True)
    assert theirs.ask(HOUR, "a", "me")
    assert main(["migrate", theirs.url]) == 0
    assert theirs.ask("SELECT acquire_lock('a', 'other'), release_lock('a', 'me')") == (False, True)


def test_a_function_that_was_put_in_the_place_of_a_gate_gets_a_gate(theirs: AdoptedDatabase) -> None:
    first, commit, _ = script("public").partition("COMMIT;\n")
    theirs.make(first + commit, ACQUIRE.replace("CREATE", "CREATE OR REPLACE").replace("DEFAULT 30", "DEFAULT 3600"))
    theirs.make(first + commit)
    gates = "SELECT count(*) FROM pg_proc WHERE proname IN ('acquire_lock', 'release_lock')"
    assert theirs.ask(f"{gates} AND prosrc ~ 'lockfast_legacy_'") == theirs.ask(gates) == 2
    assert theirs.ask("SELECT acquire_lock('a', 'me')") is True
    left = "SELECT expires_at > now() + interval '1800 seconds' FROM distributed_locks"
    assert theirs.ask(left) is True, "it is the newer function that is called"
    assert main(["migrate", theirs.url]) == 0
    assert theirs.ask("SELECT acquire_lock('a', 'other')") is False


@pytest.mark.parametrize("parts", [[], [TABLE, *(part.replace("p_lock_name", "name") for part in (ACQUIRE, RELEASE))]])
def test_a_lock_table_that_was_dropped_is_made_again(empty: AdoptedDatabase, parts: list[str]) -> None:
    empty.make(*parts)
    assert main(["migrate", empty.url]) == 0
    empty.make("DROP TABLE distributed_locks CASCADE")
    assert main(["migrate", empty.url]) == 0
    assert empty.ask(HOUR, "a", "me") is True
    with lockfast.connect(empty.url) as locks:
        assert locks.inspect("a").holders[0].holder == "me"


def test_the_printed_script_adopts_it_as_well(theirs: AdoptedDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    assert theirs.ask(HOUR, "a", "me")
    assert main(["migrate", "--print", "--adopt", "postgresql://nowhere.invalid/db"]) == 0
    assert "ERROR" not in theirs.pipe(capsys.readouterr().out)
    with lockfast.connect(theirs.url) as locks:
        assert locks.inspect("a").holders[0].holder == "me"


# What is refused


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (["CREATE TABLE distributed_locks (padlock text, city text)"], r"found \(padlock text, city text\), expected"),
        (["CREATE VIEW distributed_locks AS SELECT 1 AS lock_name"], r"found \(lock_name integer\), expected"),
        ([TABLE.replace(" PRIMARY KEY", "")], "lock_name unique"),
        ([TABLE.replace("jsonb DEFAULT '{}'", "text")], "metadata text"),
        ([TABLE, "CREATE VIEW live AS SELECT * FROM distributed_locks"], "depend on it: view public.live"),
        ([TABLE, "CREATE TABLE jobs (j varchar(255) REFERENCES distributed_locks)"], "constraint .* on table public.j"),
        ([TABLE, GETTER], r"function public\.get_lock\(text\)"),
        ([TABLE, "CREATE FUNCTION tidy() RETURNS bool RETURN EXISTS (TABLE distributed_locks)"], r"public\.tidy\(\)"),
        ([TABLE, ACQUIRE, "CREATE FUNCTION take() RETURNS bool RETURN acquire_lock('a', 'b')"], r"public\.take\(\)"),
        ([TABLE, ACQUIRE, "CREATE VIEW take AS SELECT acquire_lock('a', 'b')"], "depend on it: view public.take"),
        ([TABLE, "CREATE RULE tidy AS ON DELETE TO distributed_locks DO NOTHING"], "rule tidy on table"),
        ([TABLE, AUDIT], "trigger audit on"),
        ([TABLE, "ALTER TABLE distributed_locks ENABLE ROW LEVEL SECURITY"], "row-level security"),
        ([TABLE, ACQUIRE.replace("p_ttl_seconds", "p_ttl_ms")], "acquire_lock.* cannot be replaced"),
        ([TABLE, ACQUIRE.replace("boolean", "integer").replace("v_rows > 0", "v_rows")], "returns integer"),
        ([TABLE, "CREATE FUNCTION release_lock() RETURNS boolean RETURN true"], r"release_lock\(\) returns boolean"),
        ([TABLE, ACQUIRE, RELEASE.replace("LANGUAGE", "SECURITY DEFINER LANGUAGE")], "SECURITY DEFINER"),
        ([ACQUIRE], r"the function public\.acquire_lock\(.* not ours, and there is no \"public\".distributed_locks"),
    ],
)
def test_what_cannot_be_adopted_is_left_as_it_was_and_named(
    empty: AdoptedDatabase, capsys: pytest.CaptureFixture[str], parts: list[str], says: str
) -> None:
    empty.make(*parts)
    objects = "SELECT array_agg(it::text ORDER BY it::text) FROM (SELECT oid, relname, relnatts FROM pg_class WHERE "
    objects += "relnamespace = 'public'::regnamespace UNION ALL SELECT oid, proname, pronargs FROM pg_proc WHERE "
    objects += "pronamespace = 'public'::regnamespace) AS it"
    before = empty.ask(objects)
    assert main(["migrate", empty.url]) == 69
    error = capsys.readouterr().err
    assert re.search(says, error), error
    assert "--schema locks" in error
    assert "run: lockfast migrate" not in error
    assert empty.ask(objects) == before
    assert re.search(says, empty.pipe(script("public"))), "psql goes on after the error"
    assert empty.ask(objects) == before
    assert main(["migrate", "--schema", "locks", empty.url]) == 0


def test_columns_that_ours_has_with_another_meaning_are_refused(
    empty: AdoptedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    empty.make(script("locks"))
    known = {"lock_name", "holder_id", "acquired_at", "expires_at", "metadata"}
    rows = empty.connection.execute(COLUMNS, ("locks.distributed_locks",)).fetchall()
    ours = [name for name, *_ in rows if name not in known | {"namespace"}]  # with that one it would be ours
    empty.make(TABLE.replace("metadata", "".join(f"{name} text, " for name in ours) + "metadata"))
    assert main(["migrate", empty.url]) == 69
    assert f"mean something else: {', '.join(ours)}. Rename them" in capsys.readouterr().err


def test_a_role_that_does_not_own_the_table_reads_who_does(
    theirs: AdoptedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = theirs.role("worker")
    assert main(["migrate", theirs.url.replace("//lockfast@", f"//{worker}@")]) == 69
    assert "belongs to lockfast: run it as that role" in capsys.readouterr().err


def test_a_transaction_that_stays_in_the_way_is_named(
    theirs: AdoptedDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    with theirs.client() as idle, theirs.client() as innocent, ThreadPoolExecutor() as threads:
        idle.autocommit = innocent.autocommit = False
        assert idle.execute(HOUR, ("a", "me")).fetchone() == (True,)
        migrated = threads.submit(main, ["migrate", f"{theirs.url}?options=-clock_timeout%3D500"])
        until(lambda: migrated.done() or theirs.ask(AT_THE_TABLE), "the migration to wait for the table")
        waits = threads.submit(lambda: innocent.execute(HOUR, ("b", "me")).fetchone())
        assert migrated.result(LIMIT_S) == 69
        assert f"does not end (process {idle.info.backend_pid})" in capsys.readouterr().err
        assert waits.result(LIMIT_S) == (True,)
        innocent.commit()
        assert theirs.ask("SELECT acquire_lock('b', 'me'), release_lock('b', 'me')") == (True, True)
        idle.commit()
    assert main(["migrate", theirs.url]) == 0
    assert theirs.ask("SELECT release_lock('a', 'me')") is True
