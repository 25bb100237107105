"""Simulated runs of a quorum: clients that work, servers that crash, forget and come back, a bad network, clocks that
drift. The engine and the quorum's logic are the real ones.

Decides: who does what when, from a seed, and what is recorded. `Climate` says how bad it may get, within what a quorum
promises to survive or beyond. Leaves to `history`: whether two ever believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lockfast._model import Terms
from lockfast.aio import AsyncLease, AsyncLock
from lockfast.backends.redlock.backend import QuorumBackend
from lockfast.engine.core import Engine
from lockfast.engine.request import Request
from lockfast.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from lockfast.primitives.lock import LockLogic
from lockfast.testing.history import Hold, judge
from lockfast.testing.simulated import SimulatedWorld, Simulation
from lockfast.testing.simulated_network import MAX_DRIFT, Faults
from tests.simulation.quorum_nodes import NodeNetwork, SimulatedFanout, SimulatedNode, VotingBackend

LONGEST_TTL_S = 4.0
USUAL = Faults(lost_request=0.02, lost_reply=0.02, reset=0.02, late=0.02, repeated=0.02, slow=0.03, lost_wake=0.05)


class Climate(NamedTuple):
    """How bad it may get."""

    forgets: bool = False  # servers come back empty
    rejoin: float | None = None  # how long such a one is excluded; None: for the longest ttl that a client knows of
    fast: float = MAX_DRIFT  # how much faster than true time the clock of a server runs at most
    at_once: bool = False  # a server that forgot is back in no time
    ttls: Sequence[float] = (1.0, 2.0, LONGEST_TTL_S)
    skew: float = 0.05  # seconds by which the wall clocks of clients are off at most
    stepped: float = 0.0  # seconds by which the clock of a server that restarts is stepped forward
    late: float = 1.0  # how much more often than usual a message comes late, or a second time


class Outcome(NamedTuple):
    seed: int
    wrong: list[str]
    refused_beside: int  # writes that the resource refused because a newer holder had written
    accepted_late: list[str]  # writes of an old holder that it took all the same
    counts: Counter[str]


class Resource:
    """What the lock protects: it remembers the highest fence, and refuses a write with a lower one."""

    def __init__(self) -> None:
        self.highest = 0
        self.refused = 0
        self.accepted: list[int] = []

    def write(self, fence: int) -> bool:
        if fence < self.highest:
            self.refused += 1
            return False
        self.highest = fence
        self.accepted.append(fence)
        return True


class _Belief:
    def __init__(self, client: Client, lease: AsyncLease) -> None:
        self.client, self.lease = client, lease
        self.start, self.end = client.world.simulation.time, float("inf")

    def over(self) -> None:
        self.end = min(self.end, self.client.world.simulation.time)

    def hold(self) -> Hold:
        lease = self.lease
        end = min(self.end, self.client.world.true_time(lease._deadline))
        return Hold(lease.name, lease.holder, lease.fence, self.start, end, claim_id=lease.claim_id)


class Parts(NamedTuple):
    """What a run is made of; a test puts something wrong in."""

    quorum: type[QuorumBackend] = QuorumBackend
    server: type[VotingBackend] = VotingBackend
    node: type[SimulatedNode] = SimulatedNode


class Client:
    """One machine with the real engine and the real quorum."""

    def __init__(
        self,
        world: SimulatedWorld,
        networks: Sequence[NodeNetwork],
        *,
        skew: float = 0.0,
        rejoin: float | None = None,
        quorum: type[QuorumBackend] = QuorumBackend,
        node: type[SimulatedNode] = SimulatedNode,
    ) -> None:
        self.world = world
        self.nodes = [node(network, world) for network in networks]
        self.backend = quorum(
            self.nodes,
            SimulatedFanout(world, len(self.nodes)),
            chance=world.chance,
            micros=lambda: round((1000 + world.simulation.time + skew) * 1e6),
            rejoin=rejoin,
        )
        self.engine = Engine(self.backend, world, lease_type=AsyncLease, holder=world.name, patience=2.0)

    def lock(self, ttl: float, wait: float | None, renew: bool) -> AsyncLock:
        terms = Terms("mutex", "mutex", self.engine.holder, ttl)
        return AsyncLock(LockLogic(self.engine, Request(terms, wait=wait, renew=renew)))


_AS_IT_IS = Parts()


class Run:
    def __init__(self, seed: int, climate: Climate, parts: Parts) -> None:
        self.seed, self.climate = seed, climate
        self.simulation = Simulation(seed)
        self.random = self.simulation.random
        heat = self.random.choice((0.0, 0.5, 1.0, 2.0))
        size = self.random.choice((3, 3, 5))
        faults = USUAL.times(heat)
        faults = faults._replace(late=climate.late * faults.late, repeated=climate.late * faults.repeated)
        self.networks = [
            NodeNetwork(self.simulation, f"node{n}", faults, self._rate(), parts.server) for n in range(size)
        ]
        self.resource = Resource()
        self.beliefs: list[_Belief] = []
        self.counts: Counter[str] = Counter()
        self.clients = [self._client(f"client{n}", parts) for n in range(self.random.randint(2, 4))]
        self.working = 0

    def _client(self, name: str, parts: Parts) -> Client:
        random = self.random
        rate = 1.0 + MAX_DRIFT * random.choice((-1.0, 0.0, 1.0, random.uniform(-1.0, 1.0)))
        world = SimulatedWorld(self.simulation, name, rate=rate, start=random.uniform(0.0, 1e6))
        skew = random.uniform(-self.climate.skew, self.climate.skew)
        client = Client(
            world, self.networks, skew=skew, rejoin=self.climate.rejoin, quorum=parts.quorum, node=parts.node
        )
        for node in client.nodes:
            node.connected()
        return client

    def _rate(self) -> float:
        fast = self.climate.fast
        return 1.0 + self.random.choice((-MAX_DRIFT, 0.0, fast, self.random.uniform(-MAX_DRIFT, fast)))

    async def _work(self, client: Client) -> None:
        random = self.random
        for _ in range(random.randint(4, 12)):
            await client.world.pause(random.choice((0.0, 0.01, 0.5)) * random.random())
            ttl = random.choice(self.climate.ttls)
            lock = client.lock(ttl, random.choice((0.0, 1.0, 5.0, 20.0)), random.random() < 0.7)
            try:
                await self._hold(client, lock, random.choice((0.01, 0.3, ttl)) * random.random())
            except LeaseLost:
                self.counts["losses"] += 1
            except (AcquireTimeout, BackendUnavailable):
                self.counts["not_granted"] += 1
        self.working -= 1

    async def _hold(self, client: Client, lock: AsyncLock, body: float) -> None:
        async with lock as lease:
            belief = _Belief(client, lease)
            self.beliefs.append(belief)
            self.counts["holds"] += 1
            try:
                self._write(lease)
                await client.world.pause(body)
                self._write(lease)  # whether it still holds or not: that is the resource's to judge
            finally:
                belief.over()

    def _write(self, lease: AsyncLease) -> None:
        self.resource.write(lease.fence)
        self.counts["written"] += 1

    def _nemesis(self) -> None:
        """Every now and then a server crashes, a connection is cut, or a client stands still."""
        if not self.working:
            return
        self.simulation.later(self.random.expovariate(0.5), self._nemesis)
        kind = self.random.choice(("crash", "crash", "cut", "freeze"))
        self.counts[kind] += 1
        if kind == "crash":
            network = self.random.choice(self.networks)
            seconds = 0.05 if self.climate.at_once else self.random.choice((0.1, 1.0, 2 * LONGEST_TTL_S))
            seconds *= self.random.uniform(0.5, 1.0)
            network.crash(seconds, forgets=self.climate.forgets, stepped=self.climate.stepped)
        elif kind == "cut":
            client = self.random.choice(self.clients)
            self.random.choice(client.nodes).cut_off_until = self.simulation.time + 4.0 * self.random.random()
        else:
            self.random.choice(self.clients).world.freeze(2 * LONGEST_TTL_S * self.random.random())

    def go(self) -> Outcome:
        try:
            for client in self.clients:
                for _ in range(self.random.randint(1, 2)):
                    self.working += 1
                    client.world.task(self._work(client), "worker")
            self.simulation.later(0.3, self._nemesis)
            while self.working and self.simulation.time < 600.0:
                self.simulation.run(self.simulation.time + 5.0)
            if self.working:
                self.counts["unfinished"] += 1
            holds = [belief.hold() for belief in self.beliefs]
            wrong = [*judge(holds), *self.simulation.broken_tasks]
            late = [f"{after} after {before}" for before, after in pairwise(self.resource.accepted) if after < before]
            return Outcome(self.seed, wrong, self.resource.refused, late, self.counts)
        finally:
            self.simulation.close()
            for client in self.clients:
                client.engine.closed = True


def simulate(seed: int, climate: Climate, parts: Parts = _AS_IT_IS) -> Outcome:
    return Run(seed, climate, parts).go()
