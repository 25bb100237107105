"""The lock table, and transactions of others: old and open ones, and what is swept."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast.backends.postgres_table import requests
from lockfast.backends.postgres_table.schema import CLASS
from lockfast.errors import AcquireTimeout, BackendUnavailable
from tests.servers.postgres_shared import HERE
from tests.servers.postgres_tables import table
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = pytest.mark.slow

EXPIRED = (
    "INSERT INTO distributed_locks (lock_name, holder_id, expires_at, claim, fence)"
    " SELECT 'old-' || n, 'h', clock_timestamp() - interval '1 day', 'c' || n, n FROM generate_series(1, %s) AS n"
)
SWEEP_EVERY = 64  # grants
JUST_SET = 100_000  # numbers
FOR_EVER = 3_600_000  # milliseconds, of one that waits
AT_A_NAME = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND NOT granted AND {HERE}"


class Psql:
    """psql as a person uses it: one statement after the other, in a session that stays open."""

    def __init__(self, url: str) -> None:
        words = [str(table().server.bin / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def execute(self, sql: str) -> str:
        """The answer to the last of these statements that has one, in one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{sql};\n\\echo .\n")
        self._process.stdin.flush()
        lines = list(iter(self._process.stdout.readline, ".\n"))
        return lines[-1].strip() if lines else ""

    def kill(self) -> None:
        """Its transaction is rolled back."""
        self._process.kill()

    def end(self) -> None:
        self.kill()
        self._process.communicate()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return table().url(tmp_path)


@contextmanager
def opened(url: str) -> Iterator[Psql]:
    psql = Psql(url)
    try:
        yield psql
    finally:
        psql.end()


@pytest.fixture
def psql(url: str) -> Iterator[Psql]:
    with opened(url) as psql:
        yield psql


# Time inside an old transaction


def test_a_lock_taken_in_an_old_transaction_lasts_from_now_on(psql: Psql, url: str) -> None:
    psql.execute("BEGIN; SELECT now(); SELECT pg_sleep(0.6)")
    assert psql.execute("SELECT acquire_lock('x', 'psql', 60)") == "t"
    assert psql.execute("SELECT expires_at >= now() + interval '60.6 s' FROM distributed_locks") == "t", (
        "not from now()"
    )
    psql.execute("COMMIT")
    with lockfast.connect(url) as locks:
        assert locks.lock("x", wait=0).acquire() is None


def test_a_caller_in_an_old_transaction_is_excluded_by_what_was_taken_since(psql: Psql, url: str) -> None:
    psql.execute("BEGIN; SELECT now()")
    with lockfast.connect(url) as locks:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        assert psql.execute("SELECT acquire_lock('x', 'psql')") == "f"
        psql.execute("COMMIT")
        assert lease.release()


def test_what_has_expired_since_an_old_transaction_began_is_free_in_it(psql: Psql, url: str) -> None:
    with opened(url) as other:
        assert other.execute("SELECT acquire_lock('x', 'other', 0.3)") == "t"
    psql.execute("BEGIN; SELECT now()")
    assert psql.execute("SELECT pg_sleep(0.4); SELECT acquire_lock('x', 'psql')") == "t"  # not yet, by now()
    psql.execute("COMMIT")


# Transactions that stay open


def test_a_lock_taken_in_an_open_transaction_excludes_others_and_is_rolled_back_with_it(psql: Psql, url: str) -> None:
    psql.execute("BEGIN")
    assert psql.execute("SELECT acquire_lock('x', 'psql', 3600)") == "t"
    with lockfast.connect(url) as locks:
        assert locks.lock("x", wait=0).acquire() is None
        psql.kill()
        assert locks.lock("x", wait=LIMIT_S).acquire() is not None


