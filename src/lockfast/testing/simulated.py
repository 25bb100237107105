"""A world where time is virtual and a seed decides the order of everything.

Decides: which coroutine runs next, how clocks of machines differ, and what a frozen or crashed machine does not do.
Leaves to `simulated_network`: what happens to messages. Leaves to `simulation`: what is done, and what goes wrong.

The engine runs here unchanged. Nothing sleeps: the scheduler jumps from one event to the next, so an hour takes
milliseconds, and the same seed gives the same run to the last step.
"""

from __future__ import annotations

import heapq
import random
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from itertools import count
from types import FrameType
from typing import Any, TypeVar

from lockfast._worlds import frames_of

T = TypeVar("T")


class MachineGone(BaseException):
    """Unwinds what is left of a crashed machine when the simulation is over. Nothing in a run ever sees it."""


class Park:
    """One suspension of one task: it goes on when `wake` is called, and only the first call counts."""

    __slots__ = ("_task", "_value", "woken")

    def __init__(self) -> None:
        self.woken = False
        self._task: Task | None = None
        self._value: Any = None

    def __await__(self) -> Generator[Park, None, Any]:
        if not self.woken:
            yield self
        return self._value

    def wake(self, value: Any = None) -> None:
        if not self.woken:
            self.woken = True
            self._value = value
            if self._task is not None:
                self._task._resume(self)

    def _suspends(self, task: Task) -> None:
        self._task = task


class Task:
    """A coroutine of one machine. Cancelled as asyncio's tasks are: by an exception at its suspension point."""

    def __init__(self, world: SimulatedWorld, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.world = world
        self.name = name
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.suspensions = 0
        self.cancel_after: int | None = None  # cancel it at that suspension, counted from 1
        self.cancelled_at: float | None = None  # true time at which that happened
        self.work = work
        self._context = copy_context()  # as each task of asyncio has one: what it has read is its own
        self._parked: Park | None = None
        self._must_cancel = False
        self._cancelling = 0
        self._finished: list[Park] = []
        world.simulation.later(0.0, self._step, world)

    def cancel(self) -> bool:
        """Throw CancelledError at the point where it waits; False if it is over."""
        if self.done:
            return False
        self._cancelling += 1
        self._must_cancel = True
        parked, self._parked = self._parked, None
        if parked is not None:
            self.world.simulation.later(0.0, self._step, self.world)
        return True

    def _cancel_now(self) -> None:
        if self.cancel():
            self.cancelled_at = self.world.simulation.time

    def cancelling(self) -> int:
        return self._cancelling

    def uncancel(self) -> int:
        self._cancelling = max(0, self._cancelling - 1)
        return self._cancelling

    async def finished(self) -> None:
        """Wait until it is over, however it ends."""
        if not self.done:
            park = Park()
            self._finished.append(park)
            await park

    def _resume(self, park: Park) -> None:
        if self._parked is park:
            self._parked = None
            self.world.simulation.later(0.0, self._step, self.world)

    def _step(self) -> None:
        simulation = self.world.simulation
        before, simulation.running = simulation.running, self
        try:
            if self._must_cancel:
                self._must_cancel = False
                park = self._context.run(self.work.throw, CancelledError())
            else:
                park = self._context.run(self.work.send, None)
        except StopIteration as stop:
            self._end(stop.value, None)
        except (Exception, CancelledError) as error:
            self._end(None, error)
        else:
            self._wait_for(park)
        finally:
            simulation.running = before

    def _wait_for(self, park: Park) -> None:
        self.suspensions += 1
        self._parked = park
        park._suspends(self)
        if self.suspensions == self.cancel_after:
            delay = self.world.simulation.random.expovariate(200.0)
            self.world.simulation.later(delay, self._cancel_now, self.world)
        elif self._must_cancel:
            self._parked = None
            self.world.simulation.later(0.0, self._step, self.world)

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error
        self.world.tasks.pop(self, None)
        for park in self._finished:
            park.wake()
        if error is not None and not isinstance(error, CancelledError) and not self.name.startswith("job"):
            self.world.simulation.broken_tasks.append(f"task {self.name!r} died of {error!r}")

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.world.name}, {'done' if self.done else 'waiting'}>"


class Simulation:
    """The scheduler: a heap of events on the one true time, which no machine can read."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.time = 0.0
        self.running: Task | None = None
        self.broken_tasks: list[str] = []  # background work must not die of an error
        self._order = count()
        self._events: list[tuple[float, float, int, Callable[[], object], SimulatedWorld | None]] = []
        self._worlds: list[SimulatedWorld] = []

    def later(self, delay: float, call: Callable[[], object], world: SimulatedWorld | None = None) -> None:
        """Call after `delay` true seconds; as part of `world`, which must be neither frozen nor crashed then."""
        # Whatever is due at one moment happens in an order that the seed decides.
        event = (self.time + delay, self.random.random(), next(self._order), call, world)
        heapq.heappush(self._events, event)

    def run(self, until: float) -> None:
        """Let everything happen that is due before `until`."""
        while self._events and self._events[0][0] <= until:
            self.time, _, _, call, world = heapq.heappop(self._events)
            if world is None or world.awake_at <= self.time:
                call()
            elif not world.crashed:  # frozen: it happens after the thaw, in any order
                self.later(world.awake_at - self.time + 0.002 * self.random.random(), call, world)
        self.time = max(self.time, until)

    def run_until_done(self, task: Task, within: float = 3600.0) -> Any:
        """The task's result, or its error raised. Raises TimeoutError if it is not over after `within` seconds."""
        limit = self.time + within
        while not task.done:
            if not self._events or self._events[0][0] > limit:
                raise TimeoutError(f"{task!r} is not done after {within} virtual seconds")
            self.run(self._events[0][0])
        if task.error is not None:
            raise task.error
        return task.result

    def run_dry(self, task: Task) -> None:
        """Let everything happen until the task is done, or until nothing is left to happen."""
        while self._events and not task.done:
            self.run(self._events[0][0])

    def close(self) -> None:
        """End what is still suspended, so that nothing warns of it."""
        self._events.clear()
        for world in self._worlds:
            world.crash()
        for world in self._worlds:
            for task in list(world.tasks):
                with suppress(MachineGone, CancelledError):
                    task.work.close()
            world.tasks.clear()
        self._events.clear()


