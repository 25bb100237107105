"""Quorums of the servers that all processes of a test run share, with an empty database for each test.

Decides: that a test uses the database of one number at all of its servers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.servers.records import count
from tests.servers.server import HOST
from tests.servers.shared import next_database, node
from tests.servers.waiting import LIMIT_S


class SharedQuorum:
    def __init__(self, size: int) -> None:
        self._nodes = [node(number) for number in range(size)]
        self._given: dict[Path, int] = {}

    def url(self, folder: Path) -> str:
        hosts = ",".join(f"{HOST}:{shared.server.port}" for shared in self._nodes)
        # A busy machine gives a server as long as it needs, and the servers were started just now.
        return f"redlock://{hosts}/{self._database(folder)}?rejoin=0&node_timeout={LIMIT_S:g}"

    def records(self, folder: Path) -> int:
        """What a majority keeps: a release may just be on its way to the others."""
        database = self._database(folder)
        counts = sorted(count(shared.server, database) for shared in self._nodes)
        return counts[len(counts) // 2]

    def _database(self, folder: Path) -> int:
        if folder not in self._given:
            self._given[folder] = next_database()
            for shared in self._nodes:
                shared.empty(self._given[folder])
        return self._given[folder]


@cache
def quorum(size: int) -> SharedQuorum:
    return SharedQuorum(size)
