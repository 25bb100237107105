"""One awaited facade over both public ones, so that a story is written once.

Decides: nothing. Every call goes to the real facade; what that answers is awaited if it can be, so with the
blocking facade nothing here ever suspends.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import AsyncIterator, Iterator
from inspect import isawaitable, ismethod
from typing import Any, cast

from lockfast import aio, sync
from lockfast._facades.primitives import AsyncCell, AsyncLimiter
from lockfast._model import LockInfo
from lockfast.primitives.election import Leadership
from lockfast.testing.faults import FaultyBackend


async def _settle(answer: Any) -> Any:
    return await answer if isawaitable(answer) else answer


class Awaited:
    """A facade of which all methods are awaited in asyncio, such as a limiter or a cell."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.raw, name)

        async def ask(*args: Any, **options: Any) -> Any:
            return await _settle(found(*args, **options))

        return ask if ismethod(found) else found


class AwaitedLease:
    """A lease of either world, over one name or several; its answers are the lease's own."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def extend(self, ttl: Any = None) -> None:
        answer = await _settle(self.raw.extend(ttl))
        assert answer is None  # so that only an exception can report a failure

    async def release(self) -> bool:
        return bool(await _settle(self.raw.release()))

    async def downgrade(self) -> None:
        answer = await _settle(self.raw.downgrade())
        assert answer is None  # so that only an exception can report a failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def __repr__(self) -> str:
        return repr(self.raw)


class AwaitedLock:
    """What `lock`, `semaphore`, `read`, `write` or `all` gives in either world."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def acquire(self, blocking: bool = True, timeout: Any = None) -> AwaitedLease | None:
        lease = await _settle(self.raw.acquire(blocking, timeout))
        return None if lease is None else AwaitedLease(lease)

    async def take(self) -> AwaitedLease:
        """`acquire` where the story needs the lock to go on."""
        lease = await self.acquire()
        assert lease is not None, f"{self.raw!r} was not acquired"
        return lease

    async def release(self) -> None:
        answer = await _settle(self.raw.release())
        assert answer is None  # so that only an exception can report a failure

    async def locked(self) -> bool:
        return bool(await _settle(self.raw.locked()))

    async def __aenter__(self) -> AwaitedLease:
        raw = self.raw
        lease = raw.__enter__() if hasattr(raw, "__enter__") else await raw.__aenter__()
        for one in getattr(lease, "_leases", [lease]):
            if one._body is not None:
                one._enter(one._guard, sys._getframe(1))  # the `with` is the story's, not ours
        return AwaitedLease(lease)

    async def __aexit__(self, *exc: Any) -> None:
        raw = self.raw
        await _settle((raw.__exit__ if hasattr(raw, "__exit__") else raw.__aexit__)(*exc))


class AwaitedRWLock:
    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def read(self) -> AwaitedLock:
        return AwaitedLock(self.raw.read())

    def write(self) -> AwaitedLock:
        return AwaitedLock(self.raw.write())


class AwaitedElection(Awaited):
    async def campaign(self, timeout: Any = None) -> AwaitedLease | None:
        lease = await _settle(self.raw.campaign(timeout))
        return None if lease is None else AwaitedLease(lease)

    async def win(self) -> AwaitedLease:
        """`campaign` where the story needs the lead to go on."""
        lease = await self.campaign()
        assert lease is not None, f"{self.raw!r} was not won"
        return lease

    def observe(self) -> AwaitedChanges:
        return AwaitedChanges(self.raw.observe())

    async def __aenter__(self) -> AwaitedLease:
        raw = self.raw
        return AwaitedLease(raw.__enter__() if hasattr(raw, "__enter__") else await raw.__aenter__())

    async def __aexit__(self, *exc: Any) -> None:
        raw = self.raw
        await _settle((raw.__exit__ if hasattr(raw, "__exit__") else raw.__aexit__)(*exc))


class AwaitedChanges:
    """What `observe()` of an election gave."""

    def __init__(self, raw: Iterator[Leadership] | AsyncIterator[Leadership]) -> None:
        self.raw = raw

    async def next(self) -> Leadership | None:
        """The next change; None when there will be no more."""
        return next(self.raw, None) if isinstance(self.raw, Iterator) else await anext(self.raw, None)

    async def close(self) -> None:
        raw: Any = self.raw
        await _settle(raw.aclose() if hasattr(raw, "aclose") else raw.close())


class AwaitedLocks:
    """The `Locks` of either world, and the faults of its backend."""

    def __init__(self, raw: sync.Locks | aio.AsyncLocks, faults: FaultyBackend) -> None:
        self.raw = raw
        self.faults = faults  # also a backend: its verbs can be asked directly

    @property
    def holder(self) -> str:
        return self.raw.holder

    def lock(self, name: str, **options: Any) -> AwaitedLock:
        return AwaitedLock(self.raw.lock(name, **options))

    def semaphore(self, name: str, limit: Any, **options: Any) -> AwaitedLock:
        return AwaitedLock(self.raw.semaphore(name, limit, **options))

    def rwlock(self, name: str, **options: Any) -> AwaitedRWLock:
        return AwaitedRWLock(self.raw.rwlock(name, **options))

    def all(self, *names: Any, **options: Any) -> AwaitedLock:
        return AwaitedLock(self.raw.all(*names, **options))

    def election(self, name: str, **options: Any) -> AwaitedElection:
        return AwaitedElection(self.raw.election(name, **options))

    def limiter(self, name: str, **options: Any) -> AsyncLimiter:
        return cast(AsyncLimiter, Awaited(self.raw.limiter(name, **options)))

    def cell(self, name: str) -> AsyncCell:
        return cast(AsyncCell, Awaited(self.raw.cell(name)))

    async def inspect(self, name: str) -> LockInfo:
        info: LockInfo = await _settle(self.raw.inspect(name))
        return info

    async def list(self, prefix: str = "") -> builtins.list[LockInfo]:
        found: builtins.list[LockInfo] = await _settle(self.raw.list(prefix))
        return found

    async def break_lock(self, name: str) -> LockInfo:
        before: LockInfo = await _settle(self.raw.break_lock(name))
        return before

    async def close(self) -> None:
        await _settle(self.raw.close())