class SimulatedSignal:
    __slots__ = ("_park", "_up", "_world")

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._up = False
        self._park: Park | None = None

    def set(self) -> None:
        if self._park is not None and not self._park.woken:
            self._park.wake(True)
        else:
            self._up = True

    async def wait(self, seconds: float | None) -> bool:
        if self._up:
            self._up = False
            return True
        self._world.must_be_there()
        self._park = park = Park()
        take_back = None if seconds is None else self._world.after(seconds, lambda: park.wake(False))
        try:
            woken: bool = await park
            return woken
        finally:
            park.woken = True  # a timer that ends later wakes no task
            self._park = None
            if take_back is not None:
                take_back()


class SimulatedGuard:
    """Cancels the body, distinguished from every other cancellation, as in the world of asyncio."""

    __slots__ = ("_before", "_interrupted", "_task")

    def __init__(self, task: Any) -> None:
        self._task: Task | None = task
        self._before = task.cancelling() if task is not None else 0
        self._interrupted = False

    def interrupt(self) -> None:
        if self._task is not None and self._task is not self._task.world.simulation.running:
            self._interrupted = True
            self._task.cancel()

    def close(self, exc_type: type[BaseException] | None) -> bool:
        task, self._task = self._task, None
        if task is None or not self._interrupted:
            return False
        only_ours = task.uncancel() <= self._before
        return only_ours and exc_type is not None and issubclass(exc_type, CancelledError)


class SimulatedWorld:
    """One machine: its own clock, its own tasks. It can be frozen for a while, or crash for good."""

    blocking = False
    real_time = False

    def __init__(self, simulation: Simulation, name: str, *, rate: float = 1.0, start: float = 0.0) -> None:
        self.simulation = simulation
        self.name = name
        self.rate = rate  # seconds on its clock for each true second
        self.start = start  # what its clock showed at true time 0
        self.crashed = False
        self.awake_at = 0.0  # true time; in the future while frozen
        self.chance = random.Random(simulation.random.random()).random
        self.tasks: dict[Task, None] = {}  # those not done, in order
        simulation._worlds.append(self)

    def now(self) -> float:
        return self.start + self.simulation.time * self.rate

    def true_time(self, shown: float) -> float:
        """The true time at which its clock shows that."""
        return (shown - self.start) / self.rate

    def after(self, seconds: float, call: Callable[[], object]) -> Callable[[], None] | None:
        """Call after that many seconds of this machine's clock, and a little later: timers are never early.

        The answer takes it back, if there is anything to take back: an event of the simulation stays.
        """
        late = 0.001 * self.simulation.random.random()
        self.simulation.later(max(0.0, seconds) / self.rate + late, call, self)
        return None

    def task(self, work: Coroutine[Any, Any, Any], name: str) -> Task:
        task = Task(self, work, name)
        self.tasks[task] = None
        return task

    def freeze(self, seconds: float) -> None:
        """Nothing runs here for that long, while the clock goes on."""
        self.awake_at = max(self.awake_at, self.simulation.time + seconds)

    def crash(self) -> None:
        """Nothing runs here ever again."""
        self.crashed = True
        self.awake_at = float("inf")

    def must_be_there(self) -> None:
        """Raises MachineGone if it has crashed: called wherever a task would suspend."""
        if self.crashed:
            raise MachineGone

    def signal(self) -> SimulatedSignal:
        return SimulatedSignal(self)

    def guard(self, owner: object) -> SimulatedGuard:
        return SimulatedGuard(owner)

    def arrive(self) -> None:
        """The running task is one of its own."""

    def owner(self) -> object:
        return self.simulation.running

    def stack(self) -> list[FrameType]:
        return [] if self.simulation.running is None else frames_of(self.simulation.running.work)

    def stand_in(self) -> Callable[[], None]:
        return lambda: None

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self.crashed:
            work.close()
        else:
            self.task(work, name)

    async def pause(self, seconds: float) -> None:
        await self.signal().wait(seconds)

    async def beside(self, work: Awaitable[T], began: Callable[[object], object], context: Context) -> T | None:
        began(self.owner())
        return await work

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        if self.crashed:
            work.close()
            self.must_be_there()
        task = self.task(work, "job, shielded")
        cancelled: CancelledError | None = None
        while not task.done:
            try:
                await task.finished()
            except CancelledError as error:
                cancelled = error  # kept until the work is done, then raised
        if cancelled is not None:
            raise cancelled
        if task.error is not None:
            raise task.error
        result: T = task.result
        return result

    def after_fork(self) -> None:
        """Simulated machines do not fork."""
