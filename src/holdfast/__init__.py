"""holdfast: distributed locks that are right by default.

    locks = holdfast.connect()
    with locks.lock("order:42", ttl=30, wait=10) as lease:
        charge(order, fence=lease.fence)

`holdfast.aio` is the same for asyncio. Errors are in `holdfast.errors` and here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._model import HolderInfo, LockInfo
from holdfast.errors import AcquireTimeout, BackendUnavailable, LeaseLost, LockError, NotHeld, Unsupported
from holdfast.sync import Lease, Lock, Locks, connect

if TYPE_CHECKING:
    from holdfast import aio

__version__ = "0.1.0"
__all__ = [
    "AcquireTimeout",
    "BackendUnavailable",
    "HolderInfo",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockError",
    "LockInfo",
    "Locks",
    "NotHeld",
    "Unsupported",
    "__version__",
    "aio",
    "connect",
]


def __getattr__(name: str) -> object:
    if name == "aio":  # asyncio takes longer to import than all of holdfast; only its users wait for it
        import importlib

        return importlib.import_module("holdfast.aio")
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
