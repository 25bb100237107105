"""A simulated client: one machine with one engine, what it is asked to do, and what it believes.

Decides: how the parts of a run are put together. Leaves to `simulation`: what is asked, and what goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from holdfast._model import Mode, Terms
from holdfast.aio import AsyncLease, AsyncLock
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.core import Engine
from holdfast.engine.keeper import Keeper
from holdfast.engine.lease import Request
from holdfast.observe.events import Event
from holdfast.primitives.lock import LockLogic
from holdfast.testing.history import Hold
from holdfast.testing.simulated import SimulatedWorld, Task
from holdfast.testing.simulated_network import Network, RemoteBackend


class Parts(NamedTuple):
    """What a run is made of. A test that plants a bug replaces one."""

    lease: type[AsyncLease] = AsyncLease
    keeper: type[Keeper] = Keeper
    remote: type[RemoteBackend] = RemoteBackend
    server: type[MemoryBackend] = MemoryBackend


SOUND = Parts()


class Plan(NamedTuple):
    """One job: what it asks for, and what it does with it."""

    name: str
    mode: Mode
    limit: int | None
    ttl: float
    wait: float | None
    renew: bool
    min_hold: float
    body: float  # seconds of work under the lock
    style: str  # "with", "acquire", "extend", "break"
    cancel_after: int | None  # at which suspension it is cancelled


class Belief:
    """A hold as its holder saw it."""

    def __init__(self, client: Client, lease: AsyncLease, plan: Plan) -> None:
        self.client, self.lease, self.plan = client, lease, plan
        self.start = client.world.simulation.time
        self.end = float("inf")

    def over(self) -> None:
        self.end = min(self.end, self.client.world.simulation.time)

    def hold(self, broken: dict[str, float]) -> Hold:
        deadline = self.client.world.true_time(self.lease._deadline)
        end = min(self.end, deadline, broken.get(self.lease.claim_id, deadline))
        plan = self.plan
        return Hold(plan.name, self.lease.holder, self.lease.fence, self.start, end, plan.mode, plan.limit)


class Client:
    """One machine with one engine, as a process would have it."""

    def __init__(self, network: Network, name: str, parts: Parts, lost: Callable[[Client, Event], None]) -> None:
        start = network.random.uniform(0.0, 1e6)
        self.world = SimulatedWorld(network.simulation, name, rate=network.some_rate(), start=start)
        self.network = network
        self._lost = lost  # called with each loss that the engine tells of
        self.backend = parts.remote(network, self.world)
        self.engine = Engine(self.backend, self.world, lease_type=parts.lease, holder=name, patience=2.0)
        self.engine.keeper = parts.keeper(self.engine)
        self.engine.events.listen(self._hear)
        self.claim_of: dict[Task, str] = {}  # the last claim that a job asked with

    def lock(self, plan: Plan) -> AsyncLock:
        terms = Terms(plan.name, plan.name, self.engine.holder, plan.ttl, plan.mode, plan.limit)
        request = Request(terms, wait=plan.wait, renew=plan.renew, min_hold=plan.min_hold)
        return AsyncLock(LockLogic(self.engine, request))

    def _hear(self, event: Event) -> None:
        if event.kind == "asked" and self.world.simulation.running is not None:
            self.claim_of[self.world.simulation.running] = event.claim_id
        elif event.kind == "lost":
            self._lost(self, event)

    def disturb(self, kind: str) -> None:
        touched = [*self.backend.asking, *self.engine.keeper.leases]
        self.network.fault(self.backend, kind, touched)
