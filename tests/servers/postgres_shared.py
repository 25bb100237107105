"""One PostgreSQL server for all processes of a test run, with a database for each test.

Decides: who gets which database, and that no connection of an earlier test is left.
Leaves to `run`: which process starts the server, and when it ends. Leaves to the caller: what must be in a database.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

import psycopg

from tests.servers import run
from tests.servers.postgres import PostgresServer, ReachablePostgres
from tests.servers.postgres_programs import NEWEST

DATABASES = (
    4  # of each process; that many of its tests later a database is used again, after its last users were thrown out
)
# For pg_locks, which shows the whole server.
HERE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
Prepare = Callable[[str], None]  # from the URL of a database


class SharedPostgres:
    """Databases of the run's server, which is started by the first test that needs it."""

    def __init__(self, prefix: str, prepare: Prepare | None = None) -> None:
        self._prefix = prefix  # other prefixes are for other uses
        self._prepare = prepare  # called each time that a database is given to a test
        self._connection: psycopg.Connection | None = None
        self._made: set[str] = set()
        self._databases: Iterator[int] = cycle(range(DATABASES))
        self._given: dict[Path, str] = {}

    @property
    def server(self) -> ReachablePostgres:
        return _server()

    def database(self, folder: Path) -> str:
        """The one that belongs to a test, known by its folder; made ready when it is asked for first."""
        if folder not in self._given:
            name = f"{self._prefix}_{_process()}_{next(self._databases)}"
            self._given = {folder: name}  # tests come one after the other
            if name in self._made:
                self._ask("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", name)
            else:
                self._ask(f"CREATE DATABASE {name}")
                self._made.add(name)
            if self._prepare is not None:
                self._prepare(self.server.url_of(name))
        return self._given[folder]

    def url(self, folder: Path) -> str:
        return self.server.url_of(self.database(folder))

    def _ask(self, sql: str, *values: str) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.server.url, autocommit=True)
            atexit.register(self._connection.close)
        self._connection.execute(sql.encode(), values or None)


@cache
def _server() -> ReachablePostgres:
    said = run.once("postgres", _start)
    return ReachablePostgres(int(said["port"]), Path(said["bin"]), Path(said["folder"]))


def _start() -> dict[str, str]:
    """The newest version; LOCKFAST_TEST_POSTGRES names an older one, to run all stories on that by hand."""
    version = int(os.environ.get("LOCKFAST_TEST_POSTGRES", NEWEST))
    started = PostgresServer({"max_connections": "400"}, version=version, shared=True).start()
    started.detach()
    return {"port": str(started.port), "bin": str(started.bin), "folder": str(started.folder)}


@cache
def _process() -> int:
    """Which process of the run this is, so that two never use one database."""
    return run.count("process")


def own_name(name: str) -> str:
    """A name, of a role or a database of the whole server, that no other process of the run uses."""
    return f"{name}_{_process()}"


@cache
def advisory() -> SharedPostgres:
    return SharedPostgres("advisory")
