"""A backend that lockfast does not know needs no more than `make_backend` to be held to the contract."""

from __future__ import annotations

from pathlib import Path

from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import MemoryStore
from lockfast.testing.contract.s04_one_admission_rule import OneAdmissionRule

_stores: dict[Path, MemoryStore] = {}


class TestOwnBackend(OneAdmissionRule):
    can = frozenset({"simulated"})

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        assert clock is not None
        return MemoryBackend(_stores.setdefault(tmp_path, MemoryStore(clock.now)), world)
