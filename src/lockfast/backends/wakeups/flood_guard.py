"""An inbox that any process of the host can write to: when it is left unread.

Decides: which readings were in vain, and how many of them a second are worth the CPU.
Leaves to the two drivers: how the socket is left unread. Datagrams stay in the kernel's queue; if that is full, all
waiters are woken when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lockfast._time import boot_now
from lockfast._values import NS_PER_S, Pacer, Rate
from lockfast.backends.wakeups import WAKE_ALL

IN_VAIN: Final = Rate(NS_PER_S // 500, 500)  # 500 readings a second in the long run: two percent of a core
COST_OF_WAKE_ALL: Final = 125  # so at most four a second: a wake-up that did not fit is late by 0.25 s at most


class FloodGuard:
    """A reading is in vain unless it wakes a waiter by its claim that was not woken already."""

    def __init__(self, now: Callable[[], float] = boot_now) -> None:
        self._now = now
        self._pacer = Pacer(IN_VAIN)
        self._unread_until = 0.0

    def has_read(self, texts: Sequence[str], woken: Sequence[bool]) -> None:
        """The texts of one reading, and for each whether it has woken a waiter."""
        if texts and not any(woken):
            now = self._now()
            self._unread_until = now + self._pacer.pause(now, COST_OF_WAKE_ALL if WAKE_ALL in texts else 1)

    def rest(self) -> float:
        """For how many seconds the inbox has to be left unread from now on."""
        return max(0.0, self._unread_until - self._now()) if self._unread_until else 0.0
