"""Judge a history of holds: did two ever believe that they held what only one may?

Decides: whether believed holds exclude each other as their modes demand, and whether their fences grow in order.
A hold that was downgraded is two: exclusive until then, shared from then on, with one fence and one claim id.
Leaves to the recorder: reading one clock that all holders share, and ending a hold at the first of: release
called, deadline reached, loss reported, broken by an operator.

A sort and a sweep, no search: a million holds take seconds.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lockfast._model import EXCLUSIVE, Mode, Occupancy


class Hold(NamedTuple):
    """A holder believed from `start` (acquire returned) until just before `end` that it held `name`."""

    name: str
    holder: str
    fence: int
    start: float
    end: float
    mode: Mode = EXCLUSIVE
    limit: int | None = None
    claim_id: str = ""  # the same for what is one hold: one that was downgraded goes on under its fence

    def __str__(self) -> str:
        return (
            f"{self.holder} held {self.name!r} {self.mode} from {self.start:.6f} to {self.end:.6f}, fence {self.fence}"
        )


def judge(holds: Iterable[Hold]) -> list[str]:
    """What is wrong with the history, one line each; empty if nothing is."""
    by_name = defaultdict(list)
    for hold in holds:
        if hold.start < hold.end:  # else it was over before its holder believed in it
            by_name[hold.name].append(hold)
    return [line for name in sorted(by_name) for line in _judge_name(sorted(by_name[name], key=_in_order))]


def _in_order(hold: Hold) -> tuple[float, float]:
    return hold.start, hold.end


def _judge_name(holds: list[Hold]) -> Iterator[str]:
    yield from _overlaps(holds)
    yield from _fences_out_of_order(holds)


def _overlaps(holds: list[Hold]) -> Iterator[str]:
    active: list[tuple[float, int]] = []  # (end, index), soonest end first
    taken = Occupancy()
    for index, hold in enumerate(holds):
        while active and active[0][0] <= hold.start:
            _leave(taken, holds[heapq.heappop(active)[1]])
        if not taken.fits(hold.mode, hold.limit):
            beside = "; ".join(str(holds[other]) for _, other in sorted(active)[:3])
            yield f"held together: {hold} — beside: {beside}"
        taken.add(hold.mode)
        heapq.heappush(active, (hold.end, index))


def _leave(taken: Occupancy, hold: Hold) -> None:
    if hold.mode == EXCLUSIVE:
        taken.exclusive -= 1
    else:
        taken.shared -= 1


def _fences_out_of_order(holds: list[Hold]) -> Iterator[str]:
    """Of any two holds that exclude each other the later has the higher fence; no two share one.

    Two shared holds may overlap, and the one granted first may get its reply last, so these are not compared.
    """
    seen: dict[int, Hold] = {}
    highest: Hold | None = None
    highest_exclusive: Hold | None = None
    for hold in holds:
        before = highest if hold.mode == EXCLUSIVE else highest_exclusive
        twin = seen.setdefault(hold.fence, hold)
        if twin is not hold and not _goes_on(twin, hold):
            yield f"one fence twice: {hold} — and: {twin}"
        elif before is not None and hold.fence < before.fence:
            yield f"fence went back: {hold} — after: {before}"
        if highest is None or hold.fence > highest.fence:
            highest = hold
        if hold.mode == EXCLUSIVE and (highest_exclusive is None or hold.fence > highest_exclusive.fence):
            highest_exclusive = hold


def _goes_on(before: Hold, hold: Hold) -> bool:
    """A writer that became a reader."""
    downgraded = before.mode == EXCLUSIVE and hold.mode != EXCLUSIVE and before.end <= hold.start
    return downgraded and before.claim_id == hold.claim_id != ""
