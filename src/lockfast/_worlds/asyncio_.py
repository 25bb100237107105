"""The world of asyncio: waiting suspends the task, background work is a task of the same loop."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from contextvars import Context
from threading import get_ident
from traceback import StackSummary, walk_stack
from types import FrameType, coroutine
from typing import Any, TypeVar
from weakref import WeakSet

from lockfast._reentry import NoThread, nothing, starting
from lockfast._refusals import other_event_loop
from lockfast._time import boot_now
from lockfast._worlds import Clock, frames_of

T = TypeVar("T")


class AsyncioSignal:
    __slots__ = ("_clock", "_loop", "_up", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock | None) -> None:
        self._loop = loop
        self._clock = clock
        self._up = False
        self._waiting: asyncio.Future[bool] | None = None

    def set(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._raise()
        else:
            call_in(self._loop, self._raise)

    def is_set(self) -> bool:
        """Whether it was set and no `wait` has returned for it yet."""
        return self._up or (self._waiting is not None and self._waiting.done())

    def _raise(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(True)
        else:
            self._up = True

    async def wait(self, seconds: float | None) -> bool:
        if self._up:
            self._up = False
            return True
        self._waiting = waiting = self._loop.create_future()
        cancel = self._time_limit(waiting, seconds)
        try:
            woken: bool = await waiting
            return woken
        finally:
            cancel()
            self._waiting = None
            if self._clock is not None and seconds is not None:
                self._clock.now()  # what is slept from here on counts from here on

    def _time_limit(self, waiting: asyncio.Future[bool], seconds: float | None) -> Any:
        if seconds is None:
            return nothing
        if self._clock is None:
            return self._loop.call_later(max(0.0, seconds), _time_up, waiting).cancel
        at = self._clock.deadline(seconds)
        return self._clock.alarm(at, lambda: call_in(self._loop, _time_up, waiting))


def _time_up(waiting: asyncio.Future[bool]) -> None:
    if not waiting.done():
        waiting.set_result(False)


def call_in(loop: asyncio.AbstractEventLoop, call: Any, *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:  # the loop is closed: no waiter is left to be woken
        return


END_TASKS_WITHIN_S = 0.5  # some libraries swallow a cancellation
_background: WeakSet[asyncio.Task[Any]] = WeakSet()


def background_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task of the library's own, which no one else can cancel: holders rely on it.

    `asyncio.all_tasks` does not name it. A program that ends in good order cancels and awaits all tasks that are named
    there while some of them still hold locks, and `asyncio.run` does the same. When the loop is closed it is dropped.
    """
    return _task_of(loop, begun(work), name)


