"""Simulated servers of a quorum, and the fan-out of a simulated client that asks them all at once.

Decides: what a server forgets when it crashes, and what becomes of messages meanwhile. The quorum's own logic runs
unchanged on top. Leaves to `simulated_network`: the fate of each message between one client and one server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockfast._model import Busy, Claim, Grant, Health, Terms
from lockfast._worlds import World
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.resource import MemoryHolder, MemoryResource
from lockfast.backends.memory.store import MemoryStore
from lockfast.backends.redlock.io.age import ServerAge
from lockfast.backends.redlock.io.fanout import PENDING, Enough, Late, Verb, Verbs
from lockfast.backends.redlock.io.rounds import LINGER_S
from lockfast.backends.redlock.tally import BrokenHolds
from lockfast.errors import BackendUnavailable
from lockfast.testing.simulated import SimulatedSignal, SimulatedWorld, Simulation
from lockfast.testing.simulated_network import Faults, Network, RemoteBackend

NODE_TIMEOUT_S = 0.3


class VotingBackend(MemoryBackend):
    """What a server does with a proposal and an order in the queue, as the scripts of Redis do."""

    capabilities = MemoryBackend.capabilities._replace(hands_over=False)  # one server alone cannot

    def __init__(self, store: MemoryStore, world: World) -> None:
        super().__init__(store, world)
        self._orders: dict[str, int] = {}  # in the queue, by claim
        self._refused: dict[str, float] = {}  # by claim: until when it is granted nothing

    def forget(self) -> None:
        self._store.clear()
        self._store.fence = 0
        self._refused.clear()

    async def vote(self, claim: Claim, *, fence: int, order: int, enqueue: bool, within: float) -> Grant | Busy:
        if self._refused.get(claim.id, 0.0) > self._store.clock():
            return Busy(0, 1.0)
        self._store.fence = max(self._store.fence, fence - 1)
        answer = await self.acquire(claim, enqueue=enqueue, within=within)
        resource = self._store.resources.get(claim.terms.key)
        if isinstance(answer, Grant) or resource is None or claim.id not in resource.queue:
            return answer
        self._enqueue_in_order(resource, claim, order)
        return await self.acquire(claim, enqueue=enqueue, within=within)  # for its position now

    def _enqueue_in_order(self, resource: MemoryResource, claim: Claim, order: int) -> None:
        self._orders[claim.id] = order
        resource.queue = dict(sorted(resource.queue.items(), key=lambda waiter: self._orders[waiter[0]]))

    async def end_holds(self, key: str, *, within: float) -> BrokenHolds:
        now, resource = self._store.clock(), self._store.resources.get(key)
        left = {id: holder.expires_at - now for id, holder in resource.holders.items()} if resource is not None else {}
        return BrokenHolds(await self.break_(key, within=within), left)

    async def refuse(self, key: str, id: str, *, seconds: float, within: float) -> None:
        self._refused[id] = self._store.clock() + seconds
        await self.abandon(Claim(id, Terms(key, key, "", 1.0)), within=within)

    async def record_fence(self, claim: Claim, *, fence: int, instead_of: int, within: float) -> bool:
        holder = self._holder(claim)
        if holder is None or holder.fence not in (fence, instead_of):
            return False
        holder.grant = holder.grant._replace(fence=fence)
        self._store.fence = max(self._store.fence, fence)
        return True

    async def give_back(self, claim: Claim, *, up_to: int, order: int, enqueue: bool, within: float) -> None:
        holder = self._holder(claim)
        if holder is None or holder.fence > up_to:
            return
        if not enqueue:
            await self.abandon(claim, within=within)
            return
        now = self._store.clock()
        resource = self._store.refresh_or_make(claim.terms.key, now)
        resource.end(claim.id)
        self._enqueue(resource, claim, now)
        self._enqueue_in_order(resource, claim, order)
        resource.hand_over(now)

    def _holder(self, claim: Claim) -> MemoryHolder | None:
        resource = self._store.refresh(claim.terms.key, self._store.clock())
        holder = resource.holders.get(claim.id) if resource is not None else None
        return None if holder is None or holder.ended else holder


class NodeNetwork(Network):
    """One server and the network to it. It may be down: then what arrives is lost."""

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        faults: Faults,
        rate: float,
        server: type[VotingBackend] = VotingBackend,
    ) -> None:
        super().__init__(simulation, faults, server)
        self.name = name
        self.down_until = 0.0  # true time
        self.born_at = -1e9  # true time: since when it remembers everything
        self.runs = 1  # times that it was started
        self.stepped = 0.0  # seconds by which its wall clock was stepped forward since it was last started
        self.keeps_all = True  # it says that it syncs every write
        self.server.world.rate = rate
        answer = self.server.answer

        def answer_and_know_vote(client: RemoteBackend, verb: str, asked: Any, options: dict[str, Any]) -> Any:
            if verb in ("vote", "give_back"):
                self.server.world.asking = client, asked
            if isinstance(client, SimulatedNode) and not self.down:
                client.connected()  # before the request was sent
            return answer(client, verb, asked, options)

        self.server.answer = answer_and_know_vote  # type: ignore[method-assign]

    def crash(self, seconds: float, *, forgets: bool, stepped: float = 0.0) -> None:
        """It starts again with a clock that is behind, which is `stepped` forward before the first request arrives."""
        self.down_until = self.simulation.time + seconds
        self.runs += 1
        self.stepped = stepped
        if forgets:
            assert isinstance(self.server.backend, VotingBackend)
            self.server.backend.forget()
            self.born_at = self.down_until
            self.keeps_all = False

    @property
    def uptime(self) -> float:
        """As it says, by its wall clock."""
        return self.simulation.time - self.born_at + self.stepped

    @property
    def down(self) -> bool:
        return self.simulation.time < self.down_until

    def _carry(self, call: Any, delay: float) -> None:
        self.simulation.later(delay, lambda: None if self.down else call.arrive())


class EveryKey:
    """As a set of contended keys it excludes the quick scripts."""

    def __contains__(self, key: object) -> bool:
        return True


class SimulatedNode(RemoteBackend):
    """A client's view of one server."""

    network: NodeNetwork
    contended = EveryKey()
    in_doubt = frozenset[str]()

    def __init__(self, network: NodeNetwork, world: SimulatedWorld) -> None:
        super().__init__(network, world)
        self._age = ServerAge()

    @property
    def name(self) -> str:
        return self.network.name

    def connected(self) -> None:
        """The server says what it says on each new connection."""
        network = self.network
        self._age.on_report(self.world.now(), str(network.runs), network.uptime, keeps_all=network.keeps_all)

    def age(self) -> float:
        return self._age.at(self.world.now())

    def mark_in_doubt(self, id: str) -> None:
        """A late request may take effect; time ends what it does."""

    load_quick_vote = b""

    def quick_vote(self, claim: Claim, fence: int) -> bytes:
        raise NotImplementedError("simulated servers are asked one by one")

    def quick_release(self, claim: Claim) -> bytes:
        raise NotImplementedError("simulated servers are asked one by one")

    async def vote(self, claim: Claim, *, fence: int, order: int, enqueue: bool, within: float) -> Grant | Busy:
        options: dict[str, Any] = {"fence": fence, "order": order, "enqueue": enqueue}
        answer: Grant | Busy = await self._ask("vote", claim, [claim.id], **options, within=min(within, NODE_TIMEOUT_S))
        return answer

    async def end_holds(self, key: str, *, within: float) -> BrokenHolds:
        answer: BrokenHolds = await self._ask("end_holds", key, within=min(within, NODE_TIMEOUT_S))
        return answer

    async def refuse(self, key: str, id: str, *, seconds: float, within: float) -> None:
        options: dict[str, Any] = {"id": id, "seconds": seconds, "within": min(within, NODE_TIMEOUT_S)}
        await self._ask("refuse", key, [id], **options)

    async def record_fence(self, claim: Claim, *, fence: int, instead_of: int, within: float) -> bool:
        options: dict[str, Any] = {"fence": fence, "instead_of": instead_of, "within": min(within, NODE_TIMEOUT_S)}
        answer: bool = await self._ask("record_fence", claim, [claim.id], **options)
        return answer

    async def give_back(self, claim: Claim, *, up_to: int, order: int, enqueue: bool, within: float) -> None:
        options: dict[str, Any] = {"up_to": up_to, "order": order, "enqueue": enqueue}
        await self._ask("give_back", claim, [claim.id], **options, within=min(within, NODE_TIMEOUT_S))

    def woken(self, id: str, grant: Grant | None) -> None:
        waiters[self.world].wake(id)


