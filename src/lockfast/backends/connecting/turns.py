"""One thread at a time does a piece of work; the others wait for it as long as their time allows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_turn(turn: threading.RLock, within: float, work: Callable[[], T]) -> T | None:
    """The result of `work`, which one thread at a time runs; None if the turn of this thread did not come in time.

    An interrupt can fall between any two instructions, and only `with` guards a lock from the moment that it is taken.
    But `with` has no timeout: so the lock is taken twice, and an interrupt in between is handled here.
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
