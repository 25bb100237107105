"""One name in the memory store: its holders, its queue and its observers.

Decides: what expires, and how a hand-over grants or reserves. Leaves to `_model`: which waiter is next, and what it
is offered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from math import inf

from lockfast._model import (
    EXCLUSIVE,
    GRACE_S,
    MAX_KEPT_CHANGES,
    PRESENCE_S,
    Change,
    Claim,
    Grant,
    Mode,
    Occupancy,
    Offer,
    next_offers,
    offer_to,
)
from lockfast._worlds import World


class MemoryHolder:
    __slots__ = ("claim", "ended", "expires_at", "grant")

    def __init__(self, claim: Claim, grant: Grant, expires_at: float) -> None:
        self.claim = claim
        self.grant = grant
        self.expires_at = expires_at  # the store's clock, for deciding
        self.ended = False  # released, but lingers: takes room and cannot be renewed

    @property
    def holder(self) -> str:
        return self.claim.terms.holder

    @property
    def fence(self) -> int:
        return self.grant.fence


class MemoryWaiter:
    __slots__ = ("asked_at", "claim", "confirms", "lapsed", "reserved_until", "signal", "world")

    def __init__(self, claim: Claim, world: World, *, confirms: bool) -> None:
        self.claim = claim
        self.world = world
        self.confirms = confirms  # it is never made the holder without asking
        self.signal = world.signal()
        self.asked_at = 0.0
        self.reserved_until: float | None = None
        self.lapsed = False  # it did not ask in time; passed over until it asks again

    def asks(self, now: float) -> None:
        self.asked_at = now
        self.lapsed = False

    @property
    def alive_until(self) -> float:
        return self.asked_at + PRESENCE_S

    def offer(self, now: float, asking: str) -> Offer:
        silent = 0.0 if self.claim.id == asking else now - self.asked_at
        return "reservation" if self.confirms else offer_to(silent, self.claim.terms.ttl)

    @property
    def holder(self) -> str:
        return self.claim.terms.holder

    @property
    def mode(self) -> Mode:
        return self.claim.terms.mode

    @property
    def limit(self) -> int | None:
        return self.claim.terms.limit

    @property
    def reserved(self) -> bool:
        return self.reserved_until is not None


class MemoryObserver:
    __slots__ = ("alive_until", "signal", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.signal = world.signal()
        self.alive_until = 0.0


class MemoryResource:
    """One name."""

    __slots__ = ("_count", "changes", "holders", "observers", "queue", "quiet_until", "reserved")

    def __init__(self, count: Callable[[], int]) -> None:
        """`count` gives numbers that were never used before."""
        self._count = count
        self.quiet_until = inf  # nothing expires before this
        self.holders: dict[str, MemoryHolder] = {}  # by claim id
        self.queue: dict[str, MemoryWaiter] = {}  # by claim id, in order of arrival
        self.reserved: set[str] = set()  # ids of all waiters that have a reservation, and of some that had one
        self.observers: dict[str, MemoryObserver] = {}  # by claim id
        self.changes: list[Change] = []  # while it was observed

    def occupancy(self) -> Occupancy:
        """Counts holders and reservations, wherever in the queue their waiters are."""
        taken = Occupancy()
        for holder in self.holders.values():
            taken.add(holder.claim.terms.mode)
        for id in list(self.reserved):
            waiter = self.queue.get(id)
            if waiter is not None and waiter.reserved:
                taken.add(waiter.mode)
            else:
                self.reserved.discard(id)
        return taken

    def expire(self, now: float) -> bool:
        """End what has expired; True if that may have made room."""
        if now < self.quiet_until:
            return False
        ended = [id for id, holder in self.holders.items() if holder.expires_at <= now]
        for id in ended:
            self.end(id)
        made_room = bool(ended)
        for id, waiter in list(self.queue.items()):
            if waiter.alive_until <= now:
                del self.queue[id]
                made_room = True
            elif waiter.reserved_until is not None and waiter.reserved_until <= now:
                waiter.reserved_until = None
                waiter.lapsed = True
                made_room = True
        for id in [id for id, observer in self.observers.items() if observer.alive_until <= now]:
            self.forget_observer(id)
        self.quiet_until = min(self.ends(), default=inf)
        return made_room

    def forget_observer(self, id: str) -> None:
        self.observers.pop(id, None)
        if not self.observers:
            self.changes.clear()

    def end(self, id: str) -> None:
        """End a hold."""
        holder = self.holders.pop(id)
        if self.observers:
            self.record_change(holder.fence, None)

    def record_change(self, fence: int, holder: str | None) -> None:
        """Keep a change for the observers, and wake them."""
        self.changes.append(Change(self._count(), fence, holder))
        del self.changes[:-MAX_KEPT_CHANGES]
        for observer in self.observers.values():
            observer.signal.set()

    def ends(self) -> Iterator[float]:
        """The moments at which something here expires, on the store's clock."""
        for holder in self.holders.values():
            yield holder.expires_at
        for waiter in self.queue.values():
            yield waiter.alive_until
            if waiter.reserved_until is not None:
                yield waiter.reserved_until
        for observer in self.observers.values():
            yield observer.alive_until

    def room_at(self, mode: Mode) -> float:
        """When time makes room if no holder renews: for an exclusive claim all must have expired."""
        reserved = (waiter.reserved_until for waiter in self.queue.values() if waiter.reserved_until is not None)
        ends = chain((holder.expires_at for holder in self.holders.values()), reserved)
        return max(ends, default=inf) if mode == EXCLUSIVE else min(ends, default=inf)

    def sleeper(self, id: str) -> MemoryWaiter | MemoryObserver | None:
        """What a wake-up for that claim goes to."""
        return self.queue.get(id) or self.observers.get(id)

    def sleepers(self) -> Iterator[MemoryWaiter | MemoryObserver]:
        yield from self.queue.values()
        yield from self.observers.values()

    def is_unused(self) -> bool:
        return not self.holders and not self.queue and not self.observers

    def grant(self, claim: Claim, now: float) -> Grant:
        """Make it the holder, whether it waited or not."""
        id = claim.id
        if self.queue:
            self.queue.pop(id, None)
        expires_at = now + claim.terms.ttl
        grant = tuple.__new__(Grant, (self._count(), time.time(), None))  # as Grant(…), which takes twice as long
        self.holders[id] = MemoryHolder(claim, grant, expires_at)
        if expires_at < self.quiet_until:
            self.quiet_until = expires_at
        if self.observers:
            self.record_change(grant.fence, claim.terms.holder)
        return grant

    def hand_over(self, now: float, successor: str = "", asking: str = "") -> None:
        """Grant to the next waiters, or reserve for them, and wake them and no others.

        The claim `asking` asks at this moment.
        """
        if not self.queue:
            return
        due = next_offers(self.queue.values(), self.occupancy(), successor, lambda waiter: waiter.offer(now, asking))
        for waiter, offer in due:
            if offer == "nothing":
                waiter.lapsed = True
                continue
            if offer == "grant":
                self.grant(waiter.claim, now)
            else:
                waiter.reserved_until = now + GRACE_S
                self.reserved.add(waiter.claim.id)
                self.quiet_until = min(self.quiet_until, waiter.reserved_until)
            waiter.signal.set()
