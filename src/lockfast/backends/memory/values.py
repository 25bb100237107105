"""Limiters and cells in the memory store. A first reading can skip this.

Decides: how they are kept. Leaves to `_values`: whether a permit is given, and whether a write goes through.
"""

from __future__ import annotations

from lockfast._values import EMPTY_CELL, Booked, Rate, Stored, Write, Written, apply_write, book_permits, check_write
from lockfast.backends.memory.store import StoreUser


class MemoryValues(StoreUser):
    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        store = self._store
        with self._step():
            now = store.clock()
            store.sweep_limiters(now)
            booked = book_permits(store.limiters.get(key, 0), now, rate, cost, patience)
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
            return self._store.cells.get(key, EMPTY_CELL)

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        store = self._store
        with self._step():
            stored = store.cells.get(key, EMPTY_CELL)
            outcome = check_write(stored, write)
            if outcome is not None:
                return outcome
            written = apply_write(stored, write, stored.version or store.last_deleted)
            if write.value is None:
                store.cells.pop(key, None)
                store.last_deleted = max(store.last_deleted, stored.version)
            else:
                store.cells[key] = written
            return Written("written", written.version, written.fence)