class SimulatedWaiters:
    """Where the waiters of one client sleep, whichever server wakes them."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._waiters: dict[str, SimulatedSignal] = {}

    @property
    def address(self) -> str:
        return self._world.name

    def expect(self, claim: Claim) -> str:
        self._waiters.setdefault(claim.id, self._world.signal())
        return self.address

    def expects(self, claim: Claim) -> bool:
        return claim.id in self._waiters

    def forget(self, claim: Claim) -> None:
        self._waiters.pop(claim.id, None)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        self.expect(claim)
        return await self._waiters[claim.id].wait(seconds)

    def wake(self, claim: str) -> None:
        if claim in self._waiters:
            self._waiters[claim].set()

    def close(self) -> None:
        """Nothing to close."""

    def after_fork(self) -> None:
        """Simulated machines do not fork."""


waiters: dict[SimulatedWorld, SimulatedWaiters] = {}


class SimulatedFanout:
    """A task for each node; the client goes on as soon as it knows enough."""

    def __init__(self, world: SimulatedWorld, nodes: int) -> None:
        self._world = world
        self._nodes = nodes
        self.now = world.now
        self.wakeups = waiters[world] = SimulatedWaiters(world)

    async def ask(
        self,
        verbs: Verbs,
        enough: Enough,
        *,
        within: float,
        claim: str = "",
        settled: Enough | None = None,
        new: bool = False,
        late: Late | None = None,
    ) -> list[Any]:
        made = [verbs(node) for node in range(self._nodes)] if callable(verbs) else verbs
        results: list[Any] = [PENDING] * len(made)
        changed = self._world.signal()

        async def run(node: int, verb: Verb) -> None:
            assert not isinstance(verb, bytes), "simulated servers have no wire"
            try:
                result = await verb
            except BackendUnavailable as error:
                result = error
            results[node] = result
            changed.set()

        for node, verb in enumerate(made):
            if verb is not None:
                self._world.spawn(run(node, verb), "job, a question to one node")
        asked = sum(verb is not None for verb in made)
        until = self._world.now() + min(within, NODE_TIMEOUT_S) + 0.05
        while not enough(results) and sum(one is not PENDING for one in results) < asked:
            if settled is not None and settled(results):
                until = min(until, self._world.now() + LINGER_S)
            if not await changed.wait(until - self._world.now()):
                break
        return list(results)

    def retry_later(self, node: int, claim: str, verb: Callable[[], Verb], until: float) -> None:
        """Time ends it."""

    async def check_up(self) -> list[Health]:
        """No verb is sent."""
        return []

    async def pause(self, seconds: float) -> None:
        await self._world.pause(seconds)

    async def close(self) -> None:
        """No connections."""

    def after_fork(self) -> None:
        """Simulated machines do not fork."""
