"""A simulated client: one machine with one engine, and everything that can be made from it.

Decides: how the parts of a run are put together. Leaves to `simulation_jobs`: what is done with them. Leaves to
`simulation`: what goes wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from lockfast._facades.primitives import AsyncElection, AsyncLimiter, AsyncMultiLease, AsyncMultiLock
from lockfast._model import Terms
from lockfast._values import Rate
from lockfast.aio import AsyncLease, AsyncLock
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.engine.core import Engine
from lockfast.engine.keeper import Keeper
from lockfast.engine.request import Request
from lockfast.engine.standby import Standby
from lockfast.observe.events import Event
from lockfast.primitives.election import ElectionLogic
from lockfast.primitives.limiter import LimiterLogic
from lockfast.primitives.lock import LockLogic
from lockfast.primitives.locks import TURN_TTL_S
from lockfast.primitives.multi import MultiLogic
from lockfast.primitives.names import aside
from lockfast.testing.event_ledger import EventLedger
from lockfast.testing.simulated import SimulatedWorld, Task
from lockfast.testing.simulated_network import Network, RemoteBackend
from lockfast.testing.simulation_plans import JobPlan


class Parts(NamedTuple):
    """What a run is made of. A test that plants a bug replaces one."""

    lease: type[AsyncLease] = AsyncLease
    keeper: type[Keeper] = Keeper
    standby: type[Standby] | None = Standby
    remote: type[RemoteBackend] = RemoteBackend
    server: type[MemoryBackend] = MemoryBackend
    multi: type[MultiLogic] = MultiLogic
    multi_lease: type[AsyncMultiLease] = AsyncMultiLease
    election: type[ElectionLogic] = ElectionLogic
    limiter: type[LimiterLogic] = LimiterLogic


SOUND = Parts()


class Client:
    """One machine with one engine, as a process would have it."""

    def __init__(self, network: Network, name: str, parts: Parts, lost: Callable[[Client, Event], None]) -> None:
        start, rate = network.random.uniform(0.0, 1e6), network.some_rate()
        self.world = SimulatedWorld(network.simulation, name, rate=rate, start=start)
        self._thread = SimulatedWorld(network.simulation, name, rate=rate, start=start)  # beside the event loop
        self.network = network
        self.parts = parts
        self._lost = lost  # called with each loss that the engine reports
        self.backend = parts.remote(network, self.world)
        self.engine = Engine(self.backend, self.world, lease_type=parts.lease, holder=name, patience=2.0)
        self.engine.keeper = parts.keeper(self.engine)
        self.outside = parts.remote(network, self._thread)  # what renews while the event loop is blocked
        self.engine.open_twin = lambda: self.outside
        if parts.standby is not None:
            self.engine.stand_by(parts.standby(self._thread))
        self.engine.events.listen(self._on_event)
        self.ledger = EventLedger()
        self.engine.events.listen(self.ledger)
        self.claims_of: defaultdict[Task, list[str]] = defaultdict(list)  # all claims that a job asked with

    def _request(self, plan: JobPlan, name: str, holder: str | None = None) -> Request:
        terms = Terms(name, name, holder or self.engine.holder, plan.ttl, plan.mode, plan.limit)
        return Request(terms, wait=plan.wait, renew=plan.renew, min_hold=plan.min_hold, named=holder is not None)

    def lock(self, plan: JobPlan) -> AsyncLock:
        return AsyncLock(LockLogic(self.engine, self._request(plan, plan.name)))

    def all(self, plan: JobPlan) -> AsyncMultiLock:
        requests = [self._request(plan, name) for name in plan.names]
        return AsyncMultiLock(self.parts.multi(self.engine, self.parts.multi_lease, requests, None))

    def election(self, plan: JobPlan, candidate: str) -> AsyncElection:
        request = self._request(plan, plan.name, candidate).but(renew=True)
        return AsyncElection(self.parts.election(self.engine, request))

    def limiter(self, name: str, rate: Rate) -> AsyncLimiter:
        turn = Request(Terms(aside(name, "turn"), name, self.engine.holder, TURN_TTL_S))
        return AsyncLimiter(self.parts.limiter(self.engine, name, name, rate, turn))

    def _on_event(self, event: Event) -> None:
        if event.kind == "asked" and self.world.simulation.running is not None:
            self.claims_of[self.world.simulation.running].append(event.claim_id)
        elif event.kind == "lost":
            self._lost(self, event)

    def block(self, seconds: float) -> None:
        """Its event loop is blocked by a body; its other thread is not."""
        self.world.freeze(seconds)

    def freeze(self, seconds: float) -> None:
        self.world.freeze(seconds)
        self._thread.freeze(seconds)

    def crash(self) -> None:
        self.world.crash()
        self._thread.crash()

    def cut_off(self, seconds: float) -> None:
        self.backend.cut_off_until = self.outside.cut_off_until = self.network.simulation.time + seconds

    def disturb(self, kind: str) -> None:
        touched = [*self.backend.asking, *self.engine.keeper.leases]
        self.network.fault(self.backend, kind, touched)
