"""Bugs for the simulation to find: each is one part of a run, made wrong at a seam of the engine or the backend.

The first five are the classic ones. The others were ours, found by a seed, and are kept so that they stay found. Those
of everything but the plain lock are in `planted_primitives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lockfast._model import Busy, Claim, Grant, Renewal
from lockfast.aio import AsyncLease
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.engine.core import Engine
from lockfast.engine.keeper import Keeper
from lockfast.engine.loop_watch import LoopWatch
from lockfast.engine.renewing import Renewals
from lockfast.engine.request import Request
from lockfast.engine.schedule import RenewalState
from lockfast.engine.standby import Standby
from lockfast.errors import BackendUnavailable
from lockfast.testing.simulated_client import Parts
from lockfast.testing.simulated_network import RemoteBackend


class Bug(NamedTuple):
    """The parts that are wrong, words of the check that must find it, and what a run must be about to show it."""

    parts: Parts
    words: str
    about: str = ""
    first_seed: int = 0  # where to begin to look, for one that shows rarely


class CountsFromTheReply(AsyncLease):
    """The ttl is believed in from the moment of the answer; at the server it began earlier."""

    __slots__ = ()

    def __init__(
        self, engine: Engine, request: Request, claim: Claim, grant: Grant, asked_at: float, waited: float
    ) -> None:
        super().__init__(engine, request, claim, grant, engine.now(), waited)

    def _renewed(self, asked_at: float, ttl: float) -> None:
        super()._renewed(self._engine.now(), ttl)


class ReleasesAnyHolder(MemoryBackend):
    """A release frees the name, also if another claim holds it."""

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        resource = self._store.resources.get(claim.terms.key)
        if resource is not None and resource.holders:
            claim = next(iter(resource.holders.values())).claim
        return await super().release(claim, linger=linger, within=within, successor=successor)


class WakesAllWaiters(MemoryBackend):
    """Each release wakes all waiters, as one channel for all of them does."""

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        released = await super().release(claim, linger=linger, within=within, successor=successor)
        resource = self._store.resources.get(claim.terms.key)
        for waiter in resource.queue.values() if resource is not None else ():
            waiter.signal.set()
        return released


class TakesAWakeUpForAGrant(RemoteBackend):
    """Being woken is believed to mean that one holds; the server is not asked again."""

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        woken = bool(await super().wait(claim, seconds))
        if woken:
            self.__dict__.setdefault("trusted", set()).add(claim.id)
        return woken

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        if claim.id in self.__dict__.get("trusted", ()):
            self.asking.pop(claim.id, None)
            return Grant(self.network.server.store.fence + 1, 0.0)
        return await super().acquire(claim, enqueue=enqueue, within=within)


class RenewsUntilTheFirstError(Renewals):
    def _ride_out(self, states: list[RenewalState], error: Exception) -> None:
        for state in states:
            state.renew_not_before(float("inf"))


class GivesUpRenewing(Keeper):
    """The first error ends the renewal, in silence."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.renewals = RenewsUntilTheFirstError(engine, self)


class WaitsAllTheTimeForOneRenewal(RemoteBackend):
    """One renewal that goes unanswered is waited for until the deadline, so there is no second try."""

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> list[bool]:
        return await super().renew(batch, within=3 * within)


class ForgetsYoungerReservations(MemoryBackend):
    """One that comes back after its reservation lapsed is let in beside a younger one with a reservation."""

    def _fits(self, resource: Any, claim: Claim) -> bool:
        own = resource.queue.get(claim.id)
        if own is not None and not own.reserved and next(iter(resource.queue)) == claim.id:
            resource.reserved.clear()
        return super()._fits(resource, claim)


class RefusesTheReserved(MemoryBackend):
    """One that it is reserved for is refused when an older one, whose own reservation lapsed, is back."""

    def _fits(self, resource: Any, claim: Claim) -> bool:
        for waiter in resource.queue.values():
            if waiter.claim.id == claim.id:
                break
            if not waiter.reserved and not waiter.lapsed:
                return False
        return super()._fits(resource, claim)


