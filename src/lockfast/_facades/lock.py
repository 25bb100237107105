"""A lock and its lease, in both worlds: one line a method. All logic is in `primitives` and `engine`."""

from __future__ import annotations

import sys
from types import CoroutineType
from typing import Any

from lockfast._reentry import drive, nothing
from lockfast._time import Seconds
from lockfast.engine import lease
from lockfast.primitives.lock import LockLogic
from lockfast.primitives.statement import AsyncExits, Exits, begun


class Lease(lease.Lease):
    """One granted lock, held until released, lost or expired. See `lockfast.engine.lease`."""

    __slots__ = ()

    def extend(self, ttl: Seconds | None = None) -> None:
        """Hold it for at least `ttl` seconds from now, and use that ttl from now on. Never shortens.

        Raises LeaseLost if it is no longer ours; nothing is taken again behind your back. Raises
        BackendUnavailable if the backend does not answer; the lease is then what it was before.
        """
        drive(self._extend(ttl))

    def release(self) -> bool:
        """True if it was held until now. False if it had ended before; the next holder is not touched.

        Raises BackendUnavailable if the backend does not answer; call again, or its ttl ends it.
        """
        return drive(self._release(), self._engine, self._is_held)

    def downgrade(self) -> None:
        """Share it from now on: other readers may enter, and no writer in between. Fence and lease stay the same.

        Does nothing to a lease that is shared already. Raises LeaseLost if it is no longer ours. Raises
        BackendUnavailable if the backend does not answer; others may then be in or not, and calling again settles it.
        """
        drive(self._downgrade())


class AsyncLease(lease.Lease):
    """One granted lock, held until released, lost or expired. See `lockfast.engine.lease`."""

    __slots__ = ()

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Hold it for at least `ttl` seconds from now, and use that ttl from now on. Never shortens.

        Raises LeaseLost if it is no longer ours; nothing is taken again behind your back. Raises
        BackendUnavailable if the backend does not answer; the lease is then what it was before.
        """
        await self._extend(ttl)

    async def release(self) -> bool:
        """True if it was held until now. False if it had ended before; the next holder is not touched.

        Not cut short by a cancellation. Raises BackendUnavailable if the backend does not answer; call again,
        or its ttl ends it.
        """
        return await self._release()

    async def downgrade(self) -> None:
        """Share it from now on: other readers may enter, and no writer in between. Fence and lease stay the same.

        Does nothing to a lease that is shared already. Raises LeaseLost if it is no longer ours. Raises
        BackendUnavailable if the backend does not answer; others may then be in or not, and calling again settles it.
        """
        await self._downgrade()


class Lock(Exits):
    """A named lock: a context manager with the shape of `threading.Lock`. `acquire` gives a lease instead of True."""

    __slots__ = ("_logic",)

    def __init__(self, logic: LockLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> Lease | None:
        """The lease, or None after `timeout` seconds, by default the lock's own `wait`.

        Raises BackendUnavailable if the backend cannot be asked. However it fails, nothing is left behind.
        """
        return drive(self._logic.acquire(blocking, timeout))  # type: ignore[return-value]

    def release(self) -> None:
        """Release what was last acquired through this object. Raises NotHeld if there is nothing."""
        drive(self._logic.release(), self._logic.engine, nothing)

    def locked(self) -> bool:
        """Whether it is held, in this process or another."""
        return drive(self._logic.locked())

    def __enter__(self) -> Lease:
        call = sys._getframe(1)
        return drive(self._logic.enter(call, begun(self._logic, call)))  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<Lock {self._logic!r}>"


class AsyncLock(AsyncExits):
    """A named lock: an async context manager with the shape of `asyncio.Lock`, but for two methods.

    `release()` and `locked()` are awaited, since both ask the backend. `acquire` gives a lease instead of True.
    If the lease is lost the body of `async with` is cancelled and LeaseLost is raised.
    """

    __slots__ = ("_logic",)

    def __init__(self, logic: LockLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    # The first three give the logic's own coroutines: no frame in between.

    def acquire(
        self, blocking: bool = True, timeout: Seconds | None = None
    ) -> CoroutineType[Any, Any, AsyncLease | None]:
        """The lease, or None after `timeout` seconds, by default the lock's own `wait`.

        Raises BackendUnavailable if the backend cannot be asked. However it fails, by cancellation too, nothing
        is left behind.
        """
        return self._logic.acquire(blocking, timeout)  # type: ignore[return-value]

    def release(self) -> CoroutineType[Any, Any, None]:
        """Release what was last acquired through this object. Raises NotHeld if there is nothing."""
        return self._logic.release()  # type: ignore[return-value]

    async def locked(self) -> bool:
        """Whether it is held, in this process or another."""
        return await self._logic.locked()

    def __aenter__(self) -> CoroutineType[Any, Any, AsyncLease]:
        call = sys._getframe(1)
        return self._logic.enter(call, begun(self._logic, call))  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<AsyncLock {self._logic!r}>"
