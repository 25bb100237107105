"""The stage in the simulated world: the awaited facade, on a scheduler whose seed decides who comes first.

Decides: that the story, its actors and every message are tasks of one simulation, and that a story which waits although
nothing is left to happen has failed.
Leaves to `simulated`: what runs next. Leaves to `simulated_store`: how long a request is under way.

There are two times. The story's clock moves when the story moves it, as in every world. The simulation's own time
passes while messages travel and actors act; no client can read it, and it ends no lease.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from lockfast._time import length
from lockfast._worlds import Clock, World
from lockfast.aio import AsyncLease, AsyncLocks
from lockfast.engine.core import PATIENCE_S, Engine
from lockfast.primitives.locks import LocksLogic
from lockfast.testing.simulated import Park, SimulatedWorld, Simulation, Task
from lockfast.testing.simulated_store import DistantBackend, StoryWorld, WorldSeenFromStore, nap
from lockfast.testing.stage import Actor, Opener, Stage

T = TypeVar("T")

LONG_PAUSE_S = 1.0  # seconds of the simulation: far longer than all that is under way can take


class _SimulatedActor(Generic[T]):
    def __init__(self, task: Task) -> None:
        self.result_was_read = False
        self.task = task

    @property
    def done(self) -> bool:
        return self.task.done

    async def result(self) -> T:
        await self.task.finished()
        self.result_was_read = True
        if self.task.error is not None:
            raise self.task.error
        result: T = self.task.result
        return result

    def cancel(self) -> None:
        self.result_was_read = True
        self.task.cancel()


class SimulatedStage(Stage):
    """The facade for asyncio without asyncio; an actor is a task of the simulation."""

    world = "simulated"
    can = frozenset({"cancellation"})
    asks = frozenset({"simulated"})
    seeded = True

    def __init__(self, opener: Opener, url: str = "", *, real_time: bool = False, seed: int = 0) -> None:
        assert not real_time, "there is no real clock here: the story needs 'real clock'"
        super().__init__(opener, url)
        self.simulation = Simulation(seed)
        self._people = SimulatedWorld(self.simulation, "the story and its actors")
        self._machines: list[StoryWorld] = []  # of the clients
        self._stores: list[DistantBackend] = []

    def _connect(self, opener: Opener, **options: Any) -> AsyncLocks:
        """As `lockfast.aio.connect` does it, but for the world."""
        world = StoryWorld(self.simulation, f"client {len(self._machines)}", options.pop("clock"))
        self._machines.append(world)
        namespace, patience = options.pop("namespace"), length(options.pop("patience", PATIENCE_S), "patience")
        backend = opener(world, world.clock)
        engine = Engine(backend, world, lease_type=AsyncLease, patience=patience, **options)
        return AsyncLocks(LocksLogic(engine, namespace))

    def _open(self, world: World, clock: Clock | None, **capabilities: Any) -> DistantBackend:
        assert isinstance(world, StoryWorld)
        seen_from_the_store = WorldSeenFromStore(self.simulation, f"{world.name}, asleep", world.clock)
        self._activity.watch(seen_from_the_store)
        store = DistantBackend(self._opener(seen_from_the_store, clock), world, **capabilities)
        self._stores.append(store)
        return store

    def start(self, work: Coroutine[Any, Any, T]) -> Actor[T]:
        actor: _SimulatedActor[T] = _SimulatedActor(self._people.task(work, "job of an actor"))
        self._actors.append(actor)
        return actor

    def alone(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError("simulated machines do not fork: the story needs 'fork'")

    def _at_work(self, name: str = "") -> int:
        return sum(name in ("", task.name) for world in (self._people, *self._machines) for task in world.tasks)

    def _here(self) -> Task | None:
        return self.simulation.running

    def _under_way(self) -> int:
        return sum(store.under_way for store in self._stores)

    async def breathe(self, times: int = 1) -> None:
        await nap(self.simulation, LONG_PAUSE_S * times)

    async def step(self) -> None:
        await nap(self.simulation, self.simulation.random.expovariate(1000.0))

    async def for_ever(self) -> None:
        await Park()

    def _moment(self) -> float:
        return self.simulation.time

    async def _pause(self, checks: int) -> None:
        await self.step()

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        try:
            self._run(self._people.task(self._run_story(story), "job of the story"))
            assert not self.simulation.broken_tasks, self.simulation.broken_tasks
        finally:
            self.simulation.close()
            for locks in self._opened:
                locks.raw._logic.engine.closed = True  # what is left of a failed story warns of nothing more

    def _run(self, teller: Task) -> None:
        self.simulation.run_dry(teller)
        if not teller.done:
            teller.cancel()  # its traceback shows where the story waits
            self.simulation.run_dry(teller)
            raise AssertionError("waited in vain: nothing is left to happen") from teller.error
        if teller.error is not None:
            raise teller.error

    async def _end_actors(self) -> None:
        for actor in self._actors:
            actor.cancel()
        for locks in self._opened:
            locks.faults.heal()
        await self.until(lambda: self._over(self._people), "the actors to end")

    async def _close(self) -> None:
        await super()._close()
        await self.until(lambda: self._over(*self._machines), "everything in the background to end")

    def _over(self, *worlds: SimulatedWorld) -> bool:
        """Time goes on until everybody who sleeps has found out that the story is over."""
        left = {task for world in worlds for task in world.tasks} - {self._here()}
        at = self.clock.next_alarm
        if left and at is not None:
            self.clock.advance_to(at)
        return not left
