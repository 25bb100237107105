"""The reference backend: the whole model in dictionaries. Read this one first.

Decides: how the verbs work when making a step atomic costs nothing more than a mutex.
Leaves to `_model`: who fits and who is next in line.

A store has a name and is shared by every `Locks` of the process, sync and async alike, so that a thread and a
task can contend for one lock. It lives as long as the process and is empty in the child of a fork.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf

from holdfast._model import (
    GRACE,
    PRESENCE,
    Busy,
    Capabilities,
    Claim,
    Grant,
    HolderInfo,
    LockInfo,
    Mode,
    Occupancy,
    Renewal,
    next_in_line,
    patrol,
)
from holdfast._time import boot_now, first_fence
from holdfast._worlds import Clock, World


class _Holder:
    __slots__ = ("acquired_at", "claim", "ended", "expires_at", "fence")

    def __init__(self, claim: Claim, fence: int, acquired_at: float, expires_at: float) -> None:
        self.claim = claim
        self.fence = fence
        self.acquired_at = acquired_at  # wall clock, for people
        self.expires_at = expires_at  # the store's clock, for deciding
        self.ended = False  # released, but lingering: takes room and can no longer be renewed


class _Waiter:
    __slots__ = ("alive_until", "claim", "lapsed", "reserved_until", "signal", "world")

    def __init__(self, claim: Claim, world: World) -> None:
        self.claim = claim
        self.world = world
        self.signal = world.signal()
        self.alive_until = 0.0
        self.reserved_until: float | None = None
        self.lapsed = False  # was woken and did not come in time; passed over until it asks again

    @property
    def mode(self) -> Mode:
        return self.claim.terms.mode

    @property
    def limit(self) -> int | None:
        return self.claim.terms.limit

    @property
    def reserved(self) -> bool:
        return self.reserved_until is not None


class _Resource:
    __slots__ = ("holders", "queue", "quiet_until", "reserved")

    def __init__(self) -> None:
        self.quiet_until = inf  # nothing ends by itself before this, so there is no need to look
        self.holders: dict[str, _Holder] = {}  # by claim id
        self.queue: dict[str, _Waiter] = {}  # by claim id, in order of arrival
        self.reserved: set[str] = set()  # ids of all waiters it is reserved for, and of some that are gone or lapsed

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
            del self.holders[id]
        made_room = bool(ended)
        for id, waiter in list(self.queue.items()):
            if waiter.alive_until <= now:
                del self.queue[id]
                made_room = True
            elif waiter.reserved_until is not None and waiter.reserved_until <= now:
                waiter.reserved_until = None
                waiter.lapsed = True
                made_room = True
        self.quiet_until = min(self.ends(), default=inf)
        return made_room

    def ends(self) -> Iterator[float]:
        """The moments at which something here ends by itself, on the store's clock."""
        for holder in self.holders.values():
            yield holder.expires_at
        for waiter in self.queue.values():
            yield waiter.alive_until
            if waiter.reserved_until is not None:
                yield waiter.reserved_until

    def hand_over(self, now: float) -> None:
        """Reserve for whoever is next and wake them, and nobody else."""
        if not self.queue:
            return
        for waiter in next_in_line(self.queue.values(), self.occupancy()):
            waiter.reserved_until = now + GRACE
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
        self.mutex = threading.Lock()
        self.resources: dict[str, _Resource] = {}  # only names that are held or waited for
        self.sweep_at = self.fence + 64  # fence at which expired names that nobody asks for any more are swept out

    def look(self, key: str, now: float) -> _Resource | None:
        """The resource as it is now: what has expired is gone and handed over."""
        resource = self.resources.get(key)
        if resource is not None:
            if resource.expire(now):
                resource.hand_over(now)
            if not resource.holders and not resource.queue:
                del self.resources[key]
                return None
        return resource

    def sweep(self, now: float) -> None:
        """Names that are never used again cost nothing after a while, at no cost to speak of now."""
        for key in list(self.resources):
            self.look(key, now)
        self.sweep_at = self.fence + 2 * len(self.resources) + 64


_stores: dict[str, MemoryStore] = {}


def shared_store(name: str, clock: Clock | None = None) -> MemoryStore:
    """The process's one store of that name. A test's clock, once given, is the store's own."""
    store = _stores.setdefault(name, MemoryStore(name=name))
    if clock is not None:
        store.clock = clock.now
    return store


