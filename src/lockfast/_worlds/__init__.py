"""What the engine asks of the world it runs in.

Decides: the few words in which waiting, background work and interruption are spoken of.
Leaves to `threads`, `asyncio_` and the simulated world of the tests: how each is done.

The engine is written once, as `async def`. In the world of threads nothing ever suspends: `drive` runs a whole
operation to its end in the caller's thread.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextvars import Context
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from lockfast._reentry import drive as drive
from lockfast._text import shown

if TYPE_CHECKING:
    from traceback import StackSummary

T = TypeVar("T")


class Signal(Protocol):
    """A flag for one waiter. Set from any thread; a set that comes before the wait is kept."""

    def set(self) -> None:
        """Wake the waiter, or let its next `wait` return at once."""
        ...

    async def wait(self, seconds: float | None) -> bool:
        """True, and the flag is down again, as soon as it is set; False after `seconds`."""
        ...


class Guard(Protocol):
    """Stands over the body of one `with`, to stop it when its lease is lost."""

    def interrupt(self) -> None:
        """Stop the body, if this world can. Only ever called once."""
        ...

    def close(self, exc_type: type[BaseException] | None) -> bool:
        """The body is over. True if `exc_type` is our own interruption and nothing else's."""
        ...


class World(Protocol):
    """Where operations run: threads, an event loop, or a simulation."""

    @property
    def blocking(self) -> bool:
        """True if nothing ever suspends, so that `drive` can run it."""
        ...

    @property
    def real_time(self) -> bool:
        """False if a test moves the clock; then how long a real server takes is not known."""
        ...

    def now(self) -> float:
        """Seconds on a clock that never jumps and counts a suspended machine's time too."""
        ...

    def chance(self) -> float:
        """A random number in [0, 1)."""
        ...

    def arrive(self) -> None:
        """The running thread or task uses it here. Raises RuntimeError if it belongs to another event loop."""
        ...

    def signal(self) -> Signal:
        """A new one, for one waiter of this world."""
        ...

    def guard(self, owner: object) -> Guard:
        """Over the body that this owner runs."""
        ...

    def owner(self) -> object:
        """The running thread or task: the same object for each of them, and never another's."""
        ...

    def stack(self) -> Iterable[FrameType]:
        """The calls that the running thread or task is in the middle of. While it waits, none of them goes on."""
        ...

    def stand_in(self) -> Callable[[], None]:
        """To be called by another thread, which from then on acts for the thread or task that runs now."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run in the background. It ends by itself, or with the world.

        Raises RuntimeError if that is not possible; then it does not run, and is closed. An interrupt that comes
        meanwhile is raised, and it runs all the same.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Sleep, by the clock of this world."""
        ...

    async def beside(self, work: Awaitable[T], began: Callable[[object], object], context: Context) -> T | None:
        """Await what is the user's own: where tasks can be cancelled, that can be. None then.

        Where it becomes a task, that is in a copy of the context.
        `began` is called with what owns it: the thread that runs, or the task that was made for it.
        """
        ...

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end even if the caller is cancelled meanwhile; the cancellation is raised after."""
        ...

    def after_fork(self) -> None:
        """In the child: forget the threads and tasks of the parent."""
        ...


@runtime_checkable
class ChangesLoops(Protocol):
    """A world that goes on in another event loop when its own was closed."""

    on_new_loop: Callable[[], None]  # set by the engine; called in the new loop


@runtime_checkable
class RunsInLoop(Protocol):
    """A world of which everything runs in one thread, which code of the user's can block."""

    def is_over(self) -> bool:
        """Nothing in it ever goes on: its loop is closed, or the thread of that is gone."""
        ...

    def stack_of_loop(self, limit: int) -> StackSummary:
        """The calls that its thread is in the middle of, the innermost last; empty while the loop does not run."""
        ...


def frames() -> Iterator[FrameType]:
    """The calls that this thread is in the middle of, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_of(work: object) -> list[FrameType]:
    """The calls of this thread that a coroutine has made, itself included; none if it does not run."""
    root = getattr(work, "cr_frame", None)
    made: list[FrameType] = []
    for frame in frames():
        made.append(frame)
        if frame is root:
            return made
    return []


async def settled(answer: Any, world: World) -> Any:
    """What a function of the user's answered, awaited if it can be. Raises TypeError where nothing can be awaited."""
    if not isinstance(answer, Awaitable):
        return answer
    if world.blocking:
        if isinstance(answer, Coroutine):
            answer.close()
        raise TypeError("a coroutine function was given where nothing can be awaited; use it with lockfast.aio")
    return await answer


@runtime_checkable
class Clock(Protocol):
    """A clock that a test moves. Worlds and stores take it in place of the machine's."""

    def now(self) -> float:
        """Seconds; only grows."""
        ...

    def deadline(self, seconds: float) -> float:
        """When a sleep of that length ends, which the calling thread or task computed when it last read the clock."""
        ...

    def alarm(self, at: float, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` when the time has come; the answer takes the alarm back."""
        ...


def valid_clock(clock: Clock | None) -> Clock | None:
    """The clock itself, if there is one. Raises ValueError for what is none."""
    if clock is not None and not isinstance(clock, Clock):
        raise ValueError(
            f"clock must have now(), deadline() and alarm(), as lockfast.testing.FakeClock has, not be {shown(clock)}"
        )
    return clock
