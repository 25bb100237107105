"""One set of Redis and Valkey servers for all processes of a test run, with an empty database for each test.

Decides: who gets which database, and where there is but one, that tests share it.
Leaves to `run`: which process starts a server, and when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path

from tests.servers import binaries, run
from tests.servers.cluster import Nodes
from tests.servers.group import Group
from tests.servers.sentinel import Watched
from tests.servers.server import HOST, Reachable, Server

DATABASES = 1000  # that many tests later a database is used again; its earlier users have long ended
NODES = 5  # Valkey servers: the first serves the tests of one server, and all of them are nodes of quorums


class Shared:
    """A server that is started by the first test of the run that needs it."""

    def __init__(self, name: str, binary: Callable[[], Path]) -> None:
        self._name = name
        self._binary = binary
        self._given: dict[Path, int] = {}

    @cached_property
    def server(self) -> Reachable:
        return Reachable(int(run.once(self._name, self._start)["port"]))

    def _start(self) -> dict[str, str]:
        started = Server("--databases", str(DATABASES), binary=self._binary(), shared=True).start()
        started.detach()
        return {"port": str(started.port)}

    def database(self, folder: Path) -> int:
        """The one that belongs to a test, known by its folder; empty when it is asked for first."""
        if folder not in self._given:
            self._given[folder] = next_database()
            self.empty(self._given[folder])
        return self._given[folder]

    def empty(self, database: int) -> None:
        self.server.command("FLUSHDB", db=database)

    def url(self, folder: Path) -> str:
        return f"redis://{HOST}:{self.server.port}/{self.database(folder)}"


def next_database() -> int:
    """A number of a database that no other test of the run uses now, at any of the servers."""
    return run.count("database") % DATABASES


@cache
def node(number: int) -> Shared:
    assert number < NODES
    return Shared(f"valkey-{number}", binaries.valkey)


def valkey() -> Shared:
    return node(0)


@cache
def redis_6() -> Shared:
    return Shared("redis-6", binaries.redis_6)


@cache
def of_this_host() -> Shared:
    """The server that was asked for by name; see `binaries.redis_of_this_host`."""
    found = binaries.redis_of_this_host(os.environ)
    assert found is not None
    return Shared("redis-of-this-host", lambda: found)


@cache
def cluster() -> str:
    """Where a cluster is that no test changes. It has one database, in which each test has a namespace of its own."""
    return run.once("cluster", lambda: _start_group(Nodes(shared=True)))["url"]


@cache
def sentinels() -> str:
    """Where Sentinels are that report one primary; no test changes that."""
    return run.once("sentinels", lambda: _start_group(Watched(shared=True)))["url"]


def _start_group(group: Group) -> dict[str, str]:
    with group:
        group.detach()
        return {"url": group.url}
