"""One PostgreSQL server for all tests of a process, with a database for each test.

Decides: who gets which database, and that nobody of an earlier test is connected to it any more.
Leaves to whoever asks: what must be in it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

import psycopg

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import NEWEST

DATABASES = 4  # so many tests later a database is used again, after its last users were thrown out
Prepare = Callable[[str], None]  # from the URL of a database


class SharedPostgres:
    """A server that is started by the first test that needs it."""

    def __init__(self, prefix: str, prepare: Prepare | None = None) -> None:
        self._prefix = prefix
        self._prepare = prepare  # called each time that a database is given to a test
        self._server: PostgresServer | None = None
        self._connection: psycopg.Connection | None = None
        self._made: set[str] = set()
        self._databases: Iterator[int] = cycle(range(DATABASES))
        self._given: dict[Path, str] = {}

    @property
    def server(self) -> PostgresServer:
        return _server()

    def database(self, folder: Path) -> str:
        """The one that belongs to a test, known by its folder; made ready when it is asked for first."""
        if folder not in self._given:
            name = f"{self._prefix}_{next(self._databases)}"
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
            atexit.register(self._connection.close)  # after the server's own, so it comes before that
        self._connection.execute(sql.encode(), values or None)


@cache
def _server() -> PostgresServer:
    version = int(os.environ.get("HOLDFAST_TEST_POSTGRES", NEWEST))  # to tell all stories on an older one, by hand
    return PostgresServer({"max_connections": "200"}, version=version).start()


@cache
def advisory() -> SharedPostgres:
    return SharedPostgres("advisory")
