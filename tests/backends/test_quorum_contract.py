"""The contract on quorums of three and of five servers, but for what a quorum cannot do.

Decides: which stories are about something that a quorum has not, and why. Whatever is not named here must pass.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from holdfast.testing.contract import CHAPTERS, Promise
from tests.backends.told_in_part import told_in_part
from tests.servers import binaries
from tests.servers.records import count
from tests.servers.server import HOST
from tests.servers.shared import Shared

WHOLE_CHAPTERS: dict[str, str] = {
    "Semaphores": "nobody shares",
    "ReadWriteLocks": "nobody shares",
    "RateLimits": "no values are kept",
    "WaitingForRateLimits": "no values are kept",
    "OptimisticCells": "no values are kept",
}
LEFT_OUT: dict[str, set[str]] = {
    "nobody shares": {
        "test_holders_who_share_a_name_each_have_a_fence_of_their_own",
        "test_no_more_shared_claims_hold_than_the_limit",
        "test_a_place_is_made_by_expiry_and_by_breaking_too",
        "test_a_release_wakes_as_many_as_there_is_room_for",
        "test_a_name_that_lingers_takes_room_until_it_ends",
        "test_a_reader_may_read_again",
        "test_a_reader_that_would_wait_behind_a_writer_that_waits_for_it_is_an_error",
        "test_a_downgraded_writer_may_read_again_and_not_write",
        "test_who_holds_every_permit_may_wait_for_one_that_another_gives_back",
    },
    "woken by one server, a waiter may ask before others have heard of the release; see test_quorum": {
        "test_requests_per_hand_over_do_not_grow_with_the_waiters",
    },
}
NAMES_LEFT_OUT = {name for names in LEFT_OUT.values() for name in names}
LEFT_OUT_PARTS = {
    "a reader that writes",
    "a writer that reads",
    "a permit under a lock",
}  # of stories told in several ways


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
        """What a majority keeps: the others may just be about to be told that it is over."""
        counts = sorted(count(shared.server, shared.database(folder)) for shared in self._shared)
        return counts[len(counts) // 2]


@functools.cache
def quorum(nodes: int) -> Quorum:
    return Quorum(nodes)


def _on(nodes: int, chapter: type[Promise]) -> type[Promise]:
    def url(self: Any, tmp_path: Path) -> str:
        return quorum(nodes).url(tmp_path)

    def records(self: Any, tmp_path: Path) -> int:
        return quorum(nodes).records(tmp_path)

    told: dict[str, Any] = {
        "url": url,
        "records": records,
        "can": frozenset({"fork", "processes"}),
        "__module__": __name__,
    }
    return told_in_part(chapter, f"Test{chapter.__name__}_redlock{nodes}", told, NAMES_LEFT_OUT, LEFT_OUT_PARTS)


for _nodes in (3, 5):
    for _chapter in CHAPTERS:
        if _chapter.__name__ not in WHOLE_CHAPTERS:
            _made = _on(_nodes, _chapter)
            globals()[_made.__name__] = _made


def test_every_story_that_is_left_out_is_one_that_there_is() -> None:
    assert {name for chapter in CHAPTERS for name in dir(chapter)} >= NAMES_LEFT_OUT
    assert set(WHOLE_CHAPTERS) <= {chapter.__name__ for chapter in CHAPTERS}
