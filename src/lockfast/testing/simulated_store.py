"""A story's store, reached over a simulated network: every request, reply and wake-up is a message under way.

Decides: how long each message takes, in the simulation's time, which no clock of the story shows.
Leaves to the backend behind it: what the verbs do. Leaves to `faults`: what goes wrong on purpose.

Nothing is lost here, and the messages of one client arrive in the order in which they were sent. What a seed changes is
which client comes first, and in the middle of what a task is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lockfast._worlds import Clock
from lockfast.backends.base import Backend
from lockfast.testing.faults import FaultyBackend, Verb
from lockfast.testing.simulated import Park, SimulatedSignal, SimulatedWorld, Simulation
from lockfast.testing.simulated_network import Channel, latency

T = TypeVar("T")


async def nap(simulation: Simulation, seconds: float) -> None:
    """Be away for that time in the simulation's time."""
    park = Park()
    simulation.later(seconds, park.wake)
    await park


class StoryWorld(SimulatedWorld):
    """A machine of the simulation whose clock is a clock of the story."""

    def __init__(self, simulation: Simulation, name: str, clock: Clock) -> None:
        super().__init__(simulation, name)
        self.clock = clock

    def now(self) -> float:
        return self.clock.now()

    def after(self, seconds: float, call: Callable[[], object]) -> Callable[[], None]:
        return self.clock.alarm(self.clock.deadline(seconds), lambda: self.simulation.later(0.0, call, self))


class _DelayedSignal(SimulatedSignal):
    """What the store sets to wake a waiter: it arrives a little later."""

    __slots__ = ()

    def set(self) -> None:
        simulation = self._world.simulation
        simulation.later(latency(simulation), super().set)


class WorldSeenFromStore(StoryWorld):
    """The same machine as the store sees it: all it has there are waiters to be woken."""

    def signal(self) -> _DelayedSignal:
        return _DelayedSignal(self)


class DistantBackend(FaultyBackend):
    def __init__(self, inner: Backend, world: SimulatedWorld, **capabilities: Any) -> None:
        super().__init__(inner, world, **capabilities)
        self.under_way = 0  # requests whose sender waits for the reply
        self._machine = world
        self._out, self._back = Channel(world.simulation), Channel(world.simulation)

    async def _through(self, verb: Verb, ask: Callable[[], Awaitable[T]]) -> T:
        if verb != "wait":
            return await super()._through(verb, lambda: self._send(ask))
        await self._hesitate()
        return await super()._through(verb, ask)

    async def _send(self, ask: Callable[[], Awaitable[T]]) -> T:
        self.under_way += 1
        try:
            await self._hesitate()  # a task that is cancelled here has sent nothing
            message = self._machine.task(self._carry(ask, self._out.travel()), "job, a request under way")
            await message.finished()  # a task that is cancelled here never gets the answer
        finally:
            self.under_way -= 1
        if message.error is not None:
            raise message.error
        answer: T = message.result
        return answer

    async def _carry(self, ask: Callable[[], Awaitable[T]], seconds: float) -> T:
        await nap(self._machine.simulation, seconds)
        answer = await ask()
        await nap(self._machine.simulation, self._back.travel())
        return answer

    async def _hesitate(self) -> None:
        """A busy machine does not always do the next thing at once."""
        random = self._machine.simulation.random
        if random.random() < 0.5:
            await nap(self._machine.simulation, random.expovariate(1000.0))
