"""What the memory backend keeps: resources with holders, a queue and observers; limiters and cells.

Decides: how time ends things, who is next when there is room, and that nothing unused is kept.
Leaves to `memory`: the verbs. Leaves to `_model`: who fits and who is next in line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import inf

from lockfast._model import EXCLUSIVE, GRACE_S, MAX_KEPT_CHANGES, Change, Claim, Mode, Occupancy, next_in_queue
from lockfast._reentry import Mutex, section
from lockfast._time import boot_now, first_fence
from lockfast._values import NANO, Stored
from lockfast._worlds import Clock, World


class MemoryHolder:
    __slots__ = ("acquired_at", "claim", "ended", "expires_at", "fence")

    def __init__(self, claim: Claim, fence: int, acquired_at: float, expires_at: float) -> None:
        self.claim = claim
        self.fence = fence
        self.acquired_at = acquired_at  # wall clock, for people
        self.expires_at = expires_at  # the store's clock, for deciding
        self.ended = False  # released, but lingering: takes room and can no longer be renewed

    @property
    def holder(self) -> str:
        return self.claim.terms.holder


class MemoryWaiter:
    __slots__ = ("alive_until", "claim", "lapsed", "reserved_until", "signal", "world")

    def __init__(self, claim: Claim, world: World) -> None:
        self.claim = claim
        self.world = world
        self.signal = world.signal()
        self.alive_until = 0.0
        self.reserved_until: float | None = None
        self.lapsed = False  # was woken and did not come in time; passed over until it asks again

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
    __slots__ = ("_store", "changes", "holders", "observers", "queue", "quiet_until", "reserved")

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.quiet_until = inf  # nothing ends by itself before this, so there is no need to look
        self.holders: dict[str, MemoryHolder] = {}  # by claim id
        self.queue: dict[str, MemoryWaiter] = {}  # by claim id, in order of arrival
        self.reserved: set[str] = set()  # ids of all waiters it is reserved for, and of some that are gone or lapsed
        self.observers: dict[str, MemoryObserver] = {}  # by claim id
        self.changes: list[Change] = []  # what happened while it was observed

    def occupancy(self) -> Occupancy:
        """What holders take, and what is reserved for waiters, wherever they stand in the queue."""
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
        """Forget what time has ended; True if that may have made room."""
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
        """That claim holds no longer."""
        holder = self.holders.pop(id)
        if self.observers:
            self.tell(holder.fence, None)

    def tell(self, fence: int, holder: str | None) -> None:
        """Keep a change for the observers, and wake them."""
        self.changes.append(Change(self._store.count(), fence, holder))
        del self.changes[:-MAX_KEPT_CHANGES]
        for observer in self.observers.values():
            observer.signal.set()

    def ends(self) -> Iterator[float]:
        """The moments at which something here ends by itself, on the store's clock."""
        for holder in self.holders.values():
            yield holder.expires_at
        for waiter in self.queue.values():
            yield waiter.alive_until
            if waiter.reserved_until is not None:
                yield waiter.reserved_until
        for observer in self.observers.values():
            yield observer.alive_until

    def room_at(self, mode: Mode) -> float:
        """When time makes room, if no holder renews: all must be gone for a claim that is exclusive."""
        reserved = (waiter.reserved_until for waiter in self.queue.values() if waiter.reserved_until is not None)
        ends = chain((holder.expires_at for holder in self.holders.values()), reserved)
        return max(ends, default=inf) if mode == EXCLUSIVE else min(ends, default=inf)

    def asleep(self) -> Iterator[MemoryWaiter | MemoryObserver]:
        """Whoever can be woken."""
        yield from self.queue.values()
        yield from self.observers.values()

    @property
    def unused(self) -> bool:
        return not self.holders and not self.queue and not self.observers

    def hand_over(self, now: float, successor: str = "") -> None:
        """Reserve for whoever is next and wake them, and nobody else."""
        if not self.queue:
            return
        for waiter in next_in_queue(self.queue.values(), self.occupancy(), successor):
            waiter.reserved_until = now + GRACE_S
            self.reserved.add(waiter.claim.id)
            self.quiet_until = min(self.quiet_until, waiter.reserved_until)
            waiter.signal.set()


class MemoryStore:
    """What is held and waited for, by key. One mutex makes each verb one step."""

    def __init__(self, clock: Callable[[], float] = boot_now, name: str = "") -> None:
        self.name = name
        self.clock = clock
        self.fence = first_fence()
        self.clear()

    def clear(self) -> None:
        self._mutex = Mutex()
        self.resources: dict[str, MemoryResource] = {}  # only names that are held, waited for or observed
        self.limiters: dict[str, int] = {}  # by key: up to when it is booked, in nanoseconds of the clock
        self.limiters_before = 64  # how many there were after the last sweep, and a few more
        self.cells: dict[str, Stored] = {}  # by key
        self.last_deleted = 0  # the highest version of a cell that was deleted
        self.sweep_at = self.fence + 64  # fence at which expired names that nobody asks for any more are swept out

    def step(self) -> Mutex:
        """Held for one verb, of an operation that is driven."""
        return self._mutex

    def step_in_a_loop(self) -> Mutex:
        """The same in an event loop, where nothing says so that a thread is inside an operation."""
        return section(self._mutex)

    def count(self) -> int:
        """A number that was never given out before: a fence, or the number of a change."""
        self.fence += 1
        return self.fence

    def look(self, key: str, now: float) -> MemoryResource | None:
        """The resource as it is now: what has expired is gone and handed over."""
        resource = self.resources.get(key)
        if resource is not None:
            if resource.expire(now):
                resource.hand_over(now)
            if resource.unused:
                del self.resources[key]
                return None
        return resource

    def look_or_make(self, key: str, now: float) -> MemoryResource:
        resource = self.look(key, now)
        if resource is None:
            resource = self.resources[key] = MemoryResource(self)
        return resource

    def sweep(self, now: float) -> None:
        """Names that are never used again cost nothing after a while, at no cost to speak of now."""
        for key in list(self.resources):
            self.look(key, now)
        self._forget_limiters_at_rest(now)
        self.sweep_at = self.fence + 2 * (len(self.resources) + len(self.limiters)) + 64

    def sweep_limiters(self, now: float) -> None:
        if len(self.limiters) > 2 * self.limiters_before:
            self._forget_limiters_at_rest(now)

    def _forget_limiters_at_rest(self, now: float) -> None:
        """One that is booked up to a moment that has passed is as good as new."""
        self.limiters = {key: until for key, until in self.limiters.items() if until > now * NANO}
        self.limiters_before = len(self.limiters) + 64


_stores: dict[str, MemoryStore] = {}


def shared_store(name: str, clock: Clock | None = None) -> MemoryStore:
    """The process's one store of that name. A test's clock, once given, is the store's own."""
    store = _stores.setdefault(name, MemoryStore(name=name))
    if clock is not None:
        store.clock = clock.now
    return store
