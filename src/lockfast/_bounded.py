"""What a process remembers of claims and names that it may never meet again: bounded, whatever its users do.

Decides: which entry makes room for a new one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedSet(set[K]):
    """At most `most` members: a new one replaces any other."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def add(self, member: K, /) -> None:
        if len(self) >= self._most and member not in self:
            self.pop()
        super().add(member)

    def keep(self, member: K, wanted: bool) -> None:
        """Add it if it is wanted, else discard it."""
        if wanted:
            self.add(member)
        else:
            self.discard(member)


class BoundedDict(dict[K, V]):
    """At most `most` entries: a new one replaces the oldest."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V, /) -> None:
        if len(self) >= self._most and key not in self:
            with suppress(StopIteration, RuntimeError):  # another thread makes room too
                self.pop(next(iter(self)), None)
        super().__setitem__(key, value)
