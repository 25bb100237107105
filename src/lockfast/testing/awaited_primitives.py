"""Elections, limiters and cells of both worlds behind one awaited facade, as `awaited` has it for locks.

Decides: nothing. Every call goes to the real facade; what that answers is awaited if it can be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from lockfast import aio, sync
from lockfast._facades.primitives import AsyncCell, AsyncElection, AsyncLimiter, Cell, Election, Limiter
from lockfast._model import HolderInfo
from lockfast._values import Allowance
from lockfast.primitives.cell import Versioned
from lockfast.primitives.election import Leadership

if TYPE_CHECKING:
    from lockfast.testing.awaited import AwaitedLease


async def _settle(answer: Any) -> Any:
    return await answer if isawaitable(answer) else answer


def _lease(raw: Any) -> AwaitedLease:
    from lockfast.testing.awaited import AwaitedLease

    return AwaitedLease(raw)


class AwaitedChanges:
    """What `observe()` gave."""

    def __init__(self, raw: Any) -> None:
        self.raw: Iterator[Leadership] | AsyncIterator[Leadership] = raw

    async def next(self) -> Leadership | None:
        """The next change; None when there will be no more."""
        if isinstance(self.raw, Iterator):
            return next(self.raw, None)
        return await anext(self.raw, None)

    async def close(self) -> None:
        raw: Any = self.raw
        await _settle(raw.aclose() if hasattr(raw, "aclose") else raw.close())


class AwaitedElection:
    def __init__(self, raw: Election | AsyncElection) -> None:
        self.raw = raw

    @property
    def is_leader(self) -> bool:
        return self.raw.is_leader

    @property
    def term(self) -> int | None:
        return self.raw.term

    async def campaign(self, timeout: Any = None) -> AwaitedLease | None:
        lease = await _settle(self.raw.campaign(timeout))
        return None if lease is None else _lease(lease)

    async def win(self) -> AwaitedLease:
        """`campaign` where the story needs the lead to go on."""
        lease = await self.campaign()
        assert lease is not None, f"{self.raw!r} was not won"
        return lease

    async def resign(self) -> bool:
        return bool(await _settle(self.raw.resign()))

    async def hand_over(self, to: str) -> None:
        assert await _settle(self.raw.hand_over(to)) is None

    async def leader(self) -> HolderInfo | None:
        found: HolderInfo | None = await _settle(self.raw.leader())
        return found

    async def candidates(self) -> tuple[str, ...]:
        waiting: tuple[str, ...] = await _settle(self.raw.candidates())
        return waiting

    async def run(self, on_elected: Callable[[Any], Any], on_lost: Callable[[Any], object] | None = None) -> Any:
        return await _settle(self.raw.run(on_elected, on_lost))

    def observe(self) -> AwaitedChanges:
        return AwaitedChanges(self.raw.observe())

    async def __aenter__(self) -> AwaitedLease:
        raw = self.raw
        return _lease(raw.__enter__() if isinstance(raw, Election) else await raw.__aenter__())

    async def __aexit__(self, *exc: Any) -> None:
        raw = self.raw
        if isinstance(raw, Election):
            raw.__exit__(*exc)
        else:
            await raw.__aexit__(*exc)


class AwaitedLimiter:
    def __init__(self, raw: Limiter | AsyncLimiter) -> None:
        self.raw = raw

    async def try_acquire(self, cost: int = 1) -> Allowance:
        answer: Allowance = await _settle(self.raw.try_acquire(cost))
        return answer

    async def acquire(self, cost: int = 1, timeout: Any = None) -> Allowance:
        answer: Allowance = await _settle(self.raw.acquire(cost, timeout))
        return answer


class AwaitedCell:
    def __init__(self, raw: Cell | AsyncCell) -> None:
        self.raw = raw

    async def read(self) -> Versioned:
        found: Versioned = await _settle(self.raw.read())
        return found

    async def write(self, value: Any, **how: Any) -> int:
        version: int = await _settle(self.raw.write(value, **how))
        return version

    async def update(self, change: Callable[[Any], Any], **how: Any) -> Versioned:
        now: Versioned = await _settle(self.raw.update(change, **how))
        return now

    async def delete(self, **how: Any) -> None:
        assert await _settle(self.raw.delete(**how)) is None


class AwaitedPrimitives:
    """What the `Locks` of either world makes besides locks."""

    raw: sync.Locks | aio.AsyncLocks

    def election(self, name: str, **options: Any) -> AwaitedElection:
        return AwaitedElection(self.raw.election(name, **options))

    def limiter(self, name: str, **options: Any) -> AwaitedLimiter:
        return AwaitedLimiter(self.raw.limiter(name, **options))

    def cell(self, name: str) -> AwaitedCell:
        return AwaitedCell(self.raw.cell(name))
