"""One thread at a time does something, and the others wait for it no longer than they have time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_turn(turn: threading.RLock, within: float, work: Callable[[], T]) -> T | None:
    """What `work` gives, done by one thread at a time; None if its turn has not come in time.

    An interrupt can fall between any two instructions, and only `with` minds a lock from the moment that it is taken.
    But it knows no limit of time: so the lock is taken twice, and in between an interrupt is minded by us.
    """
    ours = turn._is_owned()  # type: ignore[attr-defined]  # by an outer call of this thread
    try:
        if not turn.acquire(timeout=within):
            return None
        with turn:
            turn.release()
            return work()
    except BaseException:
        if not ours and turn._is_owned():  # type: ignore[attr-defined]
            turn.release()
        raise
