"""Lengths of time, deadlines and pauses: pure functions, and the one clock.

Decides: what counts as a length of time, how long to pause before a retry, which clock is used.
Leaves to the worlds: how to wait.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from lockfast._text import shown

Seconds = int | float | timedelta
FOREVER: Final = math.inf  # a deadline that never comes
_MIN_LEFT_S: Final = 0.01


def _boot_clock() -> Callable[[], float]:
    """A monotonic clock that goes on while the machine sleeps, where the platform has one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":  # there CLOCK_MONOTONIC counts sleep and time.monotonic() does not
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    return time.monotonic


boot_now = _boot_clock()


def time_left(until: float) -> float:
    """Seconds for the next request of a verb that has sent one already."""
    return max(_MIN_LEFT_S, until - boot_now())


def length(value: Seconds, what: str, *, least: float = 0.0, most: float = math.inf, zero: bool = False) -> float:
    """Seconds as a float. Raises ValueError, naming `what`, unless positive (or zero if allowed) and in bounds."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be seconds (int, float or timedelta), not {shown(value)}")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{what} must be {'zero or ' if zero else ''}a positive number of seconds, not {shown(value)}")
    if value < least and not (zero and value == 0):
        raise ValueError(f"{what} must be at least {least:g} seconds here, not {shown(value)}")
    if value > most:
        raise ValueError(f"{what} must be at most {most:g} seconds here, not {shown(value)}")
    return value


def format_duration(seconds: float) -> str:
    """A length of time for a message: 10s, 1.5s, 20ms."""
    return f"{seconds:.3g}s" if seconds >= 1 else f"{seconds * 1000:.3g}ms"


def pause_before_retry(
    attempt: int, chance: float, *, base: float = 0.02, cap: float = 1.0, jitter: float = 1.0
) -> float:
    """Exponential backoff with jitter: clients that failed together do not retry together.

    `jitter` is the part of the pause that chance decides.

    `chance` is a random number in [0, 1), given by the caller's world so that a simulation can repeat it.
    """
    most = min(cap, base * 2.0 ** min(attempt, 16))
    return base / 2 + (most - base / 2) * (1 - jitter + jitter * chance)


def full_jitter(attempt: int, chance: float, *, base: float = 0.005, cap: float = 1.0) -> float:
    """A random part of the pause of exponential backoff, which spreads clients that collided the widest."""
    return chance * min(cap, base * 2.0 ** min(attempt, 16))


def first_fence() -> int:
    """Where a new store starts to count its fences.

    Microseconds since the epoch: a store that was deleted and made anew goes on above its old fences, as
    long as fewer than a million grants a second were made and the wall clock was not set back. Below
    2**53 until the year 2255, so it survives JSON and floats.
    """
    return time.time_ns() // 1000
