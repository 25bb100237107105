"""asyncio's face: the names of `lockfast.sync`, awaited. All logic is in `primitives` and `engine`."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from lockfast._facades import coroutine_functions
from lockfast._facades.lock import AsyncLease, AsyncLock
from lockfast._facades.observing import Observers, installers, observed
from lockfast._facades.opening import LocksOptions, open_async_locks
from lockfast._model import Diagnosis, LockInfo
from lockfast._time import Seconds
from lockfast._worlds import Clock
from lockfast.backends.opening import ConnectOptions
from lockfast.engine.backoff import Backoff
from lockfast.engine.core import DEFAULT_RETRY, PATIENCE_S
from lockfast.observe.events import Events
from lockfast.primitives.locks import LocksLogic
from lockfast.primitives.names import DEFAULT_NAMESPACE, LockName

if TYPE_CHECKING:
    from lockfast._clients import AsyncUserConnection, UrlOrClient
    from lockfast._facades.manager import AsyncDistributedLock as AsyncDistributedLock
    from lockfast._facades.manager import AsyncDistributedLock as DistributedLock
    from lockfast._facades.manager import get_async_distributed_lock as get_distributed_lock
    from lockfast._facades.primitives import (
        AsyncCell,
        AsyncElection,
        AsyncLimiter,
        AsyncMultiLease,
        AsyncMultiLock,
        AsyncRWLock,
    )
    from lockfast._facades.signatures import (
        AsyncF,
        AsyncLockedWithLease,
        AsyncSingleton,
        AsyncSingletonOr,
        AsyncSingletonWithLease,
        AsyncSingletonWithLeaseOr,
        LockedOptions,
        SingletonOptions,
    )
    from lockfast.observe.stats import Stats

D = TypeVar("D")

__all__ = [
    "AsyncCell",
    "AsyncDistributedLock",
    "AsyncElection",
    "AsyncLease",
    "AsyncLimiter",
    "AsyncLock",
    "AsyncLocks",
    "AsyncMultiLease",
    "AsyncMultiLock",
    "AsyncRWLock",
    "DistributedLock",
    "connect",
    "get_distributed_lock",
]

coroutine_functions.mark(AsyncLock.acquire, AsyncLock.release)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'lockfast.aio' has no attribute {name!r}")
    from lockfast._facades import manager, primitives  # only now: few programs need them

    if name.endswith(("DistributedLock", "distributed_lock")):
        return manager.get_async_distributed_lock if name.startswith("get") else manager.AsyncDistributedLock
    return getattr(primitives, name)


def __dir__() -> list[str]:
    return __all__  # what is imported later too


class AsyncLocks:
    """All locks of one backend. Make one for an event loop and share it between tasks."""

    def __init__(self, logic: LocksLogic) -> None:
        self._logic = logic

    @property
    def holder(self) -> str:
        """What others see when they ask who holds a lock of this instance."""
        return self._logic.engine.holder

    @property
    def events(self) -> Events:
        """The stream of what happens to the leases of this instance."""
        return self._logic.engine.events

    def lock(
        self,
        name: LockName,
        *,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        reentrant: bool = False,
        metadata: Any = None,
        min_hold: Seconds = 0,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> AsyncLock:
        """A lock on `name`. Nothing is asked of the backend yet.

        On advisory locks an integer is the server's own key, in any namespace: 42 is `pg_advisory_lock(42)`.
        `ttl` is how long the lease outlives a holder that died; a live one renews it (unless `renew=False`).
        `wait` is how long to wait for it: None for ever, 0 not at all. After release the name stays taken until
        `min_hold` seconds after the grant. Past an age of `max_hold` seconds the lease is not renewed any more, so a
        body that is stuck loses it, at most a ttl later. `renew_every` is the time between two renewals (None: a third
        of the ttl). `on_lost(lease)` is called if the lease is lost, and awaited if it can be, with the ContextVars
        that `acquire` or the `async with` was called with. `pattern` is what events and metrics call all
        names of this kind (None: the name with placeholders for numbers and ids).
        Raises ValueError for a bad name, time or metadata.
        """
        limits = (min_hold, max_hold, renew_every, pattern)
        return AsyncLock(self._logic.lock(name, metadata, on_lost, ttl, wait, renew, reentrant, *limits))

    def semaphore(
        self,
        name: str,
        limit: int,
        *,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        metadata: Any = None,
        min_hold: Seconds = 0,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> AsyncLock:
        """As `lock`, but up to `limit` may hold it at once, each with a lease and a fence of its own.

        Raises LimitMismatch when acquired while others use the name with another limit.
        """
        options = {"ttl": ttl, "wait": wait, "renew": renew, "metadata": metadata}
        limits = {"min_hold": min_hold, "max_hold": max_hold, "renew_every": renew_every, "pattern": pattern}
        return AsyncLock(self._logic.semaphore(name, limit, on_lost=on_lost, **options, **limits))

    def rwlock(
        self,
        name: LockName,
        *,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        metadata: Any = None,
        min_hold: Seconds = 0,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> AsyncRWLock:
        """A read/write lock: `.read()` and `.write()` are locks on `name`, with these options."""
        from lockfast._facades.primitives import AsyncRWLock

        options = {"ttl": ttl, "wait": wait, "renew": renew, "metadata": metadata}
        limits = {"min_hold": min_hold, "max_hold": max_hold, "renew_every": renew_every, "pattern": pattern}
        return AsyncRWLock(self._logic.rwlock(name, on_lost=on_lost, **options, **limits))

    def all(
        self,
        *names: LockName,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        renew: bool = True,
        metadata: Any = None,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[AsyncMultiLease], object] | None = None,
    ) -> AsyncMultiLock:
        """All of the names as one lock. They are taken in one order, so two callers never wait for each other.

        `wait` is for all of them together; if one times out, none is kept. If one is lost, all are released.
        """
        from lockfast._facades.primitives import AsyncMultiLease, AsyncMultiLock

        options = {"ttl": ttl, "wait": wait, "renew": renew, "metadata": metadata}
        limits = {"max_hold": max_hold, "renew_every": renew_every, "pattern": pattern}
        return AsyncMultiLock(self._logic.all(names, AsyncMultiLease, on_lost, **options, **limits))

    def election(
        self,
        name: str,
        *,
        candidate: str | None = None,
        ttl: Seconds = 30,
        wait: Seconds | None = None,
        metadata: Any = None,
        max_hold: Seconds | None = None,
        renew_every: Seconds | None = None,
        pattern: str | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> AsyncElection:
        """To be, or to watch, the one leader of `name`. The candidate is this instance's `holder` if not named.

        After a leader's death its place is vacant for up to `ttl` seconds.
        """
        from lockfast._facades.primitives import AsyncElection

        options = {"ttl": ttl, "wait": wait, "metadata": metadata, "on_lost": on_lost}
        limits = {"max_hold": max_hold, "renew_every": renew_every, "pattern": pattern}
        return AsyncElection(self._logic.election(name, candidate, **options, **limits))

    def limiter(self, name: str, *, rate: float, per: Seconds = 1.0, burst: int | None = None) -> AsyncLimiter:
        """At most `rate` permits in `per` seconds, evenly spaced; up to `burst` of them at once after a rest.

        In any stretch of `t` seconds at most `burst + t * rate / per` permits are given, `burst` being 1 by default.
        """
        from lockfast._facades.primitives import AsyncLimiter

        return AsyncLimiter(self._logic.limiter(name, rate, per, burst))

    def cell(self, name: str) -> AsyncCell:
        """A JSON value with a version. Cells and locks do not share their names."""
        from lockfast._facades.primitives import AsyncCell

        return AsyncCell(self._logic.cell(name))

    @overload
    def locked(
        self, name: str, *, lease_as: None = None, **options: Unpack[LockedOptions[AsyncLease]]
    ) -> Callable[[AsyncF], AsyncF]: ...
    @overload
    def locked(
        self, name: str, *, lease_as: str, **options: Unpack[LockedOptions[AsyncLease]]
    ) -> AsyncLockedWithLease: ...
    def locked(self, name: str, *, lease_as: str | None = None, **options: Unpack[LockedOptions[AsyncLease]]) -> Any:
        """Decorate: the function runs under the lock `name`, which may have fields of its arguments: "job:{job_id}".

        `options` are those of `lock`. With `lease_as` the function is given the lease under that name; its callers do
        not pass it. Raises TypeError, when decorating, unless it is a coroutine function or an async generator;
        ValueError for an unknown field.
        """
        from lockfast.primitives.decorators import async_locked

        return async_locked(self.lock, name, lease_as, options)

    @overload
    def singleton(
        self, name: str, *, lease_as: None = None, **options: Unpack[SingletonOptions[AsyncLease]]
    ) -> AsyncSingleton: ...
    @overload
    def singleton(
        self, name: str, *, default: D, lease_as: None = None, **options: Unpack[SingletonOptions[AsyncLease]]
    ) -> AsyncSingletonOr[D]: ...
    @overload
    def singleton(
        self, name: str, *, lease_as: str, **options: Unpack[SingletonOptions[AsyncLease]]
    ) -> AsyncSingletonWithLease: ...
    @overload
    def singleton(
        self, name: str, *, default: D, lease_as: str, **options: Unpack[SingletonOptions[AsyncLease]]
    ) -> AsyncSingletonWithLeaseOr[D]: ...
    def singleton(
        self,
        name: str,
        *,
        default: Any = None,
        lease_as: str | None = None,
        **options: Unpack[SingletonOptions[AsyncLease]],
    ) -> Any:
        """As `locked`, but skips instead of waiting: while another call holds the lock, this one returns `default`.

        `min_hold` keeps the name taken for its time even after a fast run, so that a late second one is skipped too.
        """
        from lockfast.primitives.decorators import async_locked

        return async_locked(self.lock, name, lease_as, options, skip=True, default=default)

    async def in_transaction(
        self, connection: AsyncUserConnection, *names: LockName, wait: Seconds | None = None
    ) -> int:
        """Take locks inside a transaction of your own, on your connection: a commit or rollback ends them.

        `connection` is an awaited one of psycopg's, or SQLAlchemy's AsyncConnection or AsyncSession, to the database
        where these locks are; raises ValueError if it leads elsewhere. Several names are taken in one order, all or
        none. Gives a fence for what the transaction does. Raises AcquireTimeout after `wait` seconds (None waits for
        ever, 0 tries once). A wait that fails, however it does, leaves nothing held, and the transaction can go on.
        Only on postgresql+advisory://.
        """
        from lockfast.primitives.in_transaction import in_transaction

        logic = self._logic
        return await in_transaction(logic.engine, logic.namespace, connection, names, wait)

    async def inspect(self, name: LockName) -> LockInfo:
        """Who holds `name` and how many wait for it."""
        return await self._logic.inspect(name)

    async def list(self, prefix: str = "") -> builtins.list[LockInfo]:
        """Every lock of this namespace that is held or waited for, by name."""
        return await self._logic.list(prefix)

    async def break_lock(self, name: LockName) -> LockInfo:
        """End every hold of `name`, and return what was there. The next grant has a higher fence.

        The former holder learns of it at its next renewal; until then only the fence stops it.
        What `list` has shown as damaged because its name is none can be broken by that very text.
        """
        return await self._logic.break_lock(name)

    def stats(self) -> Stats:
        """What this process did with these locks, as numbers: the metrics of docs/metrics.md without an exporter.

        `pending` and `leases` are always right. The rest is counted from the first call on, or from the beginning with
        `connect(observe=["stats"])`: without that call nothing is counted, and nothing is paid. Asks no backend.
        """
        return self._logic.stats()

    async def doctor(self) -> Diagnosis:
        """How the servers are that these locks rest on: which answer, how fast, and what is wrong with the others.

        Raises nothing for a server that cannot be reached: the report says so.
        """
        return await self._logic.doctor()

    async def close(self) -> None:
        """Release what is still held, and close the connections. A backend that does not answer has `patience` for it.

        A body that still runs under a lock loses it, and learns of that as of any other loss.
        """
        await self._logic.close()

    async def __aenter__(self) -> AsyncLocks:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if hasattr(self, "_logic"):  # else it is a copy that could not be made
            self._logic.warn_if_open(self)

    def __repr__(self) -> str:
        return f"<AsyncLocks {self._logic!r}>"


def connect(
    url_or_client: UrlOrClient | None = None,
    *,
    holder: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    patience: Seconds = PATIENCE_S,
    retry: Backoff = DEFAULT_RETRY,
    replicas: int = 0,
    schema: str | None = None,
    advisory: bool = False,
    rejoin: Seconds | None = None,
    debug: bool | None = None,
    clock: Clock | None = None,
    observe: Observers = (),
) -> AsyncLocks:
    """As `lockfast.connect`, for asyncio. Used in one event loop; it need not run yet."""
    installs = installers(observe)
    at_backend = ConnectOptions(replicas, schema, advisory, rejoin)
    options = LocksOptions(holder, namespace, patience, retry, debug, clock)
    return observed(AsyncLocks(open_async_locks(url_or_client, at_backend, options)), installs)
