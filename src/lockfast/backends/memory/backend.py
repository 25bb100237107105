"""The reference backend: the whole model in dictionaries. Read this one first.

Decides: how the verbs of a lock work when making a step atomic costs nothing more than a mutex.
Leaves to `_model`: which claim fits and which waiter is next. Leaves to `resource`: what expires.
Leaves to `inspection` and `values`: the verbs that a lock does not need.

A store has a name and is shared by every `Locks` of the process, sync and async alike, so that a thread and a
task can contend for one lock. It lives as long as the process and is empty in the child of a fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from lockfast._model import EXCLUSIVE, SHARED, Busy, Capabilities, Claim, Grant, Renewal, poll_after
from lockfast._refusals import limit_mismatch
from lockfast.backends.memory.inspection import MemoryInspection
from lockfast.backends.memory.resource import MemoryHolder, MemoryResource, MemoryWaiter
from lockfast.backends.memory.values import MemoryValues


class MemoryBackend(MemoryInspection, MemoryValues):
    capabilities = Capabilities(instant=True, hands_over=True)

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        store, key = self._store, claim.terms.key
        with self._step():
            now = store.clock()
            resource = store.refresh(key, now, asking=claim.id) if key in store.resources else None
            if resource is None:
                if store.fence >= store.sweep_at:
                    store.sweep(now)
                return store.add(key).grant(claim, now)
            holder = resource.holders.get(claim.id)
            if holder is not None and not holder.ended:  # a repeated request: its reply was lost
                return self._grant_again(resource, holder, claim, now)
            if claim.terms.mode == SHARED and claim.id not in resource.queue:
                self._refuse_other_limits(resource, claim)
            if self._fits(resource, claim):
                return resource.grant(claim, now)
            if enqueue:
                self._enqueue(resource, claim, now)
            return self._busy(resource, claim, now)

    def _fits(self, resource: MemoryResource, claim: Claim) -> bool:
        own = resource.queue.get(claim.id)
        if own is not None and own.reserved:
            return True  # even if an older waiter, whose own reservation lapsed, is back since
        for waiter in resource.queue.values():
            if waiter is own:
                break
            if not waiter.reserved and not waiter.lapsed:
                return False  # no claim passes an older waiter
        return resource.occupancy().fits(claim.terms.mode, claim.terms.limit)

    def _refuse_other_limits(self, resource: MemoryResource, claim: Claim) -> None:
        """All claims that share a name, or wait to, have one limit, so it is enough to compare with one of them."""
        terms = claim.terms
        holders, waiters = resource.holders.values(), resource.queue.values()
        for other in chain((held.claim for held in holders), (waiter.claim for waiter in waiters)):
            if other.terms.mode == SHARED and other.id != claim.id:
                if other.terms.limit != terms.limit:
                    raise limit_mismatch(terms.name, other.terms.limit, terms.limit)
                return

    def _grant_again(self, resource: MemoryResource, holder: MemoryHolder, claim: Claim, now: float) -> Grant:
        holder.expires_at = max(holder.expires_at, now + claim.terms.ttl)
        if claim.terms.mode == SHARED and holder.claim.terms.mode == EXCLUSIVE:  # a downgrade, which makes room
            holder.claim = claim
            resource.hand_over(now)
        return holder.grant

    def _enqueue(self, resource: MemoryResource, claim: Claim, now: float) -> None:
        waiter = resource.queue.get(claim.id)
        if waiter is None:
            confirms = not self.capabilities.hands_over
            waiter = resource.queue[claim.id] = MemoryWaiter(claim, self._world, confirms=confirms)
        waiter.asks(now)
        resource.quiet_until = min(resource.quiet_until, waiter.alive_until)

    def _busy(self, resource: MemoryResource, claim: Claim, now: float) -> Busy:
        ahead = 0
        for waiter in resource.queue.values():
            if waiter.claim.id == claim.id:
                break
            ahead += not waiter.lapsed
        retry_after = poll_after(ahead, resource.room_at(claim.terms.mode) - now)
        holder = next((holder.claim for holder in resource.holders.values()), None)
        last_fence = self._store.fence
        if holder is None:
            return Busy(ahead, retry_after, last_fence=last_fence)
        return Busy(ahead, retry_after, holder.terms.holder, claim_id=holder.id, last_fence=last_fence)

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        with self._step():
            resource = self._store.resources.get(claim.terms.key)
            sleeper = resource.sleeper(claim.id) if resource else None
        if sleeper is not None and not await sleeper.signal.wait(seconds):
            return False
        with self._step():
            return self.handed_over(claim) or True

    def handed_over(self, claim: Claim) -> Grant | None:
        """Its grant, if it was made the holder: what its wake-up carries. Called within a step."""
        resource = self._store.resources.get(claim.terms.key)
        holder = resource.holders.get(claim.id) if resource else None
        return holder.grant if holder is not None and not holder.ended else None

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> list[bool]:
        with self._step():
            now = self._store.clock()
            return [self._renew(renewal, now) for renewal in batch]

    def _renew(self, renewal: Renewal, now: float) -> bool:
        resource = self._store.resources.get(renewal.claim.terms.key)
        holder = resource.holders.get(renewal.claim.id) if resource else None
        if holder is None or holder.ended or holder.expires_at <= now or holder.fence != renewal.fence:
            return False
        holder.expires_at = max(holder.expires_at, now + renewal.ttl)
        return True

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        store, key, id = self._store, claim.terms.key, claim.id
        with self._step():
            resource = store.resources.get(key)
            holder = resource.holders.get(id) if resource else None
            if resource is None or holder is None or holder.ended:
                return False
            now = store.clock()
            alive = holder.expires_at > now
            if linger and alive:
                holder.ended = True
                holder.expires_at = now + linger
                resource.quiet_until = 0.0
            else:
                resource.end(id)
                if resource.queue:
                    resource.expire(now)  # an expired hold must not stand in the way of the hand-over
                    resource.hand_over(now, successor if alive else "")
            if resource.is_unused():
                store.remove(key)
            return alive

    async def abandon(self, claim: Claim, *, within: float) -> None:
        store = self._store
        with self._step():
            now = store.clock()
            resource = store.resources.get(claim.terms.key)
            if resource is not None:
                made_room = resource.expire(now)  # and nothing is handed over yet: it might be granted to this claim
                sleeper = resource.sleeper(claim.id)
                if sleeper is not None:
                    sleeper.signal.set()  # it may still be inside `wait`
                resource.forget_observer(claim.id)
                waiting = resource.queue.pop(claim.id, None)
                held = resource.holders.get(claim.id)
                if held is not None and not held.ended:  # a hold that lingers was released: the name stays taken
                    resource.end(claim.id)
                if made_room or waiting or held:
                    resource.hand_over(now)
                store.refresh(claim.terms.key, now)

    async def close(self) -> None:
        """The store belongs to the process. But claims that wait through this backend must notice the end."""
        with self._step():
            for resource in self._store.resources.values():
                for sleeper in resource.sleepers():
                    if sleeper.world is self._world:
                        sleeper.signal.set()

    def before_fork(self) -> None:
        """There is no connection to close."""

    def after_fork(self, *, child: bool) -> None:
        """A child is another process, so it starts with an empty store."""
        if child:
            self._store.clear()
