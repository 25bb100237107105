"""What is true of PostgreSQL's advisory locks alone: numbers for names, sessions, who is refused, what is shown."""

from __future__ import annotations

import select
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import AcquireTimeout, BackendUnavailable, Locks, Unsupported
from lockfast.backends.postgres_advisory import acquiring as acquiring_module
from lockfast.backends.postgres_advisory import holds as holds_module
from lockfast.backends.postgres_advisory.io import session as session_module
from lockfast.backends.postgres_advisory.io import watch as watch_module
from lockfast.backends.postgres_advisory.keys import Key, halves, is_tag_of, key_of, second_of, whole
from lockfast.backends.postgres_advisory.statements import STATEMENTS
from tests.servers.postgres import USER
from tests.servers.postgres_shared import HERE, advisory
from tests.servers.postgres_wire import Pooler
from tests.servers.server import HOST
from tests.servers.waiting import join, pause, until
from tests.waiters import in_queue

pytestmark = pytest.mark.slow
_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'me'"


@pytest.fixture
def database(tmp_path: Path) -> str:
    return advisory().database(tmp_path)


@pytest.fixture
def plain(database: str) -> str:
    return advisory().server.url_of(database)


def _fetch(connection: psycopg.Connection, sql: str, *values: Any) -> Any:
    """The first field of the first row."""
    row = connection.execute(sql.encode(), values or None).fetchone()
    return row[0] if row else None


# Numbers for names


@pytest.mark.parametrize(
    ("name", "number"),
    [("order:42", -2708853543617250617), ("a", -3848465438864589366), ("ключ", 2153681812738117024)],
)
def test_the_number_of_a_name_is_fixed_and_sql_computes_the_same(
    psql: psycopg.Connection, name: str, number: int
) -> None:
    sql = "SELECT ('x' || left(encode(sha256(convert_to(%s, 'UTF8')), 'hex'), 16))::bit(64)::bigint"
    assert key_of(name).number == _fetch(psql, sql, name) == number


def test_what_pg_locks_shows_of_a_number_leads_back_to_it() -> None:
    for number in (0, 1, -1, 2**63 - 1, -(2**63), key_of("order:42").number):
        assert whole(*halves(number)) == number
    key = key_of("order:42")
    assert is_tag_of(key.tag, key.number)
    assert second_of(1_800_000_000_123_456) == 1_800_000_000


def test_a_manager_releases_and_extends_an_integer_that_it_acquired(url: str, psql: psycopg.Connection) -> None:
    with lockfast.DistributedLock(url) as manager:
        assert manager.acquire(42)
        assert not _fetch(psql, "SELECT pg_try_advisory_lock(42)")
        assert manager.extend(42, 60)
        assert manager.release(42)
        assert _fetch(psql, "SELECT pg_try_advisory_lock(42)")
        assert not manager.release(42)


def test_a_plain_sql_session_is_excluded_and_excludes(url: str, psql: psycopg.Connection) -> None:
    number = key_of("order:42").number
    with lockfast.connect(url) as locks:
        with locks.lock("order:42"):
            assert _fetch(psql, "SELECT pg_try_advisory_lock(%s)", number) is False
        assert _fetch(psql, "SELECT pg_try_advisory_lock(%s)", number) is True
        with pytest.raises(AcquireTimeout, match="psql-user"):
            _enter(locks, "order:42")
        assert _fetch(psql, "SELECT pg_advisory_unlock(%s)", number) is True
        assert locks.lock("order:42", wait=0).acquire() is not None


def _enter(locks: Locks, name: str) -> None:
    with locks.lock(name, wait=0):
        raise AssertionError("it came in")


