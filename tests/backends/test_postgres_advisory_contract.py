"""The contract on PostgreSQL's advisory locks, but for what such locks cannot do.

Decides: which stories are about something that advisory locks have not, and why. Whatever is not named here must pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.contract import CHAPTERS, Promise
from tests.servers.postgres_shared import advisory

WHOLE_CHAPTERS = {
    "Semaphores": "no limit to how many may share",
    "Elections": "changes are told to nobody",
    "ObservedElections": "changes are told to nobody",
    "RateLimits": "no values are kept",
    "WaitingForRateLimits": "no values are kept",
    "OptimisticCells": "no values are kept",
}
LEFT_OUT: dict[str, set[str]] = {}


def _url(folder: Path) -> str:
    return advisory().url(folder).replace("postgresql:", "postgresql+advisory:")


def _on_advisory(chapter: type[Promise]) -> type[Promise]:
    def url(self: Any, tmp_path: Path) -> str:
        return _url(tmp_path)

    told: dict[str, Any] = {"url": url, "can": frozenset({"fork", "processes"}), "__module__": __name__}
    told |= dict.fromkeys((story for stories in LEFT_OUT.values() for story in stories if hasattr(chapter, story)), None)
    made = type(f"Test{chapter.__name__}_advisory", (chapter,), told)
    return pytest.mark.slow(made)


for _chapter in CHAPTERS:
    if _chapter.__name__ not in WHOLE_CHAPTERS:
        globals()[f"Test{_chapter.__name__}_advisory"] = _on_advisory(_chapter)


def test_every_story_that_is_left_out_is_one_that_there_is() -> None:
    known = {story for chapter in CHAPTERS for story in dir(chapter)}
    assert {story for stories in LEFT_OUT.values() for story in stories} <= known
    assert set(WHOLE_CHAPTERS) <= {chapter.__name__ for chapter in CHAPTERS}
