"""A backend with a hook before and after the effect of each verb, where a test can suspend or interrupt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

from lockfast._connect import open_backend
from lockfast._model import Busy, Claim, Grant, LockInfo, Renewal
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.testing.clock import FakeClock
from tests.servers.waiting import LIMIT_S

T = TypeVar("T")
Hook = Callable[[str], Awaitable[None]]


class HookedBackend:
    """`hook` is awaited with "before acquire", "after acquire" and so on. `watch` verbs are not hooked.

    The store gets `least` real seconds for an answer, however little is left of `within`.
    """

    def __init__(self, inner: Backend, hook: Hook, least: float = 0.0) -> None:
        self.inner = inner
        self._least = least
        self.capabilities = inner.capabilities._replace(instant=False)
        self._hook = hook
        self.store_id = inner.store_id

    async def _through(self, verb: str, work: Awaitable[T]) -> T:
        try:
            await self._hook(f"before {verb}")
        except BaseException:
            if hasattr(work, "close"):
                work.close()
            raise
        answer = await work
        await self._hook(f"after {verb}")
        return answer

    def _real(self, within: float) -> float:
        return max(within, self._least)

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        return await self._through("acquire", self.inner.acquire(claim, enqueue=enqueue, within=self._real(within)))

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        return await self._through("wait", self.inner.wait(claim, seconds))

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        return await self._through("renew", self.inner.renew(batch, within=self._real(within)))

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        work = self.inner.release(claim, linger=linger, within=self._real(within), successor=successor)
        return await self._through("release", work)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        return await self._through("abandon", self.inner.abandon(claim, within=self._real(within)))

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        return await self.inner.inspect(key, within=self._real(within))

    async def list(self, prefix: str, *, within: float) -> list[LockInfo]:
        return await self.inner.list(prefix, within=self._real(within))

    async def break_(self, key: str, *, within: float) -> LockInfo:
        return await self.inner.break_(key, within=self._real(within))

    async def close(self) -> None:
        await self.inner.close()

    def before_fork(self) -> None:
        self.inner.before_fork()

    def after_fork(self, *, child: bool) -> None:
        self.inner.after_fork(child=child)


def hooked(url: str, hook: Hook) -> Callable[[World, Clock | None], Any]:
    """What `connect` takes in place of a URL. With a clock of the test's own, no real time decides anything."""
    return lambda world, clock: HookedBackend(
        open_backend(url, world, clock), hook, LIMIT_S if clock is not None else 0.0
    )


def while_time_passes(hook: Hook, clock: FakeClock | None, seconds: float) -> Hook:
    """So much passes as soon as a waiter is about to sleep, so that a wait of that length is in vain; None: nothing."""

    async def passes(where: str) -> None:
        await hook(where)
        if where == "before wait" and clock is not None:
            copy_context().run(clock.advance, seconds)  # the waiter has not read the clock since

    return passes
