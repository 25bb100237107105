"""The vocabulary that every room of the house speaks.

Decides: what a claim, a grant and a queue are, and the one rule of admission.
Leaves to the backends: where these are recorded, and how a step is made atomic.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

Mode = Literal["exclusive", "shared"]
EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"

GRACE_S: Final = 1.0  # seconds a resource stays reserved for a waiter that was woken and has not come yet
PRESENCE_S: Final = 15.0  # seconds after its last request that a waiter keeps its place in the queue
MAX_KEPT_CHANGES: Final = 1000  # changes that are kept for an observer that does not ask for them
MAX_TTL_S: Final = 10 * 365 * 86400.0  # seconds
MAX_POLL_S: Final = 5.0  # the longest that a waiter sleeps before it looks for itself, as repair
POLL_SPREAD_S: Final = 0.5  # seconds within which all waiters look, once time has made room


class Terms(NamedTuple):
    """What is asked for. The same for every acquire of one lock object."""

    key: str  # the name, qualified by its namespace: what the backend files it under
    name: str
    holder: str
    ttl: float
    mode: Mode = EXCLUSIVE
    limit: int | None = None  # only for SHARED: how many may hold at once; None is no limit
    metadata: str | None = None  # JSON text


class Claim(NamedTuple):
    """One asking for one name. Its id is its whole identity: no thread, task or process matters."""

    id: str
    terms: Terms


class Grant(NamedTuple):
    """The claim holds. Asking again with the same id gives the same fence and a fresh ttl."""

    fence: int
    acquired_at: float  # wall clock of the server, for people to read
    since: float | None = None  # our own clock before it was asked for, if that was not by a request of the claim's own


class Busy(NamedTuple):
    """The claim does not hold; if it asked to wait it now has a place in the queue."""

    position: int  # waiters that go first; one that was woken and did not come is not counted
    retry_after: float  # look again after this long even if nobody wakes you
    holder: str | None = None  # somebody who is in the way, for the error message
    unsettled: bool = False  # somebody is in the middle of changing it: even the claim's own hold cannot be seen
    claim_id: str | None = None  # of that holder's claim, where the store tells it

    @property
    def in_words(self) -> str:
        """Why it is not to be had, for the error message."""
        if self.unsettled:
            return "in use by a transaction that has not ended"
        return f"held by {self.holder!r}" if self.holder else "not free"


class Renewal(NamedTuple):
    """Ask that a held claim expires no earlier than `ttl` seconds from now."""

    claim: Claim
    ttl: float
    fence: int  # of the grant that is renewed: a later one of the same claim is not what its holder has


class Change(NamedTuple):
    """Somebody came to hold a name, or ceased to."""

    number: int  # only grows
    fence: int  # of the hold that began or ended
    holder: str | None  # None: it ended


class Observation(NamedTuple):
    """What an observer has not seen yet, in order."""

    changes: tuple[Change, ...]
    retry_after: float  # look again after this long even if nobody wakes you


class HolderInfo(NamedTuple):
    """One holder of a name. Times are wall-clock seconds since the epoch, for people to read."""

    holder: str
    claim_id: str
    fence: int | None  # None: the store does not know it
    mode: Mode
    acquired_at: float
    expires_at: float  # infinity: no time ends it, only the end of its session
    metadata: Any = None
    session: dict[str, Any] | None = None  # the connection that it is held by, where it belongs to one

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON: None for what is not known or never comes."""
        return {**self._asdict(), "expires_at": self.expires_at if self.expires_at < inf else None}


class LockInfo(NamedTuple):
    """Who holds a name and how many wait for it, at the moment of the question."""

    name: str
    holders: tuple[HolderInfo, ...] = ()
    waiters: int = 0
    queue: tuple[str, ...] = ()  # the holder ids of those who wait, first in line first
    damage: str = ""  # what of its record cannot be read: that is held by "(damaged)", and break_lock frees it

    @property
    def locked(self) -> bool:
        """True if anybody held it when the question was answered."""
        return bool(self.holders)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return {
            "name": self.name,
            "holders": [holder.as_dict() for holder in self.holders],
            "waiters": self.waiters,
            "queue": list(self.queue),
            "damage": self.damage or None,
        }


