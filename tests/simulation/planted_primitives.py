"""Bugs of everything but the plain lock, for the simulation to find: each is one part of a run, made wrong."""

from __future__ import annotations

from typing import Any

from lockfast._facades.primitives import AsyncMultiLease
from lockfast._model import SHARED, Busy, Claim, Observation
from lockfast._time import FOREVER
from lockfast._values import Booked, Rate, book_permits
from lockfast.aio import AsyncLease
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.engine.acquire import acquire
from lockfast.engine.lease import Lease
from lockfast.errors import LockError
from lockfast.primitives.election import ElectionLogic
from lockfast.primitives.limiter import LimiterLogic
from lockfast.primitives.multi import MultiLease, MultiLogic
from lockfast.testing.simulated_client import Parts
from lockfast.testing.simulated_network import RemoteBackend
from tests.simulation.planted import Bug

# Sharing


class AdmitsOneMore(MemoryBackend):
    """A semaphore counts from nought."""

    def _fits(self, resource: Any, claim: Claim) -> bool:
        limit = claim.terms.limit
        more = claim._replace(terms=claim.terms._replace(limit=None if limit is None else limit + 1))
        return super()._fits(resource, more)


class LetsReadersInBesideAWriter(MemoryBackend):
    """A reader that finds no queue enters."""

    def _fits(self, resource: Any, claim: Claim) -> bool:
        return super()._fits(resource, claim) or (claim.terms.mode == SHARED and not resource.queue)


class TakesAnyLimit(MemoryBackend):
    """No backend compares limits."""

    def _refuse_other_limits(self, resource: Any, claim: Claim) -> None:
        pass


class DowngradesWithAGap(AsyncLease):
    """Release the write lease, then ask for a read lease."""

    __slots__ = ()

    async def _downgrade(self) -> None:
        backend = self._engine.backend
        await backend.release(self._claim, linger=0.0, within=1.0)
        shared = Claim(self._claim.id, self._claim.terms._replace(mode=SHARED))
        answer = await backend.acquire(shared, enqueue=True, within=1.0)
        while isinstance(answer, Busy):
            await backend.wait(shared, answer.retry_after)
            answer = await backend.acquire(shared, enqueue=True, within=1.0)
        self._claim, self._fence = shared, answer.fence


# Several names


class ForgetsTheFirst(MultiLogic):
    """What was taken stays taken when a later name is not granted."""

    async def _undo(self, multi: MultiLease, error: BaseException | None = None, until: float = FOREVER) -> None:
        self.mark_released(multi)


class TakesNamesAsGiven(MultiLogic):
    """In the caller's order, so that two callers can wait for each other."""

    def __init__(self, engine: Any, lease_type: Any, requests: Any, on_lost: Any) -> None:
        super().__init__(engine, lease_type, requests, on_lost)
        self._requests = list(requests)


class WaitsForEach(MultiLogic):
    """The full time for each name."""

    async def _take_each(self, multi: MultiLease, give_up_at: float) -> tuple[str, Busy] | None:
        for request in self._requests:
            answer = await acquire(self.engine, request, self._wait, multi._adopt)
            if isinstance(answer, Busy):
                return request.terms.name, answer
        return None


class KeepsTheRest(AsyncMultiLease):
    """One is lost, and the others are kept."""

    __slots__ = ()

    async def _one_is_lost(self, _: Lease) -> None:
        pass


class StopsReleasingWhenCancelled(AsyncMultiLease):
    """Ours once: a cancellation during the release of one name kept the others, renewed for ever."""

    __slots__ = ()

    async def _end(self, behind: bool = False, until: float = FOREVER) -> bool:
        freed = True
        for lease in self._leases[::-1]:
            try:
                freed = await self._engine.release(lease) and freed
            except LockError:
                freed = False
        return freed


# Elections


class LeadsFromMemory(ElectionLogic):
    """Elected once, a candidate believes that it leads until it resigns."""

    @property
    def is_leader(self) -> bool:
        return self._lease is not None

    @property
    def term(self) -> int | None:
        return None if self._lease is None else self._lease.fence


class IgnoresTheSuccessor(MemoryBackend):
    """The waiter that has waited longest is next, although another was named."""

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        return await super().release(claim, linger=linger, within=within)


