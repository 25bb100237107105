"""Bugs that the verdict must find: a journal in which a worker is wrong. Nothing else is changed.

Decides: what each of them writes in place of the truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockfast._time import boot_now
from tests.torture.journal import Journal

LATE_S = 3.0
EVERY = 40  # holds: so often is one of them wrong


class BelievesTooLong(Journal):
    """It believes 3 s past its deadline, and takes no notice of a loss."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._until: dict[str, float] = {}  # deadlines, by claim

    def write(self, event: str, **facts: Any) -> None:
        if "until" in facts:
            self._until[facts["id"]] = facts["until"]
            facts["until"] += LATE_S
        lost = event == "lost" or (event == "over" and facts.get("at", boot_now()) >= self._until[facts["id"]])
        if not lost:
            super().write(event, **facts)


class ForgetsTheFence(Journal):
    """Now and then it counts the fence anew."""

    _holds = 0

    def write(self, event: str, **facts: Any) -> None:
        if event == "held":
            self._holds += 1
            if self._holds % EVERY == 0:
                facts["fence"] = self._holds
        super().write(event, **facts)


class TakesWithoutAsking(Journal):
    """Now and then it believes in a lock that it never asked for: one that it has just released, most often."""

    _holds = 0

    def write(self, event: str, **facts: Any) -> None:
        super().write(event, **facts)
        if event == "held":
            self._holds += 1
            if self._holds % EVERY == 0 and facts["mode"] == "exclusive":
                at = facts["until"]
                planted = {"id": f"unasked{self._holds}", "at": at, "asked": at, "until": at + LATE_S}
                super().write("held", **{**facts, **planted})


PLANTS: dict[str, type[Journal]] = {
    "": Journal,
    "late": BelievesTooLong,
    "fence": ForgetsTheFence,
    "unasked": TakesWithoutAsking,
}
