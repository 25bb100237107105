"""After an error of the server no advisory lock is left behind, and no hold of another claim is ended.

A statement that fails has done what it did before that: what a session has taken stays taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast import BackendUnavailable, Locks
from lockfast.backends.postgres_advisory import acquiring as acquiring_module
from lockfast.backends.postgres_advisory.statements import STATEMENTS
from tests.servers.postgres_shared import HERE
from tests.servers.waiting import until

pytestmark = pytest.mark.slow
_FAILS = "current_setting('my.fails', true) = 'on'"


@pytest.fixture
def other(plain: str) -> Iterator[Locks]:
    """A client whose statements do not fail."""
    with lockfast.connect(plain.replace("postgresql:", "postgresql+advisory:")) as locks:
        yield locks


@pytest.fixture
def unlucky(plain: str, other: Locks, monkeypatch: pytest.MonkeyPatch) -> Iterator[Locks]:
    """A client whose tries and unlocks can be made to fail, after they have done everything: see `_fail`."""
    with other.lock("warm"):
        pass  # its statements are prepared
    failing = dict(STATEMENTS)
    for name in (b"lf_try_exclusive", b"lf_try_shared", b"lf_free_shared", b"lf_lock_exclusive"):
        types, sql = STATEMENTS[name]
        failing[name] = types, f"SELECT a, 1 / CASE WHEN {_FAILS} THEN 0 ELSE 1 END FROM ({sql}) AS done(a, b)"
    monkeypatch.setattr(acquiring_module, "STATEMENTS", failing)
    with lockfast.connect(plain.replace("postgresql:", "postgresql+advisory:")) as locks:
        with locks.lock("warm"):
            pass
        yield locks


def _fail(locks: Locks, how: str) -> None:
    backend: Any = locks._logic.engine.backend
    session = backend._sessions.ready
    with session.turn:  # one thread at a time talks to the server
        session.pgconn.exec_(f"SET my.fails = '{how}'".encode())


@contextmanager
def _new_sessions_fail(locks: Locks) -> Iterator[None]:
    """What `_fail` does to the main session, for those that are opened meanwhile."""
    backend: Any = locks._logic.engine.backend
    sessions = backend._sessions
    usual = sessions._statements
    sessions._statements = {name: (types, sql.replace(_FAILS, "true")) for name, (types, sql) in usual.items()}
    try:
        yield
    finally:
        sessions._statements = usual


def _left(plain: str) -> int:
    with psycopg.connect(plain) as psql:
        sql = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND {HERE}"
        row = psql.execute(sql.encode()).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.parametrize("shared", [False, True])
def test_a_try_that_fails_after_the_grant_leaves_nothing(
    unlucky: Locks, other: Locks, plain: str, shared: bool
) -> None:
    lock = unlucky.rwlock("page").read() if shared else unlucky.lock("page")
    _fail(unlucky, "on")
    with pytest.raises(BackendUnavailable, match="division"):
        lock.acquire(blocking=False)
    until(lambda: _left(plain) == 0, "what was taken to be released, in the background on a slow machine")
    _fail(unlucky, "off")
    lease = lock.acquire(blocking=False)
    assert lease is not None
    assert other.lock("page").acquire(blocking=False) is None
    assert lease.release()
    assert _left(plain) == 0


def test_a_reader_that_fails_after_the_grant_harms_no_reader_beside_it_and_keeps_no_writer_out(
    unlucky: Locks, other: Locks, plain: str
) -> None:
    first = unlucky.rwlock("page").read().acquire()
    assert first is not None
    with _new_sessions_fail(unlucky), pytest.raises(BackendUnavailable, match="division"):
        unlucky.rwlock("page").read().acquire(blocking=False)
    assert other.rwlock("page").write().acquire(blocking=False) is None
    with unlucky.rwlock("page").read() as beside:
        assert beside.held
    assert other.rwlock("page").write().acquire(blocking=False) is None
    assert first.held
    assert first.release()
    assert _left(plain) == 0
    writer = unlucky.rwlock("page").write().acquire(blocking=False)
    assert writer is not None
    assert writer.release()


def test_an_unlock_that_fails_after_it_was_done_does_not_end_the_hold_of_a_reader_beside_it(
    unlucky: Locks, other: Locks, plain: str
) -> None:
    first, beside = (unlucky.rwlock("page").read().acquire() for _ in range(2))
    assert first is not None
    assert beside is not None
    _fail(unlucky, "on")
    with suppress(BackendUnavailable):
        first.release()
    _fail(unlucky, "off")
    with suppress(BackendUnavailable):
        first.release()
    assert other.rwlock("page").write().acquire(blocking=False) is None
    assert beside.release()
    assert _left(plain) == 0
