"""The one table of backends. A new backend is one row; the contract does the rest.

Decides: where each backend's store is for a story, and what the backend can beyond the verbs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from holdfast.backends.memory_store import shared_store
from tests.servers.binaries import HAS_REDIS_6, redis_of_this_host
from tests.servers.postgres_tables import count as count_rows
from tests.servers.postgres_tables import table
from tests.servers.records import count
from tests.servers.shared import Shared, of_this_host, redis_6, valkey


class Row(NamedTuple):
    name: str  # of the row, as the tests are called
    scheme: str  # as in holdfast.connect()
    url: Callable[[Path], str]  # of one story's store, from an empty folder of its own
    records: Callable[[Path], int]  # how many records of names and limiters that store keeps
    can: frozenset[str]  # see holdfast.testing.contract.needs


_stores: dict[Path, str] = {}  # names of memory stores, by the folder of their story


def _memory_name(folder: Path) -> str:
    return _stores.setdefault(folder, uuid4().hex)


def _memory_records(folder: Path) -> int:
    store = shared_store(_memory_name(folder))
    return len(store.resources) + len(store.limiters)


def _sqlite_records(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "locks.db")) as db:
        tables = ("claims", "changes", "limiters")
        counts = (db.execute(f"SELECT count(*) FROM {table} WHERE key != ''").fetchone() for table in tables)
        return sum(int(count) for (count,) in counts)


def _redis(name: str, shared: Callable[[], Shared]) -> Row:
    return Row(
        name,
        scheme="redis",
        url=lambda folder: shared().url(folder),
        records=lambda folder: count(shared().server, shared().database(folder)),
        can=frozenset({"fork", "processes"}),
    )


BACKENDS = (
    Row(
        "memory",
        scheme="memory",
        url=lambda folder: f"memory://{_memory_name(folder)}",
        records=_memory_records,
        can=frozenset({"fork", "simulated"}),
    ),
    Row(
        "sqlite",
        scheme="sqlite",
        url=lambda folder: f"sqlite:///{folder}/locks.db",
        records=_sqlite_records,
        can=frozenset({"fork", "processes"}),
    ),
    _redis("redis", valkey),
    *([_redis("redis6", redis_6)] if HAS_REDIS_6 else []),
    *([_redis("redis_here", of_this_host)] if redis_of_this_host() else []),
    Row(
        "postgres",
        scheme="postgresql",
        url=lambda folder: table().url(folder),
        records=count_rows,
        can=frozenset({"fork", "processes"}),
    ),
)