class HandsOverWhatItHasNot(MemoryBackend):
    """Ours once: the successor named by a leader whose time had run out went first all the same."""

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        resource = self._store.resources.get(claim.terms.key)
        released = await super().release(claim, linger=linger, within=within, successor=successor)
        if successor and not released and resource is not None:
            for waiter in resource.queue.values():
                waiter.reserved_until = None
            resource.hand_over(self._store.clock(), successor)
        return released


class ReportsOnlyTheLast(MemoryBackend):
    """When two changes happen at once an observer receives one."""

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        observation = await super().observe(claim, after=after, within=within)
        return observation._replace(changes=observation.changes[-1:])


class _MissesChanges:
    def set(self) -> None:
        """No waiter is woken."""


class LetsObserversSleep(MemoryBackend):
    """Changes are kept for an observer, and nothing wakes it to ask for them."""

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        observation = await super().observe(claim, after=after, within=within)
        observer: Any = self._store.resources[claim.terms.key].observers[claim.id]
        observer.signal = _MissesChanges()
        return observation


# Limiters


class SendsItsClock(RemoteBackend):
    """A client says what time it is."""

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        options: dict[str, Any] = {"rate": rate, "cost": cost, "patience": patience, "within": within}
        answer: Booked = await self._ask("throttle", key, now=self.world.now(), **options)
        return answer


class ChargesOnTheClientsClock(MemoryBackend):
    """The limiter counts on whatever clock is sent along."""

    async def throttle(
        self, key: str, rate: Rate, *, cost: int, patience: float, within: float, now: float = 0.0
    ) -> Booked:
        booked = book_permits(self._store.limiters.get(key, 0), now, rate, cost, patience)
        if booked.allowance.allowed:
            self._store.limiters[key] = booked.until
        return booked


class TakesBackAnything(MemoryBackend):
    """Whatever is booked, and however often it was given back before."""

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        self._store.limiters[key] -= rate.interval * cost


class GivesBackTwice(LimiterLogic):
    """Once for the cancellation and once for good measure."""

    async def _give_back(self, rate: Rate, cost: int, booked: Booked) -> None:
        await super()._give_back(rate, cost, booked)
        await super()._give_back(rate, cost, booked)


class DoesNotWait(LimiterLogic):
    """What is booked for later is used now."""

    async def _wait_for(self, cost: int, booked: Booked) -> None:
        pass


PLANTED_PRIMITIVES: dict[str, Bug] = {
    "admit one more than the limit": Bug(Parts(server=AdmitsOneMore), "held together", "semaphore"),
    "let readers in beside a writer": Bug(Parts(server=LetsReadersInBesideAWriter), "held together", "rwlock"),
    "take any limit": Bug(Parts(server=TakesAnyLimit), "was let in beside limits", "semaphore"),
    "downgrade with a gap": Bug(Parts(lease=DowngradesWithAGap), "held together", "rwlock"),
    "several: forget the first": Bug(Parts(multi=ForgetsTheFirst), "behind in 'several:", "several"),
    "several: take names as given": Bug(Parts(multi=TakesNamesAsGiven), "hangs", "several"),
    "several: wait for each": Bug(Parts(multi=WaitsForEach), "s together", "several"),
    "several: keep the rest": Bug(Parts(multi_lease=KeepsTheRest), "lost one of several names", "several"),
    "several: stop releasing": Bug(
        Parts(multi_lease=StopsReleasingWhenCancelled), "behind in 'several:", "several", first_seed=130
    ),
    "lead from memory": Bug(Parts(election=LeadsFromMemory), "held together", "election"),
    "ignore the successor": Bug(Parts(server=IgnoresTheSuccessor), "was handed over to", "election"),
    "hand over what it has not": Bug(Parts(server=HandsOverWhatItHasNot), "which has waited since", "election", 1700),
    "report only the last change": Bug(Parts(server=ReportsOnlyTheLast), "but what happened was", "election"),
    "let observers sleep": Bug(Parts(server=LetsObserversSleep), "late without a fault", "election"),
    "charge on the client's clock": Bug(
        Parts(server=ChargesOnTheClientsClock, remote=SendsItsClock), "over the rate", "limiter"
    ),
    "give back twice": Bug(Parts(server=TakesBackAnything, limiter=GivesBackTwice), "over the rate", "limiter"),
    "do not wait for what is booked": Bug(Parts(limiter=DoesNotWait), "before they were due", "limiter"),
}
