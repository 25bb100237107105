"""holdfast: distributed locks that are right by default.

    locks = holdfast.connect()
    with locks.lock("order:42", ttl=30, wait=10) as lease:
        charge(order, fence=lease.fence)

`holdfast.aio` is the same for asyncio. Errors are in `holdfast.errors` and here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._model import HolderInfo, LockInfo
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
    from holdfast import aio
    from holdfast._faces.sync_primitives import Cell, Election, Limiter, MultiLease, MultiLock, RWLock
    from holdfast.engine.order import LockOrderWarning
    from holdfast.primitives.cell import Versioned
    from holdfast.primitives.election import Leadership

__version__ = "0.1.0"
__all__ = [
    "AcquireTimeout",
    "Allowance",
    "BackendUnavailable",
    "Cell",
    "Conflict",
    "Election",
    "HolderInfo",
    "Leadership",
    "Lease",
    "LeaseLost",
    "LimitMismatch",
    "Limiter",
    "Lock",
    "LockError",
    "LockInfo",
    "LockOrderWarning",
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
]

# What takes time to import and not everybody needs: only its users wait for it.
_LATER = {
    "aio": "",
    "LockOrderWarning": "holdfast.engine.order",
    "Versioned": "holdfast.primitives.cell",
    "Leadership": "holdfast.primitives.election",
    **dict.fromkeys(
        ("Cell", "Election", "Limiter", "MultiLease", "MultiLock", "RWLock"), "holdfast._faces.sync_primitives"
    ),
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    import importlib

    if name == "aio":
        return importlib.import_module("holdfast.aio")
    return getattr(importlib.import_module(_LATER[name]), name)
