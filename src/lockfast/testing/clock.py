"""A clock that stands still until a test moves it.

Decides: from when a sleep counts. A thread or task that computes how long to sleep does so from the time that it last
read. The clock may move before it sleeps, on a busy machine long before: so its sleep counts from that reading, and
ends at once if its time has come meanwhile. Every waiter therefore wakes when `advance` reaches its time, however the
machine schedules it.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count

from lockfast.testing.context_value import ContextValue

_last_read: ContextValue[tuple[FakeClock, float]] = ContextValue("lockfast_clock_last_read")

_Sleeps = Callable[[], bool]
falls_asleep: ContextValue[Callable[[_Sleeps], None]] = ContextValue("lockfast_falls_asleep")
"""Called when this thread or task has set an alarm, with what says whether the clock has yet to wake it."""


class FakeClock:
    """Give it to `connect(..., clock=)`; both the waiting and the expiry of leases then follow it."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._mutex = threading.Lock()
        self._order = count()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._set: set[int] = set()  # ids of alarms that have not rung; one that was taken back stays in the heap
        self._rung: set[int] = set()  # ids of alarms that rang and were not taken back: a sleeper does so when it is up
        self._before_moving: Callable[[], None] | None = None  # called before each step of `advance`

    def now(self) -> float:
        now = self._now
        _last_read.set((self, now))
        return now

    def deadline(self, seconds: float) -> float:
        """When a sleep of that length ends: counted from when this thread or task last read the clock."""
        last = _last_read.get()
        return (last[1] if last is not None and last[0] is self else self._now) + seconds

    def alarm(self, at: float, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` once the clock stands at `at` or later; the answer takes it back."""
        with self._mutex:
            id = next(self._order)
            due = at <= self._now
            if due:
                self._rung.add(id)
            else:
                self._set.add(id)
                heapq.heappush(self._alarms, (at, id, ring))
        if (report := falls_asleep.get()) is not None:
            report(lambda: id in self._set)
        if due:
            ring()
        return lambda: self._cancel(id)

    def _cancel(self, id: int) -> None:
        with self._mutex:
            self._rung.discard(id)
            self._set.discard(id)

    def advance(self, seconds: float) -> None:
        """Let that much time pass, stopping at each alarm on the way so that none sees a later time."""
        self.advance_to(self._now + seconds)

    def advance_to(self, until: float) -> None:
        """As `advance`, up to a moment. Does nothing if that has passed."""
        self._move(until)
        self.now()  # the caller knows what time it is

    def _move(self, until: float) -> None:
        while True:
            if self._before_moving is not None:
                self._before_moving()
            with self._mutex:
                if not self._alarms or self._alarms[0][0] > until:
                    self._now = max(self._now, until)
                    return
                at, id, ring = heapq.heappop(self._alarms)
                if id not in self._set:
                    continue  # it was taken back
                self._now = max(self._now, at)
                self._set.discard(id)
                self._rung.add(id)
            ring()

    @property
    def sleepers(self) -> int:
        """How many wait for the clock to move."""
        with self._mutex:
            return len(self._set)

    @property
    def waking(self) -> int:
        """How many were woken by the clock and are not up yet."""
        with self._mutex:
            return len(self._rung)

    @property
    def alarms(self) -> list[float]:
        """When each sleeper is due."""
        with self._mutex:
            return [at for at, id, _ in self._alarms if id in self._set]

    @property
    def next_alarm(self) -> float | None:
        """When the first waiter is due; None if there is no waiter."""
        return min(self.alarms, default=None)
