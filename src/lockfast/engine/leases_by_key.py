"""The leases that a keeper keeps, found by their keys.

Decides: when a lease is filed. Most are released before a caller looks for their key, and are never filed.
Leaves to `living`: what is asked of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockfast.engine.lease import Lease

if TYPE_CHECKING:
    from lockfast._model import Terms
    from lockfast._reentry import Mutex


class LeasesByKey:
    """Each lease is filed once at most, so that a lookup costs the same however many leases are held."""

    def __init__(self, mutex: Mutex) -> None:
        self._mutex: Final = mutex
        self.unfiled: dict[str, Lease] = {}  # by claim id: kept since the last lookup. The keeper adds and removes
        # By key, and whether they have a limit; then by claim id. None of them stays empty.
        self._filed: dict[tuple[str, bool], dict[str, Lease]] = {}

    def beside(self, terms: Terms) -> list[Lease]:
        """The leases of that key, without a semaphore's permits for a claim to another permit: there may be many."""
        while self.unfiled:
            with self._mutex:
                if self.unfiled:  # else another thread has filed the last one
                    id, lease = self.unfiled.popitem()
                    self._filed.setdefault(_place(lease._claim.terms), {})[id] = lease
        found: list[Lease] = []
        for limited in (False,) if terms.limit is not None else (False, True):
            found += self._filed.get((terms.key, limited), {}).values()
        return found

    def remove(self, lease: Lease) -> None:
        """It was not among `unfiled`, so it is filed, or another thread is filing it."""
        place = _place(lease._claim.terms)
        with self._mutex:
            same = self._filed.get(place)
            if same is not None and same.pop(lease._claim.id, None) is not None and not same:
                del self._filed[place]


def _place(terms: Terms) -> tuple[str, bool]:
    return terms.key, terms.limit is not None
