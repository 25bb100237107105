"""The lock table in a database of the shared PostgreSQL server: made once, emptied for each test, and counted.

Decides: which rows count as left behind.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import psycopg

from lockfast.backends.postgres_table.schema import script
from tests.servers.postgres_shared import SharedPostgres

_TABLES = ("distributed_locks", "lockfast_queue", "lockfast_changes", "lockfast_limiters", "lockfast_cells")
_LARGE = 1_000_000  # bytes, of rows that were deleted mostly
_COUNTED = ("distributed_locks", "lockfast_changes", "lockfast_limiters")


def empty_table(url: str) -> None:
    """The schema is there, and nothing is held."""
    with psycopg.connect(url, autocommit=True) as connection:
        (there,) = connection.execute("SELECT to_regclass('lockfast_schema')").fetchone() or (None,)
        if there is None:
            connection.execute(script("public").encode())
        size = " + ".join(f"pg_relation_size('{name}')" for name in _TABLES)
        (kept,) = connection.execute(f"SELECT {size}".encode()).fetchone() or (0,)
        if kept > _LARGE:
            connection.execute(f"TRUNCATE {', '.join(_TABLES)}".encode())
        else:  # which takes a hundredth of the time
            connection.execute("; ".join(f"DELETE FROM {name}" for name in _TABLES).encode())


@cache
def table() -> SharedPostgres:
    return SharedPostgres("locks", empty_table)


def count(folder: Path) -> int:
    """Rows of names and limiters; but not that of a claim that was given up, which goes after its time."""
    with psycopg.connect(table().url(folder), autocommit=True) as connection:
        parts = [f"(SELECT count(*) FROM {name})" for name in _COUNTED]
        parts.append("(SELECT count(*) FROM lockfast_queue WHERE kind <> 'g')")
        (found,) = connection.execute(f"SELECT {' + '.join(parts)}".encode()).fetchone() or (0,)
        return int(found)
