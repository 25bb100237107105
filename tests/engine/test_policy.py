"""What a caller may choose: how often a lease is renewed, for how long at most, and the pauses between retries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from lockfast._model import Claim, Grant, LockInfo, Renewal
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.engine.backoff import Backoff
from lockfast.engine.core import Engine
from lockfast.engine.lease import Lease
from lockfast.errors import BackendUnavailable, LeaseLost
from lockfast.testing.clock import FakeClock
from lockfast.testing.simulated import SimulatedWorld, Simulation
from tests.engine.stub import StubBackend, take


class Stage:
    """An engine in virtual time over the stub, which notes when it was asked."""

    def __init__(self, retry: Backoff | None = None) -> None:
        self.simulation = Simulation(0)
        self.world = SimulatedWorld(self.simulation, "machine")
        self.backend = StubBackend()
        self.engine = Engine(self.backend, self.world, holder="us", retry=retry or Backoff())
        self.asked: list[float] = []
        self.backend.answer = self._renewed
        self.started = self.simulation.time

    async def _renewed(self, batch: Sequence[Renewal]) -> list[bool]:
        self.asked.append(self.simulation.time - self.started)
        return [True] * len(batch)

    def run(self, work: Any) -> Any:
        return self.simulation.run_until_done(self.world.task(work, "job"))

    def take(self, **options: Any) -> Lease:
        lease: Lease = self.run(take(self.engine, **options))
        return lease

    def pass_time(self, seconds: float) -> None:
        self.simulation.run(self.simulation.time + seconds)

    def close(self) -> None:
        self.engine.closed = True
        self.simulation.close()
        assert self.simulation.broken_tasks == []


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def _gaps(moments: list[float]) -> list[float]:
    return [after - before for before, after in zip([0.0, *moments], moments, strict=False)]


# renew_every


@pytest.mark.parametrize("every", [1.0, 25.0])
def test_a_lease_is_renewed_at_the_interval_that_its_caller_chose(stage: Stage, every: float) -> None:
    lease = stage.take(ttl=30, renew_every=every)
    stage.pass_time(20 * every)
    assert lease.held
    assert 19 <= len(stage.asked) <= 25
    assert all(0.8 * every <= gap <= 1.05 * every for gap in _gaps(stage.asked))


def test_without_an_interval_a_lease_is_renewed_after_a_third_of_its_ttl(stage: Stage) -> None:
    stage.take(ttl=30)
    stage.pass_time(100)
    assert all(8 <= gap <= 10.5 for gap in _gaps(stage.asked))


def test_a_lease_that_was_made_shorter_than_its_interval_is_renewed_in_time(stage: Stage) -> None:
    lease = stage.take(ttl=30, renew_every=20)
    stage.run(lease._extend(10))
    stage.pass_time(300)
    assert lease.held


@pytest.mark.parametrize("every", [30, 31, 0, -1, "5", True])
def test_an_interval_that_lets_the_lease_expire_is_refused(stage: Stage, every: Any) -> None:
    with pytest.raises(ValueError, match="renew_every must be"):
        stage.engine.valid_renewals(30.0, every, None)


def test_lengths_of_time_become_seconds(stage: Stage) -> None:
    assert stage.engine.valid_renewals(30.0, timedelta(seconds=5), 60) == (5.0, 60.0)
    assert stage.engine.valid_renewals(30.0, None, None) == (None, None)


# max_hold


def test_a_lease_is_not_renewed_after_its_max_hold(stage: Stage) -> None:
    lost: list[Lease] = []
    lease = stage.take(ttl=30, max_hold=100, on_lost=lost.append)
    stage.pass_time(100)
    assert lease.held
    assert max(stage.asked) < 100
    last = max(stage.asked)
    stage.pass_time(last + 30 - 100 - 0.1)
    assert lease.held, "until the deadline of its last renewal"
    stage.pass_time(0.2)
    assert lost == [lease]
    assert max(stage.asked) == last


def test_the_error_says_that_max_hold_was_reached(stage: Stage) -> None:
    lease = stage.take(ttl=30, max_hold=100)
    stage.pass_time(140)
    with pytest.raises(LeaseLost, match=r"it reached its max_hold of 100s, after which it is not renewed") as caught:
        lease.check()
    assert "max_hold" in (caught.value.reason or "")


def test_a_loss_before_max_hold_has_its_own_reason(stage: Stage) -> None:
    lease = stage.take(ttl=30, max_hold=100)

    async def fail(batch: Sequence[Renewal]) -> list[bool]:
        raise BackendUnavailable("not now")

    stage.backend.answer = fail
    stage.pass_time(31)
    with pytest.raises(LeaseLost, match="its time ran out before a renewal came through"):
        lease.check()


def test_the_error_says_so_before_the_keeper_has_noticed() -> None:
    clock = FakeClock()
    engine = Engine(StubBackend(), ThreadWorld(clock), holder="us")
    engine.keeper.loop.close()  # as if its loop had not run yet
    lease = drive(take(engine, ttl=30, max_hold=20))
    clock.advance(31)
    assert "max_hold of 20s" in str(lease._not_held())


# Backoff


class _Unreachable(StubBackend):
    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant:
        raise BackendUnavailable("not now")

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        raise BackendUnavailable("not now")


@pytest.mark.parametrize("verb", ["acquire", "insist"])
def test_requests_to_an_unreachable_server_are_repeated_with_the_chosen_pauses(verb: str) -> None:
    stage = Stage(Backoff(base=0.1, cap=0.4, jitter=0))
    stage.engine.backend = backend = _Unreachable()
    asked: list[float] = []
    usual = getattr(backend, "acquire" if verb == "acquire" else "inspect")

    async def note(*args: Any, **options: Any) -> Any:
        asked.append(stage.simulation.time - stage.started)
        return await usual(*args, **options)

    setattr(backend, usual.__name__, note)
    work: Any = take(stage.engine)
    if verb == "insist":
        work.close()
        until = stage.engine.now() + 2.0
        work = stage.engine.insist(lambda within: backend.inspect("a", within=within), until)
    with pytest.raises(BackendUnavailable):
        stage.run(work)
    pauses = [round(after - before, 2) for before, after in itertools.pairwise(asked)]
    assert pauses[:4] == [0.2, 0.4, 0.4, 0.4]
    stage.close()


@pytest.mark.parametrize("attempt", [1, 2, 5, 40])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.999])
def test_the_default_pauses_are_the_documented_ones(attempt: int, chance: float) -> None:
    longest = min(1.0, 0.02 * 2 ** min(attempt, 16))
    assert Backoff().pause(attempt, chance) == 0.01 + (longest - 0.01) * chance


def test_jitter_is_the_part_of_a_pause_that_chance_decides() -> None:
    half = Backoff(base=1, cap=10, jitter=0.5)
    assert (half.pause(1, 0.0), half.pause(1, 1.0)) == (1.25, 2.0)
    assert Backoff(base=1, cap=10, jitter=0).pause(1, 0.0) == 2.0


@pytest.mark.parametrize(
    "options",
    [{"base": 0}, {"base": -1}, {"base": "1"}, {"base": 2, "cap": 1}, {"jitter": 2}, {"jitter": -0.1}, {"jitter": "x"}],
)
def test_a_backoff_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Backoff\("):
        Backoff(**options)


def test_a_backoff_cannot_be_changed_and_equals_one_with_the_same_values() -> None:
    assert Backoff(base=timedelta(seconds=1), cap=2) == Backoff(1, 2, 1.0)
    with pytest.raises(AttributeError):
        Backoff().base = 3  # type: ignore[misc]
