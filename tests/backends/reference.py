"""A second version of the model, as small as it can be, that backends are compared with.

A resource has holders and a queue. Exclusive fits an empty resource; shared fits beside fewer than `limit` others,
none of them exclusive; what is reserved counts as held; no claim passes an older waiter. A waiter whose turn has come
becomes the holder if it has asked within a quarter of its ttl; else it gets a reservation, or nothing if it is silent
for too long. Each beginning and each end of a hold is a change, and an observer gets all of them. Written from the
design, not from the memory backend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from lockfast._model import GRACE_S, MAX_POLL_S, PRESENCE_S, RECENT_S, SHARED, Claim

UNKNOWN = -1  # the fence of a hold that the store has granted by itself


@dataclass
class Held:
    claim: Claim
    fence: int
    until: float
    lingers: bool = False


@dataclass
class Waits:
    claim: Claim
    gone_at: float
    reserved_until: float = 0.0  # 0: not reserved
    late: bool = False  # did not come while it was reserved, or was silent for too long

    def silent(self, now: float) -> float:
        return now - self.gone_at + PRESENCE_S


class Event(NamedTuple):
    fence: int
    holder: str | None  # None: it ended


@dataclass
class Resource:
    hands_over: bool
    held: list[Held] = field(default_factory=list)
    queue: list[Waits] = field(default_factory=list)
    history: list[Event] = field(default_factory=list)  # all that ever happened
    watched_until: dict[str, float] = field(default_factory=dict)  # by claim id: when an observer is given up

    def settle(self, now: float, successor: str = "", asking: Claim | None = None) -> None:
        """What time does: holds and waiters end, reservations lapse, and waiters that fit are served."""
        self._end([hold for hold in self.held if hold.until <= now])
        self.watched_until = {id: until for id, until in self.watched_until.items() if until > now}
        self.queue = [waiter for waiter in self.queue if waiter.gone_at > now]
        for waiter in self.queue:
            if waiter.reserved_until and waiter.reserved_until <= now:
                waiter.reserved_until, waiter.late = 0.0, True
        successors = [waiter for waiter in self.queue if successor and waiter.claim.terms.holder == successor]
        for waiter in successors + [waiter for waiter in self.queue if waiter not in successors]:
            if waiter.late or waiter.reserved_until:
                continue
            if not self._room_for(waiter.claim):
                break
            silent = 0.0 if waiter.claim == asking else waiter.silent(now)
            if self.hands_over and silent > RECENT_S:
                waiter.late = True
            elif self.hands_over and silent <= waiter.claim.terms.ttl / 4:
                self.granted(waiter.claim, now, UNKNOWN)
            else:
                waiter.reserved_until = now + GRACE_S

    def _end(self, over: list[Held]) -> None:
        self.held = [hold for hold in self.held if hold not in over]
        self.history += [Event(hold.fence, None) for hold in over]

    def _room_for(self, claim: Claim) -> bool:
        inside = [hold.claim for hold in self.held] + [w.claim for w in self.queue if w.reserved_until]
        if claim.terms.mode == SHARED:
            limit = claim.terms.limit
            return all(c.terms.mode == SHARED for c in inside) and (limit is None or len(inside) < limit)
        return not inside

    def waiter(self, claim: Claim) -> Waits | None:
        return next((w for w in self.queue if w.claim == claim), None)

    def holder(self, claim: Claim) -> Held | None:
        return next((hold for hold in self.held if hold.claim == claim and not hold.lingers), None)

    def lingers(self, claim: Claim) -> bool:
        return any(hold.claim == claim and hold.lingers for hold in self.held)

    def may_have(self, claim: Claim) -> bool:
        waiter = self.waiter(claim)
        if waiter is not None and waiter.reserved_until:
            return True
        older = self.queue[: self.queue.index(waiter)] if waiter is not None else self.queue
        return all(w.late or w.reserved_until for w in older) and self._room_for(claim)

    # Each verb says what the backend must answer

    def acquire(self, claim: Claim, now: float, enqueue: bool) -> str:
        hold = self.holder(claim)
        if hold is not None:
            hold.until = max(hold.until, now + claim.terms.ttl)
            return "again"
        others = [hold.claim for hold in self.held] + [waiter.claim for waiter in self.queue]
        limits = [c.terms.limit for c in others if c.terms.mode == SHARED and c != claim]
        if claim.terms.mode == SHARED and self.waiter(claim) is None and limits and limits[0] != claim.terms.limit:
            return "mismatch"
        if self.may_have(claim):
            return "granted"
        waiter = self.waiter(claim)
        if enqueue and waiter is None:
            self.queue.append(Waits(claim, now + PRESENCE_S))
        elif enqueue and waiter is not None:
            waiter.gone_at, waiter.late = now + PRESENCE_S, False
        return "busy"

    def granted(self, claim: Claim, now: float, fence: int) -> None:
        self.queue = [w for w in self.queue if w.claim != claim]
        self.held.append(Held(claim, fence, now + claim.terms.ttl))
        self.history.append(Event(fence, claim.terms.holder))

    def learn(self, claim_id: str, fence: int) -> None:
        """The fence of a hold that the store has granted by itself."""
        hold = next(hold for hold in self.held if hold.claim.id == claim_id)
        hold.fence = fence
        self.history[self.history.index(Event(UNKNOWN, hold.claim.terms.holder))] = Event(
            fence, hold.claim.terms.holder
        )

    @property
    def unknown(self) -> list[str]:
        """Ids of the claims whose fences are to be learned, in the order in which they were granted."""
        return [hold.claim.id for hold in self.held if hold.fence == UNKNOWN]

    def renew(self, claim: Claim, now: float, ttl: float) -> bool:
        hold = self.holder(claim)
        if hold is not None:
            hold.until = max(hold.until, now + ttl)
        return hold is not None

    def downgrade(self, claim: Claim, shared: Claim, now: float) -> None:
        hold = self.holder(claim)
        assert hold is not None
        hold.claim, hold.until = shared, max(hold.until, now + claim.terms.ttl)
        self.settle(now)

    def release(self, claim: Claim, now: float, linger: float, successor: str = "") -> bool:
        hold = self.holder(claim)
        if hold is None:
            return False
        hold.until, hold.lingers = now + linger, True
        self.settle(now, successor)
        return True

    def abandon(self, claim: Claim, now: float) -> None:
        hold = self.holder(claim)
        if hold is not None:
            self._end([hold])
        self.watched_until.pop(claim.id, None)
        self.queue = [w for w in self.queue if w.claim != claim]
        self.settle(now)

    def broken(self, now: float) -> None:
        self._end(self.held)
        self.settle(now)

    def observe(self, claim: Claim, known: int | None, now: float) -> list[Event] | None:
        """The changes after that many; None if the observer has to begin with what is true now."""
        watched = claim.id in self.watched_until
        self.watched_until[claim.id] = now + PRESENCE_S
        return self.history[known:] if watched and known is not None else None

    def as_it_is(self) -> list[Event]:
        return [Event(hold.fence, hold.claim.terms.holder) for hold in self.held if not hold.lingers] or [
            Event(0, None)
        ]

    def retry_after(self, now: float) -> float:
        return min([MAX_POLL_S, *(hold.until - now for hold in self.held)])
