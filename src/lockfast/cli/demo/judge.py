"""Judge what the demo's workers reported. Pure: reports in, findings out.

Decides: whether any two believed to hold at once, whether the fences only grew, and how long a takeover took.
All processes of one host share the boot clock, so their times can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple


class Report(NamedTuple):
    """One step of one worker, or one fault that was injected (`killed`, `stopped`, `continued`)."""

    at: float
    who: str
    kind: str
    facts: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def fence(self) -> int:
        return int(self.facts.get("fence", 0))


class ReportedHold(NamedTuple):
    """From when until when a worker could believe that it holds the lock."""

    who: str
    fence: int
    start: float
    end: float


def holds(reports: Iterable[Report]) -> list[ReportedHold]:
    """Every hold that was reported, in order of their beginning."""
    found: list[ReportedHold] = []
    running: dict[str, ReportedHold] = {}
    for report in sorted(reports):
        mine = running.get(report.who)
        if report.kind == "granted":
            running[report.who] = ReportedHold(report.who, report.fence, report.at, float(report.facts["until"]))
        elif mine is None:
            continue
        elif report.kind == "renewed" and report.fence == mine.fence:
            running[report.who] = mine._replace(end=max(mine.end, float(report.facts["until"])))
        elif report.kind in ("releasing", "killed", "learned"):
            found.append(mine._replace(end=min(mine.end, report.at)))
            del running[report.who]
    return sorted([*found, *running.values()], key=lambda hold: hold.start)


def overlaps(of: list[ReportedHold]) -> list[tuple[ReportedHold, ReportedHold]]:
    """Neighbours of which the later began before the earlier had ended."""
    return [(one, two) for one, two in pairwise(of) if two.start < one.end]


def fences_only_grow(of: list[ReportedHold]) -> bool:
    return all(one.fence < two.fence for one, two in pairwise(of))


def next_after(of: list[ReportedHold], fence: int) -> ReportedHold | None:
    """Who held after the holder of that fence."""
    return next((hold for hold in of if hold.fence > fence), None)


def median_hand_over(of: list[ReportedHold]) -> float:
    """Seconds from one hold's end to the next one's beginning, in the middle case."""
    gaps = sorted(two.start - one.end for one, two in pairwise(of))
    return gaps[len(gaps) // 2] if gaps else 0.0
