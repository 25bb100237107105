"""What the tests of SQLite share: hosts that are not this one, and a hold at once."""

from __future__ import annotations

from pathlib import Path

from holdfast._ids import new_claim_id
from holdfast._model import Claim, Terms
from holdfast._worlds.threads import ThreadWorld
from holdfast.backends.sqlite import SqliteBackend
from holdfast.backends.sqlite_store import SCHEMA
from holdfast.drivers.host import Host
from holdfast.drivers.sqlite import BlockingSqlite
from holdfast.drivers.wakes import BlockingWakes
from holdfast.engine.core import Engine
from holdfast.primitives.locks import LocksLogic
from holdfast.sync import Lease, Locks


def backend_on(path: Path, host: Host) -> SqliteBackend:
    """A backend that takes this machine for another one, or for another boot of it."""
    return SqliteBackend(BlockingSqlite(path, SCHEMA, BlockingWakes(None), None, host))


def on_host(path: Path, host: Host) -> Locks:
    return Locks(LocksLogic(Engine(backend_on(path, host), ThreadWorld(), lease_type=Lease), "holdfast"))


def claim_on(name: str) -> Claim:
    return Claim(new_claim_id(), Terms(name, name, "us", 30.0))


def hold(locks: Locks, name: str = "x", ttl: float = 30) -> Lease:
    lease = locks.lock(name, ttl=ttl, wait=0).acquire()
    assert lease is not None
    return lease
