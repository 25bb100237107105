"""A disk that stalls: when requests stay away from the thread of the event loop.

Decides: how long requests may have stopped the loop, and for how long they stay away after that.
Leaves to the driver: what is timed, and which other thread runs them meanwhile.

A busy machine takes the CPU from any thread, for a hundred milliseconds too, and no other thread is better off. So
only requests count that have waited for something, where the system can tell. One of them says little, so their time
is added up, and forgotten slowly.
"""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable
from typing import Final

SLOW_S: Final = 0.05  # a request that takes longer has stopped the loop
ALLOWED_S: Final = 0.2  # that it may have been stopped for, in all
FORGOTTEN_PER_S: Final = 0.01  # of that
AWAY_S: Final = 10.0  # after the first time; twice as long if it is stopped again as soon as they are back
MAX_AWAY_S: Final = 160.0


def _waits_of_thread() -> Callable[[], int]:
    if not hasattr(resource, "RUSAGE_THREAD"):  # macOS: then each slow request may have waited
        return itertools.count().__next__
    usage, of_thread = resource.getrusage, resource.RUSAGE_THREAD
    return lambda: usage(of_thread).ru_nvcsw


waits = _waits_of_thread()  # how often this thread has waited so far, for the disk or another thread; costs 0.5 µs


class Stalls:
    """Of one connection, by the clock of its caller."""

    def __init__(self) -> None:
        self._stopped_s = 0.0  # for how long slow requests have stopped the loop, as of then
        self._as_of = 0.0
        self._away_s = 0.0
        self._away_until = 0.0

    def avoid_loop(self, now: float) -> bool:
        return now < self._away_until

    def took(self, seconds: float, now: float) -> None:
        """A request in the loop that has waited is over at `now`."""
        if seconds < SLOW_S:
            return
        remembered = self._stopped_s - (now - self._as_of) * FORGOTTEN_PER_S
        self._stopped_s, self._as_of = max(0.0, remembered) + seconds, now
        if self._stopped_s >= ALLOWED_S:
            self._stopped_s = ALLOWED_S
            again = now < self._away_until + self._away_s
            self._away_s = min(MAX_AWAY_S, 2 * self._away_s) if again else AWAY_S
            self._away_until = now + self._away_s
