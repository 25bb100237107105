"""How long to pause before a request to a server that could not be reached is repeated.

Decides: what a caller may choose of it, and today's values.
Leaves to the caller of `pause`: what is repeated, and when to give up.
"""

from __future__ import annotations

from typing import NamedTuple

from lockfast._text import shown
from lockfast._time import Seconds, length, pause_before_retry


class _Values(NamedTuple):
    base: float
    cap: float
    jitter: float


class Backoff(_Values):
    """Pauses that double after each failure, from about `base` seconds up to `cap` seconds.

    `jitter` is the part of a pause that chance decides, from 0 to 1: clients that failed together do not come back
    together. Raises ValueError for a base or a cap that is no positive length of time, a cap below the base, and a
    jitter outside of that range.
    """

    __slots__ = ()

    def __new__(cls, base: Seconds = 0.02, cap: Seconds = 1.0, jitter: float = 1.0) -> Backoff:
        base = length(base, "Backoff(base)")
        cap = length(cap, "Backoff(cap)", least=base)
        given: object = jitter
        if not isinstance(given, int | float) or not 0 <= given <= 1:
            raise ValueError(f"Backoff(jitter) must be a number from 0 to 1, not {shown(given)}")
        return super().__new__(cls, base, cap, float(jitter))

    def pause(self, attempt: int, chance: float) -> float:
        """Seconds before that attempt is repeated; the first is 1, and `chance` a random number in [0, 1)."""
        return pause_before_retry(attempt, chance, base=self.base, cap=self.cap, jitter=self.jitter)
