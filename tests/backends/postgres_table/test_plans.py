"""The lock table with plans that were made while it was empty: what a step reads must not grow with the leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers.postgres_tables import table

pytestmark = pytest.mark.slow

TABLES = "relname IN ('distributed_locks', 'lockfast_queue', 'lockfast_limiters', 'lockfast_cells')"
SCANNED = f"SELECT sum(seq_scan)::int FROM pg_stat_user_tables WHERE {TABLES}"
READ = f"""SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE {TABLES})::int
    + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE {TABLES})::int"""
ACQUIRE = "SELECT lockfast_acquire('', %s, %s, 'h', 30)"
ASK = "SELECT lockfast_acquire('', %s, %s, 'h', 30, 'exclusive', NULL, NULL, '')"
RELEASE = "SELECT lockfast_release('', %s, %s)"
MANY = """SELECT lockfast_many(%(ns)s, %(names)s, %(claims)s, %(zeros)s, %(ns)s, %(ns)s,
    %(ns)s, %(names)s, %(next)s, %(claims)s, %(ttls)s, %(modes)s,
    array_fill(NULL::integer, '{5}'), array_fill(NULL::jsonb, '{5}'), array_fill(NULL::text, '{5}'))"""
FILL = """INSERT INTO distributed_locks (lock_name, holder_id, expires_at, claim, fence)
    SELECT 'other-' || n, 'h', clock_timestamp() + interval '1 hour', 'o' || n, n FROM generate_series(1, 2000) AS n;
    INSERT INTO lockfast_queue
        (namespace, lock_name, kind, place, claim, holder_id, mode, ttl, address, alive_until)
    SELECT '', 'other-' || n, 'w', n, 'w' || n, 'h', 'exclusive', 30, '', clock_timestamp() + interval '10 seconds'
    FROM generate_series(1, 2000) AS n;
    INSERT INTO lockfast_limiters (key, until) SELECT 'other-' || n, 1e19 FROM generate_series(1, 2000) AS n;
    INSERT INTO lockfast_cells (key, value, version, fence, writer)
    SELECT 'other-' || n, '1', n, 0, 'h' FROM generate_series(1, 2000) AS n"""

FEW = 30  # entries of an index: of the names that are shown, and those at either end, which the planner reads

Step = Callable[["Session", int], None]


class Session:
    """One connection, and what the server has counted of it."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self.ask("SET stats_fetch_consistency = none")

    def ask(self, sql: str, params: Any = None) -> Any:
        cursor = self._connection.execute(sql.encode(), params)
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    def counted(self, what: str, step: Step, numbers: range) -> int:
        """By how much that grew meanwhile."""
        before = self._now(what)
        for number in numbers:
            step(self, number)
        return self._now(what) - before

    def _now(self, what: str) -> int:
        self.ask("SELECT pg_stat_force_next_flush()")
        return int(self.ask(what))

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return table().url(tmp_path)


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    session = Session(url)
    yield session
    session.close()


def cycle(session: Session, number: int) -> None:
    assert "fence" in session.ask(ACQUIRE, ("x", f"c{number}"))
    assert session.ask(RELEASE, ("x", f"c{number}")) is True


def hand_over(session: Session, number: int) -> None:
    """From one claim to the next, which waits for it."""
    if number == 0:
        session.ask(ACQUIRE, ("x", "c0"))
    assert session.ask(ASK, ("x", f"c{number + 1}"))["position"] == 0
    assert session.ask(RELEASE, ("x", f"c{number}")) is True
    assert "fence" in session.ask(ASK, ("x", f"c{number + 1}"))


def batch(session: Session, number: int) -> None:
    """Releases of five names, and acquires of the same."""
    names = [f"x{one}" for one in range(5)]
    same: dict[str, Any] = {"ns": [""] * 5, "names": names, "zeros": [0] * 5, "ttls": [30] * 5}
    claims, following = ([f"{name}-{turn}" for name in names] for turn in (number, number + 1))
    released, acquired = session.ask(MANY, {**same, "claims": claims, "next": following, "modes": ["exclusive"] * 5})
    assert released == [number > 0] * 5
    assert all("fence" in one for one in acquired)


def book(session: Session, number: int) -> None:
    """A permit of a limiter, and back."""
    until = session.ask("SELECT lockfast_throttle(%s, 10, 10, 1, 0)", (f"x{number % 3}",))[3]
    session.ask("SELECT lockfast_unthrottle(%s, 10, %s)", (f"x{number % 3}", until))


def keep(session: Session, number: int) -> None:
    """A value in a cell, and read it."""
    session.ask("SELECT lockfast_write(%s, %s, %s)", (f"x{number % 3}", f"w{number}", str(number)))
    assert session.ask("SELECT lockfast_read(%s)", (f"x{number % 3}",))[0] == str(number)


@pytest.mark.parametrize("step", [cycle, hand_over, batch, book, keep])
def test_a_plan_made_while_the_table_was_empty_is_no_sequential_scan(session: Session, step: Step) -> None:
    # From here on they are known to be empty:
    session.ask("VACUUM distributed_locks, lockfast_queue, lockfast_limiters, lockfast_cells")
    for number in range(20):
        step(session, number)
    session.ask(FILL)
    assert session.counted(SCANNED, step, range(20, 30)) == 0


def list_one(session: Session, _: int) -> None:
    """Held, and waited for."""
    assert [found["name"] for found in session.ask("SELECT lockfast_list('', 'shown_')")] == ["shown_one"]


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_list_reads_no_more_than_the_names_with_its_prefix(session: Session, analyzed: bool) -> None:
    session.ask("VACUUM distributed_locks, lockfast_queue")
    session.ask(ACQUIRE, ("shown_one", "c"))
    session.ask(ASK, ("shown_one", "w"))
    session.ask(ACQUIRE, ("shown-another", "c"))
    session.counted(READ, list_one, range(20))
    session.ask(FILL)
    if analyzed:
        session.ask("ANALYZE distributed_locks, lockfast_queue")
    assert session.counted(READ, list_one, range(10)) <= 10 * FEW
