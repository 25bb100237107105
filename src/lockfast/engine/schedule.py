"""When each lease is due: for a renewal, or for its deadline.

Decides: how often a lease is renewed, how soon again after a failure, and when it is not renewed any more.
Leaves to the keeper: what is done when that time has come.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Final

from lockfast._time import pause_before_retry
from lockfast.engine.lease import Lease

NEVER: Final = float("inf")
WATCHED: Final = ("held", "releasing")
INTERVALS_IN_TTL: Final = 3  # so that two renewals may fail, unless the caller chose another interval
EARLY_RATIO: Final = 0.15  # of an interval: leases due this soon are renewed along, so that renewals come in batches
MAX_ENDED: Final = 100  # leases that are over and may stay in a schedule, beside as many as are held


def renewal_interval(lease: Lease) -> float:
    """Seconds from one renewal to the next."""
    chosen = lease._request.renew_every
    ttl = lease._ttl  # which `extend` may have made shorter than that
    return ttl / INTERVALS_IN_TTL if chosen is None or chosen >= ttl else chosen


class RenewalState:
    """What the keeper knows of a lease beside what the lease itself says."""

    __slots__ = (
        "asked_at",
        "due_at",
        "failure",
        "failures",
        "interval",
        "lease",
        "renew_at",
        "renew_until",
        "renewable_at",
        "renewing",
    )

    def __init__(self, lease: Lease) -> None:
        request = lease._request
        longest = NEVER if request.max_hold is None else request.max_hold
        self.lease = lease
        self.interval = renewal_interval(lease)
        self.renew_until = lease._granted_at + (longest if request.renew else -NEVER)
        self.due_at = 0.0  # where it stands in the schedule
        self.renewing = False  # a request of the keeper's is under way
        self.asked_at = lease._asked_at  # when the last request was sent that has come through
        self.renewed(lease._asked_at)

    def renewed(self, asked_at: float) -> None:
        if asked_at < self.asked_at:
            return  # it was renewed since, while the answer to that request was on its way
        self.asked_at = asked_at
        self.failures = 0  # renewals that failed since the last that did not
        self.failure = ""  # why the last of them failed
        self.renew_at = asked_at + self.interval
        self.renewable_at = self.renew_at - self.interval * EARLY_RATIO  # along with others that are due

    def failed(self, now: float, chance: float, failure: str) -> None:
        """Longer after each failure, and shorter again towards the deadline: a late recovery is still in time."""
        self.failures += 1
        self.failure = failure
        ttl = self.lease._ttl
        pause = pause_before_retry(self.failures, chance, base=ttl / 60, cap=ttl / 10)
        self.renew_not_before(now + max(ttl / 200, min(pause, (self.lease._deadline - now) / 2)))

    def renew_not_before(self, at: float) -> None:
        self.renew_at = self.renewable_at = at


class Schedule:
    """The leases of one keeper in the order in which they are due. Only the keeper's loop uses it.

    Leases that are renewed together fall due together, so the heap has an entry for each group of them.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, list[RenewalState]]] = []
        self._size = 0  # leases in it
        self._tiebreak = count()

    def first(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def add(self, later: dict[float, list[RenewalState]], held: int) -> None:
        """Each group at its time; that many leases are held in all."""
        for due_at, group in later.items():
            heapq.heappush(self._heap, (due_at, next(self._tiebreak), group))
            self._size += len(group)
        if self._size > 2 * held + MAX_ENDED:
            self._clear_out()

    def take(self, now: float) -> list[RenewalState]:
        """The next group that is due, if any."""
        while self._heap and self._is_due(*self._heap[0], now):
            due_at, _, group = heapq.heappop(self._heap)
            self._size -= len(group)
            group = [state for state in group if state.due_at == due_at]  # the others stand elsewhere by now
            if group:
                return group
        return []

    def _is_due(self, due_at: float, _: int, group: list[RenewalState], now: float) -> bool:
        first = group[0]
        return due_at <= now or (due_at == first.due_at == first.renew_at and first.renewable_at <= now)

    def _clear_out(self) -> None:
        """Leases that were released long before they were due, or that stand elsewhere."""
        kept = (
            (due_at, number, [state for state in group if state.due_at == due_at and state.lease._state in WATCHED])
            for due_at, number, group in self._heap
        )
        self._heap = [entry for entry in kept if entry[2]]
        heapq.heapify(self._heap)
        self._size = sum(len(group) for _, _, group in self._heap)

    def clear(self) -> None:
        self._heap.clear()
        self._size = 0
