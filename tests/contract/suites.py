"""From a row of the table of backends to the classes that pytest collects.

Decides: which chapters run on a row at each scale. The quick loop runs them on memory, in threads and in asyncio;
what another backend answers to the verbs is held against the reference by a Hypothesis machine there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lockfast.testing.contract import CHAPTERS, Promise
from lockfast.testing.contract.story import SUBJECTS
from tests.contract.backends import Row
from tests.scale import SCALE


def seeds(scale: str = SCALE) -> range:
    """Those with which each story runs in the simulated world."""
    return range(10 if scale == "soak" else 1)


def at_scale(row: Row, scale: str = SCALE) -> Row | None:
    """The row as it runs at that scale, or None if it does not run at all."""
    if scale == "quick":
        return row._replace(can=row.can - {"simulated"}) if row.quick else None
    return row._replace(subjects=SUBJECTS, chapters=frozenset()) if scale == "soak" else row


def chapters_of(row: Row) -> list[type[Promise]]:
    return [chapter for chapter in CHAPTERS if not row.chapters or chapter.__name__ in row.chapters]


def classes(row: Row, module: str, chapters: Iterable[type[Promise]] = ()) -> dict[str, type[Promise]]:
    """A class for each chapter that runs on the row, or for these that are not part of the contract, by its name."""
    made = [_on(row, chapter, module) for chapter in chapters or chapters_of(row)]
    return {each.__name__: each for each in made}


def _on(row: Row, chapter: type[Promise], module: str) -> type[Promise]:
    def url(self: Any, tmp_path: Path) -> str:
        return row.url(tmp_path)

    def records(self: Any, tmp_path: Path) -> int:
        return row.records(tmp_path)

    members = {
        "url": url,
        "records": records,
        "capabilities": row.capabilities,
        "can": row.can,
        "subjects": row.subjects,
        "seeds": seeds(),
        "__module__": module,
    }
    return type(f"Test{chapter.__name__}_{row.name}", (chapter,), members)
