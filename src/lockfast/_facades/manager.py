"""The manager, in both worlds: flat, one line a method. All logic is in `primitives.manager`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lockfast._facades.lock import AsyncLock, Lock
from lockfast._facades.observing import Observers, installers, observed
from lockfast._facades.opening import LocksOptions, open_async_locks, open_locks
from lockfast._reentry import Mutex, critical_section, drive, nothing
from lockfast._time import Seconds
from lockfast._worlds import Clock
from lockfast.backends.opening import ConnectOptions
from lockfast.engine.backoff import Backoff
from lockfast.engine.core import DEFAULT_RETRY, PATIENCE_S
from lockfast.observe.events import Events
from lockfast.primitives.manager import LockResult, ManagerLogic, the_same
from lockfast.primitives.names import DEFAULT_NAMESPACE, LockName

if TYPE_CHECKING:
    import asyncio

    from lockfast._clients import UrlOrClient
    from lockfast.observe.stats import Stats

T = TypeVar("T")
Work = Callable[[], T]
AsyncWork = Callable[[], Awaitable[T]]


class DistributedLock:
    """Locks by name, acquired in one place and released in another. Make one for a process and share it.

    The manager is the holder: any thread may extend or release what another has acquired through it, and acquiring what
    it already holds extends that. To keep threads of one process apart, use `lock()`.
    The options are those of `connect`.
    """

    def __init__(
        self,
        url_or_client: UrlOrClient | None = None,
        *,
        holder_id: str | None = None,
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
    ) -> None:
        installs = installers(observe)
        at_backend = ConnectOptions(replicas, schema, advisory, rejoin)
        options = LocksOptions(holder_id, namespace, patience, retry, debug, clock)
        self._logic = ManagerLogic(open_locks(url_or_client, at_backend, options))
        observed(self, installs)

    @property
    def holder_id(self) -> str:
        """What others see when they ask who holds a lock: of this instance only, unless it was given."""
        return self._logic.holder_id

    @property
    def events(self) -> Events:
        """The stream of what happens to the leases of this instance."""
        return self._logic.locks.engine.events

    def stats(self) -> Stats:
        """As `Locks.stats`: what this process did with these locks, as numbers."""
        return self._logic.locks.stats()

    def acquire(
        self,
        lock_name: LockName,
        timeout_seconds: Seconds = 30,
        blocking: bool = False,
        blocking_timeout_seconds: Seconds | None = 10,
        metadata: Any = None,
    ) -> LockResult:
        """Hold `lock_name` for `timeout_seconds`; any thread or task may release it. It is not renewed: then it ends.

        Held by this manager already, it is held for at least `timeout_seconds` from now on, with the metadata that it
        has. One release ends it, however often it was acquired. With `blocking` waits for up to
        `blocking_timeout_seconds`, None for ever.

        Not acquired: the result is false, its `lock` says who holds it, and its `error` why. Raises
        BackendUnavailable if the backend cannot be asked, and ValueError for what makes no sense.
        """
        wait = (blocking, blocking_timeout_seconds)
        scope = self._logic.scope(lock_name, timeout_seconds, *wait, metadata, renew=False)
        return drive(self._logic.acquire(scope.request))

    def release(self, lock_name: LockName) -> bool:
        """True if this manager held it until now. False if it did not, or lost it; the next holder is not touched.

        Raises BackendUnavailable if the backend does not answer; call again, or its time ends it.
        """
        logic = self._logic
        return drive(logic.release(lock_name), logic.locks.engine, lambda: logic.holds(lock_name))

    def extend(self, lock_name: LockName, seconds: Seconds) -> bool:
        """Hold it for at least `seconds` from now. False if this manager does not hold it any more.

        Raises BackendUnavailable if the backend does not answer; it is then held for as long as it was before.
        """
        return drive(self._logic.extend(lock_name, seconds))

    def release_all(self) -> int:
        """Release everything that `acquire` took, and return how many that were. Blocks of `lock()` keep theirs."""
        return drive(self._logic.release_all(), self._logic.locks.engine, self._logic.count_held)

    def lock(
        self,
        lock_name: LockName,
        timeout_seconds: Seconds = 30,
        blocking: bool = True,
        blocking_timeout_seconds: Seconds | None = 10,
        metadata: Any = None,
    ) -> Lock:
        """For a `with`: held and renewed while its block runs, and a hold of its own:
        no other caller enters meanwhile, not even this manager's `acquire`.

        Raises AcquireTimeout if it is not acquired in time; the block never runs without it.
        """
        return Lock(self._logic.scope(lock_name, timeout_seconds, blocking, blocking_timeout_seconds, metadata))

    def with_lock(
        self,
        lock_name: LockName,
        fn: Work[T],
        timeout_seconds: Seconds = 30,
        blocking: bool = True,
        blocking_timeout_seconds: Seconds | None = 10,
        metadata: Any = None,
    ) -> T:
        """What `fn()` returns, run as the block of `lock(lock_name)`. Raises AcquireTimeout without having run it."""
        scope = self._logic.scope(lock_name, timeout_seconds, blocking, blocking_timeout_seconds, metadata)
        return cast(T, drive(self._logic.with_lock(scope, fn)))

    def close(self) -> None:
        """Release what is still held, best effort, and close the connections."""
        drive(self._logic.close(), self._logic.locks.engine, nothing)

    def __enter__(self) -> DistributedLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_logic"):  # else it was never made
            self._logic.locks.warn_if_open(self)

    def __repr__(self) -> str:
        return f"<DistributedLock {self._logic!r}>"


class AsyncDistributedLock:
    """Locks by name, acquired in one place and released in another. Make one for an event loop and share it.

    The manager is the holder: any task may extend or release what another has acquired through it, and acquiring what
    it already holds extends that. To keep tasks apart, use `lock()`.
    The options are those of `connect`.
    """

    def __init__(
        self,
        url_or_client: UrlOrClient | None = None,
        *,
        holder_id: str | None = None,
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
    ) -> None:
        installs = installers(observe)
        at_backend = ConnectOptions(replicas, schema, advisory, rejoin)
        options = LocksOptions(holder_id, namespace, patience, retry, debug, clock)
        self._logic = ManagerLogic(open_async_locks(url_or_client, at_backend, options))
        observed(self, installs)

    @property
    def holder_id(self) -> str:
        """What others see when they ask who holds a lock: of this instance only, unless it was given."""
        return self._logic.holder_id

    @property
    def events(self) -> Events:
        """The stream of what happens to the leases of this instance."""
        return self._logic.locks.engine.events

    def stats(self) -> Stats:
        """As `Locks.stats`: what this process did with these locks, as numbers."""
        return self._logic.locks.stats()

    async def acquire(
        self,
        lock_name: LockName,
        timeout_seconds: Seconds = 30,
        blocking: bool = False,
        blocking_timeout_seconds: Seconds | None = 10,
        metadata: Any = None,
    ) -> LockResult:
        """Hold `lock_name` for `timeout_seconds`; any thread or task may release it. It is not renewed: then it ends.

        Held by this manager already, it is held for at least `timeout_seconds` from now on, with the metadata that it
        has. One release ends it, however often it was acquired. With `blocking` waits for up to
        `blocking_timeout_seconds`, None for ever.

        Not acquired: the result is false, its `lock` says who holds it, and its `error` why. Raises
        BackendUnavailable if the backend cannot be asked, and ValueError for what makes no sense.
        """
        wait = (blocking, blocking_timeout_seconds)
        scope = self._logic.scope(lock_name, timeout_seconds, *wait, metadata, renew=False)
        return await self._logic.acquire(scope.request)

    async def release(self, lock_name: LockName) -> bool:
        """True if this manager held it until now. False if it did not, or lost it; the next holder is not touched.

        Raises BackendUnavailable if the backend does not answer; call again, or its time ends it.
        """
        return await self._logic.release(lock_name)

    async def extend(self, lock_name: LockName, seconds: Seconds) -> bool:
        """Hold it for at least `seconds` from now. False if this manager does not hold it any more.

        Raises BackendUnavailable if the backend does not answer; it is then held for as long as it was before.
        """
        return await self._logic.extend(lock_name, seconds)

    async def release_all(self) -> int:
        """Release everything that `acquire` took, and return how many that were. Blocks of `lock()` keep theirs."""
        return await self._logic.release_all()

    def lock(
        self,
        lock_name: LockName,
        timeout_seconds: Seconds = 30,
        blocking: bool = True,
        blocking_timeout_seconds: Seconds | None = 10,
        metadata: Any = None,
    ) -> AsyncLock:
        """For an `async with`: held and renewed while its block runs, and a hold of its own:
        no other caller enters meanwhile, not even this manager's `acquire`.

        Raises AcquireTimeout if it is not acquired in time; the block never runs without it.
        """
        return AsyncLock(self._logic.scope(lock_name, timeout_seconds, blocking, blocking_timeout_seconds, metadata))

    async def with_lock(
        self,
        lock_name: LockName,
        fn: AsyncWork[T],
        timeout_seconds: Seconds = 30,
        blocking: bool = True,
        blocking_timeout_seconds: Seconds | None = 10,
        metadata: Any = None,
    ) -> T:
        """What the coroutine `fn()` returns, run as the block of `lock(lock_name)`. It is not run if
        AcquireTimeout is raised.
        """
        scope = self._logic.scope(lock_name, timeout_seconds, blocking, blocking_timeout_seconds, metadata)
        return cast(T, await self._logic.with_lock(scope, fn))

    async def close(self) -> None:
        """Release what is still held, best effort, and close the connections."""
        await self._logic.close()

    async def __aenter__(self) -> AsyncDistributedLock:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if hasattr(self, "_logic"):  # else it was never made
            self._logic.locks.warn_if_open(self)

    def __repr__(self) -> str:
        return f"<AsyncDistributedLock {self._logic!r}>"


_the_one: tuple[object, DistributedLock] | None = None  # and the URL that it was made for
_mutex = Mutex()  # held while one is made


def get_distributed_lock(url_or_client: UrlOrClient | None = None) -> DistributedLock:
    """The process's one instance, made by the first call, or by the first after it was closed.

    Without a URL `$LOCKFAST_URL`, else SQLite in the user's state folder. Raises ValueError if it was made for another.
    A child of a fork has the same instance, and holds nothing of what its parent does.
    """
    global _the_one
    with critical_section(_mutex):
        one = _the_one
        if one is None or one[1]._logic.locks.engine.closed:
            made = url_or_client, DistributedLock(url_or_client)
            if _the_one is one:  # else a finalizer has asked for it meanwhile, in this very thread
                _the_one = made
        assert _the_one is not None
        return the_same(url_or_client, *_the_one)


_ones: dict[asyncio.AbstractEventLoop, tuple[object, AsyncDistributedLock]] = {}  # and the URLs that they were made for


def get_async_distributed_lock(url_or_client: UrlOrClient | None = None) -> AsyncDistributedLock:
    """The running event loop's one instance, made by the first call in it, or by the first after it was closed.

    Without a URL `$LOCKFAST_URL`, else SQLite in the user's state folder. Raises ValueError if it was made for another,
    and RuntimeError if no event loop runs.
    """
    import asyncio  # here: it takes long to import, and a blocking program does not need it

    loop = asyncio.get_running_loop()
    with critical_section(_mutex):
        for ended in [other for other in _ones if other.is_closed()]:
            _ones.pop(ended, None)
        if _is_missing(loop):
            made = url_or_client, AsyncDistributedLock(url_or_client)
            if _is_missing(loop):  # still: a finalizer may have asked for it meanwhile, in this very thread
                _ones[loop] = made
        return the_same(url_or_client, *_ones[loop])


def _is_missing(loop: asyncio.AbstractEventLoop) -> bool:
    return loop not in _ones or _ones[loop][1]._logic.locks.engine.closed


def _after_fork() -> None:
    global _mutex
    _mutex = Mutex()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
