"""What is kept for limiters and cells, and how a step on it is decided: pure, and the same for every backend.

Decides: whether a permit is to be had and when, and whether a write goes through.
Leaves to the backends: where it is kept, and how a step is made atomic.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final, Literal, NamedTuple

from lockfast._records import LARGEST_NUMBER, is_count

NANO: Final = 1_000_000_000  # limiters count in whole nanoseconds, so that nothing is lost in rounding
FURTHEST: Final = 2**62  # nanoseconds ahead: nothing is booked as far as that
FAR_VERSION: Final = LARGEST_NUMBER // 2  # no cell is counted on above that: its versions go on at the clock


class Rate(NamedTuple):
    """One permit each `interval` nanoseconds in the long run, and up to `burst` at once after a rest."""

    interval: int
    burst: int


class Allowance(NamedTuple):
    """What a limiter answered. True in an `if` when allowed."""

    allowed: bool
    remaining: int  # permits that could be had at once after this
    retry_after: float  # seconds until it would have been allowed; 0 if it was

    def __bool__(self) -> bool:
        return self.allowed


class Booked(NamedTuple):
    """What `throttle` did: the answer, and the moment up to which the limiter is spoken for."""

    allowance: Allowance
    until: int  # nanoseconds on the store's clock; what gives the permit back if nobody booked after it


def can_be_booked(until: Any, now: float) -> bool:
    """Whether a limiter can be booked up to then; if not, its record is damaged."""
    return until.__class__ is int and until - now * NANO < FURTHEST


def used_up(now: float, rate: Rate) -> int:
    """What takes the place of a damaged booking: as if all permits had just been used, so that none is given twice."""
    return round(now * NANO) + rate.interval * rate.burst


def book(until: int, now: float, rate: Rate, cost: int, patience: float) -> Booked:
    """Take `cost` permits if they are to be had within `patience` seconds (GCRA); `until` is what is booked so far.

    With `patience` the permits are taken now and may be used after `retry_after` seconds.
    """
    now_ns = round(now * NANO)  # cut off, a moment that is told could turn out to be a nanosecond too early
    full = rate.interval * rate.burst
    start = max(until, now_ns)
    after = start + rate.interval * cost
    early = after - full - now_ns  # by how much it comes too early
    if early > round(min(patience, 1e9) * NANO):
        left = max(0, full - (start - now_ns)) // rate.interval
        return Booked(Allowance(False, left, early / NANO), until)
    left = max(0, full - (after - now_ns)) // rate.interval
    return Booked(Allowance(True, left, max(0, early) / NANO), after)


class Pacer:
    """A limiter inside this process, for work that is put off and never refused."""

    __slots__ = ("_rate", "_until")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._until = 0

    def pause(self, now: float, cost: int = 1) -> float:
        """Take the permits; seconds until the work that they are for may begin."""
        allowance, self._until = book(self._until, now, self._rate, cost, inf)
        return allowance.retry_after


class Stored(NamedTuple):
    """What a cell holds."""

    value: str | None = None  # JSON text; None if it was never written, or deleted
    version: int = 0  # 0 for none
    fence: int = 0  # the highest that a write has shown
    writer: str = ""  # the id of the write that made it so
    damage: str = ""  # what of it cannot be read: then only an unconditional delete goes through


NOTHING: Final = Stored()


def as_stored(value: Any, version: Any, fence: Any, writer: Any) -> Stored:
    """What a store gives back, or that it is damaged."""
    if not (is_count(version) and version < LARGEST_NUMBER and is_count(fence) and isinstance(writer, str)):
        return Stored(damage="its version, its fence or its writer cannot be read")
    return Stored(value, version, fence, writer) if isinstance(value, str | None) else Stored(damage="it is not text")


class Write(NamedTuple):
    """One write of one cell. Its id lets it be repeated: the same write is done once."""

    id: str
    value: str | None  # JSON text; None deletes
    if_version: int | None = None  # only if that is the version now; 0 is: only if there is nothing
    fence: int | None = None  # only if no higher one was seen


class Written(NamedTuple):
    """What became of a write."""

    outcome: Literal["written", "conflict", "stale", "damaged"]
    version: int  # as it is now
    fence: int


def last_version(stored: Stored, clock: int) -> int:
    """What later versions are above: its own, or the clock if it is damaged or leaves too little room to count on.

    `clock` is in microseconds, and so above all versions that were counted.
    """
    return clock if stored.damage or stored.version > FAR_VERSION else stored.version


def after(stored: Stored, write: Write, last: int) -> Stored:
    """What the cell holds after a write that goes through; `last` is the last version, its own or a deleted cell's."""
    fence = max(stored.fence, write.fence or 0)
    return Stored(fence=fence) if write.value is None else Stored(write.value, last + 1, fence, write.id)


def decide(stored: Stored, write: Write) -> Written | None:
    """Why the write does not go through, or that it already has; None if it is to be done."""
    if stored.damage:
        plain = write.value is None and write.if_version is None and write.fence is None
        return None if plain else Written("damaged", 0, 0)
    if stored.writer == write.id:
        return Written("written", stored.version, stored.fence)
    if write.fence is not None and write.fence < stored.fence:
        return Written("stale", stored.version, stored.fence)
    if write.if_version is not None and write.if_version != stored.version:
        return Written("conflict", stored.version, stored.fence)
    return None
