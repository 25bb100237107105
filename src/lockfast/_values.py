"""Limiters and cells: what is stored, and how a step is decided. Pure, and the same for every backend.

Decides: whether and when a permit is given, and whether a write goes through.
Leaves to the backends: where the values are stored, and how a step is made atomic.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final, Literal, NamedTuple

from lockfast._records import LARGEST_NUMBER, is_count

NS_PER_S: Final = 1_000_000_000  # limiters count in whole nanoseconds, so that nothing is lost in rounding
MAX_BOOKED_NS: Final = 2**62  # ahead: a booking that far is damaged
FAR_VERSION: Final = LARGEST_NUMBER // 2  # above this the next version is taken from the clock


class Rate(NamedTuple):
    """One permit every `interval` nanoseconds in the long run, and up to `burst` at once after a pause."""

    interval: int
    burst: int


class Allowance(NamedTuple):
    """The answer of a limiter. True in an `if` when allowed."""

    allowed: bool
    remaining: int  # permits that are available at once after this
    retry_after: float  # seconds until it would have been allowed; 0 if it was

    def __bool__(self) -> bool:
        return self.allowed


class Booked(NamedTuple):
    """The result of `throttle`: the answer, and the moment up to which the limiter is booked."""

    allowance: Allowance
    until: int  # nanoseconds on the store's clock; a permit can be given back while this is the last booking


def can_be_booked(until: Any, now: float) -> bool:
    """Whether a limiter can be booked up to that moment; if not, its record is damaged."""
    return until.__class__ is int and until - now * NS_PER_S < MAX_BOOKED_NS


def used_up(now: float, rate: Rate) -> int:
    """Replaces a damaged booking: all permits count as just used, so that none is given twice."""
    return round(now * NS_PER_S) + rate.interval * rate.burst


def book_permits(until: int, now: float, rate: Rate, cost: int, patience: float) -> Booked:
    """Take `cost` permits if they are free within `patience` seconds (GCRA); `until` is the end of all bookings.

    With `patience` the permits are taken now and may be used after `retry_after` seconds.
    """
    now_ns = round(now * NS_PER_S)  # rounded: truncated, a reported moment could be a nanosecond too early
    full = rate.interval * rate.burst
    start = max(until, now_ns)
    after = start + rate.interval * cost
    early = after - full - now_ns  # nanoseconds until the permits are free
    if early > round(min(patience, 1e9) * NS_PER_S):
        left = max(0, full - (start - now_ns)) // rate.interval
        return Booked(Allowance(False, left, early / NS_PER_S), until)
    left = max(0, full - (after - now_ns)) // rate.interval
    return Booked(Allowance(True, left, max(0, early) / NS_PER_S), after)


class Pacer:
    """A limiter inside this process, for work that is delayed and never refused."""

    __slots__ = ("_rate", "_until")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._until = 0

    def pause(self, now: float, cost: int = 1) -> float:
        """Take the permits; seconds until the work may begin."""
        allowance, self._until = book_permits(self._until, now, self._rate, cost, inf)
        return allowance.retry_after


class Stored(NamedTuple):
    """The content of a cell."""

    value: str | None = None  # JSON text; None if it was never written, or deleted
    version: int = 0  # 0 for none
    fence: int = 0  # the highest of all writes
    writer: str = ""  # the id of the last write
    damage: str = ""  # what cannot be read; then only an unconditional delete goes through


EMPTY_CELL: Final = Stored()


def as_stored(value: Any, version: Any, fence: Any, writer: Any) -> Stored:
    """A cell from the columns of a store, checked."""
    if not (is_count(version) and version < LARGEST_NUMBER and is_count(fence) and isinstance(writer, str)):
        return Stored(damage="its version, its fence or its writer cannot be read")
    return Stored(value, version, fence, writer) if isinstance(value, str | None) else Stored(damage="it is not text")


class Write(NamedTuple):
    """One write of one cell. Its id makes it repeatable: the same write is done once."""

    id: str
    value: str | None  # JSON text; None deletes
    if_version: int | None = None  # only over that version; 0 is: only into an empty cell
    fence: int | None = None  # only if no write had a higher one


class Written(NamedTuple):
    """The outcome of a write."""

    outcome: Literal["written", "conflict", "stale", "damaged"]
    version: int  # of the cell now
    fence: int


def last_version(stored: Stored, clock: int) -> int:
    """Later versions are above this: its own version, or the clock if it is damaged or leaves too little room.

    `clock` is in microseconds, and so above every version that was counted.
    """
    return clock if stored.damage or stored.version > FAR_VERSION else stored.version


def apply_write(stored: Stored, write: Write, last: int) -> Stored:
    """The cell after a write that goes through; `last` is its last version, or that of the deleted cell."""
    fence = max(stored.fence, write.fence or 0)
    return Stored(fence=fence) if write.value is None else Stored(write.value, last + 1, fence, write.id)


def check_write(stored: Stored, write: Write) -> Written | None:
    """The outcome of a write that does not go through, or already has; None if it has to be done."""
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
