"""What can be seen of the memory store: changes, holders and waiters. A first reading can skip this.

Decides: what an observer is given, and what `inspect`, `list` and `break_` report.
"""

from __future__ import annotations

import builtins
import json
import time
from math import inf

from lockfast._info import HolderInfo, LockInfo
from lockfast._model import MAX_POLL_S, PRESENCE_S, Change, Claim, Observation
from lockfast.backends.memory.resource import MemoryObserver, MemoryResource
from lockfast.backends.memory.store import StoreUser


class MemoryInspection(StoreUser):
    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        store = self._store
        with self._step():
            now = store.clock()
            resource = store.refresh_or_make(claim.terms.key, now)
            observer = resource.observers.get(claim.id)
            if observer is not None and after:
                changes = [change for change in resource.changes if change.number > after]
            else:
                changes = self._present(resource)
                observer = resource.observers.setdefault(claim.id, observer or MemoryObserver(self._world))
            observer.alive_until = now + PRESENCE_S
            resource.quiet_until = min(resource.quiet_until, observer.alive_until)
            ends = (holder.expires_at for holder in resource.holders.values())
            return Observation(tuple(changes), max(0.0, min(MAX_POLL_S, min(ends, default=inf) - now)))

    def _present(self, resource: MemoryResource) -> builtins.list[Change]:
        """What is true now, as changes."""
        number = self._store.count()
        held = [holder for holder in resource.holders.values() if not holder.ended]
        return [Change(number, holder.fence, holder.holder) for holder in held] or [Change(number, 0, None)]

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        store = self._store
        with self._step():
            now = store.clock()
            return self._info(key, store.refresh(key, now), now)

    async def list(self, prefix: str, *, within: float) -> builtins.list[LockInfo]:
        store = self._store
        with self._step():
            now = store.clock()
            store.sweep(now)
            found = sorted(key for key in store.resources if key.startswith(prefix))
            infos = [self._info(key, store.resources[key], now) for key in found]
            return [info for info in infos if info.holders or info.waiters]  # not a key that is only observed

    async def break_(self, key: str, *, within: float) -> LockInfo:
        store = self._store
        with self._step():
            now = store.clock()
            resource = store.resources.get(key)
            if resource is not None:
                resource.expire(now)  # and nothing is handed over yet: this would end what was just granted
            before = self._info(key, resource, now)
            if resource is not None:
                for id in [*resource.holders]:
                    resource.end(id)
                resource.hand_over(now)
                store.refresh(key, now)
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
                acquired_at=h.grant.acquired_at,
                expires_at=wall + h.expires_at - now,
                metadata=json.loads(h.claim.terms.metadata) if h.claim.terms.metadata else None,
            )
            for h in resource.holders.values()
        )
        return LockInfo(key, holders, len(resource.queue), tuple(w.holder for w in resource.queue.values()))
