"""The waiting tasks of one `AsyncLocks`.

Decides: how a wake-up for a claim finds its task.
Leaves to each technology's driver: how wake-ups arrive.
"""

from __future__ import annotations

import asyncio

from lockfast._model import Claim, Grant
from lockfast._refusals import other_event_loop
from lockfast._worlds import Clock
from lockfast._worlds.asyncio_ import AsyncioSignal
from lockfast.backends.wakeups import WAKE_ALL, read_wake_up


class AsyncioWaiters:
    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None  # of the tasks that wait
        self._waiters: dict[str, AsyncioSignal] = {}  # by claim
        self._grants: dict[str, Grant] = {}  # by claim: of waiters that were woken with one, and have not read it

    def is_new(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is another loop than last time. Raises RuntimeError while that one is open."""
        if loop is self._loop:
            return False
        if self._loop is not None and not self._loop.is_closed():
            raise other_event_loop()
        self._loop = loop
        return True

    def reset(self) -> None:
        """In the child of a fork: there are no waiters."""
        self._loop = None
        self._waiters = {}
        self._grants = {}

    def add_waiter(self, claim: Claim) -> None:
        assert self._loop is not None  # set by the request that put the claim into the queue
        if claim.id not in self._waiters:
            self._waiters[claim.id] = AsyncioSignal(self._loop, self._clock)

    def expects(self, claim: Claim) -> bool:
        return claim.id in self._waiters

    def forget(self, claim: Claim) -> None:
        waiter = self._waiters.pop(claim.id, None)
        if waiter is not None:
            self._grants.pop(claim.id, None)
            waiter.set()  # it may still be inside `wait`

    def wake(self, wake_up: str) -> None:
        self._mark(wake_up)

    def _mark(self, wake_up: str) -> bool:
        """True if it is for a waiter for which no wake-up was kept yet."""
        if wake_up == WAKE_ALL:
            for waiter in list(self._waiters.values()):
                waiter.set()
            return False
        claim, grant = read_wake_up(wake_up)
        named = self._waiters.get(claim)
        if named is None:
            return False
        if grant is not None:
            self._grants[claim] = grant
        news = not named.is_set()
        named.set()
        return news

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        waiter = self._waiters.get(claim.id)
        if waiter is None:
            return True
        if not await waiter.wait(seconds):
            return False
        grant = self._grants.pop(claim.id, None) if self._grants else None
        if grant is None:
            return True
        self._waiters.pop(claim.id, None)
        return grant