@pytest.mark.parametrize("world", ["threads", "asyncio"])
def test_a_try_does_not_wait_for_an_open_transaction(
    psql: Psql, url: str, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PATIENCE_MS", FOR_EVER)
    psql.execute("BEGIN; SELECT acquire_lock('x', 'psql')")
    with pytest.raises(AcquireTimeout, match=r"'x' is in use by a transaction that has not ended$"):
        _try_once(url) if world == "threads" else asyncio.run(_try_once_in_a_task(url))


def _try_once(url: str) -> None:
    with lockfast.connect(url) as locks:
        assert locks.lock("x").acquire(blocking=False) is None
        locks.lock("x", wait=0).__enter__()


async def _try_once_in_a_task(url: str) -> None:
    async with lockfast.aio.connect(url) as locks:
        tries = [locks.lock("x").acquire(blocking=False) for _ in range(8)]
        assert await asyncio.gather(*tries) == [None] * 8
        await locks.lock("x", wait=0).__aenter__()


def test_waiters_for_an_open_transaction_delay_no_other_name_however_many_they_are(
    psql: Psql, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PATIENCE_MS", FOR_EVER)  # so long would each of them keep a connection
    psql.execute("BEGIN; SELECT acquire_lock('x', 'psql')")
    with psycopg.connect(url, autocommit=True) as other, lockfast.connect(url) as locks:
        fences: list[int] = []
        waiters = [threading.Thread(target=_take_and_note, args=(locks, fences)) for _ in range(30)]
        for waiter in waiters:
            waiter.start()
        until(lambda: len(other.execute(AT_A_NAME).fetchall()) > 1, "more than one to wait for the transaction")
        with locks.lock("free"):
            assert not fences
        psql.execute("ROLLBACK")
        join(*waiters)
        assert len(set(fences)) == 30


def test_however_many_tasks_wait_for_an_open_transaction_they_hold_up_no_other(
    psql: Psql, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PATIENCE_MS", FOR_EVER)

    async def story() -> None:
        async with lockfast.aio.connect(url) as locks:
            psql.execute("BEGIN; SELECT acquire_lock('x', 'psql')")
            waiters = [asyncio.create_task(locks.lock("x").acquire(timeout=LIMIT_S)) for _ in range(30)]
            with psycopg.connect(url, autocommit=True) as other:
                await asyncio.to_thread(until, lambda: other.execute(AT_A_NAME).fetchall())
            async with locks.lock("free"):
                assert not any(waiter.done() for waiter in waiters)
            psql.execute("ROLLBACK")
            for waiter in waiters:
                lease = await waiter
                assert lease is not None
                await lease.release()

    asyncio.run(story())


def _take_and_note(locks: lockfast.Locks, fences: list[int]) -> None:
    with locks.lock("x", wait=LIMIT_S) as lease:
        fences.append(lease.fence)


def test_a_refused_acquire_in_an_open_transaction_leaves_the_name_unlocked(psql: Psql, url: str) -> None:
    with lockfast.connect(url) as locks:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        psql.execute("BEGIN")
        assert psql.execute("SELECT acquire_lock('x', 'psql')") == "f"
        assert psql.execute("SELECT extend_lock('x', 'psql', 60)") == "f"
        assert psql.execute("SELECT release_lock('x', 'psql')") == "f"
        lease.extend(120)
        assert lease.release()
        assert locks.lock("x", wait=0).acquire() is not None


def test_an_open_transaction_at_the_name_is_no_loss_for_one_that_shares_its_lock(
    psql: Psql, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    patience = requests.patience

    def ask(within: float, most: int | None = None) -> str:
        asked.append(within)
        return patience(within, most)

    monkeypatch.setattr(requests, "patience", ask)
    with lockfast.connect(url) as locks:
        lease = locks.rwlock("x").write().acquire()
        assert lease is not None
        psql.execute("BEGIN; SELECT lockfast_lock_name('', 'x', NULL)")
        asked.clear()
        sharing = threading.Thread(target=lease.downgrade)
        sharing.start()
        until(lambda: len(asked) > 1, "one answer that a transaction has locked the name")
        psql.execute("ROLLBACK")
        join(sharing)
        assert lease.held
        assert locks.rwlock("x").read().acquire(blocking=False) is not None


def test_one_that_never_came_to_its_name_leaves_nothing_to_do_there(psql: Psql, url: str) -> None:
    psql.execute("BEGIN; SELECT acquire_lock('x', 'psql')")

    def nothing_to_do() -> bool:
        with suppress(BackendUnavailable), lockfast.connect(url) as locks:  # on a busy machine it may not be answered
            assert locks.lock("x", wait=1).acquire() is None
            return not locks._logic.engine.unfinished
        return False

    until(nothing_to_do, "an answer that leaves nothing to do")
    psql.execute("ROLLBACK")
    assert psql.execute("SELECT count(*) FROM lockfast_queue") == "0"


def test_a_waiter_leaves_the_queue_once_the_name_is_free(psql: Psql, url: str) -> None:
    with lockfast.connect(url) as locks, locks.lock("x", ttl=3600):
        waiter = threading.Thread(target=lambda: locks.lock("x", wait=1.5).acquire())
        waiter.start()
        until(lambda: locks.inspect("x").waiters == 1 or not waiter.is_alive(), "one to wait")
        psql.execute("BEGIN; SELECT lockfast_lock_name('', 'x', NULL)")
        join(waiter)
        psql.execute("ROLLBACK")
        until(lambda: locks.inspect("x").waiters == 0, "it to leave the queue")


def test_the_first_caller_after_a_restart_in_an_open_transaction_delays_no_other_client(psql: Psql, url: str) -> None:
    psql.execute("DELETE FROM lockfast_life")  # as a crash does
    psql.execute("BEGIN")
    assert psql.execute("SELECT acquire_lock('x', 'psql')") == "t"
    with lockfast.connect(url) as locks, locks.lock("y", wait=LIMIT_S) as lease:
        assert lease.fence > int(psql.execute("SELECT fence FROM distributed_locks WHERE lock_name = 'x'"))
    psql.execute("COMMIT")
    assert psql.execute("SELECT count(DISTINCT started) FROM lockfast_life") == "1"


def test_a_crash_right_after_the_numbers_were_set_brings_none_of_them_again(psql: Psql) -> None:
    clock = "floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    forgotten = int(psql.execute(f"SELECT setval('lockfast_fence', {clock})"))
    given = int(psql.execute("SELECT max(nextval('lockfast_fence')) FROM generate_series(1, 100)"))
    psql.execute("DELETE FROM lockfast_life")  # as a crash does
    psql.execute(f"SELECT setval('lockfast_fence', {forgotten})")
    psql.execute("SELECT lockfast_check_restart()")
    assert int(psql.execute("SELECT nextval('lockfast_fence')")) > given


def test_a_caller_after_a_restart_leaves_the_numbers_alone_that_another_one_has_set_meanwhile(
    psql: Psql, url: str
) -> None:
    """Other clients draw numbers then: to set the sequence again might set it back."""
    psql.execute("DELETE FROM lockfast_life")
    psql.execute(f"BEGIN; SELECT pg_advisory_xact_lock({CLASS}, 2)")

    def check() -> None:
        with psycopg.connect(url, autocommit=True) as another:
            another.execute("SELECT lockfast_check_restart()")

    caller = threading.Thread(target=check, daemon=True)
    caller.start()
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    blocked = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND classid = {CLASS} AND objid = 2 AND {here}"
    until(lambda: psql.execute(blocked) == "1", "the caller to wait for its turn")
    ahead = int(psql.execute("SELECT setval('lockfast_fence', last_value + 3600000000) FROM lockfast_fence"))
    psql.execute("COMMIT")
    join(caller)
    assert int(psql.execute("SELECT last_value FROM lockfast_fence")) == ahead + 1


def test_a_caller_after_a_restart_that_stands_still_does_not_set_the_numbers_back(url: str) -> None:
    """Between its look at the sequence and its step, other clients draw more numbers than the clock was ahead."""
    here, clock = "PERFORM setval(", "floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND classid = 0 AND objid = 77"
    with psycopg.connect(url, autocommit=True) as admin:

        def ask(sql: str) -> Any:
            (value,) = admin.execute(sql.encode()).fetchone() or (None,)
            return value

        source = ask("SELECT pg_get_functiondef('lockfast_check_restart'::regproc)")
        assert source.count(here) == 1
        admin.execute(source.replace(here, f"PERFORM pg_advisory_lock_shared(77); {here}"))
        admin.execute("DELETE FROM lockfast_life")  # as a crash does
        ask(f"SELECT setval('lockfast_fence', {clock} - 3 * {JUST_SET})")
        ask("SELECT pg_advisory_lock(77)")

        def check() -> None:
            with psycopg.connect(url, autocommit=True) as another:
                another.execute("SELECT lockfast_check_restart()")

        caller = threading.Thread(target=check, daemon=True)
        caller.start()
        until(lambda: ask(blocked) == 1, "the caller to stand still")
        given, stale = 0, ask(f"SELECT {clock}")  # the caller has read the clock before
        while given <= stale:  # and no faster than the clock
            until(lambda: ask(f"SELECT {clock} - last_value FROM lockfast_fence") > 2 * JUST_SET)
            given = ask(f"SELECT max(nextval('lockfast_fence')) FROM generate_series(1, {JUST_SET})")
        ask("SELECT pg_advisory_unlock(77)")
        join(caller)
        assert ask("SELECT nextval('lockfast_fence')") > given
        admin.execute(source)


def test_an_extension_in_an_open_transaction_holds_up_only_its_own_name(psql: Psql, url: str) -> None:
    assert psql.execute("SELECT acquire_lock('x', 'psql', 0.5)") == "t"
    psql.execute("BEGIN")
    assert psql.execute("SELECT extend_lock('x', 'psql', 3600)") == "t"
    psql.execute("SELECT pg_sleep(0.6)")  # for all others it looks as if it were over
    with lockfast.connect(url) as locks:
        for number in range(2 * SWEEP_EVERY):
            with locks.lock(f"other-{number}", wait=LIMIT_S):
                pass
        assert locks.lock("x", wait=0).acquire() is None, "it may still be committed"
        psql.execute("COMMIT")
        assert locks.lock("x", wait=0).acquire() is None


def test_a_sweep_waits_for_no_lock(psql: Psql, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other, lockfast.connect(url) as locks:
        other.execute(EXPIRED, (40,))
        psql.execute("BEGIN; SELECT 1 FROM distributed_locks WHERE lock_name = 'old-1' FOR UPDATE")

        def all_but_one() -> bool:
            with locks.lock("busy", wait=LIMIT_S):
                pass
            return other.execute("SELECT count(*) FROM distributed_locks WHERE fence <= 40").fetchone() == (1,)

        until(all_but_one, "a sweep that comes past the row that a transaction is at")
        psql.execute("ROLLBACK")


def test_a_sweep_in_a_long_transaction_locks_no_other_name(psql: Psql, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(EXPIRED, (20,))
    psql.execute("BEGIN")
    for number in range(2 * SWEEP_EVERY):
        psql.execute(f"SELECT acquire_lock('mine-{number}', 'psql')")
    with lockfast.connect(url) as locks:
        for number in range(1, 21):
            with locks.lock(f"old-{number}", wait=0):
                pass
    psql.execute("ROLLBACK")


def test_clients_that_use_only_sql_need_not_sweep_by_hand(psql: Psql) -> None:
    psql.execute(EXPIRED.replace("%s", "16"))
    for _ in range(2 * SWEEP_EVERY):
        psql.execute("SELECT acquire_lock('x', 'psql'), release_lock('x', 'psql')")
    assert psql.execute("SELECT count(*) FROM distributed_locks") == "0"


# Names that look alike, settings of others, and many waiters


def test_two_names_of_one_hash_are_two_locks(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        same = other.execute(
            "SELECT array_agg(name) FROM (SELECT 'n' || n AS name FROM generate_series(1, 400000) AS n) AS names"
            " GROUP BY lockfast_hash('', name) HAVING count(*) > 1 LIMIT 1"
        ).fetchone()
    assert same is not None
    one, two = same[0][:2]
    with lockfast.connect(url) as locks, locks.lock(one), locks.lock(two, wait=0), locks.all(one + "'", two + "'"):
        assert {info.name for info in locks.list()} == {one, two, one + "'", two + "'"}


@pytest.mark.parametrize("setting", ["lock_timeout = '1ms'", "statement_timeout = '30ms'"])
def test_a_short_timeout_of_the_database_grants_nothing_without_a_reply(url: str, setting: str) -> None:
    with psycopg.connect(url, autocommit=True) as other, psycopg.connect(url) as slow:
        name = other.info.dbname
        other.execute(f"ALTER DATABASE {name} SET {setting}".encode())
        try:
            with lockfast.connect(url) as locks:
                slow.execute("SELECT acquire_lock('x', 'slow')")
                got: list[Any] = []
                waiter = threading.Thread(target=lambda: got.append(locks.lock("x", wait=LIMIT_S).acquire()))
                waiter.start()
                waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
                until(lambda: other.execute(waits).fetchone(), "it to wait for the transaction")
                slow.rollback()
                join(waiter)
                assert locks.inspect("x").holders[0].fence == got[0].fence
                assert got[0].release()
        finally:
            other.execute(f"ALTER DATABASE {name} RESET ALL".encode())
