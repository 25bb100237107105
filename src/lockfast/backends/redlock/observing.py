"""What an observer of a quorum sees: a majority's changes, each reported once and in order.

Decides: when a holder counts as holding, or its hold as over, from the changes that each server reports.
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
    """A holder that begins twice in a row was given another fence, which a majority agreed on: only that one counts."""
    return [
        change
        for change, later in zip_longest(changes, changes[1:])
        if change.holder is None or later is None or later.holder is None
    ]


class Observations:
    """Of one observer."""

    def __init__(self, nodes: int, number: int) -> None:
        self.after = [0] * nodes  # the last change that each node reported
        self._majority = nodes // 2 + 1
        self._number = number
        self._begun: dict[int, set[int]] = {}  # by fence: nodes where that hold began
        self._over: dict[int, set[int]] = {}  # by fence: nodes where it is over
        self._open = [0] * nodes  # the fence of the holder there
        self._last = 0  # the fence of the holder that was reported last
        self._holds = False  # and it is not reported as over
        self._is_new = True
        self._reported: list[Change] = []  # until a later question shows that they arrived

    def see(self, results: Sequence[Any], after: int) -> Observation:
        self._reported = [change for change in self._reported if change.number > after]
        observations = [(node, observation) for node, observation in enumerate(results) if has_answered(observation)]
        seen = [
            (node, change)
            for node, observation in observations
            for change in _without_first_fences(observation.changes)
        ]
        for node, change in sorted(seen, key=_in_order):  # as it happened, whichever server reports it
            self._happened(node, change)
        if self._is_new:
            self._report(0, None)
        retry_after = min(observation.retry_after for observation in results if has_answered(observation))
        return Observation(tuple(self._reported), retry_after)

    def _happened(self, node: int, change: Change) -> None:
        self.after[node] = max(self.after[node], change.number)
        before, self._open[node] = self._open[node], change.fence if change.holder is not None else 0
        if change.holder is not None:
            if before in self._begun:
                self._begun[before].discard(node)  # it has another fence now, or ended unobserved
            self._begun.setdefault(change.fence, set()).add(node)
            self._begins(change.fence, change.holder)
            return
        for fence in [change.fence] if change.fence else self._begun:  # without a fence: no claim holds it there
            self._over.setdefault(fence, set()).add(node)
        self._ends()

    def _begins(self, fence: int, holder: str) -> None:
        """The holder before it is over then, reported or not: a server that forgot this observer begins with now."""
        if fence > self._last and len(self._begun[fence]) >= self._majority:
            self._last = fence
            self._holds = True
            self._report(fence, holder)
            self._begun = {each: nodes for each, nodes in self._begun.items() if each >= fence}
            self._over = {each: nodes for each, nodes in self._over.items() if each >= fence}

    def _ends(self) -> None:
        left = self._begun.get(self._last, set()) - self._over.get(self._last, set())
        if self._holds and len(left) < self._majority:
            self._holds = False
            self._report(self._last, None)

    def _report(self, fence: int, holder: str | None) -> None:
        self._number += 1
        self._is_new = False
        self._reported.append(Change(self._number, fence, holder))
        del self._reported[:-MAX_KEPT_CHANGES]
