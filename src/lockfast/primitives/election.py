"""Leader election: the holder of the name leads, and every client can observe who that is.

Decides: what a candidate does, and which changes an observer sees.
Leaves to the lock beneath: that there is one leader at most, and that it learns of its loss.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from lockfast._ids import new_claim_id
from lockfast._model import Claim, HolderInfo, Observation
from lockfast._reentry import outside
from lockfast._text import shown
from lockfast._time import Seconds
from lockfast._worlds import settled
from lockfast.backends.optional import holders_of
from lockfast.engine.core import Engine
from lockfast.engine.lease import Lease
from lockfast.engine.request import Request
from lockfast.engine.waking import Waking
from lockfast.errors import LeaseLost, LockError, NotHeld
from lockfast.primitives.lock import Entry, LockLogic
from lockfast.primitives.statement import With


class Leadership(NamedTuple):
    """Who leads, and since which term. Without a leader: the term that ended, 0 if none is known."""

    leader: str | None
    term: int

    @property
    def vacant(self) -> bool:
        """True while nobody leads."""
        return self.leader is None


class ElectionLogic:
    """One candidate. What it holds it holds through one lock object."""

    __slots__ = ("_lease", "_lock", "engine")

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine = engine
        self._lock = LockLogic(engine, request)
        self._lease: Lease | None = None  # of the last term

    @property
    def _request(self) -> Request:
        return self._lock.request

    @property
    def name(self) -> str:
        return self._request.terms.name

    @property
    def candidate(self) -> str:
        terms = self._request.terms
        return terms.holder if self._request.named else self.engine.holder  # which is another one after a fork

    @property
    def is_leader(self) -> bool:
        return self._lease is not None and self._lease.held

    @property
    def term(self) -> int | None:
        lease = self._lease
        return lease.fence if lease is not None and lease.held else None

    async def campaign(self, timeout: Seconds | None) -> Lease | None:
        """The lease of the term; None after `timeout`. A candidate that leads already goes on leading."""
        if self._lease is not None and self._lease.held:
            return self._lease
        lease = await self._lock.acquire(True, timeout)
        self._lease = lease or self._lease
        return lease

    async def enter(self, body: FrameType, statement: With | None = None) -> Lease:
        lease = self._lease = await self._lock.enter(body, statement)
        return lease

    def leave(self, exc: BaseException | None, entry: Entry | None = None) -> Coroutine[Any, Any, None]:
        return self._lock.leave(exc, entry)

    def left_behind(self, entry: Entry) -> None:
        self._lock.left_behind(entry)

    def leads(self) -> bool:
        return self.is_leader

    async def resign(self) -> bool:
        """True if it led until now."""
        return self._lease is not None and await self._lease._release()

    async def hand_over(self, to: str) -> None:
        """Resign in favour of a candidate that waits, before all that wait longer."""
        lease, name = self._lease, self._request.terms.name
        if lease is None or not lease.held:
            raise NotHeld(f"{self._request.terms.holder!r} does not lead {name!r}; nothing was handed over", name=name)
        queue = await self.candidates()
        if to not in queue:
            candidates = ", ".join(map(repr, queue)) or "none"
            raise LockError(
                f"no candidate {shown(to)} waits to lead {name!r} (waiting: {candidates}); "
                "the leader is still the same",
                name=name,
            )
        freed = await self.engine.release(lease, successor=to)
        self._lock.mark_released(lease)
        if not freed:
            raise lease._not_held()

    async def leader(self) -> HolderInfo | None:
        self.engine.must_be_open()
        info = await self.engine.once(partial(holders_of, self.engine.backend, self._request.terms.key))
        return info.holders[0] if info.holders else None

    async def candidates(self) -> tuple[str, ...]:
        self.engine.must_be_open()
        return (await self.engine.once(partial(self.engine.backend.inspect, self._request.terms.key))).queue

    async def run(self, on_elected: Callable[[Any], Any], on_lost: Callable[[Any], object] | None) -> Any:
        """Campaign and call `on_elected`, again after each loss, until it comes to its end; then resign."""
        lock = self._lock
        if on_lost is not None and not callable(on_lost):
            raise ValueError(f"on_lost must be callable, not {shown(on_lost)}")
        if on_lost is not None:
            lock = LockLogic(self.engine, self._request.but(on_lost=on_lost))
        led: Lease | None = None

        async def lead(lease: Lease) -> Any:
            nonlocal led
            led = self._lease = lease
            with outside():
                answer = on_elected(lease)
            return await settled(answer, self.engine.world)

        while True:
            led = None
            try:
                return await lock.hold(lead)
            except LeaseLost:
                if led is None or not led.lost:
                    raise  # of another lock: the caller's business

    def observer(self) -> LeadershipObserver:
        return LeadershipObserver(self.engine, Claim(new_claim_id(), self._request.terms))

    def __repr__(self) -> str:
        return f"{self._request.terms.name!r} as {self._request.terms.holder!r}, {self._lease!r}"


class LeadershipObserver:
    """Returns each change once, in order, and sleeps in between."""

    __slots__ = ("_after", "_claim", "_engine", "_last", "_pending", "_process", "_waking")

    def __init__(self, engine: Engine, claim: Claim) -> None:
        engine.must_be_open()
        self._engine = engine
        self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        self._claim = claim
        self._waking = Waking(self._engine, claim)
        self._after = 0  # the number of the last change that we know of
        self._pending: deque[Leadership] = deque()
        self._last: Leadership | None = None
        self._process = os.getpid()

    async def next(self) -> Leadership | None:
        """The next change, as soon as there is one; None when the `Locks` is closed."""
        engine = self._engine
        if self._process != os.getpid():  # in the child of a fork: what was ours is the parent's
            self._begin(Claim(new_claim_id(), self._claim.terms))
        engine.observing.add(self._claim.id)
        engine.waiting[self._claim.id] = self._claim  # so that a `Locks` that closes ends it
        while not engine.closed:
            while self._pending:
                change = self._pending.popleft()
                if self._is_news(change):
                    self._last = change
                    return change
            observation = await self._refresh()
            if observation.changes:
                self._waking.found()
            elif not engine.closed:
                await self._waking.wait(observation.retry_after)
        return None

    def _is_news(self, change: Leadership) -> bool:
        """Not what was returned last: after a silence of this observer the store begins again with what is true."""
        last = self._last
        return last is None or not (change == last or (change.vacant and last.vacant))

    async def _refresh(self) -> Observation:
        engine, until = self._engine, self._engine.now() + self._engine.patience
        observation, _ = await engine.insist(
            lambda within: engine.backend.observe(self._claim, after=self._after, within=within), until
        )
        for change in observation.changes:
            self._after = change.number
            self._pending.append(Leadership(change.holder, change.fence))
        return observation

    async def close(self) -> None:
        if not self._engine.closed and self._process == os.getpid():
            await self._engine.abandon(self._claim)
        self._engine.waiting.pop(self._claim.id, None)
        self._engine.observing.discard(self._claim.id)

    def left_behind(self) -> None:
        """The loop over it is over. If it is not closed, an interrupt fell into `close`: have it closed soon."""
        if self._claim.id in self._engine.waiting:
            self._engine.put_off(self.close())
