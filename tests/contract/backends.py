"""The one table of backends. A new backend is one row; the contract does the rest.

Decides: where each backend's store is for a story, what the backend can beyond the verbs, and how much of the contract
runs on it in `make test`. The long search runs all of it on every row.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from lockfast._model import Capabilities
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import shared_store
from lockfast.backends.postgres_advisory.backend import PostgresAdvisoryBackend
from lockfast.backends.postgres_table.backend import PostgresTableBackend
from lockfast.backends.redis.backend import RedisBackend
from lockfast.backends.redlock.backend import QuorumBackend
from lockfast.backends.sqlite.backend import SqliteBackend
from lockfast.testing.contract.story import SUBJECTS
from tests.servers import shared
from tests.servers.binaries import HAS_REDIS_6, redis_of_this_host
from tests.servers.postgres_shared import advisory
from tests.servers.postgres_tables import count as count_rows
from tests.servers.postgres_tables import table
from tests.servers.quorum import quorum
from tests.servers.records import count

ANYWHERE = frozenset({"fork", "processes"})
# Stories about the engine run on memory, SQLite and one Redis; those about input, on memory.
STORE = frozenset({"store"})
STORE_AND_ENGINE = frozenset({"store", "engine"})

OF_THIS_HOST = "redis_here"  # the row of a server that LOCKFAST_TEST_REDIS names

# Rows that differ from another only in the number, the age or the set-up of servers: the chapters in which that could
# show. A set-up is a cluster, or Sentinels that report a primary.
BY_NUMBER = frozenset({"OneAdmissionRule", "FencesOnlyGrow"})
BY_AGE = BY_NUMBER | {"WaitersAreWoken", "OnlyTheServerClock"}
BY_SET_UP = frozenset({"NoBodyWithoutLock", "LostRepliesChangeNothing", "InterruptedLeavesNothing", "WaitersAreWoken"})


class Row(NamedTuple):
    name: str  # of the row, as the tests are called
    scheme: str  # as in lockfast.connect()
    url: Callable[[Path], str]  # of one story's store, from an empty folder of its own
    capabilities: Capabilities
    can: frozenset[str] = ANYWHERE  # see lockfast.testing.contract.needs
    records: Callable[[Path], int] = lambda folder: 0  # how many records of names and limiters that store keeps
    subjects: frozenset[str] = SUBJECTS  # see lockfast.testing.contract.about
    chapters: frozenset[str] = frozenset()  # that run there, by their names; none is all
    quick: bool = False  # it runs in the quick loop too


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


def _redis(name: str, server: Callable[[], shared.Shared]) -> Row:
    return Row(
        name,
        scheme="redis",
        url=lambda folder: server().url(folder),
        capabilities=RedisBackend.capabilities,
        records=lambda folder: count(server().server, server().database(folder)),
        subjects=STORE_AND_ENGINE,
    )


def _set_up(name: str, scheme: str, where: Callable[[], str]) -> Row:
    return Row(
        name,
        scheme=scheme,
        url=lambda folder: where(),
        capabilities=RedisBackend.capabilities,
        subjects=STORE,
        chapters=BY_SET_UP,
    )


def _redlock(size: int) -> Row:
    return Row(
        f"redlock{size}",
        scheme="redlock",
        url=lambda folder: quorum(size).url(folder),
        capabilities=QuorumBackend.capabilities,
        records=lambda folder: quorum(size).records(folder),
        subjects=STORE,
    )


def _rows() -> Iterator[Row]:
    yield Row(
        "memory",
        scheme="memory",
        url=lambda folder: f"memory://{_memory_name(folder)}",
        capabilities=MemoryBackend.capabilities,
        can=frozenset({"fork", "simulated"}),
        records=_memory_records,
        quick=True,
    )
    yield Row(
        "sqlite",
        scheme="sqlite",
        url=lambda folder: f"sqlite:///{folder}/locks.db",
        capabilities=SqliteBackend.capabilities,
        records=_sqlite_records,
        subjects=STORE_AND_ENGINE,
    )
    yield _redis("redis", shared.valkey)
    if HAS_REDIS_6:
        yield _redis("redis6", shared.redis_6)._replace(subjects=STORE, chapters=BY_AGE)
    if redis_of_this_host(os.environ):
        yield _redis(OF_THIS_HOST, shared.of_this_host)
    confirms = RedisBackend.capabilities._replace(hands_over=False)
    yield _set_up("cluster", "redis+cluster", shared.cluster)._replace(capabilities=confirms)
    yield _set_up("sentinel", "redis+sentinel", shared.sentinels)
    yield _redlock(3)
    yield _redlock(5)._replace(chapters=BY_NUMBER)
    yield Row(
        "postgres",
        scheme="postgresql",
        url=lambda folder: table().url(folder),
        capabilities=PostgresTableBackend.capabilities,
        records=count_rows,
        subjects=STORE,
    )
    yield Row(
        "advisory",
        scheme="postgresql+advisory",
        url=lambda folder: advisory().url(folder).replace("postgresql:", "postgresql+advisory:"),
        capabilities=PostgresAdvisoryBackend.capabilities,
        subjects=STORE,
    )


BACKENDS = tuple(_rows())