class MemoryBackend:
    capabilities = Capabilities(instant=True)

    def __init__(self, store: MemoryStore, world: World) -> None:
        self._store = store
        self._world = world

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        store = self._store
        with store.mutex:
            now = store.clock()
            resource = store.look(claim.terms.key, now)
            if resource is None:
                if store.fence >= store.sweep_at:
                    store.sweep(now)
                resource = store.resources[claim.terms.key] = _Resource()
                return self._grant(resource, claim, now)
            holder = resource.holders.get(claim.id)
            if holder is not None and not holder.ended:  # asked before, and the answer was lost
                holder.expires_at = max(holder.expires_at, now + claim.terms.ttl)
                return Grant(holder.fence, holder.acquired_at)
            if self._fits(resource, claim):
                resource.queue.pop(claim.id, None)
                return self._grant(resource, claim, now)
            if enqueue:
                self._enqueue(resource, claim, now)
            return self._busy(resource, claim, now)

    def _fits(self, resource: _Resource, claim: Claim) -> bool:
        own = resource.queue.get(claim.id)
        if own is not None and own.reserved:
            return True  # even if an older one, whose own reservation lapsed, is back since
        for waiter in resource.queue.values():
            if waiter is own:
                break
            if not waiter.reserved and not waiter.lapsed:
                return False  # an older waiter stands unserved
        return resource.occupancy().fits(claim.terms.mode, claim.terms.limit)

    def _grant(self, resource: _Resource, claim: Claim, now: float) -> Grant:
        store = self._store
        store.fence += 1
        acquired_at = time.time()
        expires_at = now + claim.terms.ttl
        resource.holders[claim.id] = _Holder(claim, store.fence, acquired_at, expires_at)
        if expires_at < resource.quiet_until:
            resource.quiet_until = expires_at
        return Grant(store.fence, acquired_at)

    def _enqueue(self, resource: _Resource, claim: Claim, now: float) -> None:
        waiter = resource.queue.get(claim.id)
        if waiter is None:
            waiter = resource.queue[claim.id] = _Waiter(claim, self._world)
        waiter.alive_until = now + PRESENCE
        waiter.lapsed = False
        resource.quiet_until = min(resource.quiet_until, waiter.alive_until)

    def _busy(self, resource: _Resource, claim: Claim, now: float) -> Busy:
        ahead = unserved = 0
        for waiter in resource.queue.values():
            if waiter.claim.id == claim.id:
                break
            if not waiter.lapsed:
                ahead += 1
                unserved += not waiter.reserved
        retry_after = patrol(ahead)
        if not unserved or not resource.holders:  # only the first in line watches for the moment when time makes room
            retry_after = min(retry_after, max(0.0, min(resource.ends()) - now))
        holder = next(iter(resource.holders.values()), None)
        return Busy(ahead, retry_after, holder.claim.terms.holder if holder else None)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        with self._store.mutex:
            resource = self._store.resources.get(claim.terms.key)
            waiter = resource.queue.get(claim.id) if resource else None
        return waiter is None or await waiter.signal.wait(seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> list[bool]:
        store = self._store
        with store.mutex:
            now = store.clock()
            return [self._renew(renewal, now) for renewal in batch]

    def _renew(self, renewal: Renewal, now: float) -> bool:
        resource = self._store.resources.get(renewal.claim.terms.key)
        holder = resource.holders.get(renewal.claim.id) if resource else None
        if holder is None or holder.ended or holder.expires_at <= now:
            return False
        holder.expires_at = max(holder.expires_at, now + renewal.ttl)
        return True

    async def release(self, claim: Claim, *, linger: float, within: float) -> bool:
        store = self._store
        with store.mutex:
            resource = store.resources.get(claim.terms.key)
            holder = resource.holders.get(claim.id) if resource else None
            if resource is None or holder is None or holder.ended:
                return False
            now = store.clock()
            alive = holder.expires_at > now
            if linger and alive:
                holder.ended = True
                holder.expires_at = now + linger
                resource.quiet_until = 0.0
            else:
                del resource.holders[claim.id]
                if resource.queue:
                    resource.expire(now)  # what is over must not stand in the way of the hand-over
                    resource.hand_over(now)
            if not resource.holders and not resource.queue:
                del store.resources[claim.terms.key]
            return alive

    async def abandon(self, claim: Claim, *, within: float) -> None:
        store = self._store
        with store.mutex:
            now = store.clock()
            resource = store.look(claim.terms.key, now)
            if resource is not None:
                waiting = resource.queue.pop(claim.id, None)
                held = resource.holders.get(claim.id)
                if held is not None and not held.ended:  # a lingering one was released: it stays taken as promised
                    del resource.holders[claim.id]
                if waiting or held:
                    resource.hand_over(now)
                    store.look(claim.terms.key, now)

    async def inspect(self, key: str) -> LockInfo:
        store = self._store
        with store.mutex:
            now = store.clock()
            return self._info(key, store.look(key, now), now)

    async def list(self, prefix: str) -> list[LockInfo]:
        store = self._store
        with store.mutex:
            now = store.clock()
            store.sweep(now)
            found = sorted(key for key in store.resources if key.startswith(prefix))
            return [self._info(key, store.resources[key], now) for key in found]

    async def break_(self, key: str) -> LockInfo:
        store = self._store
        with store.mutex:
            now = store.clock()
            resource = store.look(key, now)
            before = self._info(key, resource, now)
            if resource is not None:
                resource.holders.clear()
                resource.hand_over(now)
                store.look(key, now)
            return before

    def _info(self, key: str, resource: _Resource | None, now: float) -> LockInfo:
        if resource is None:
            return LockInfo(key)
        wall = time.time()
        holders = tuple(
            HolderInfo(
                holder=h.claim.terms.holder,
                claim_id=h.claim.id,
                fence=h.fence,
                mode=h.claim.terms.mode,
                acquired_at=h.acquired_at,
                expires_at=wall + h.expires_at - now,
                metadata=json.loads(h.claim.terms.metadata) if h.claim.terms.metadata else None,
            )
            for h in resource.holders.values()
        )
        return LockInfo(key, holders, len(resource.queue))

    async def close(self) -> None:
        """The store is the process's; but whoever waits through us must hear of the end."""
        with self._store.mutex:
            for resource in self._store.resources.values():
                for waiter in resource.queue.values():
                    if waiter.world is self._world:
                        waiter.signal.set()

    def before_fork(self) -> None:
        """Nothing to put away."""

    def after_fork(self, *, child: bool) -> None:
        """A child is another process, so it starts with an empty store."""
        if child:
            self._store.clear()

    def __repr__(self) -> str:
        return f"memory://{self._store.name}"
