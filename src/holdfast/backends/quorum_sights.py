"""What an observer of a quorum sees: a majority's changes, each told once and in order.

Decides: when somebody counts as holding, or as having ceased to, from what each server tells of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast._model import KEPT_CHANGES, Change, Sight
from holdfast.drivers.redis_quorum import has_answered


class Sights:
    """Of one observer."""

    def __init__(self, nodes: int, number: int) -> None:
        self.after = [0] * nodes  # the last change of each node that was heard of
        self._majority = nodes // 2 + 1
        self._number = number
        self._begun: dict[int, set[int]] = {}  # by fence: nodes where that hold began
        self._over: dict[int, set[int]] = {}  # by fence: nodes where it is over
        self._holder: tuple[int, str] | None = None  # whoever was told last to hold, and the fence
        self._untold = True
        self._told: list[Change] = []  # until a later question shows that they arrived

    def see(self, heard: Sequence[Any], after: int) -> Sight:
        self._told = [change for change in self._told if change.number > after]
        for node, sight in enumerate(heard):
            if has_answered(sight):
                for change in sight.changes:
                    self._happened(node, change)
        if self._untold and self._holder is None:
            self._tell(0, None)
        retry_after = min(sight.retry_after for sight in heard if has_answered(sight))
        return Sight(tuple(self._told), retry_after)

    def _happened(self, node: int, change: Change) -> None:
        self.after[node] = change.number
        for fence in self._begun:
            if change.holder is None and change.fence in (0, fence) or change.holder is not None and change.fence != fence:
                self._over.setdefault(fence, set()).add(node)  # where one holds alone, nobody else does
        self._ends()
        if change.holder is not None:
            self._begun.setdefault(change.fence, set()).add(node)
            self._begins(change.fence, change.holder)

    def _begins(self, fence: int, holder: str) -> None:
        newer = self._holder is None or fence > self._holder[0]
        if newer and fence > self._last_fence() and len(self._begun[fence]) >= self._majority:
            if self._holder is not None:
                self._tell(self._holder[0], None)
            self._holder = fence, holder
            self._tell(fence, holder)
            self._forget_before(fence)

    def _ends(self) -> None:
        if self._holder is not None:
            fence = self._holder[0]
            left = self._begun.get(fence, set()) - self._over.get(fence, set())
            if len(left) < self._majority:
                self._ended_fence = fence
                self._holder = None
                self._tell(fence, None)

    _ended_fence = 0  # the last that was told to be over

    def _last_fence(self) -> int:
        return self._ended_fence

    def _forget_before(self, fence: int) -> None:
        self._begun = {each: nodes for each, nodes in self._begun.items() if each >= fence}
        self._over = {each: nodes for each, nodes in self._over.items() if each >= fence}

    def _tell(self, fence: int, holder: str | None) -> None:
        self._number += 1
        self._untold = False
        self._told.append(Change(self._number, fence, holder))
        del self._told[:-KEPT_CHANGES]
