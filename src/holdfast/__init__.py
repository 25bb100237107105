"""holdfast: distributed locks that are right by default.

    locks = holdfast.connect()
    with locks.lock("order:42", ttl=30, wait=10) as lease:
        charge(order, fence=lease.fence)

`holdfast.aio` is the same for asyncio. Errors are in `holdfast.errors` and here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._model import Diagnosis, Health, HolderInfo, LockInfo
from holdfast._values import Allowance
from holdfast.errors import (
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
from holdfast.sync import Lease, Lock, Locks, connect

if TYPE_CHECKING:
    from holdfast import aio, fencing
    from holdfast._faces.sync_manager import DistributedLock, get_distributed_lock
    from holdfast._faces.sync_primitives import Cell, Election, Limiter, MultiLease, MultiLock, RWLock
    from holdfast.engine.order import LockOrderWarning
    from holdfast.primitives.cell import Versioned
    from holdfast.primitives.election import Leadership
    from holdfast.primitives.manager import LockOptions, LockResult

__version__ = "0.1.0"
__all__ = [
    "AcquireTimeout",
    "Allowance",
    "BackendUnavailable",
    "Cell",
    "Conflict",
    "Diagnosis",
    "DistributedLock",
    "Election",
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
    "MultiLease",
    "MultiLock",
    "NotHeld",
    "RWLock",
    "SelfDeadlock",
    "StaleFence",
    "Unsupported",
    "Versioned",
    "__version__",
    "aio",
    "connect",
    "fencing",
    "get_distributed_lock",
]

# What takes time to import and not everybody needs: only its users wait for it. "" is a module of that name.
_LATER = {
    "aio": "",
    "fencing": "",
    "LockOrderWarning": "holdfast.engine.order",
    "Versioned": "holdfast.primitives.cell",
    "Leadership": "holdfast.primitives.election",
    **dict.fromkeys(("LockOptions", "LockResult"), "holdfast.primitives.manager"),
    **dict.fromkeys(("DistributedLock", "get_distributed_lock"), "holdfast._faces.sync_manager"),
    **dict.fromkeys(
        ("Cell", "Election", "Limiter", "MultiLease", "MultiLock", "RWLock"), "holdfast._faces.sync_primitives"
    ),
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    import importlib

    if not _LATER[name]:
        return importlib.import_module(f"holdfast.{name}")
    return getattr(importlib.import_module(_LATER[name]), name)
