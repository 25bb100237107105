"""The stage of the simulated world: a seed decides who comes first, and a story that waits in vain fails at once."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import MemoryStore
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.stage_simulated import SimulatedStage

SEEDS = range(20)


def _stage(seed: int = 0) -> SimulatedStage:
    stores: list[MemoryStore] = []

    def opener(world: World, clock: Clock | None) -> Backend:
        assert clock is not None
        stores.append(stores[0] if stores else MemoryStore(clock.now))
        return MemoryBackend(stores[0], world)

    return SimulatedStage(opener, seed=seed)


def _run(seed: int, story: Callable[[SimulatedStage], Awaitable[Any]]) -> Any:
    stage, answers = _stage(seed), []

    async def run() -> None:
        answers.append(await story(stage))

    stage.run(run())
    return answers[0]


async def _rivals(stage: SimulatedStage) -> list[tuple[int, float]]:
    """Who came in when, if nothing says who is first."""
    order: list[tuple[int, float]] = []

    async def come(locks: AwaitedLocks, number: int) -> None:
        async with locks.lock("door"):
            order.append((number, stage.simulation.time))

    for actor in [stage.start(come(stage.locks(), number)) for number in range(4)]:
        await actor.result()
    return order


def test_the_same_seed_runs_a_story_the_same_way() -> None:
    assert _run(7, _rivals) == _run(7, _rivals)


def test_another_seed_lets_others_come_first() -> None:
    assert {_run(seed, _rivals)[0][0] for seed in SEEDS} == {0, 1, 2, 3}


def test_what_happens_takes_no_time_of_the_story() -> None:
    async def story(stage: SimulatedStage) -> tuple[float, float]:
        before = stage.clock.now()
        await _rivals(stage)
        await stage.breathe()
        return stage.clock.now() - before, stage.simulation.time

    story_time, simulated_time = _run(0, story)
    assert story_time == 0.0
    assert simulated_time > 1.0


def test_a_cancelled_caller_has_sent_nothing_or_sent_it_for_good() -> None:
    """The verbs themselves: the engine does not clean up here, so what was sent stays."""

    async def story(stage: SimulatedStage) -> str:
        verbs, claim = stage.locks().faults, stage.claim("door")
        asker = stage.start(verbs.acquire(claim, enqueue=False, within=5))
        await stage.step()
        inner: Any = verbs.inner
        arrived = bool(inner._store.resources)
        asker.cancel()
        await stage.breathe()
        if not (await stage.info("door")).locked:
            return "never sent"
        return "had arrived" if arrived else "arrived later"

    assert {_run(seed, story) for seed in SEEDS} == {"never sent", "had arrived", "arrived later"}


def test_what_one_client_sends_arrives_in_that_order() -> None:
    async def story(stage: SimulatedStage) -> bool:
        verbs, claim = stage.locks().faults, stage.claim("door")
        asker = stage.start(verbs.acquire(claim, enqueue=False, within=5))
        await stage.step()
        asker.cancel()
        await verbs.abandon(claim, within=5)
        await stage.breathe()
        return await stage.is_free("door")

    assert all(_run(seed, story) for seed in SEEDS)


def test_waiting_for_an_actor_that_never_ends_fails_at_once_and_says_where() -> None:
    async def story(stage: SimulatedStage) -> None:
        await stage.locks().lock("door", renew=False).take()
        await stage.start(stage.locks().lock("door").take()).result()  # and nothing moves the clock

    with pytest.raises(AssertionError, match="nothing is left to happen") as failed:
        _run(0, story)
    assert isinstance(failed.value.__cause__, CancelledError)


def test_waiting_in_vain_for_a_condition_fails() -> None:
    async def story(stage: SimulatedStage) -> None:
        await stage.until(lambda: False, "the moon")

    with pytest.raises(AssertionError, match="in vain for the moon"):
        _run(0, story)


def test_an_actor_that_fails_fails_the_story() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def story(stage: SimulatedStage) -> None:
        stage.start(fail())
        await stage.breathe()

    with pytest.raises(ZeroDivisionError):
        _run(0, story)


def test_background_work_that_dies_fails_the_story() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def story(stage: SimulatedStage) -> None:
        stage.locks().raw._logic.engine.world.spawn(fail(), "lockfast-keeper")

    with pytest.raises(AssertionError, match="'lockfast-keeper' died"):
        _run(0, story)
