"""The reference backend: the whole model in dictionaries. Read this one first.

Decides: how the verbs work when making a step atomic costs nothing more than a mutex.
Leaves to `_model`: who fits and who is next in line.

A store has a name and is shared by every `Locks` of the process, sync and async alike, so that a thread and a
task can contend for one lock. It lives as long as the process and is empty in the child of a fork.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import chain
from math import inf

from lockfast._model import (
    EXCLUSIVE,
    MAX_POLL_S,
    PRESENCE_S,
    SHARED,
    Busy,
    Capabilities,
    Change,
    Claim,
    Grant,
    HolderInfo,
    LockInfo,
    Observation,
    Renewal,
    poll_after,
)
from lockfast._values import NOTHING, Booked, Rate, Stored, Write, Written, after, book, decide
from lockfast._worlds import World
from lockfast.backends.memory.store import MemoryHolder, MemoryObserver, MemoryResource, MemoryStore, MemoryWaiter
from lockfast.errors import LimitMismatch


class MemoryBackend:
    capabilities = Capabilities(instant=True)

    def __init__(self, store: MemoryStore, world: World) -> None:
        self._store = store
        self._world = world
        self._step = store.step if world.blocking else store.step_in_a_loop

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        store = self._store
        with self._step():
            now = store.clock()
            resource = store.look(claim.terms.key, now)
            if resource is None:
                if store.fence >= store.sweep_at:
                    store.sweep(now)
                resource = store.resources[claim.terms.key] = MemoryResource(store)
                return self._grant(resource, claim, now)
            holder = resource.holders.get(claim.id)
            if holder is not None and not holder.ended:  # asked before, and the answer was lost
                return self._grant_again(resource, holder, claim, now)
            if claim.terms.mode == SHARED and claim.id not in resource.queue:
                self._refuse_other_limits(resource, claim)
            if self._fits(resource, claim):
                resource.queue.pop(claim.id, None)
                return self._grant(resource, claim, now)
            if enqueue:
                self._enqueue(resource, claim, now)
            return self._busy(resource, claim, now)

    def _fits(self, resource: MemoryResource, claim: Claim) -> bool:
        own = resource.queue.get(claim.id)
        if own is not None and own.reserved:
            return True  # even if an older one, whose own reservation lapsed, is back since
        for waiter in resource.queue.values():
            if waiter is own:
                break
            if not waiter.reserved and not waiter.lapsed:
                return False  # an older waiter stands unserved
        return resource.occupancy().fits(claim.terms.mode, claim.terms.limit)

    def _refuse_other_limits(self, resource: MemoryResource, claim: Claim) -> None:
        """All who share a name, or wait to, have one limit, so it is enough to look at one of them."""
        terms = claim.terms
        holders, waiters = resource.holders.values(), resource.queue.values()
        for other in chain((held.claim for held in holders), (waiter.claim for waiter in waiters)):
            if other.terms.mode == SHARED and other.id != claim.id:
                if other.terms.limit != terms.limit:
                    LimitMismatch.tell(terms.name, other.terms.limit, terms.limit)
                return

    def _grant_again(self, resource: MemoryResource, holder: MemoryHolder, claim: Claim, now: float) -> Grant:
        holder.expires_at = max(holder.expires_at, now + claim.terms.ttl)
        if claim.terms.mode == SHARED and holder.claim.terms.mode == EXCLUSIVE:  # it no longer wants it for itself
            holder.claim = claim
            resource.hand_over(now)
        return Grant(holder.fence, holder.acquired_at)

    def _grant(self, resource: MemoryResource, claim: Claim, now: float) -> Grant:
        fence = self._store.count()
        acquired_at = time.time()
        expires_at = now + claim.terms.ttl
        resource.holders[claim.id] = MemoryHolder(claim, fence, acquired_at, expires_at)
        if expires_at < resource.quiet_until:
            resource.quiet_until = expires_at
        if resource.observers:
            resource.tell(fence, claim.terms.holder)
        return Grant(fence, acquired_at)

    def _enqueue(self, resource: MemoryResource, claim: Claim, now: float) -> None:
        waiter = resource.queue.get(claim.id)
        if waiter is None:
            waiter = resource.queue[claim.id] = MemoryWaiter(claim, self._world)
        waiter.alive_until = now + PRESENCE_S
        waiter.lapsed = False
        resource.quiet_until = min(resource.quiet_until, waiter.alive_until)

    def _busy(self, resource: MemoryResource, claim: Claim, now: float) -> Busy:
        ahead = 0
        for waiter in resource.queue.values():
            if waiter.claim.id == claim.id:
                break
            ahead += not waiter.lapsed
        retry_after = poll_after(ahead, resource.room_at(claim.terms.mode) - now)
        holder = next((holder.claim for holder in resource.holders.values()), None)
        if holder is None:
            return Busy(ahead, retry_after)
        return Busy(ahead, retry_after, holder.terms.holder, claim_id=holder.id)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        with self._step():
            resource = self._store.resources.get(claim.terms.key)
            asleep = (resource.queue.get(claim.id) or resource.observers.get(claim.id)) if resource else None
        return asleep is None or await asleep.signal.wait(seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> list[bool]:
        store = self._store
        with self._step():
            now = store.clock()
            return [self._renew(renewal, now) for renewal in batch]

    def _renew(self, renewal: Renewal, now: float) -> bool:
        resource = self._store.resources.get(renewal.claim.terms.key)
        holder = resource.holders.get(renewal.claim.id) if resource else None
        if holder is None or holder.ended or holder.expires_at <= now or holder.fence != renewal.fence:
            return False
        holder.expires_at = max(holder.expires_at, now + renewal.ttl)
        return True

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        store = self._store
        with self._step():
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
                resource.end(claim.id)
                if resource.queue:
                    resource.expire(now)  # what is over must not stand in the way of the hand-over
                    resource.hand_over(now, successor if alive else "")
            if resource.unused:
                del store.resources[claim.terms.key]
            return alive

    async def abandon(self, claim: Claim, *, within: float) -> None:
        store = self._store
        with self._step():
            now = store.clock()
            resource = store.look(claim.terms.key, now)
            if resource is not None:
                asleep = resource.queue.get(claim.id) or resource.observers.get(claim.id)
                if asleep is not None:
                    asleep.signal.set()  # should it still wait, it looks up
                resource.forget_observer(claim.id)
                waiting = resource.queue.pop(claim.id, None)
                held = resource.holders.get(claim.id)
                if held is not None and not held.ended:  # a lingering one was released: it stays taken as promised
                    resource.end(claim.id)
                if waiting or held:
                    resource.hand_over(now)
                store.look(claim.terms.key, now)

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        store = self._store
        with self._step():
            now = store.clock()
            resource = store.look_or_make(claim.terms.key, now)
            observer = resource.observers.get(claim.id)
            if observer is not None and after:
                changes = [change for change in resource.changes if change.number > after]
            else:
                changes = self._as_it_is(resource)
                observer = resource.observers.setdefault(claim.id, observer or MemoryObserver(self._world))
            observer.alive_until = now + PRESENCE_S
            resource.quiet_until = min(resource.quiet_until, observer.alive_until)
            ends = (holder.expires_at for holder in resource.holders.values())
            return Observation(tuple(changes), max(0.0, min(MAX_POLL_S, min(ends, default=inf) - now)))

    def _as_it_is(self, resource: MemoryResource) -> list[Change]:
        number = self._store.count()
        held = [holder for holder in resource.holders.values() if not holder.ended]
        return [Change(number, holder.fence, holder.holder) for holder in held] or [Change(number, 0, None)]

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        store = self._store
        with self._step():
            now = store.clock()
            return self._info(key, store.look(key, now), now)

    async def list(self, prefix: str, *, within: float) -> list[LockInfo]:
        store = self._store
        with self._step():
            now = store.clock()
            store.sweep(now)
            found = sorted(key for key in store.resources if key.startswith(prefix))
            infos = [self._info(key, store.resources[key], now) for key in found]
            return [info for info in infos if info.holders or info.waiters]  # not those that are only observed

    async def break_(self, key: str, *, within: float) -> LockInfo:
        store = self._store
        with self._step():
            now = store.clock()
            resource = store.look(key, now)
            before = self._info(key, resource, now)
            if resource is not None:
                for id in list(resource.holders):
                    resource.end(id)
                resource.hand_over(now)
                store.look(key, now)
            return before

    def _info(self, key: str, resource: MemoryResource | None, now: float) -> LockInfo:
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
        return LockInfo(key, holders, len(resource.queue), tuple(w.holder for w in resource.queue.values()))

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        store = self._store
        with self._step():
            now = store.clock()
            store.sweep_limiters(now)
            booked = book(store.limiters.get(key, 0), now, rate, cost, patience)
            if booked.allowance.allowed:
                store.limiters[key] = booked.until
            return booked

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        store = self._store
        with self._step():
            if store.limiters.get(key) == until:
                store.limiters[key] = until - rate.interval * cost

    async def read(self, key: str, *, within: float) -> Stored:
        with self._step():
            return self._store.cells.get(key, NOTHING)

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        store = self._store
        with self._step():
            stored = store.cells.get(key, NOTHING)
            outcome = decide(stored, write)
            if outcome is not None:
                return outcome
            written = after(stored, write, stored.version or store.last_deleted)
            if write.value is None:
                store.cells.pop(key, None)
                store.last_deleted = max(store.last_deleted, stored.version)
            else:
                store.cells[key] = written
            return Written("written", written.version, written.fence)

    async def close(self) -> None:
        """The store is the process's; but whoever waits through us must hear of the end."""
        with self._step():
            for resource in self._store.resources.values():
                for asleep in resource.asleep():
                    if asleep.world is self._world:
                        asleep.signal.set()

    def before_fork(self) -> None:
        """Nothing to put away."""

    def after_fork(self, *, child: bool) -> None:
        """A child is another process, so it starts with an empty store."""
        if child:
            self._store.clear()

    @property
    def store_id(self) -> str:
        return f"{self!r} at {id(self._store):#x}"  # a test may have several stores of one name

    def __repr__(self) -> str:
        return f"memory://{self._store.name}"
