"""A backend that grants everything and answers renewals as a test wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from lockfast._model import Capabilities, Claim, Grant, LockInfo, Observation, Renewal, Terms
from lockfast._values import Allowance, Booked, Rate, Stored, Write, Written
from lockfast.engine.acquire import acquire
from lockfast.engine.core import Engine
from lockfast.engine.lease import Lease
from lockfast.engine.request import Request

OnLost = Callable[[Lease], object]
Answer = Callable[[Sequence[Renewal]], Awaitable[Sequence[bool | None]]]


async def all_kept(batch: Sequence[Renewal]) -> list[bool]:
    return [True] * len(batch)


class StubBackend:
    def __init__(self, renew_batch: int = 500) -> None:
        self.capabilities = Capabilities(renew_batch=renew_batch)
        self.renewals: list[tuple[str, ...]] = []  # the names of each request
        self.released: list[str] = []
        self.answer: Answer = all_kept
        self._fence = 0
        self.store_id = f"stub at {id(self):#x}"

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant:
        self._fence += 1
        return Grant(self._fence, 0.0)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        return False

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        self.renewals.append(tuple(renewal.claim.terms.name for renewal in batch))
        return await self.answer(batch)

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        self.released.append(claim.terms.name)
        return True

    async def abandon(self, claim: Claim, *, within: float) -> None: ...

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        return LockInfo(key)

    async def list(self, prefix: str, *, within: float) -> list[LockInfo]:
        return []

    async def break_(self, key: str, *, within: float) -> LockInfo:
        return LockInfo(key)

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        return Observation((), 1.0)

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        return Booked(Allowance(True, 0, 0.0), 0)

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None: ...

    async def read(self, key: str, *, within: float) -> Stored:
        return Stored()

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        return Written("written", 1, 0)

    async def close(self) -> None: ...

    def before_fork(self) -> None: ...

    def after_fork(self, *, child: bool) -> None: ...


async def take(
    engine: Engine,
    name: str = "a",
    ttl: float = 30.0,
    renew: bool = True,
    on_lost: OnLost | None = None,
    *,
    renew_every: float | None = None,
    max_hold: float | None = None,
) -> Lease:
    """A lease from the stub, kept by the engine's keeper."""
    terms = Terms(name, name, "us", ttl)
    request = Request(terms, renew=renew, on_lost=on_lost, renew_every=renew_every, max_hold=max_hold)
    lease = await acquire(engine, request, 0.0, lambda lease: None)
    assert isinstance(lease, Lease)
    return lease
