"""Claims that could not be abandoned: few threads or tasks see to all of them, and none to what was never sent."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lockfast import BackendUnavailable
from lockfast._facades.lock import AsyncLease, Lease
from lockfast._model import Busy, Claim, Grant, Terms
from lockfast._worlds import drive
from lockfast._worlds.asyncio_ import AsyncioWorld
from lockfast._worlds.threads import ThreadWorld
from lockfast.engine import unfinished
from lockfast.engine.core import BRIEFLY_S, Engine
from lockfast.engine.unfinished import MAX_WORKERS
from lockfast.primitives.locks import LocksLogic
from lockfast.testing import FakeClock
from tests.engine.asking import TTL_S
from tests.engine.hurried import on_url, run_hurried
from tests.engine.stub import StubBackend
from tests.servers.waiting import LIMIT_S, until, until_async

MANY = 10 * MAX_WORKERS
WORKER = "lockfast-abandon"


def gone(**facts: Any) -> BackendUnavailable:
    return BackendUnavailable("the server is gone", **facts)


class Mute(StubBackend):
    """It answers nothing: an acquire fails, and so does an abandon with little time. Others wait for `speaks`."""

    def __init__(self) -> None:
        super().__init__()
        self.speaks = threading.Event()
        self.abandoned: Counter[str] = Counter()

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant:
        raise gone(transient=False)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        if within <= BRIEFLY_S:
            raise gone()
        await self._wait()
        self.abandoned[claim.terms.name] += 1

    async def _wait(self) -> None:
        assert self.speaks.wait(LIMIT_S)


class MuteInLoop(Mute):
    async def _wait(self) -> None:
        await until_async(self.speaks.is_set)


def noting_spawns(world: Any) -> list[str]:
    """The names of what is started in the background from now on."""
    spawn, names = world.spawn, list[str]()

    def note(work: Any, name: str) -> None:
        names.append(name)
        spawn(work, name)

    world.spawn = note
    return names


async def fail_many_times(engine: Engine) -> None:
    locks = LocksLogic(engine, "lockfast")
    for number in range(MANY):
        with pytest.raises(BackendUnavailable):
            await locks.lock(str(number), ttl=TTL_S, wait=0).acquire()
    assert len(engine.unfinished.claims) == MANY


def all_once(backend: Mute) -> bool:
    return backend.abandoned == Counter(map(str, range(MANY)))


def test_a_few_threads_abandon_whatever_a_mute_server_leaves() -> None:
    backend = Mute()
    engine = Engine(backend, ThreadWorld(), lease_type=Lease, holder="us")
    names = noting_spawns(engine.world)

    async def story() -> None:
        await fail_many_times(engine)
        assert 1 <= names.count(WORKER) <= MAX_WORKERS
        backend.speaks.set()

    try:
        drive(story())
        until(lambda: not engine.unfinished)
        assert all_once(backend)
    finally:
        backend.speaks.set()
        drive(engine.close())


def test_closing_abandons_no_claim_that_a_worker_has_abandoned_meanwhile() -> None:
    class DoneMeanwhile(StubBackend):
        async def abandon(self, claim: Claim, *, within: float) -> None:
            abandoned.append(claim.id)
            for other in engine.unfinished.claims:
                engine.unfinished.done(other)

    abandoned: list[str] = []
    engine = Engine(DoneMeanwhile(), ThreadWorld(), lease_type=Lease, holder="us")
    for id in ("first", "second"):
        engine.unfinished.note(Claim(id, Terms("a", "a", "us", TTL_S)))
    drive(engine.close())
    assert abandoned == ["first"]


def test_a_few_tasks_abandon_whatever_a_mute_server_leaves() -> None:
    backend = MuteInLoop()

    async def story() -> None:
        engine = Engine(backend, AsyncioWorld(), lease_type=AsyncLease, holder="us")
        names = noting_spawns(engine.world)
        await fail_many_times(engine)
        assert 1 <= names.count(WORKER) <= MAX_WORKERS
        backend.speaks.set()
        await until_async(lambda: not engine.unfinished)
        assert all_once(backend)
        await engine.close()

    asyncio.run(story())


# In hurried worlds: a pause between two tries takes no time


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=("threads", "asyncio"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Failing(StubBackend):
    """An acquire ends with the next outcome; an abandon is answered, but for a name that hangs."""

    def __init__(self, *outcomes: BackendUnavailable | Busy) -> None:
        super().__init__()
        self.outcomes = list(outcomes)
        self.abandons = self.fails_to_abandon = 0
        self.hangs = ""
        self.abandoned: list[str] = []

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Any:
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Busy):
            return outcome
        raise outcome

    async def abandon(self, claim: Claim, *, within: float) -> None:
        self.abandons += 1
        if within <= BRIEFLY_S or claim.terms.name == self.hangs:
            raise gone()
        self.abandoned.append(claim.terms.name)


async def settle(locks: LocksLogic, condition: Callable[[], object]) -> None:
    """What is done in the background comes to that."""
    if locks.engine.world.blocking:
        until(condition)
    else:
        await until_async(condition)


def test_a_claim_that_cannot_be_abandoned_does_not_hold_up_the_others(
    kind: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "MAX_WORKERS", 1)
    backend = Failing(gone(transient=False))
    backend.hangs = "a"

    async def work(locks: LocksLogic) -> None:
        for name in "abc":
            with pytest.raises(BackendUnavailable):
                await locks.lock(name, ttl=TTL_S, wait=0).acquire()
        await settle(locks, lambda: sorted(backend.abandoned) == ["b", "c"])
        await settle(locks, lambda: not locks.engine.unfinished)  # the time of the first is over by then

    run_hurried(kind, lambda _: backend, work, clock)


def test_what_time_has_ended_is_not_tried_any_more(kind: str, clock: FakeClock) -> None:
    backend = Failing(gone(transient=False))
    backend.hangs = "a"

    async def work(locks: LocksLogic) -> None:
        started = clock.now()
        with pytest.raises(BackendUnavailable):
            await locks.lock("a", ttl=30, wait=0).acquire()
        await settle(locks, lambda: not locks.engine.unfinished)
        assert clock.now() >= started + 30
        assert backend.abandons >= 3

    run_hurried(kind, lambda _: backend, work, clock)
    assert not backend.abandoned


UNSENT = gone(sent=False)
SENT = gone()
BUSY = Busy(1, 1.0, holder="another")


@pytest.mark.parametrize(
    ("outcomes", "abandoned"),
    [
        ([UNSENT], []),
        ([SENT, UNSENT], ["a"]),
        ([UNSENT, SENT], ["a"]),
        ([UNSENT, SENT, UNSENT], ["a"]),
        ([BUSY, UNSENT], ["a"]),
        ([UNSENT, BUSY, UNSENT], ["a"]),
    ],
    ids=str,
)
def test_only_what_may_have_reached_the_server_is_still_to_be_abandoned(
    outcomes: list[Any], abandoned: list[str], kind: str, clock: FakeClock
) -> None:
    backend = Failing(*outcomes)

    async def work(locks: LocksLogic) -> None:
        names = noting_spawns(locks.engine.world)
        with pytest.raises(BackendUnavailable):
            await locks.lock("a", ttl=TTL_S, wait=5).acquire()
        await settle(locks, lambda: not locks.engine.unfinished)
        assert names.count(WORKER) == len(abandoned)

    run_hurried(kind, lambda _: backend, work, clock)
    assert backend.abandoned == abandoned


GONE = (
    "redis://127.0.0.1:1",
    "rediss://127.0.0.1:1",
    "unix:///nowhere/redis.sock",
    "redis+cluster://127.0.0.1:1,127.0.0.1:2",
    "redis+sentinel://127.0.0.1:1/main",
    "postgresql://127.0.0.1:1/app",
)


@pytest.mark.parametrize("url", GONE)
def test_an_acquire_at_a_port_where_no_server_listens_leaves_nothing_to_do(
    url: str, kind: str, clock: FakeClock
) -> None:
    async def work(locks: LocksLogic) -> None:
        names = noting_spawns(locks.engine.world)
        with pytest.raises(BackendUnavailable) as caught:
            await locks.lock("a", ttl=TTL_S, wait=5).acquire()
        assert not caught.value.sent
        assert not locks.engine.unfinished
        assert WORKER not in names

    run_hurried(kind, on_url(url), work, clock)


def test_an_acquire_that_is_cancelled_between_two_tries_leaves_nothing_to_do_either() -> None:
    async def story() -> None:
        engine = Engine(Failing(UNSENT), AsyncioWorld(), lease_type=AsyncLease, holder="us")
        names = noting_spawns(engine.world)
        pauses, pause = asyncio.Event(), engine.world.pause

        async def noted(seconds: float) -> None:
            pauses.set()
            await pause(seconds)

        engine.world.pause = noted  # type: ignore[method-assign]
        task = asyncio.create_task(LocksLogic(engine, "lockfast").lock("a", ttl=TTL_S).acquire())
        await pauses.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert not engine.unfinished
        assert WORKER not in names
        await engine.close()

    asyncio.run(story())
