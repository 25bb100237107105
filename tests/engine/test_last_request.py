"""A server that is back before the time of a caller is over is asked before the caller gives up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lockfast._model import Busy, Claim, Grant, Renewal, Terms
from lockfast.engine.acquire import acquire
from lockfast.engine.core import Engine
from lockfast.engine.lease import Lease
from lockfast.engine.request import Request
from lockfast.engine.retrying import LAST_WITHIN_S, MIN_PAUSE_S
from lockfast.errors import BackendUnavailable
from lockfast.primitives.locks import LocksLogic
from lockfast.primitives.multi import MultiLease
from lockfast.testing.simulated import SimulatedWorld, Simulation
from tests.engine.stub import StubBackend

WAIT_S = 1.0
SEEDS = range(20)  # which decide the pauses


class BackAgain(StubBackend):
    """Refuses every request up to a moment."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation
        self.back_at = 0.0
        self.asked: list[tuple[float, float]] = []  # when, and how long the answer may take

    def _ask(self, within: float) -> None:
        self.asked.append((self._simulation.time, within))
        if self._simulation.time < self.back_at:
            raise BackendUnavailable("connection refused", sent=False)

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant:
        self._ask(within)
        return await super().acquire(claim, enqueue=enqueue, within=within)

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        self._ask(within)
        return await super().release(claim, linger=linger, within=within, successor=successor)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        self._ask(within)
        return await super().renew(batch, within=within)


class Stage:
    def __init__(self, seed: int) -> None:
        self._simulation = Simulation(seed)
        self._world = SimulatedWorld(self._simulation, "machine")
        self.backend = BackAgain(self._simulation)
        self.engine = Engine(self.backend, self._world, holder="us", patience=WAIT_S)

    @property
    def now(self) -> float:
        return self._simulation.time

    def run(self, work: Any) -> Any:
        return self._simulation.run_until_done(self._world.task(work, "job"))

    def take(self, wait: float | None = 0.0) -> Lease:
        request = Request(Terms("a", "a", "us", 30.0))
        lease: Lease = self.run(acquire(self.engine, request, wait, lambda lease: None))
        return lease


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wait", [WAIT_S, None, 0.0])
def test_an_acquire_asks_a_server_that_is_back_just_in_time(seed: int, wait: float | None) -> None:
    stage = Stage(seed)
    stage.backend.back_at = stage.now + 0.95 * WAIT_S
    assert stage.take(wait).held


@pytest.mark.parametrize(
    ("wait", "within"), [(None, WAIT_S), (0.0, WAIT_S), (9 * WAIT_S, WAIT_S), (WAIT_S / 4, WAIT_S / 4), (0.001, 0.02)]
)
def test_the_first_request_of_an_acquire_has_its_wait_and_no_more_than_the_patience(
    wait: float | None, within: float
) -> None:
    stage = Stage(0)
    stage.take(wait)
    assert [limit for _, limit in stage.backend.asked] == [within]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_release_asks_a_server_that_is_back_just_in_time(seed: int) -> None:
    stage = Stage(seed)
    lease = stage.take()
    stage.backend.back_at = stage.now + 0.95 * WAIT_S
    assert stage.run(stage.engine.release(lease))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_extension_asks_a_server_that_is_back_just_in_time(seed: int) -> None:
    stage = Stage(seed)
    lease = stage.take()
    before, stage.backend.back_at = lease._deadline, stage.now + 0.95 * WAIT_S
    stage.run(stage.engine.extend(lease, 60.0))
    assert lease._deadline > before + 20.0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_stays_away_is_asked_until_the_end_and_then_no_more(seed: int) -> None:
    stage = Stage(seed)
    started, stage.backend.back_at = stage.now, stage.now + 100 * WAIT_S
    with pytest.raises(BackendUnavailable):
        stage.take(WAIT_S)
    last, _ = stage.backend.asked[-1]
    assert started + WAIT_S - MIN_PAUSE_S <= last <= started + WAIT_S + MIN_PAUSE_S
    assert max(within for at, within in stage.backend.asked if at > started + WAIT_S / 2) >= LAST_WITHIN_S - MIN_PAUSE_S
    assert len(stage.backend.asked) < 15


class Hangs(StubBackend):
    """Grants "a", says that "b" is held, and answers nothing from then on."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__()
        self._world = world
        self.hangs = False
        self.abandoned: list[str] = []

    async def _answer(self, within: float) -> None:
        if self.hangs:
            await self._world.pause(within)
            raise BackendUnavailable("the server did not answer in time")

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Any:
        await self._answer(within)
        if claim.terms.name == "a":
            return await super().acquire(claim, enqueue=enqueue, within=within)
        self.hangs = True
        return Busy(0, 0.1, holder="another")

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        await self._answer(within)
        return await super().release(claim, linger=linger, within=within, successor=successor)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        await self._answer(within)
        self.abandoned.append(claim.terms.name)


def test_several_names_are_given_up_in_time_though_the_server_hangs() -> None:
    simulation = Simulation(0)
    world = SimulatedWorld(simulation, "machine")
    backend = Hangs(world)
    locks = LocksLogic(Engine(backend, world, holder="us", patience=10.0), "lockfast")
    several, started = locks.all(["a", "b"], MultiLease, None, ttl=30, wait=WAIT_S), simulation.time
    with pytest.raises(BackendUnavailable):
        simulation.run_until_done(world.task(several.acquire(), "job"))
    assert simulation.time <= started + WAIT_S + 0.1
    backend.hangs = False
    simulation.run(simulation.time + 11)
    assert sorted(backend.abandoned) == ["a", "b"], "nothing is left of them once the server answers again"
