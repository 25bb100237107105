"""Wake-ups in vain: a flood of them costs few requests, and delays nothing that matters."""

from __future__ import annotations

import pytest

from lockfast._model import Busy, Change, Claim, Grant, Observation
from lockfast._values import NS_PER_S
from lockfast.engine.waking import IN_VAIN
from lockfast.primitives.locks import LocksLogic
from lockfast.testing import FakeClock
from tests.engine.hurried import run_hurried
from tests.engine.stub import StubBackend

EVERY_S = 0.001  # between two wake-ups
INTERVAL_S = IN_VAIN.interval / NS_PER_S


class Flooded(StubBackend):
    """Every claim is woken all the time, or from a moment on only when it is granted."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.free_at = self.quiet_from = float("inf")
        self.asked: list[float] = []  # when
        self.changes = 0  # that observers have not been shown
        self.number = 0  # of the last one

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant:
        self.asked.append(self.clock.now())
        if self.asked[-1] < self.free_at:
            return Busy(0, 3600.0)  # type: ignore[return-value]  # the stub's never is
        return await super().acquire(claim, enqueue=enqueue, within=within)

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        self.asked.append(self.clock.now())
        if not self.changes:
            return Observation((), 3600.0)
        self.changes -= 1
        self.number += 1
        return Observation((Change(self.number, self.number, f"leader {self.number}"),), 3600.0)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        if self.clock.now() >= self.quiet_from:
            self.clock.advance_to(self.free_at)
        else:
            self.clock.advance(EVERY_S)
        return True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(clock: FakeClock) -> Flooded:
    return Flooded(clock)


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_flood_of_wake_ups_makes_a_waiter_ask_so_many_times_a_second_and_no_more(
    kind: str, clock: FakeClock, backend: Flooded
) -> None:
    async def work(locks: LocksLogic) -> None:
        started = clock.now()
        assert await locks.lock("a", ttl=30).acquire(timeout=10) is None
        assert clock.now() == pytest.approx(started + 10, rel=1e-9), "and gives up in time"

    run_hurried(kind, lambda world: backend, work, clock)
    assert len(backend.asked) <= 3 + IN_VAIN.burst + 10 / INTERVAL_S


def test_in_a_flood_a_waiter_asks_one_interval_after_its_turn_has_come_at_the_latest(
    kind: str, clock: FakeClock, backend: Flooded
) -> None:
    backend.free_at = clock.now() + 5

    async def work(locks: LocksLogic) -> None:
        assert await locks.lock("a", ttl=30).acquire() is not None
        assert clock.now() <= backend.free_at + INTERVAL_S + EVERY_S

    run_hurried(kind, lambda world: backend, work, clock)


def test_after_a_flood_a_waiter_asks_as_soon_as_it_is_woken(kind: str, clock: FakeClock, backend: Flooded) -> None:
    backend.quiet_from = clock.now() + 5
    backend.free_at = backend.quiet_from + 2

    async def work(locks: LocksLogic) -> None:
        assert await locks.lock("a", ttl=30).acquire() is not None
        assert clock.now() == backend.free_at

    run_hurried(kind, lambda world: backend, work, clock)


def test_wake_ups_that_lead_to_a_grant_are_never_put_off(kind: str, clock: FakeClock, backend: Flooded) -> None:
    async def work(locks: LocksLogic) -> None:
        for _ in range(2 * IN_VAIN.burst):
            backend.free_at = clock.now() + EVERY_S / 2
            lease = await locks.lock("a", ttl=30).acquire()
            assert lease is not None
            assert clock.now() == pytest.approx(backend.free_at + EVERY_S / 2, rel=1e-9)
            await lease._release()

    run_hurried(kind, lambda world: backend, work, clock)
    assert len(backend.asked) == 4 * IN_VAIN.burst, "before it was woken, and after"


def test_a_flood_makes_an_observer_ask_so_many_times_a_second_and_no_more(
    kind: str, clock: FakeClock, backend: Flooded
) -> None:
    async def work(locks: LocksLogic) -> None:
        started = clock.now()
        clock.alarm(started + 10, lambda: setattr(backend, "changes", 1))
        observer = locks.election("a", None, ttl=30).observer()
        assert await observer.next() is not None
        assert clock.now() <= started + 10 + INTERVAL_S + EVERY_S, "and shows what happens in it"
        await observer.close()

    run_hurried(kind, lambda world: backend, work, clock)
    assert len(backend.asked) <= 3 + IN_VAIN.burst + 10 / INTERVAL_S


def test_an_observer_that_finds_a_change_each_time_is_never_put_off(
    kind: str, clock: FakeClock, backend: Flooded
) -> None:
    """Each change wakes it, and it is woken once more by one that it has found already."""

    async def work(locks: LocksLogic) -> None:
        observer = locks.election("a", None, ttl=30).observer()
        for _ in range(2 * IN_VAIN.burst):
            started = clock.now()
            clock.alarm(started + 1.5 * EVERY_S, lambda: setattr(backend, "changes", 1))
            assert await observer.next() is not None
            assert clock.now() == pytest.approx(started + 2 * EVERY_S, rel=1e-9)
        await observer.close()

    run_hurried(kind, lambda world: backend, work, clock)