def test_two_names_that_meet_on_one_number_are_refused_in_one_process(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet = {"one": Key(7, 7 << 24 | 1), "other": Key(7, 7 << 24 | 2)}
    for module in (acquiring_module, holds_module):
        monkeypatch.setattr(module, "key_of", meet.__getitem__)
    with lockfast.connect(url) as locks, lockfast.connect(url) as second, locks.lock("one"):
        with pytest.raises(Unsupported, match="'other' has the same 64-bit number as 'one'"):
            locks.lock("other", wait=0).acquire()
        with pytest.raises(Unsupported, match="'other' has the same 64-bit number"):
            second.lock("other", wait=0).acquire()
        assert second.lock("one", wait=0).acquire() is None


@pytest.mark.parametrize("wait", [0, 60])
def test_two_names_that_meet_on_one_number_are_refused_between_processes(
    url: str, psql: psycopg.Connection, wait: float
) -> None:
    key = key_of("order:42")
    _fetch(psql, "SELECT pg_advisory_lock(%s), pg_advisory_lock_shared(%s, 5)", key.number, key.tag + 1)
    with lockfast.connect(url) as locks:
        with pytest.raises(Unsupported, match="another lock, held by 'psql-user'"):
            locks.lock("order:42", wait=wait).acquire()
        _fetch(psql, "SELECT pg_advisory_unlock_all()")
        assert locks.lock("order:42", wait=0).acquire() is not None


# Sessions


def test_many_locks_share_one_connection(url: str, psql: psycopg.Connection) -> None:
    with lockfast.connect(f"{url}?application_name=me") as locks, ExitStack() as held:
        for number in range(100):
            held.enter_context(locks.lock(f"lock-{number}"))
        assert _fetch(psql, _CONNECTIONS) == 1


def test_readers_of_many_names_share_one_connection_and_those_of_one_name_have_one_each(
    url: str, psql: psycopg.Connection
) -> None:
    with lockfast.connect(f"{url}?application_name=me") as locks, ExitStack() as held:
        for number in range(20):
            held.enter_context(locks.rwlock(f"page-{number}").read())
        assert _fetch(psql, _CONNECTIONS) == 1
        for _ in range(20):
            held.enter_context(locks.rwlock("page").read())
        assert _fetch(psql, _CONNECTIONS) == 20
        assert locks.rwlock("page").write().acquire(blocking=False) is None


def test_a_reader_does_not_pass_a_writer_that_waits_though_its_session_reads_already(url: str) -> None:
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:
        with locks.rwlock("page").read():
            writer = threading.Thread(target=lambda: others.rwlock("page").write().acquire().release())  # type: ignore[union-attr]
            writer.start()
            until(lambda: locks.inspect("page").waiters == 1)
            assert locks.rwlock("page").read().acquire(blocking=False) is None
        join(writer)


def test_waiters_take_no_more_connections_than_they_may_and_all_are_served(url: str, psql: psycopg.Connection) -> None:
    served: list[int] = []
    with lockfast.connect(f"{url}?application_name=me&waiting=2") as locks:
        with lockfast.connect(url) as other, other.lock("gate"), other.lock("door"):
            names = ["gate"] * 5 + ["door"]
            threads = [
                threading.Thread(target=_pass, args=(locks, name, served, number)) for number, name in enumerate(names)
            ]
            for thread in threads[:5]:
                thread.start()
            until(lambda: len(locks._logic.engine.waiting) == 5)
            until(lambda: locks.inspect("gate").waiters == 2)
            assert _fetch(psql, _CONNECTIONS) == 3
            threads[5].start()
            until(lambda: locks.inspect("door").waiters == 1)  # the first for its lock is beside those
            assert _fetch(psql, _CONNECTIONS) == 4
        join(*threads)
        assert sorted(served) == [0, 1, 2, 3, 4, 5]
        assert _fetch(psql, _CONNECTIONS) <= 6  # two may have held what they waited for


def _pass(locks: Locks, name: str, served: list[int], number: int) -> None:
    with locks.lock(name):
        served.append(number)


def test_one_that_waits_outside_is_not_kept_from_a_free_lock_by_those_who_wait_for_others(url: str) -> None:
    with lockfast.connect(f"{url}?waiting=1") as locks, lockfast.connect(url) as other, ExitStack() as long:
        first = []
        for number in range(4):  # all the sessions that there may be are taken
            name = f"long-{number}"
            long.enter_context(other.lock(name))
            first.append(threading.Thread(target=_pass, args=(locks, name, [], 0)))
            first[-1].start()
            until(lambda name=name: other.inspect(name).waiters == 1)  # type: ignore[misc]
        short = other.lock("short").acquire()
        assert short is not None
        second = threading.Thread(target=_pass, args=(locks, "short", [], 1))
        second.start()
        until(lambda: len(locks._logic.engine.waiting) == 5)
        short.release()
        join(second)
        assert all(thread.is_alive() for thread in first)
        long.close()
        join(*first)


@pytest.mark.parametrize("setting", ["lock_timeout", "transaction_timeout"])
def test_a_role_with_a_limit_of_a_moment_does_not_cut_a_wait_short(
    url: str, psql: psycopg.Connection, setting: str
) -> None:
    role = f"ALTER ROLE {USER} IN DATABASE {psql.info.dbname}"
    psql.execute(f"{role} SET {setting} = '20ms'".encode())
    try:
        with lockfast.connect(url) as locks, lockfast.connect(url) as other:
            lease = other.lock("gate").acquire()
            assert lease is not None
            waiter = in_queue(locks.lock("gate"), other)
            pause(0.1)  # longer than the limit
            backend: Any = locks._logic.engine.backend
            with backend._sessions.ready.turn:  # one thread at a time talks to the server
                assert backend._sessions.ready.pgconn.exec_(f"SHOW {setting}".encode()).get_value(0, 0) == b"0"
            assert other.inspect("gate").waiters == 1
            lease.release()
            join(waiter)
    finally:
        psql.execute(f"{role} RESET {setting}".encode())


def test_a_wait_that_is_cancelled_at_the_server_goes_on(url: str, psql: psycopg.Connection) -> None:
    waits = f"locktype = 'advisory' AND NOT granted AND {HERE}"
    cancel = f"SELECT count(pg_cancel_backend(pid)) FROM pg_locks WHERE {waits}"
    served: list[int] = []
    with lockfast.connect(url) as locks, lockfast.connect(url) as other:
        with other.lock("gate"):
            waiter = threading.Thread(target=_pass, args=(locks, "gate", served, 1))
            waiter.start()
            for _ in range(3):
                until(lambda: _fetch(psql, cancel) == 1)
            until(lambda: other.inspect("gate").waiters == 1)
            assert not served
        join(waiter)
    assert served == [1]


def test_a_wait_that_ends_in_an_error_after_the_grant_is_settled_by_inspection(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when lock_timeout strikes in the moment of the grant: the error says no, and the session holds it."""
    types, _ = STATEMENTS[b"lf_lock_exclusive"]
    broken = {b"lf_lock_exclusive": (types, "SELECT 1 / length(pg_advisory_lock($1)::text), $2")}
    monkeypatch.setattr(acquiring_module, "STATEMENTS", {**STATEMENTS, **broken})
    with lockfast.connect(url) as unlucky, lockfast.connect(url) as other:
        lease = other.lock("gate").acquire()
        assert lease is not None
        taken: list[Any] = []
        waiter = threading.Thread(target=lambda: taken.append(unlucky.lock("gate").acquire()))
        waiter.start()
        until(lambda: other.inspect("gate").waiters == 1)
        lease.release()
        join(waiter)
        assert taken[0].fence > lease.fence
        assert other.lock("gate").acquire(blocking=False) is None
        assert taken[0].release()
        assert other.lock("gate").acquire(blocking=False) is not None


def test_where_the_system_does_not_report_the_end_of_a_session_it_is_polled_for_and_waiters_are_not_disturbed(
    url: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems without POLLRDHUP."""
    monkeypatch.setattr(session_module, "REPORTS_END", False)
    monkeypatch.setattr(session_module, "_ARRIVED", select.POLLIN)
    monkeypatch.setattr(watch_module, "_POLL_MS", 20)
    monkeypatch.setattr(watch_module, "_END_EVENTS", select.POLLERR)
    served: list[int] = []
    with lockfast.connect(url, holder="me") as locks, lockfast.connect(url, holder="other") as other:
        with other.lock("gate"):
            waiter = threading.Thread(target=_pass, args=(locks, "gate", served, 1))
            waiter.start()
            until(lambda: other.inspect("gate").waiters == 1)
            lease = locks.lock("mine", ttl=3600).acquire()
            assert lease is not None
            psql.execute("SELECT pg_terminate_backend(%s)", (_main(locks).pid,))
            until(lambda: lease.lost)
            assert not served
        join(waiter)
    assert served == [1]


def _main(locks: Locks) -> Any:
    backend: Any = locks._logic.engine.backend
    return backend._sessions.ready


# Who is refused


def test_what_such_locks_cannot_do_is_refused_when_it_is_made() -> None:
    with lockfast.connect(f"postgresql+advisory://{HOST}:1/nowhere") as locks:
        for make in (
            lambda: locks.semaphore("a", 3),
            lambda: locks.limiter("a", rate=1),
            lambda: locks.cell("a"),
            lambda: locks.election("a"),
            lambda: locks.lock("a", min_hold=1),
        ):
            with pytest.raises(Unsupported):
                make()
        assert locks.rwlock("a").read() is not None


def test_metadata_that_no_other_process_would_see_is_refused_when_the_lock_is_made() -> None:
    url = f"postgresql+advisory://{HOST}:1/nowhere"
    with lockfast.connect(url) as locks, lockfast.DistributedLock(url) as manager:
        for make in (
            lambda: locks.lock("a", metadata={"job": 7}),
            lambda: locks.rwlock("a", metadata="m"),
            lambda: locks.all("a", "b", metadata=False),
            lambda: manager.acquire("a", metadata={}),
        ):
            with pytest.raises(Unsupported, match="no place for metadata, as postgresql:// has in its lock table"):
                make()


def test_a_pooler_is_refused_unless_it_is_said_to_pool_sessions(database: str) -> None:
    with Pooler(advisory().server) as pooler:
        url = f"postgresql+advisory://{USER}@{HOST}:{pooler.port}/{database}"
        with lockfast.connect(url) as locks, pytest.raises(Unsupported, match="pooler"):
            locks.lock("a").acquire()
        with lockfast.connect(f"{url}?pooler=session") as locks, locks.lock("a") as lease:
            assert lease.held


@pytest.mark.parametrize(
    "query", ["waiting=-1", "waiting=10001", "waiting=many", "pooler=transaction", "no_such_option=1"]
)
def test_a_url_with_options_that_make_no_sense_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"waiting|pooler|no option 'no_such_option'"):
        lockfast.connect(f"postgresql+advisory://{HOST}/a?{query}")


def test_a_password_is_never_shown() -> None:
    with lockfast.connect(f"postgresql+advisory://me:secret@{HOST}:1/a", patience=0.2) as locks:
        assert "secret" not in repr(locks)
        with pytest.raises(BackendUnavailable) as refused:
            locks.lock("a", wait=0).acquire()
        assert "secret" not in str(refused.value)
