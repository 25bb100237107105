"""The waiting threads of one `Locks`, and how a wake-up finds the right one.

Decides: which thread reads the inbox.
Leaves to each backend's inbox: what travels between processes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from lockfast._model import Claim, Grant
from lockfast._reentry import outside
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast.backends.wakeups import WAKE_ALL, Inbox, read_wake_up
from lockfast.backends.wakeups.flood_guard import FloodGuard

_Ready = list[tuple[int, int]]


class _Waiter:
    __slots__ = ("gate", "grant", "woken")

    def __init__(self) -> None:
        # Released when the thread has to wake: it was woken, or can become the leader. Made when it first sleeps there.
        self.gate: threading.Lock | None = None
        self.woken = False
        self.grant: Grant | None = None  # that the last wake-up with one carried

    def wake(self) -> None:
        self.woken = True
        self.open()

    def open(self) -> None:
        if self.gate is not None and self.gate.locked():
            self.gate.release()

    def make_gate(self) -> None:
        """A leader, which no gate holds, has none: most waiters are alone in their process."""
        if self.gate is None:
            gate = threading.Lock()
            if not self.woken:
                gate.acquire()
            self.gate = gate


class BlockingWakeups:
    """One of the waiting threads, the leader, polls the inbox and wakes the others; when it leaves, another one
    takes over. So a wake-up reaches a lone waiter without passing through a second thread.
    """

    def __init__(
        self,
        clock: Clock | None,
        open_inbox: Callable[[], Inbox | None] | None = None,
        flood_guard: FloodGuard | None = None,
    ) -> None:
        """`open_inbox` is called when the first waiter is expected; without it the driver has to `attach` an inbox.

        A `flood_guard` is for an inbox that other users can write to.
        """
        self._clock = clock
        self._flood_guard = flood_guard
        self._now: Callable[[], float] = clock.now if clock is not None else boot_now
        self._open = open_inbox
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._inbox: Inbox | None = None
        self._waiters: dict[str, _Waiter] = {}  # by claim: all that may be woken
        self._followers: dict[str, _Waiter] = {}  # by claim: those that sleep now, without the leader
        self._leader: str | None = None  # the claim whose thread polls the inbox
        self._closed = False

    @property
    def address(self) -> str:
        return self._inbox.address if self._inbox is not None else ""

    def inbox(self) -> Inbox | None:
        """Where wake-ups arrive; made when it is first needed. None once all is closed."""
        with self._mutex:
            return self._open_once() if not self._closed else None

    def _open_once(self) -> Inbox | None:
        if self._inbox is None and self._open is not None:
            self._inbox = self._open()
        return self._inbox

    def expect(self, claim: Claim) -> str:
        with self._mutex:
            inbox = self._inbox if self._closed or self._inbox is not None else self._open_once()
            if claim.id not in self._waiters:
                self._waiters[claim.id] = _Waiter()
            if self._closed:  # while its request was under way: no wake-up comes any more
                self._mark(claim.id)
            return inbox.address if inbox is not None else ""

    def expects(self, claim: Claim) -> bool:
        return claim.id in self._waiters

    def forget(self, claim: Claim) -> None:
        if self._waiters:
            with self._mutex:
                self._mark(claim.id)
                self._waiters.pop(claim.id, None)
                if self._leader == claim.id:
                    self._notify()

    def wake(self, wake_up: str) -> None:
        with self._mutex:
            self._mark(wake_up)
            if self._leader is not None:
                self._notify()  # the waiter may be the leader

    def _mark(self, wake_up: str) -> bool:
        """True if it is for a waiter for which no wake-up was kept yet."""
        if wake_up == WAKE_ALL:
            for waiter in self._waiters.values():
                waiter.wake()
            return False
        claim, grant = read_wake_up(wake_up)
        named = self._waiters.get(claim)
        if named is None:
            return False
        if grant is not None:
            named.grant = grant
        news = not named.woken
        named.woken = True
        if named.gate is not None:
            named.open()
        return news

    def _notify(self) -> None:
        inbox = self._inbox
        if inbox is not None:
            inbox.notify()

    def attach(self, inbox: Inbox) -> None:
        """From now on wake-ups arrive in that inbox."""
        with self._mutex:
            self._inbox = inbox
            if self._leader is None and self._followers:
                next(iter(self._followers.values())).open()

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        id = claim.id
        waiter = self._waiters.get(id)
        if waiter is None:
            return True
        until = self._now() + seconds if self._clock is None else self._clock.deadline(seconds)
        try:
            while not waiter.woken:
                if self._become_leader(id, waiter):
                    self._lead(waiter, until)
                else:
                    self._sleep(waiter, until - self._now())
                if self._now() >= until:
                    break
            if not waiter.woken:
                return False
            waiter.woken = False
            return True if waiter.grant is None else waiter.grant
        finally:
            # Make sure that one thread leads as long as any sleeps.
            with self._mutex:
                if waiter.grant is not None:
                    self._waiters.pop(id, None)
                if self._followers:
                    self._followers.pop(id, None)
                if self._leader == id:
                    self._leader = None
                if self._leader is None:
                    if self._closed:
                        self._close_inbox()
                    elif self._inbox is not None and self._followers:
                        next(iter(self._followers.values())).open()

    def _become_leader(self, id: str, waiter: _Waiter) -> bool:
        with self._mutex:
            if self._leader is not None or self._inbox is None:
                waiter.make_gate()
                self._followers[id] = waiter
                return False
            if self._followers:
                self._followers.pop(id, None)
            self._leader = id
            return True

    def _lead(self, waiter: _Waiter, until: float) -> None:
        inbox = self._inbox
        if inbox is None:
            return
        poll, guard = inbox.poll.poll, self._flood_guard
        while not waiter.woken:
            if guard is not None and (rest := guard.rest()):
                with self._mutex:
                    waiter.make_gate()
                self._sleep(waiter, min(rest, until - self._now()))
            else:
                if self._clock is None:
                    milliseconds = math.ceil((until - self._now()) * 1000)
                    with outside():
                        ready = poll(milliseconds if milliseconds > 0 else 0)
                else:
                    ready = self._poll_by(self._clock, poll, until)
                wake_ups = inbox.read(ready)
                with self._mutex:
                    if guard is not None:
                        guard.has_read(wake_ups, [self._mark(wake_up) for wake_up in wake_ups])
                    else:
                        for wake_up in wake_ups:
                            self._mark(wake_up)
                    if inbox.broken:
                        self._close_inbox()
            if inbox.broken or self._now() >= until:
                return

    def _poll_by(self, clock: Clock, poll: Callable[[], _Ready], until: float) -> _Ready:
        """The sockets that are ready, by a test's clock."""
        cancel = clock.alarm(clock.deadline(until - self._now()), self._notify)
        try:
            with outside():
                return poll()
        finally:
            cancel()

    def _sleep(self, waiter: _Waiter, seconds: float) -> None:
        gate = waiter.gate
        assert gate is not None
        if self._clock is None:
            with outside():
                gate.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
            return
        cancel = self._clock.alarm(self._clock.deadline(seconds), waiter.open)
        try:
            with outside():
                gate.acquire()
        finally:
            cancel()

    def close(self) -> None:
        """Wake all waiters; the inbox is closed once no thread polls it."""
        with self._mutex:
            self._closed = True
            self._mark(WAKE_ALL)
            if self._leader is None:
                self._close_inbox()
            else:
                self._notify()

    def _close_inbox(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None

    def after_fork(self) -> None:
        """In the child: close our copy of the parent's inbox."""
        if self._inbox is not None:
            self._inbox.abandon()
        self._reset()
