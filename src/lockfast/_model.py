"""The vocabulary of every module.

Decides: what a claim, a grant and a queue are, and the one rule of admission (`Occupancy.fits`, `next_in_queue`).
Leaves to the backends: where these are recorded, and how a step is made atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from lockfast._info import Diagnosis as Diagnosis
from lockfast._info import Health as Health
from lockfast._info import HolderInfo as HolderInfo
from lockfast._info import LockInfo as LockInfo

Mode = Literal["exclusive", "shared"]
EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"

GRACE_S: Final = 1.0  # for which a freed name is reserved for a waiter that has to confirm
PRESENCE_S: Final = 15.0  # for which a waiter keeps its position in the queue after its last request
MAX_POLL_S: Final = 5.0  # a waiter that is not woken asks again after this long at most, as repair
RECENT_S: Final = MAX_POLL_S + GRACE_S  # within which a live waiter has asked
POLL_SPREAD_S: Final = 0.5  # within which all waiters poll, once time has made room
MAX_POSITION: Final = 50  # waiters ahead that are counted: how many more there are hardly changes when one polls
MAX_TTL_S: Final = 10 * 365 * 86400.0
MAX_KEPT_CHANGES: Final = 1000  # for an observer that does not ask for them


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
    """One acquire of one name. Its id is its whole identity: no thread, task or process matters."""

    id: str
    terms: Terms


class Grant(NamedTuple):
    """The claim holds. Asking again with the same id gives the same fence and a fresh ttl."""

    fence: int
    acquired_at: float  # wall clock of the server, for people to read
    since: float | None = None  # our own clock, from which its ttl counts, if not from before the request it answers


class Busy(NamedTuple):
    """The claim does not hold; if it asked to wait, it is in the queue now."""

    # Waiters that go first, without those whose reservation lapsed. From MAX_POSITION on a backend need not count.
    position: int
    retry_after: float  # poll after this long if no wake-up has come
    holder: str | None = None  # of one hold that is in the way, for the error message
    unsettled: bool = False  # an open transaction is changing the name: even the claim's own hold cannot be seen
    claim_id: str | None = None  # of that hold, where the store reports it
    last_fence: int | None = None  # the last that the store gave out; a wake-up's grant has a higher one or is old

    @property
    def in_words(self) -> str:
        """Why it was not acquired, for the error message."""
        if self.unsettled:
            return "in use by a transaction that has not ended"
        return f"held by {self.holder!r}" if self.holder else "not free"


class Renewal(NamedTuple):
    """Ask that a held claim expires no earlier than `ttl` seconds from now."""

    claim: Claim
    ttl: float
    fence: int  # of the grant that is renewed: the same claim may have been granted again later


class Change(NamedTuple):
    """A hold of a name began or ended."""

    number: int  # only grows
    fence: int  # of that hold
    holder: str | None  # None: it ended


class Observation(NamedTuple):
    """The changes that an observer has not seen yet, in order."""

    changes: tuple[Change, ...]
    retry_after: float  # poll after this long if no wake-up has come


class Capabilities(NamedTuple):
    """What a backend can do, known before anything is sent."""

    min_ttl: float = 0.01
    max_ttl: float = MAX_TTL_S
    drift: float = 0.0  # how far its clock's rate may differ from ours; 0 where both are one clock
    instant: bool = False  # verbs never suspend, so a cancellation cannot fall inside one
    renew_batch: int = 500  # leases renewed in one request
    shared: bool = True  # semaphores and readers
    limits: bool = True  # how many may share can be limited: semaphores
    expires: bool = True  # a hold ends at the store when its ttl has passed; else only when it is released
    reserves: bool = True  # a freed name is reserved for the next waiter until it confirms; else the store grants it
    breaks_alone: bool = True  # a break ends the holds of one name; else every hold of the holder's session
    hands_over: bool = False  # a waiter that has asked lately is made the holder, and the wake-up carries its grant
    wakes_once: bool = True  # a waiter that is woken is granted at its first request; else it may have to repeat it
    metadata: bool = True  # the metadata of a hold is kept, for others to see
    observe: bool = True  # changes are reported: elections
    limiter: bool = True
    cell: bool = True


class Occupancy:
    """How much of a name is taken, by holders and by waiters that it is reserved for."""

    __slots__ = ("exclusive", "shared")

    def __init__(self) -> None:
        self.exclusive = 0
        self.shared = 0

    def add(self, mode: Mode) -> None:
        """One more holder, or one more waiter that it is reserved for."""
        if mode == EXCLUSIVE:
            self.exclusive += 1
        else:
            self.shared += 1

    def fits(self, mode: Mode, limit: int | None) -> bool:
        """The one rule: exclusive needs a name that is free, shared needs no exclusive holder and room."""
        if self.exclusive:
            return False
        if mode == EXCLUSIVE:
            return not self.shared
        return limit is None or self.shared < limit


class Waiting(Protocol):
    """What the rule must know of a waiter."""

    @property
    def holder(self) -> str:
        """As in its `Terms`."""

    @property
    def mode(self) -> Mode:
        """As in its `Terms`."""

    @property
    def limit(self) -> int | None:
        """As in its `Terms`."""

    @property
    def reserved(self) -> bool:
        """The resource is reserved for it: it was woken, and has `GRACE_S` seconds to confirm."""

    @property
    def lapsed(self) -> int:  # as good as a bool
        """It did not ask in time. It is passed over until it asks again."""


W = TypeVar("W", bound=Waiting)


Offer = Literal["grant", "reservation", "nothing"]


def offer_to(silent: float, ttl: float) -> Offer:
    """What a waiter is offered when its turn comes, if its last request came `silent` seconds ago.

    A waiter that is granted counts its ttl from before that request, which came before the grant: so no clock is
    compared. If it has lost much of its ttl by then, it confirms with a new request. One that should have asked
    meanwhile is dead or cut off. So those that died together cost one ttl and not one each.
    """
    if silent > RECENT_S:
        return "nothing"
    return "grant" if silent <= ttl / 4 else "reservation"


def next_in_queue(queue: Iterable[W], occupancy: Occupancy, successor: str = "") -> list[W]:
    """The waiters to reserve for now, in order, where all have to confirm; see `next_offers`."""
    return [waiter for waiter, _ in next_offers(queue, occupancy, successor, lambda _: "reservation")]


def next_offers(
    queue: Iterable[W], occupancy: Occupancy, successor: str, offer: Callable[[W], Offer]
) -> list[tuple[W, Offer]]:
    """The waiters whose turn it is, in order, and what each is offered; see `offer_to`.

    One that is offered nothing has lapsed. A waiter of the holder id `successor` goes before all others.

    `occupancy` counts holders and reservations, and grows. It has to count every reservation, wherever its waiter
    stands: one that came back after its reservation lapsed has its old position, before younger waiters that were
    reserved for meanwhile.

    A waiter that did not ask in time is passed over until it asks again, so that a dead one delays the queue once and
    not at every hand-over.
    """
    chosen: list[tuple[W, Offer]] = []
    if successor:
        queue = sorted(queue, key=lambda waiter: waiter.holder != successor)  # the order of the others stays
    for waiter in queue:
        if waiter.lapsed or waiter.reserved:
            continue
        if not occupancy.fits(waiter.mode, waiter.limit):
            break  # no claim passes an older waiter
        what = offer(waiter)
        if what != "nothing":
            occupancy.add(waiter.mode)
        chosen.append((waiter, what))
    return chosen


def poll_after(position: int, room_in: float = inf) -> float:
    """How long a waiter sleeps before it polls, in case its wake-up was lost.

    The first in the queue polls within the grace for which the name would be reserved for it. The others poll the more
    rarely the further back they are, so that the polls of all waiters of a name hardly grow with the queue.

    `room_in` is when time makes room, unless holders renew: then every waiter polls, spread over half a second, because
    all before it may be dead. Renewals keep that away for at least two thirds of a ttl, so this adds requests only
    where a ttl is shorter than a few seconds, or holders do not renew.
    """
    once_there_is_room = max(0.0, room_in) + POLL_SPREAD_S * position / (position + 8)
    return min(MAX_POLL_S, GRACE_S * (0.75 + position), once_there_is_room)
