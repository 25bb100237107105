"""asyncio's face: the names of `holdfast.sync`, awaited. All logic is in `primitives` and `engine`."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, cast

from holdfast._connect import open_backend
from holdfast._model import LockInfo
from holdfast._time import Seconds, length
from holdfast._worlds import Clock, drive
from holdfast._worlds.asyncio_ import AsyncioWorld
from holdfast._worlds.threads import ThreadWorld
from holdfast.engine import lease
from holdfast.engine.core import PATIENCE, Engine
from holdfast.engine.process import adopt
from holdfast.errors import LockError
from holdfast.observe.events import Events
from holdfast.primitives.lock import LockLogic
from holdfast.primitives.locks import LocksLogic
from holdfast.primitives.names import DEFAULT_NAMESPACE

__all__ = ["AsyncLease", "AsyncLock", "AsyncLocks", "connect"]


class AsyncLease(lease.Lease):
    """One granted lock, held until released, lost or expired. See `holdfast.engine.lease`."""

    __slots__ = ()

    async def extend(self, ttl: Seconds | None = None) -> bool:
        """Hold it for at least `ttl` seconds from now, and use that ttl from now on. Never shortens.

        Raises LeaseLost if it is no longer ours; nothing is taken again behind your back. Raises
        BackendUnavailable if the backend does not answer; the lease is then what it was before.
        """
        return await self._extend(ttl)

    async def release(self) -> bool:
        """True if it was held until now. False if it had ended before; the next holder is not touched.

        Not cut short by a cancellation. Raises BackendUnavailable if the backend does not answer; call again,
        or its ttl ends it.
        """
        return await self._release()


class AsyncLock:
    """A named lock: an async context manager, and a drop-in for `asyncio.Lock`.

    If the lease is lost the body of `async with` is cancelled and LeaseLost is raised.
    """

    __slots__ = ("_logic",)

    def __init__(self, logic: LockLogic) -> None:
        self._logic = logic

    async def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> AsyncLease | None:
        """The lease, or None if it was not to be had: `timeout` seconds, by default the lock's own `wait`.

        Raises BackendUnavailable if the backend cannot be asked. However it fails, by cancellation too, nothing
        is left behind.
        """
        return cast("AsyncLease | None", await self._logic.acquire(blocking, timeout))

    async def release(self) -> None:
        """Let go of what was last acquired through this object. Raises NotHeld if there is nothing."""
        await self._logic.release()

    async def locked(self) -> bool:
        """Whether anybody holds it, in this process or another."""
        return await self._logic.locked()

    async def __aenter__(self) -> AsyncLease:
        return cast(AsyncLease, await self._logic.enter())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._logic.leave(exc)

    def __repr__(self) -> str:
        return f"<AsyncLock {self._logic!r}>"


class AsyncLocks:
    """All locks of one backend. Make one for an event loop and share it between tasks."""

    def __init__(self, logic: LocksLogic) -> None:
        self._logic = logic

    @property
    def holder(self) -> str:
        """What this instance calls itself when others ask who holds a lock."""
        return self._logic.engine.holder

    @property
    def events(self) -> Events:
        """The stream of what happens to the leases of this instance."""
        return self._logic.engine.events

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        reentrant: bool = False,
        metadata: Any = None,
        min_hold: Seconds = 0,
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> AsyncLock:
        """A lock on `name`. Nothing is asked of the backend yet.

        `ttl` is how long the lease outlives a holder that died; a live one renews it (unless `renew=False`).
        `wait` is how long to wait for it: None for ever, 0 not at all. After release the name stays taken until
        `min_hold` seconds after the grant. `on_lost(lease)` is called if it is lost, and awaited if it can be.
        Raises ValueError for a bad name, time or metadata.
        """
        return AsyncLock(self._logic.lock(name, ttl, wait, renew, reentrant, metadata, min_hold, on_lost))

    async def inspect(self, name: str) -> LockInfo:
        """Who holds `name` and how many wait for it."""
        return await self._logic.inspect(name)

    async def list(self, prefix: str = "") -> builtins.list[LockInfo]:
        """Every lock of this namespace that is held or waited for, by name."""
        return await self._logic.list(prefix)

    async def break_lock(self, name: str) -> LockInfo:
        """End every hold of `name`, whoever's it is, and tell what was there. The next grant has a higher fence.

        The former holder learns of it at its next renewal; until then only the fence stops it.
        """
        return await self._logic.break_lock(name)

    async def close(self) -> None:
        """Release what is still held, best effort, and let go of connections."""
        await self._logic.close()

    async def __aenter__(self) -> AsyncLocks:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        self._logic.warn_if_open(self)

    def __repr__(self) -> str:
        return f"<AsyncLocks {self._logic!r}>"


def connect(
    url_or_client: object = None,
    *,
    holder: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    patience: Seconds = PATIENCE,
    clock: Clock | None = None,
) -> AsyncLocks:
    """As `holdfast.connect`, for asyncio. Used in one event loop; it need not run yet."""
    world = AsyncioWorld(clock)
    engine = Engine(
        open_backend(url_or_client, world, clock),
        world,
        lease_type=AsyncLease,
        holder=holder,
        patience=length(patience, "patience"),
    )
    adopt(engine, partial(_release_without_loop, url_or_client, clock))
    return AsyncLocks(LocksLogic(engine, namespace))


def _release_without_loop(url_or_client: object, clock: Clock | None, engine: Engine) -> None:
    """At exit no loop runs any more, so the blocking twin of the backend lets go of what is left."""
    twin = open_backend(url_or_client, ThreadWorld(clock), clock)
    with suppress(LockError):  # best effort: the ttl ends what cannot be let go of
        for held in list(engine.keeper.leases.values()):
            drive(twin.release(held._claim, linger=engine.linger(held), within=1.0))
    drive(twin.close())
