"""One server of each kind for all tests of a process, with an empty database for each test.

Decides: who gets which database. With xdist each worker is a process, so it has servers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

from tests.servers import binaries
from tests.servers.server import HOST, Server

DATABASES = 1000  # so many tests later a database is used again; whoever still wrote into it has long ended


class Shared:
    """A server that is started by the first test that needs it."""

    def __init__(self, binary: Callable[[], Path]) -> None:
        self._binary = binary
        self._server: Server | None = None
        self._databases: Iterator[int] = cycle(range(DATABASES))
        self._given: dict[Path, int] = {}

    @property
    def server(self) -> Server:
        if self._server is None:
            self._server = Server("--databases", str(DATABASES), binary=self._binary()).start()
        return self._server

    def database(self, folder: Path) -> int:
        """The one that belongs to a test, known by its folder; empty when it is asked for first."""
        if folder not in self._given:
            self._given[folder] = next(self._databases)
            self.server.command("FLUSHDB", db=self._given[folder])
        return self._given[folder]

    def url(self, folder: Path) -> str:
        return f"redis://{HOST}:{self.server.port}/{self.database(folder)}"


@cache
def valkey() -> Shared:
    return Shared(binaries.valkey)


@cache
def redis_6() -> Shared:
    return Shared(binaries.redis_6)


@cache
def of_this_host() -> Shared:
    """Only where there is one."""
    found = binaries.redis_of_this_host()
    assert found is not None
    return Shared(lambda: found)
