"""A server, its clients, and a network between them that loses, delays and repeats what is sent.

Decides: the fate of each message. Leaves to the memory backend: what the server answers.
Records: every step of the server and every fault, so that `simulation_checks` can judge the run afterwards.

Messages of one client arrive in the order they were sent, as on one connection, unless a fault says otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockfast._model import Busy, Capabilities, Claim, Grant, LockInfo, Observation, Renewal
from lockfast._reentry import run_to_end
from lockfast._values import Booked, Rate, Stored, Write, Written
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import MemoryStore
from lockfast.errors import BackendUnavailable, LimitMismatch
from lockfast.testing.simulated import SimulatedSignal, SimulatedWorld, Simulation

MAX_DRIFT = 0.005  # how far the rate of any clock is off at most, so two differ by twice that
PROMPT_S = 0.1  # seconds; a message that takes longer counts as a fault


class Faults(NamedTuple):
    """How likely each fate is, for each message."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    reset: float = 0.0  # the client sees at once that the connection broke, but not whether the request was done
    late: float = 0.0  # arrives after its sender gave up
    repeated: float = 0.0  # arrives in time, and once more later
    slow: float = 0.0
    lost_wake: float = 0.0
    late_wake: float = 0.0  # under way for longer than the ttl that it grants, perhaps

    def times(self, factor: float) -> Faults:
        return Faults(*(factor * likely for likely in self))


NO_FAULTS = Faults()
REQUEST_FATES = Faults._fields[:6]  # the last ones are a wake-up's


class Fault(NamedTuple):
    time: float
    client: str
    kind: str
    claims: tuple[str, ...]  # ids
    verb: str


class Step(NamedTuple):
    """One request as the server carried it out."""

    time: float  # true time
    now: float  # the server's clock
    client: str
    verb: str
    asked: Any  # a claim, a batch of renewals, or a key
    options: dict[str, Any]
    answer: Any
    woken: tuple[Claim, ...]
    handed_over: tuple[tuple[Claim, Grant], ...] = ()  # those that were made holders, by their wake-up


def latency(simulation: Simulation) -> float:
    """How long one message takes if nothing is wrong."""
    return 0.0002 + min(0.02, simulation.random.expovariate(1000.0))


