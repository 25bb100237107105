"""What the tests of SQLite share: hosts that are not this one, and a hold at once."""

from __future__ import annotations

from pathlib import Path

from lockfast._ids import new_claim_id
from lockfast._model import Claim, Terms
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.sqlite.backend import SqliteBackend
from lockfast.backends.sqlite.io.blocking import BlockingSqlite
from lockfast.backends.sqlite.io.host import HostIdentity
from lockfast.backends.sqlite.schema import SCHEMA
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.engine.core import Engine
from lockfast.primitives.locks import LocksLogic
from lockfast.sync import Lease, Locks


def backend_on(path: Path, host: HostIdentity) -> SqliteBackend:
    """A backend that takes this machine for another one, or for another boot of it."""
    return SqliteBackend(BlockingSqlite(path, SCHEMA, BlockingWakeups(None), None, host))


def on_host(path: Path, host: HostIdentity) -> Locks:
    return Locks(LocksLogic(Engine(backend_on(path, host), ThreadWorld(), lease_type=Lease), "lockfast"))


def claim_on(name: str) -> Claim:
    return Claim(new_claim_id(), Terms(name, name, "us", 30.0))


def hold(locks: Locks, name: str = "x", ttl: float = 30) -> Lease:
    lease = locks.lock(name, ttl=ttl, wait=0).acquire()
    assert lease is not None
    return lease
