"""Connection sets that no thread uses, and the threads that wait for one.

Decides: which thread gets a set that is put back, and which thread connects. Hundreds of threads that begin at the same
moment are served soonest if few of them connect, and if those that have been served go to the end of the queue.
Leaves to `blocking`: how a set is filled with connections, and how long a thread waits.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from lockfast.backends.redlock.io.connections import ConnectionSet

USUAL_CONNECTING: Final = 1  # thread that fills a new set at a time
MAX_CONNECTING: Final = 2  # where a thread has waited for long: servers that are far away take their time


class WaitingThread:
    """A thread that waits for a set."""

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[ConnectionSet | None] = queue.SimpleQueue()  # None: it is to connect
        self.is_late = False  # it has waited for long


class IdleSets:
    def __init__(self) -> None:
        self._sets: list[ConnectionSet] = []  # the one that was used last is the last
        # Those on which a vote may be under way, which the next request for its claim must not overtake: they are taken
        # last, the oldest first.
        self._late: list[ConnectionSet] = []
        self._mutex = threading.Lock()  # held while sets are given to waiters
        self._waiting: deque[WaitingThread] = deque()  # in the order in which they came; no set is idle meanwhile
        self._connecting = WeakSet[WaitingThread]()  # a thread that is interrupted may not say that it is over
        self._closed = False

    def __len__(self) -> int:
        return len(self._sets) + len(self._late)

    @property
    def connecting(self) -> int:
        """How many threads fill a new set."""
        return len(self._connecting)

    def __iter__(self) -> Iterator[ConnectionSet]:
        return iter([*self._sets, *self._late])

    def take(self) -> ConnectionSet | None:
        try:
            return self._sets.pop()
        except IndexError:
            pass
        try:
            late = self._late.pop(0)
        except IndexError:
            return None
        late.read_replies(0.0)  # a vote that has arrived cannot be overtaken any more
        return late

    def take_this(self, connections: ConnectionSet) -> bool:
        """False if a thread uses it."""
        for sets in (self._late, self._sets):
            try:
                sets.remove(connections)
            except ValueError:
                continue
            return True
        return False

    def take_unused(self, since: float) -> ConnectionSet | None:
        """The one that was used longest ago, if that was before `since`."""
        for sets in (self._sets, self._late):
            with suppress(IndexError):  # other threads may have taken all of them
                if sets[0].used_at < since:
                    return sets.pop(0)
        return None

    def put(self, connections: ConnectionSet, *, is_late: bool = False) -> None:
        (self._late if is_late else self._sets).append(connections)
        if self._waiting:
            self._distribute()

    def wait(self, waiter: WaitingThread, patience: float, seconds: float) -> ConnectionSet | None:
        """A set that another thread puts back; None if this one is to connect, after `seconds` at the latest.

        After its patience it may connect although another thread does. While it connects, sets go to others.
        `leave` has to be called in any case.
        """
        self._waiting.append(waiter)
        for left in (patience, seconds - patience):
            self._distribute()
            with suppress(queue.Empty):
                return waiter.given.get(timeout=max(0.0, left))
            waiter.is_late = True
        with self._mutex, suppress(ValueError):
            self._waiting.remove(waiter)
        with suppress(queue.Empty):  # it was given one meanwhile
            return waiter.given.get_nowait()
        return None

    def leave(self, waiter: WaitingThread) -> None:
        """It waits and connects no longer."""
        with self._mutex:
            self._connecting.discard(waiter)
            with suppress(ValueError):
                self._waiting.remove(waiter)
            with suppress(queue.Empty):
                while True:
                    if (unused := waiter.given.get_nowait()) is not None:
                        self._sets.append(unused)
        self._distribute()

    def _distribute(self) -> None:
        with self._mutex:
            while self._waiting:
                waiter = self._waiting[0]
                connections = self.take()
                if connections is None:
                    if self.connecting >= (MAX_CONNECTING if waiter.is_late else USUAL_CONNECTING) and not self._closed:
                        return
                    self._connecting.add(waiter)
                waiter.given.put(connections)  # an interrupt from here on: `leave` puts back what is given twice
                self._waiting.popleft()

    def close(self) -> None:
        self._closed = True
        self._distribute()
