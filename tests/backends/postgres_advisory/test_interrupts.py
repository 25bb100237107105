"""A KeyboardInterrupt at any instruction that can be interrupted: other threads go on, and nothing stays behind.

Each story is run again and again, interrupted at its first such instruction, at its second, and so on to its end.
The session may be ended, which is a loss that is reported; but it must not be left in a state in which it answers no
request.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import lockfast
from lockfast import Locks
from tests.engine.interrupting import Interrupt
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),  # what was cut short says so when it is gone
    pytest.mark.filterwarnings("ignore:unclosed <socket"),
]
_OURS = """SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND application_name = 'me' AND datname = current_database()"""
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'me' AND datname = current_database()"


def _ours(file: str) -> bool:
    return "postgres_advisory" in file and "tests" not in file


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


def _count(psql: psycopg.Connection, sql: str) -> int:
    (number,) = psql.execute(sql.encode()).fetchone() or (0,)
    return int(number)


def _elsewhere(work: Callable[[], object]) -> None:
    """In another thread, and to its end."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    join(thread)
    assert answers, "another thread was refused"


def _given_out(backend: Any) -> list[object]:
    gc.collect()  # frames of what was cut short may keep some
    return list(backend._sessions._dedicated)


def _cycle(locks: Locks) -> None:
    with locks.lock("b", wait=LIMIT_S):
        pass


def _sweep(locks: Locks, psql: psycopg.Connection, story: Callable[[], None], step: int) -> list[str]:
    points: list[str] = []
    for number in range(1, 100_000, step):
        with Interrupt(number, _ours) as interrupt:
            try:
                story()
            except KeyboardInterrupt:
                assert interrupt.struck
        if not interrupt.struck:
            gc.collect()  # what was cut short is gone before this test is over
            return points
        points.append(interrupt.struck)
        try:
            _elsewhere(lambda: _cycle(locks))
            until(lambda: _count(psql, _OURS) == 0)
        except AssertionError as error:
            pytest.fail(f"after an interrupt at {interrupt.struck}: {error}")
    raise AssertionError("it has no end")


def test_interrupted_at_any_instruction_of_a_cycle_the_session_serves_others(
    url: str, psql: psycopg.Connection
) -> None:
    with lockfast.connect(f"{url}?application_name=me", patience=2) as locks:
        _cycle(locks)
        points = _sweep(locks, psql, lambda: _cycle(locks), 1)
        backend: Any = locks._logic.engine.backend
        assert not backend._holds.by_id
        assert len({point.partition(":")[0] for point in points}) > 10


def test_interrupted_at_any_instruction_of_a_reader_beside_another_nothing_stays_and_the_other_reads_on(
    url: str, psql: psycopg.Connection
) -> None:
    with lockfast.connect(f"{url}?application_name=me", patience=2) as locks:
        _cycle(locks)

        def read() -> None:
            with locks.rwlock("page").read() as first, locks.rwlock("page").read() as second:
                assert first.fence < second.fence

        _sweep(locks, psql, read, 3)
        backend: Any = locks._logic.engine.backend
        assert not backend._holds.by_id
        until(lambda: not _given_out(backend))


def test_interrupted_while_it_waits_a_claim_leaves_no_waiter_and_no_session_behind(
    url: str, psql: psycopg.Connection
) -> None:
    with lockfast.connect(url) as other, lockfast.connect(f"{url}?application_name=me&waiting=2", patience=2) as locks:
        _cycle(locks)

        def wait() -> None:
            theirs = other.lock("a").acquire()
            assert theirs is not None
            ended = threading.Event()

            def release() -> None:
                until(lambda: ended.is_set() or other.inspect("a").waiters, "one to wait, or to be interrupted")
                theirs.release()

            thread = threading.Thread(target=release)
            thread.start()
            try:
                with locks.lock("a", wait=LIMIT_S):
                    pass
            finally:
                ended.set()
                join(thread)

        _sweep(locks, psql, wait, 3)
        assert _count(psql, _SESSIONS) <= 3
        wait()  # there still are sessions to wait in
        backend: Any = locks._logic.engine.backend
        until(lambda: not _given_out(backend))