class Health(NamedTuple):
    """One server, or a store that is none, as this client sees it now."""

    where: str
    reachable: bool
    latency: float | None = None  # seconds from a question to its answer
    version: str = ""  # where it tells
    role: str = ""
    kept_out: float = 0.0  # seconds for which it does not count yet, because it started anew
    error: str = ""  # why it cannot be used

    @property
    def counts(self) -> bool:
        """True if locks can rest on it."""
        return self.reachable and not self.kept_out and not self.error


class Diagnosis(NamedTuple):
    """All servers that the locks rest on; most backends have one."""

    servers: tuple[Health, ...]

    @property
    def works(self) -> bool:
        """True if locks are to be had: more than half of the servers count."""
        return 2 * sum(server.counts for server in self.servers) > len(self.servers)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        servers = [{**server._asdict(), "counts": server.counts} for server in self.servers]
        return {"works": self.works, "servers": servers}


class Capabilities(NamedTuple):
    """What a backend can do, known before anything is sent."""

    min_ttl: float = 0.01
    max_ttl: float = MAX_TTL_S
    drift: float = 0.0  # how far its clock's rate may differ from ours; 0 where both are one clock
    instant: bool = False  # verbs never suspend, so a cancellation cannot fall inside one
    renew_batch: int = 500  # leases renewed in one request
    shared: bool = True  # semaphores and readers
    limits: bool = True  # how many may share can be limited: semaphores
    expires: bool = True  # a hold ends at the store when its ttl has passed; else only when it is let go of
    reserves: bool = True  # a freed name is kept for the next waiter until it confirms; else the store grants it
    breaks_alone: bool = True  # a break ends the holds of one name; else every hold of the holder's session
    wakes_once: bool = True  # a waiter that is woken is granted at its first request; else it may have to repeat it
    metadata: bool = True  # what a holder says of its hold is kept, for others to see
    observe: bool = True  # changes are told: elections
    limiter: bool = True
    cell: bool = True


class Occupancy:
    """How much of a resource is taken, by holders and by waiters that it is reserved for."""

    __slots__ = ("exclusive", "shared")

    def __init__(self) -> None:
        self.exclusive = 0
        self.shared = 0

    def add(self, mode: Mode) -> None:
        if mode == EXCLUSIVE:
            self.exclusive += 1
        else:
            self.shared += 1

    def fits(self, mode: Mode, limit: int | None) -> bool:
        """The one rule: exclusive needs an empty resource, shared needs no exclusive one and room."""
        if self.exclusive:
            return False
        if mode == EXCLUSIVE:
            return not self.shared
        return limit is None or self.shared < limit


class Waiting(Protocol):
    """What the rule must know of a waiter."""

    @property
    def holder(self) -> str: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def reserved(self) -> bool: ...
    @property
    def lapsed(self) -> int: ...  # as good as a bool


W = TypeVar("W", bound=Waiting)


def next_in_queue(queue: Iterable[W], occupancy: Occupancy, successor: str = "") -> list[W]:
    """The waiters to reserve for now, in order; `occupancy` counts holders and all that are reserved for, and grows.

    An `successor` goes before everybody else, if somebody of that name waits.

    Those are counted wherever they stand: one that came back after its reservation lapsed has its old place again,
    before younger ones that were reserved for meanwhile.

    A waiter that let a reservation lapse is passed over until it asks again, so that a dead one holds
    up the queue once and not at every hand-over.
    """
    chosen: list[W] = []
    if successor:
        queue = sorted(queue, key=lambda waiter: waiter.holder != successor)  # else as they stand
    for waiter in queue:
        if waiter.lapsed or waiter.reserved:
            continue
        if occupancy.fits(waiter.mode, waiter.limit):
            occupancy.add(waiter.mode)
            chosen.append(waiter)
        else:
            break  # nobody fits past an older waiter
    return chosen


def poll_after(position: int, room_in: float = inf) -> float:
    """How long a waiter sleeps before it looks for itself.

    The first looks within the grace for which the resource would be kept for it, should its wake-up be lost. The others
    look the more rarely the further back they stand, so that all waiters of a name together ask a number of times a
    second that hardly grows with the length of the queue.

    `room_in` is when time makes room for it, unless holders renew: then every waiter looks, one after the other within
    half a second, because all that stand before it may be dead. Renewals keep that away for at least two thirds of a
    ttl, so this adds requests only where a ttl is shorter than a few seconds, or holders do not renew.
    """
    by_turns = max(0.0, room_in) + POLL_SPREAD_S * position / (position + 8)
    return min(MAX_POLL_S, GRACE_S * (0.75 + position), by_turns)
