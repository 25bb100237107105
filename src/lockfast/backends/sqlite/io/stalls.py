"""A disk that stalls: when requests leave the thread of the event loop.

Decides: how long requests may stop the loop in all, and how long they stay away after that.
Leaves to the driver: what is timed, and which other thread runs them meanwhile.

A busy machine takes the CPU from any thread, even for a hundred milliseconds, and another thread is no better off.
So only requests that have waited for something count, where the system reports that. One slow request says little, so
their times are added up, and the sum decays slowly.
"""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable
from typing import Final

SLOW_S: Final = 0.05  # a request that takes longer stops the loop
ALLOWED_S: Final = 0.2  # for which slow requests may stop the loop, in all
FORGOTTEN_PER_S: Final = 0.01  # decay of that sum
AWAY_S: Final = 10.0  # the first time; doubled if the loop is stopped again soon after they are back
MAX_AWAY_S: Final = 160.0


def _waits_of_thread() -> Callable[[], int]:
    if not hasattr(resource, "RUSAGE_THREAD"):  # macOS: every slow request may have waited
        return itertools.count().__next__
    usage, of_thread = resource.getrusage, resource.RUSAGE_THREAD
    return lambda: usage(of_thread).ru_nvcsw


waits = _waits_of_thread()  # how often this thread has waited, for the disk or another thread; costs 0.5 µs


class Stalls:
    """The stalls of one connection, on the clock of its caller."""

    def __init__(self) -> None:
        self._stopped_s = 0.0  # by slow requests, as of `_as_of`
        self._as_of = 0.0
        self._away_s = 0.0
        self._away_until = 0.0

    def avoid_loop(self, now: float) -> bool:
        return now < self._away_until

    def took(self, seconds: float, now: float) -> None:
        """A request that ran in the loop, and waited, ended at `now`."""
        if seconds < SLOW_S:
            return
        remembered = self._stopped_s - (now - self._as_of) * FORGOTTEN_PER_S
        self._stopped_s, self._as_of = max(0.0, remembered) + seconds, now
        if self._stopped_s >= ALLOWED_S:
            self._stopped_s = ALLOWED_S
            again = now < self._away_until + self._away_s
            self._away_s = min(MAX_AWAY_S, 2 * self._away_s) if again else AWAY_S
            self._away_until = now + self._away_s
