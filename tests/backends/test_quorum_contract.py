"""The contract on quorums of three and of five servers, but for what a quorum cannot do.

Decides: which stories are about something that a quorum has not, and why. Whatever is not named here must pass.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.contract import CHAPTERS, Promise
from tests.servers.records import count
from tests.servers.server import HOST
from tests.servers.shared import Shared
from tests.servers import binaries

WHOLE_CHAPTERS: dict[str, str] = {
    "Semaphores": "nobody shares",
    "ReadWriteLocks": "nobody shares",
    "RateLimits": "no values are kept",
    "WaitingForRateLimits": "no values are kept",
    "OptimisticCells": "no values are kept",
}
LEFT_OUT: dict[str, set[str]] = {}
NAMES_LEFT_OUT = {name for names in LEFT_OUT.values() for name in names}


class Quorum:
    """Servers that all stories of a process use, each with a database of its own."""

    def __init__(self, nodes: int) -> None:
        self._shared = [Shared(binaries.valkey) for _ in range(nodes)]

    def url(self, folder: Path) -> str:
        databases = {shared.database(folder) for shared in self._shared}
        assert len(databases) == 1, "all servers are asked for databases in the same order"
        hosts = ",".join(f"{HOST}:{shared.server.port}" for shared in self._shared)
        # A busy machine gives a server as long as it needs, and the servers were started just now.
        return f"redlock://{hosts}/{databases.pop()}?rejoin=0&node_timeout=8"

    def records(self, folder: Path) -> int:
        return max(count(shared.server, shared.database(folder)) for shared in self._shared)


@functools.cache
def quorum(nodes: int) -> Quorum:
    return Quorum(nodes)


def _on(nodes: int, chapter: type[Promise]) -> type[Promise]:
    def url(self: Any, tmp_path: Path) -> str:
        return quorum(nodes).url(tmp_path)

    def records(self: Any, tmp_path: Path) -> int:
        return quorum(nodes).records(tmp_path)

    told: dict[str, Any] = {"url": url, "records": records, "can": frozenset({"fork", "processes"}), "__module__": __name__}
    made = type(f"Test{chapter.__name__}_redlock{nodes}", (chapter,), told)
    for name in NAMES_LEFT_OUT & set(dir(made)):
        setattr(made, name, None)
    return pytest.mark.slow(made)


for _nodes in (3, 5):
    for _chapter in CHAPTERS:
        if _chapter.__name__ not in WHOLE_CHAPTERS:
            _made = _on(_nodes, _chapter)
            globals()[_made.__name__] = _made