class LeavesTheCancelledBehind(RemoteBackend):
    """Nothing is undone when an acquire is cancelled or out of time."""

    async def abandon(self, claim: Claim, *, within: float) -> None:
        self.forget(claim.id)


class CountsFromTheWakeUp(AsyncLease):
    """A grant that a wake-up carried is believed from when it arrived; it had been under way."""

    __slots__ = ()

    def __init__(
        self, engine: Engine, request: Request, claim: Claim, grant: Grant, asked_at: float, waited: float
    ) -> None:
        super().__init__(engine, request, claim, grant._replace(since=None), asked_at, waited)


class CountsFromAnUnansweredRequest(RemoteBackend):
    """A grant that a wake-up carried is believed from before the last request, whether that was answered or not."""

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        try:
            return await super().acquire(claim, enqueue=enqueue, within=within)
        except BackendUnavailable:
            grant = self.grants.get(claim.id)
            if grant is None:
                raise
            self.forget(claim.id)
            return grant


class BelievesAnOldGrant(RemoteBackend):
    """A wake-up that was under way for longer than its ttl is believed from before a request that came after it."""

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        answer = await super().acquire(claim, enqueue=enqueue, within=within)
        return answer._replace(last_fence=0) if isinstance(answer, Busy) else answer


class LeavesTheGrantOfTheAbandoned(MemoryBackend):
    """A claim that is abandoned leaves the queue; if it was made the holder meanwhile, it stays that."""

    async def abandon(self, claim: Claim, *, within: float) -> None:
        resource = self._store.resources.get(claim.terms.key)
        if resource is None or claim.id not in resource.holders:
            await super().abandon(claim, within=within)


class ConfirmsEachGrant(MemoryBackend):
    """No bug: a freed name is reserved for the next waiter, as where a backend does not hand over."""

    capabilities = MemoryBackend.capabilities._replace(hands_over=False)


class TakesSilenceForAYes(LoopWatch):
    """A renewal of a blocked loop's lease that is not answered is believed to have come through."""

    async def _ask(self, batch: Sequence[Renewal], within: float) -> Sequence[bool | None]:
        try:
            return await super()._ask(batch, within)
        except BackendUnavailable:
            return [True] * len(batch)


class StandbyThatTakesSilenceForAYes(Standby):
    def watch(self, engine: Engine) -> LoopWatch:
        super().watch(engine)
        return TakesSilenceForAYes(engine, self.world)


PLANTED: dict[str, Bug] = {
    "count the ttl from the reply": Bug(Parts(lease=CountsFromTheReply), "held together"),
    "release without owner check": Bug(Parts(server=ReleasesAnyHolder), "held together"),
    "wake all waiters": Bug(Parts(server=WakesAllWaiters), "waiters of"),
    "take a wake-up for a grant": Bug(Parts(remote=TakesAWakeUpForAGrant), "held together"),
    "give up renewing at the first error": Bug(Parts(keeper=GivesUpRenewing), "failed renewals"),
    "wait all the time for one renewal": Bug(Parts(remote=WaitsAllTheTimeForOneRenewal), "failed renewals"),
    "forget younger reservations": Bug(Parts(server=ForgetsYoungerReservations), "held together", first_seed=260),
    "refuse the reserved": Bug(Parts(server=RefusesTheReserved), "stood idle"),
    "leave the cancelled behind": Bug(Parts(remote=LeavesTheCancelledBehind), "left"),
    "count a handed-over ttl from the wake-up": Bug(Parts(lease=CountsFromTheWakeUp), "believed for"),
    "count a handed-over ttl from an unanswered request": Bug(
        Parts(remote=CountsFromAnUnansweredRequest), "believed for", "rwlock", 200
    ),
    "believe an old grant": Bug(Parts(remote=BelievesAnOldGrant), "held together", "mutex", 300),
    "renew nothing while the event loop is blocked": Bug(Parts(standby=None), "failed renewals"),
    "take silence for a yes while the event loop is blocked": Bug(
        Parts(standby=StandbyThatTakesSilenceForAYes), "held together", "mutex"
    ),
    "leave the grant of the abandoned": Bug(Parts(server=LeavesTheGrantOfTheAbandoned), "left"),
}
