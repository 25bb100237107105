"""Where the waiters of one `Locks` sleep, and how a wake-up finds the right one.

Decides: which thread reads the mailbox.
Leaves to each technology's mailbox: what travels between processes.
"""

from __future__ import annotations

import math
import select
import threading
from collections.abc import Callable

from lockfast._model import Claim
from lockfast._reentry import outside
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast.backends.wakeups import LOOK_ALL, Postbox
from lockfast.backends.wakeups.flood_guard import FloodGuard


class _Seat:
    __slots__ = ("gate", "woken")

    def __init__(self) -> None:
        self.gate = threading.Lock()  # open when there is a reason to look up: woken, or to become the leader
        self.gate.acquire()
        self.woken = False

    def wake(self) -> None:
        self.woken = True
        self.open()

    def open(self) -> None:
        if self.gate.locked():
            self.gate.release()


class BlockingWakes:
    """One of the waiting threads, the leader, sleeps at the mailbox and wakes the others; when it goes, another
    takes its place. So a wake-up reaches a lone waiter without passing through a second thread.
    """

    def __init__(
        self,
        clock: Clock | None,
        open_mailbox: Callable[[], Postbox | None] | None = None,
        flood_guard: FloodGuard | None = None,
    ) -> None:
        """`open_mailbox` is called when the first waiter is expected; without one, somebody has to `move_in`.

        A `flood_guard` is for a mailbox that strangers can write to.
        """
        self._clock = clock
        self._flood_guard = flood_guard
        self._now: Callable[[], float] = clock.now if clock is not None else boot_now
        self._open = open_mailbox
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._mailbox: Postbox | None = None
        self._seats: dict[str, _Seat] = {}  # by claim: everybody who may be woken
        self._followers: dict[str, _Seat] = {}  # those who sleep now, besides the leader
        self._leader: str | None = None  # the claim of whoever sleeps at the mailbox
        self._closed = False

    @property
    def address(self) -> str:
        return self._mailbox.address if self._mailbox is not None else ""

    def expect(self, claim: Claim) -> str:
        with self._mutex:
            if self._mailbox is None and self._open is not None:
                self._mailbox = self._open()
            if claim.id not in self._seats:
                self._seats[claim.id] = _Seat()
            return self.address

    def expects(self, claim: Claim) -> bool:
        return claim.id in self._seats

    def forget(self, claim: Claim) -> None:
        if self._seats:
            with self._mutex:
                self._mark(claim.id)
                self._seats.pop(claim.id, None)
                if self._leader == claim.id:
                    self._ring()

    def wake(self, claim: str) -> None:
        with self._mutex:
            self._mark(claim)
            if self._leader is not None:
                self._ring()  # the seat may be the leader's

    def _mark(self, claim: str) -> bool:
        """True if it names a waiter, for which no wake-up was kept yet."""
        if claim == LOOK_ALL:
            for seat in self._seats.values():
                seat.wake()
            return False
        named = self._seats.get(claim)
        if named is None:
            return False
        news = not named.woken
        named.wake()
        return news

    def _ring(self) -> None:
        mailbox = self._mailbox
        if mailbox is not None:
            mailbox.ring()

    def move_in(self, mailbox: Postbox) -> None:
        """From now on wake-ups arrive there."""
        with self._mutex:
            self._mailbox = mailbox
            if self._leader is None and self._followers:
                next(iter(self._followers.values())).open()

    async def wait(self, claim: Claim, seconds: float) -> bool:
        seat = self._seats.get(claim.id)
        if seat is None:
            return True
        until = self._now() + seconds if self._clock is None else self._clock.deadline(seconds)
        try:
            while not seat.woken:
                if self._take_the_lead(claim.id, seat):
                    self._lead(seat, until)
                else:
                    self._sleep(seat, until - self._now())
                if self._now() >= until:
                    break
            woken, seat.woken = seat.woken, False
            return woken
        finally:
            self._leave(claim.id)

    def _take_the_lead(self, id: str, seat: _Seat) -> bool:
        with self._mutex:
            if self._leader is not None or self._mailbox is None:
                self._followers[id] = seat
                return False
            self._followers.pop(id, None)
            self._leader = id
            return True

    def _lead(self, seat: _Seat, until: float) -> None:
        mailbox = self._mailbox
        if mailbox is None:
            return
        poll, guard = mailbox.poll, self._flood_guard
        while not seat.woken:
            rest = guard.rest() if guard is not None else 0.0
            if rest:
                self._sleep(seat, min(rest, until - self._now()))
            else:
                claims = mailbox.read(self._sleep_at(poll, until - self._now()))
                with self._mutex:
                    woken = [self._mark(claim) for claim in claims]
                    if guard is not None:
                        guard.has_read(claims, woken)
                    if mailbox.broken:
                        self._put_away()
            if mailbox.broken or self._now() >= until:
                return

    def _sleep_at(self, poll: select.poll, seconds: float) -> list[tuple[int, int]]:
        """Which of the sockets there is something at."""
        if self._clock is None:
            with outside():
                return poll.poll(max(0, math.ceil(seconds * 1000)))
        cancel = self._clock.alarm(self._clock.deadline(seconds), self._ring)
        try:
            with outside():
                return poll.poll()
        finally:
            cancel()

    def _sleep(self, seat: _Seat, seconds: float) -> None:
        if self._clock is None:
            with outside():
                seat.gate.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
            return
        cancel = self._clock.alarm(self._clock.deadline(seconds), seat.open)
        try:
            with outside():
                seat.gate.acquire()
        finally:
            cancel()

    def _leave(self, id: str) -> None:
        """See to it that somebody leads as long as anybody sleeps."""
        with self._mutex:
            self._followers.pop(id, None)
            if self._leader == id:
                self._leader = None
            if self._leader is None:
                if self._closed:
                    self._put_away()
                elif self._mailbox is not None and self._followers:
                    next(iter(self._followers.values())).open()

    def close(self) -> None:
        """Everybody who waits looks up; the mailbox goes when nobody sleeps at it any more."""
        with self._mutex:
            self._closed = True
            self._mark(LOOK_ALL)
            if self._leader is None:
                self._put_away()
            else:
                self._ring()

    def _put_away(self) -> None:
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None

    def after_fork(self) -> None:
        """The mailbox is the parent's; only our copy of it is closed."""
        if self._mailbox is not None:
            self._mailbox.abandon()
        self._reset()