def _task_of(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    task = asyncio.Task(work, loop=loop, name=name, context=Context())
    asyncio._unregister_task(task)  # documented for libraries that extend asyncio
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # a loop that is closed says nothing about it
    _background.add(task)
    return task


def begun(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """The same, to be run later. If its loop ends first it is closed: Python warns of what was never begun."""
    waiting = _when_run(work)
    waiting.send(None)
    return waiting


async def _when_run(work: Coroutine[Any, Any, T]) -> T:
    try:
        await _one_step()
    except BaseException:  # cancelled, or dropped with its loop
        work.close()
        raise
    return await work


@coroutine
def _one_step() -> Generator[None, None, None]:
    yield


def background_tasks() -> set[asyncio.Task[Any]]:
    """Those of the running loop that are not done, as `asyncio.all_tasks` would name them."""
    loop = asyncio.get_running_loop()
    return {task for task in list(_background) if task.get_loop() is loop and not task.done()}


def in_executor(loop: asyncio.AbstractEventLoop, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """`work(*args)` in a thread of the loop's, or NoThread: then it does not run later either."""
    wanted = True

    def run() -> T:
        return work(*args) if wanted else None  # type: ignore[return-value]  # no one waits for it

    try:
        return starting(loop.run_in_executor, None, run)
    except NoThread:
        wanted = False
        raise


async def end_tasks(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel those of this loop, and wait until nothing is left of them: the caller may close the loop next."""
    loop = asyncio.get_running_loop()
    ending = {task for task in tasks if task is not None and not task.done() and task.get_loop() is loop}
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending, timeout=END_TASKS_WITHIN_S)
        for _ in range(3):  # what they hung up is closed by the loop, a step later
            await asyncio.sleep(0)


def seen(task: asyncio.Task[Any]) -> None:
    """Its error counts as retrieved: the callers that waited for it were given it."""
    if not task.cancelled():
        task.exception()


class AsyncioGuard:
    """Cancels the body the way `asyncio.timeout` does, and knows it from every other cancellation."""

    __slots__ = ("_before", "_interrupted", "_task")

    def __init__(self, task: Any) -> None:
        self._task: asyncio.Task[Any] | None = task
        self._before = task.cancelling() if task is not None else 0
        self._interrupted = False

    def interrupt(self) -> None:
        # A body that finds the loss itself needs no cancellation: `check()` raises there and then.
        task = self._task
        if task is None:
            return
        loop = task.get_loop()
        if asyncio._get_running_loop() is not loop:
            call_in(loop, self._cancel)  # noticed by a thread that works for the body
        elif task is not asyncio.current_task():
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._interrupted = True
            self._task.cancel()

    def close(self, exc_type: type[BaseException] | None) -> bool:
        task, self._task = self._task, None
        if task is None or not self._interrupted:
            return False
        only_ours = task.uncancel() <= self._before
        return only_ours and exc_type is not None and issubclass(exc_type, asyncio.CancelledError)


class AsyncioWorld:
    def __init__(self, clock: Clock | None = None) -> None:
        self.blocking = False
        self._clock = clock
        self.now = clock.now if clock is not None else boot_now
        self.real_time = clock is None
        self.chance = random.random
        self._loop: asyncio.AbstractEventLoop | None = None  # the first one that it is used in, until that is closed
        self.on_new_loop: Callable[[], None] = nothing  # called in the next one
        self._thread = 0  # in which it was used first there
        self._tasks: set[asyncio.Task[Any]] = set()  # asyncio itself only keeps weak references

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop it lives in. Raises RuntimeError when used from another one."""
        running = asyncio.get_running_loop()
        home = self._loop
        if home is None:
            self._loop, self._thread = running, get_ident()
        elif home is not running:
            if not home.is_closed():
                raise other_event_loop()
            self._loop, self._thread = running, get_ident()
            left, self._tasks = self._tasks, set()
            for task in left:  # none of them goes on; what they do at their end they do now, and not whenever collected
                with suppress(RuntimeError):  # code of the user's did not want to end
                    task.get_coro().close()
            self.on_new_loop()
        return running

    def arrive(self) -> None:
        running = asyncio._get_running_loop()
        if running is not self._loop and running is not None:  # none runs in a thread that does what was put off
            self.loop  # noqa: B018  (it is moved, or refused)

    def signal(self) -> AsyncioSignal:
        return AsyncioSignal(self.loop, self._clock)

    def guard(self, owner: object) -> AsyncioGuard:
        return AsyncioGuard(owner)

    owner = staticmethod(asyncio.current_task)

    def stack(self) -> list[FrameType]:
        task = asyncio.current_task()
        return [] if task is None else frames_of(task.get_coro())

    def stand_in(self) -> Callable[[], None]:
        return nothing

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        home, work = self._loop, begun(work)
        if home is not None and not home.is_closed() and asyncio._get_running_loop() is not home:
            # From a thread that works for the loop, or where the garbage collector happened to run.
            call_in(home, self._start, home, work, name)
            return
        try:
            self._start(self.loop, work, name)
        except RuntimeError:
            work.close()
            raise

    def _start(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None], name: str) -> None:
        task = _task_of(loop, work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def pause(self, seconds: float) -> None:
        await self.signal().wait(seconds)

    async def beside(self, work: Awaitable[T], began: Callable[[object], object], context: Context) -> T | None:
        # Itself, in no coroutine of ours: that could be cancelled before it awaits.
        task = context.run(asyncio.ensure_future, work)
        began(task)
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            task = background_task(self.loop, work, "lockfast-shielded")
        except RuntimeError:  # used from another loop
            work.close()
            raise
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error  # kept until the work is done, then raised
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # seen: the cancellation is what the caller gets
            raise cancelled
        return task.result()

    def is_over(self) -> bool:
        loop = self._loop
        return loop is None or loop.is_closed() or (not loop.is_running() and self._thread not in sys._current_frames())

    def stack_of_loop(self, limit: int) -> StackSummary:
        frame = sys._current_frames().get(self._thread)
        if self._loop is None or not self._loop.is_running() or frame is None:
            return StackSummary()
        stack = StackSummary.extract(walk_stack(frame), limit=limit, lookup_lines=False)  # no file is read yet
        stack.reverse()
        return stack

    def after_fork(self) -> None:
        self._loop = None
        self._tasks = set()
