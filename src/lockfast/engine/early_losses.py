"""Losses that a backend reports before the lease is kept: its session ended just after the grant.

Decides: how many are remembered, since the lease may never come.
"""

from __future__ import annotations

from typing import Final

MAX_EARLY_LOSSES: Final = 1000


class EarlyLosses(dict[tuple[str, int], str]):
    """By claim id and fence: the same claim may be granted again later. With the reason of each."""

    def add(self, held: tuple[str, int], reason: str) -> None:
        self[held] = reason
        while len(self) > MAX_EARLY_LOSSES:
            self.pop(next(iter(self)))
