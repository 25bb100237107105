"""A backend with a hook before and after the effect of each verb, where a test can suspend or interrupt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from holdfast._connect import open_backend
from holdfast._model import Busy, Claim, Grant, LockInfo, Renewal
from holdfast._worlds import Clock, World
from holdfast.backends.base import Backend

T = TypeVar("T")
Hook = Callable[[str], Awaitable[None]]


class HookedBackend:
    """`hook` is awaited with "before acquire", "after acquire" and so on. `watch` verbs are not hooked."""

    def __init__(self, inner: Backend, hook: Hook) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities._replace(instant=False)
        self._hook = hook

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

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        return await self._through("acquire", self.inner.acquire(claim, enqueue=enqueue, within=within))

    async def wait(self, claim: Claim, seconds: float) -> bool:
        return await self._through("wait", self.inner.wait(claim, seconds))

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        return await self._through("renew", self.inner.renew(batch, within=within))

    async def release(self, claim: Claim, *, linger: float, within: float, heir: str = "") -> bool:
        return await self._through("release", self.inner.release(claim, linger=linger, within=within, heir=heir))

    async def abandon(self, claim: Claim, *, within: float) -> None:
        return await self._through("abandon", self.inner.abandon(claim, within=within))

    async def inspect(self, key: str) -> LockInfo:
        return await self.inner.inspect(key)

    async def list(self, prefix: str) -> list[LockInfo]:
        return await self.inner.list(prefix)

    async def break_(self, key: str) -> LockInfo:
        return await self.inner.break_(key)

    async def close(self) -> None:
        await self.inner.close()

    def before_fork(self) -> None:
        self.inner.before_fork()

    def after_fork(self, *, child: bool) -> None:
        self.inner.after_fork(child=child)


def hooked(url: str, hook: Hook) -> Callable[[World, Clock | None], Any]:
    """What `connect` takes in place of a URL."""
    return lambda world, clock: HookedBackend(open_backend(url, world, clock), hook)
