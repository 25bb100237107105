"""What an observer of a quorum sees: a majority's changes, each told once and in order.

Decides: when somebody counts as holding, or as having ceased to, from what each server tells of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from lockfast._model import MAX_KEPT_CHANGES, Change, Observation
from lockfast.backends.redlock.io.fanout import has_answered


def _in_order(seen: tuple[int, Change]) -> tuple[int, bool]:
    return seen[1].fence, seen[1].holder is None


def _without_first_fences(changes: Sequence[Change]) -> list[Change]:
    """Whoever begins to hold twice was given another fence, which a majority agreed on: only that counts."""
    return [
        change
        for change, later in zip_longest(changes, changes[1:])
        if change.holder is None or later is None or later.holder is None
    ]


class Observations:
    """Of one observer."""

    def __init__(self, nodes: int, number: int) -> None:
        self.after = [0] * nodes  # the last change of each node that was heard of
        self._majority = nodes // 2 + 1
        self._number = number
        self._begun: dict[int, set[int]] = {}  # by fence: nodes where that hold began
        self._over: dict[int, set[int]] = {}  # by fence: nodes where it is over
        self._open = [0] * nodes  # the fence of whoever holds there
        self._last = 0  # the fence of whoever was told last to hold
        self._holds = False  # and is not told to be over
        self._untold = True
        self._told: list[Change] = []  # until a later question shows that they arrived

    def see(self, results: Sequence[Any], after: int) -> Observation:
        self._told = [change for change in self._told if change.number > after]
        observations = [(node, observation) for node, observation in enumerate(results) if has_answered(observation)]
        seen = [
            (node, change)
            for node, observation in observations
            for change in _without_first_fences(observation.changes)
        ]
        for node, change in sorted(seen, key=_in_order):  # as it happened, whoever tells it
            self._happened(node, change)
        if self._untold:
            self._tell(0, None)
        retry_after = min(observation.retry_after for observation in results if has_answered(observation))
        return Observation(tuple(self._told), retry_after)

    def _happened(self, node: int, change: Change) -> None:
        self.after[node] = max(self.after[node], change.number)
        before, self._open[node] = self._open[node], change.fence if change.holder is not None else 0
        if change.holder is not None:
            if before in self._begun:
                self._begun[before].discard(node)  # it goes by another fence now, or ended while nobody looked
            self._begun.setdefault(change.fence, set()).add(node)
            self._begins(change.fence, change.holder)
            return
        for fence in [change.fence] if change.fence else self._begun:  # without a fence: nobody holds it there
            self._over.setdefault(fence, set()).add(node)
        self._ends()

    def _begins(self, fence: int, holder: str) -> None:
        """Whoever held before is over then too, told or not: a server that forgot us begins with what is true."""
        if fence > self._last and len(self._begun[fence]) >= self._majority:
            self._last = fence
            self._holds = True
            self._tell(fence, holder)
            self._begun = {each: nodes for each, nodes in self._begun.items() if each >= fence}
            self._over = {each: nodes for each, nodes in self._over.items() if each >= fence}

    def _ends(self) -> None:
        left = self._begun.get(self._last, set()) - self._over.get(self._last, set())
        if self._holds and len(left) < self._majority:
            self._holds = False
            self._tell(self._last, None)

    def _tell(self, fence: int, holder: str | None) -> None:
        self._number += 1
        self._untold = False
        self._told.append(Change(self._number, fence, holder))
        del self._told[:-MAX_KEPT_CHANGES]
