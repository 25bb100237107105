"""lockfast: distributed locks that are right by default.

    locks = lockfast.connect()
    with locks.lock("order:42", ttl=30, wait=10) as lease:
        charge(order, fence=lease.fence)

`lockfast.aio` is the same for asyncio. Errors are in `lockfast.errors` and here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast._model import Diagnosis, Health, HolderInfo, LockInfo
from lockfast._values import Allowance
from lockfast.engine.backoff import Backoff
from lockfast.errors import (
    AcquireTimeout,
    BackendUnavailable,
    Conflict,
    LeaseLost,
    LimitMismatch,
    LockError,
    NotHeld,
    SelfDeadlock,
    StaleFence,
    Unsupported,
)
from lockfast.sync import Lease, Lock, Locks, connect

if TYPE_CHECKING:
    from lockfast import aio, fencing, observe
    from lockfast._facades.manager import DistributedLock, get_distributed_lock
    from lockfast._facades.primitives import Cell, Election, Limiter, MultiLease, MultiLock, RWLock
    from lockfast.engine.order import LockOrderWarning
    from lockfast.observe.events import Event, Events
    from lockfast.observe.stats import Measured, Stats
    from lockfast.primitives.cell import Versioned
    from lockfast.primitives.election import Leadership
    from lockfast.primitives.manager import LockOptions, LockResult

__version__ = "0.1.0"
__all__ = [
    "AcquireTimeout",
    "Allowance",
    "BackendUnavailable",
    "Backoff",
    "Cell",
    "Conflict",
    "Diagnosis",
    "DistributedLock",
    "Election",
    "Event",
    "Events",
    "Health",
    "HolderInfo",
    "Leadership",
    "Lease",
    "LeaseLost",
    "LimitMismatch",
    "Limiter",
    "Lock",
    "LockError",
    "LockInfo",
    "LockOptions",
    "LockOrderWarning",
    "LockResult",
    "Locks",
    "Measured",
    "MultiLease",
    "MultiLock",
    "NotHeld",
    "RWLock",
    "SelfDeadlock",
    "StaleFence",
    "Stats",
    "Unsupported",
    "Versioned",
    "__version__",
    "aio",
    "connect",
    "fencing",
    "get_distributed_lock",
    "observe",
]

# What takes time to import and few programs need is imported when it is first used. "" is a module of that name.
_LATER = {
    "aio": "",
    "fencing": "",
    "observe": "",
    "LockOrderWarning": "lockfast.engine.order",
    "Versioned": "lockfast.primitives.cell",
    "Leadership": "lockfast.primitives.election",
    **dict.fromkeys(("Event", "Events"), "lockfast.observe.events"),
    **dict.fromkeys(("Measured", "Stats"), "lockfast.observe.stats"),
    **dict.fromkeys(("LockOptions", "LockResult"), "lockfast.primitives.manager"),
    **dict.fromkeys(("DistributedLock", "get_distributed_lock"), "lockfast._facades.manager"),
    **dict.fromkeys(
        ("Cell", "Election", "Limiter", "MultiLease", "MultiLock", "RWLock"), "lockfast._facades.primitives"
    ),
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'lockfast' has no attribute {name!r}")
    import importlib

    if not _LATER[name]:
        return importlib.import_module(f"lockfast.{name}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__  # what is imported later too
