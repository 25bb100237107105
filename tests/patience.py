"""Clients that give up soon while something is in their way, and have all the time they need before and after.

Decides: nothing. A client that is impatient all the time would give up on a busy machine too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lockfast import BackendUnavailable
from lockfast.testing.awaited import AwaitedLock, AwaitedLocks

SOON_S = 0.1  # seconds


@contextmanager
def impatient(locks: Any, seconds: float = SOON_S) -> Iterator[None]:
    """Meanwhile these locks, of either world, give up after that many seconds what cannot be asked for."""
    engine = getattr(locks, "raw", locks)._logic.engine
    before, engine.patience = engine.patience, seconds
    try:
        yield
    finally:
        engine.patience = before


async def refused(lock: AwaitedLock) -> None:
    """It is not granted: the lock is held, or its server does not answer."""
    with suppress(BackendUnavailable):
        assert await lock.acquire() is None


async def refused_for(locks: AwaitedLocks, name: str, reason: str, *, wait: float = 0, transient: bool = True) -> bool:
    """Whether one impatient try fails for this reason: on a busy machine it may end before the server has given any."""
    try:
        with impatient(locks, 0.3):
            assert await locks.lock(name, wait=wait).acquire() is None
    except BackendUnavailable as error:
        return error.transient is transient and reason in str(error)
    return False