class Channel:
    """One way of a connection: messages arrive in the order in which they were sent."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._last = 0.0  # when the last one arrives

    def travel(self, extra: float = 0.0) -> float:
        """How long until what is sent now arrives."""
        now = self._simulation.time
        self._last = max(self._last + 1e-6, now + latency(self._simulation) + extra)
        return self._last - now


class _Wake:
    """What the server sets to wake a waiter: it becomes a message."""

    def __init__(self, server: SimulatedServer, client: RemoteBackend, claim: Claim) -> None:
        self._server, self._client, self._claim = server, client, claim

    def set(self) -> None:
        grant = self._server.backend.handed_over(self._claim)
        self._server.woken.append(self._claim)
        if grant is not None:
            self._server.handed_over.append((self._claim, grant))
        self._server.network.wake(self._client, self._claim, grant)

    async def wait(self, seconds: float | None) -> bool:
        raise NotImplementedError("waiters wait at their own machine")


class _ServerWorld(SimulatedWorld):
    asking: tuple[RemoteBackend, Claim]
    server: SimulatedServer

    def signal(self) -> Any:
        return _Wake(self.server, *self.asking)


class SimulatedServer:
    def __init__(self, network: Network, backend_type: type[MemoryBackend]) -> None:
        self.network = network
        simulation = network.simulation
        self.world = _ServerWorld(simulation, "server", rate=network.some_rate(), start=5000.0)
        self.world.server = self
        self.store = MemoryStore(clock=self.world.now)
        self.store.fence = 0
        self.backend = backend_type(self.store, self.world)
        self.log: list[Step] = []
        self.woken: list[Claim] = []
        self.handed_over: list[tuple[Claim, Grant]] = []

    def answer(self, client: RemoteBackend, verb: str, asked: Any, options: dict[str, Any]) -> Any:
        if verb in ("acquire", "observe"):
            self.world.asking = client, asked
        self.woken, self.handed_over = [], []
        answer: Any
        try:
            answer = run_to_end(getattr(self.backend, verb)(asked, **options))
        except LimitMismatch as error:
            answer = error
        now = self.world.now()
        time, woken, handed_over = self.network.simulation.time, tuple(self.woken), tuple(self.handed_over)
        step = Step(time, now, client.world.name, verb, asked, options, answer, woken, handed_over)
        self.log.append(step)
        return answer


class Network:
    def __init__(
        self, simulation: Simulation, faults: Faults = NO_FAULTS, backend_type: type[MemoryBackend] = MemoryBackend
    ) -> None:
        self.simulation = simulation
        self.faults = faults
        self.random = simulation.random
        self.record: list[Fault] = []
        self.excused: set[str] = set()  # ids of claims that a fault has touched: they may be served late
        self.server = SimulatedServer(self, backend_type)

    def some_rate(self) -> float:
        return 1.0 + MAX_DRIFT * self.random.choice((-1.0, 0.0, 1.0, self.random.uniform(-1.0, 1.0)))

    def fault(self, client: RemoteBackend, kind: str, claims: Sequence[str], verb: str = "") -> None:
        self.record.append(Fault(self.simulation.time, client.world.name, kind, tuple(claims), verb))
        self.excused.update(claims)

    def count(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.record)

    # Fates

    def request(self, call: _Call) -> None:
        kind = self._fate(call)
        if kind is None:
            self._carry(call, self._travel(call, call.client.to_server))
            return
        self.fault(call.client, kind, call.claims, call.verb)
        if kind == "lost_reply":
            call.unanswered = True
            self._carry(call, self._travel(call, call.client.to_server))
        elif kind == "reset":
            self._reset(call)
        elif kind == "late":
            call.unanswered = True
            self._carry(call, call.within + self.random.uniform(0.0, 3.0))
        elif kind == "repeated":
            self._carry(call, self._travel(call, call.client.to_server))
            self.simulation.later(self.random.uniform(0.0, 6.0), call.repeat)
        elif kind == "slow":
            self._carry(call, self._travel(call, call.client.to_server, self.random.uniform(PROMPT_S, 1.5)))

    def _fate(self, call: _Call) -> str | None:
        if call.client.cut_off_until > self.simulation.time:
            return "lost_request"
        draw = self.random.random()
        for kind, likely in zip(REQUEST_FATES, self.faults, strict=False):
            draw -= likely
            if draw < 0.0:
                # Permits are given back by one request that no client sends again, so it does not arrive twice either.
                return None if kind == "repeated" and call.verb == "unthrottle" else kind
        return None

    def _reset(self, call: _Call) -> None:
        call.unanswered = True
        if self.random.random() < 0.5:
            self._carry(call, self._travel(call, call.client.to_server))
        self.simulation.later(latency(self.simulation), call.fail, call.client.world)

    def _carry(self, call: _Call, delay: float) -> None:
        self.simulation.later(delay, call.arrive)

    def reply(self, call: _Call, answer: Any) -> None:
        if call.unanswered or call.client.cut_off_until > self.simulation.time:
            return
        slow = self.random.random() < self.faults.slow
        if slow:
            self.fault(call.client, "slow", call.claims, call.verb)
        extra = self.random.uniform(PROMPT_S, 1.5) if slow else 0.0
        takes = self._travel(call, call.client.to_client, extra)
        self.simulation.later(takes, lambda: call.received(answer), call.client.world)

    def wake(self, client: RemoteBackend, claim: Claim, grant: Grant | None) -> None:
        draw, extra = self.random.random(), 0.0
        if client.cut_off_until > self.simulation.time or draw < self.faults.lost_wake:
            self.fault(client, "lost_wake", [claim.id])
            return
        if draw < self.faults.lost_wake + self.faults.late_wake:
            self.fault(client, "late_wake", [claim.id], "wake")
            extra = PROMPT_S + self.random.choice((1.0, 2.0, 6.0)) * self.random.random()
        self.simulation.later(latency(self.simulation) + extra, lambda: client.woken(claim.id, grant), client.world)

    def _travel(self, call: _Call, channel: Channel, extra: float = 0.0) -> float:
        takes = channel.travel(extra)
        if takes > PROMPT_S and not extra:
            self.fault(call.client, "slow", call.claims, call.verb)
        return takes


class _Call:
    """One request under way."""

    __slots__ = (
        "_answer",
        "_arrived",
        "_failed",
        "asked",
        "claims",
        "client",
        "options",
        "unanswered",
        "verb",
        "within",
    )

    def __init__(
        self, client: RemoteBackend, verb: str, asked: Any, claims: Sequence[str], options: dict[str, Any]
    ) -> None:
        self.client, self.verb, self.asked, self.claims, self.options = client, verb, asked, claims, options
        self.within: float = options.get("within", 5.0)
        self.unanswered = False  # no reply will come through
        self._arrived = SimulatedSignal(client.world)
        self._failed = False
        self._answer: Any = None

    def arrive(self) -> None:
        network = self.client.network
        network.reply(self, network.server.answer(self.client, self.verb, self.asked, self.options))

    def repeat(self) -> None:
        """The client ignores the second answer."""
        self.client.network.server.answer(self.client, self.verb, self.asked, self.options)

    def received(self, answer: Any) -> None:
        self._answer = answer
        self._arrived.set()

    def fail(self) -> None:
        self._failed = True
        self._arrived.set()

    async def answer(self) -> Any:
        if await self._arrived.wait(self.within) and not self._failed:
            if isinstance(self._answer, LimitMismatch):
                raise self._answer
            return self._answer
        why = "connection reset" if self._failed else f"no answer within {self.within:.3f}s"
        raise BackendUnavailable(f"{self.verb}: {why}")


class RemoteBackend:
    """The client's side: each verb is a request, and a reply that may never come."""

    capabilities = Capabilities(drift=2 * MAX_DRIFT, renew_batch=3, hands_over=True)

    def __init__(self, network: Network, world: SimulatedWorld) -> None:
        self.network = network
        self.world = world
        self.renewals = 0  # requests
        self.cut_off_until = 0.0  # true time; nothing gets through before, in either direction
        self.to_server, self.to_client = Channel(world.simulation), Channel(world.simulation)
        self.asking: dict[str, SimulatedSignal] = {}  # by claim id: acquires under way, and what wakes them
        self.grants: dict[str, Grant] = {}  # by claim id: what wake-ups carried, until they are read

    @property
    def store_id(self) -> str:
        return self.network.server.backend.store_id

    async def _ask(self, verb: str, asked: Any, claims: Sequence[str] = (), **options: Any) -> Any:
        await self.world.pause(0.0)  # the machine may be frozen, or the task cancelled, just before it sends
        call = _Call(self, verb, asked, claims, options)
        self.network.request(call)
        return await call.answer()

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        if enqueue:
            self.asking.setdefault(claim.id, self.world.signal())
        answer: Grant | Busy = await self._ask("acquire", claim, [claim.id], enqueue=enqueue, within=within)
        if isinstance(answer, Grant):
            self.forget(claim.id)
        return answer

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        if not await self.asking[claim.id].wait(seconds):
            return False
        grant = self.grants.get(claim.id)
        if grant is not None:
            self.forget(claim.id)
        return grant or True

    def woken(self, id: str, grant: Grant | None) -> None:
        if id in self.asking:
            if grant is not None:
                self.grants[id] = grant
            self.asking[id].set()

    def forget(self, id: str) -> None:
        self.asking.pop(id, None)
        self.grants.pop(id, None)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> list[bool]:
        self.renewals += 1
        ids = [renewal.claim.id for renewal in batch]
        answer: list[bool] = await self._ask("renew", tuple(batch), ids, within=within)
        return answer

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        answer: bool = await self._ask("release", claim, [claim.id], linger=linger, within=within, successor=successor)
        return answer

    async def abandon(self, claim: Claim, *, within: float) -> None:
        try:
            await self._ask("abandon", claim, [claim.id], within=within)
        finally:
            self.forget(claim.id)

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        self.asking.setdefault(claim.id, self.world.signal())
        answer: Observation = await self._ask("observe", claim, [claim.id], after=after, within=within)
        return answer

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        options: dict[str, Any] = {"rate": rate, "cost": cost, "patience": patience, "within": within}
        answer: Booked = await self._ask("throttle", key, **options)
        return answer

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        await self._ask("unthrottle", key, rate=rate, cost=cost, until=until, within=within)

    async def read(self, key: str, *, within: float) -> Stored:
        answer: Stored = await self._ask("read", key, within=within)
        return answer

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        answer: Written = await self._ask("write", key, write=write, within=within)
        return answer

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        answer: LockInfo = await self._ask("inspect", key, within=within)
        return answer

    async def list(self, prefix: str, *, within: float) -> list[LockInfo]:
        answer: list[LockInfo] = await self._ask("list", prefix, within=within)
        return answer

    async def break_(self, key: str, *, within: float) -> LockInfo:
        answer: LockInfo = await self._ask("break_", key, within=within)
        return answer

    async def close(self) -> None:
        """There is no connection to close."""

    def before_fork(self) -> None:
        """Simulated machines do not fork."""

    def after_fork(self, *, child: bool) -> None:
        """Simulated machines do not fork."""
