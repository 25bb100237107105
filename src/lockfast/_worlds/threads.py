"""The world of threads: waiting blocks the caller, background work is a daemon thread.

Nothing here suspends: each `async def` runs to its end in one `send`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from lockfast._reentry import outside, run_behind
from lockfast._time import boot_now
from lockfast._worlds import Clock, frames

T = TypeVar("T")


class ThreadSignal:
    __slots__ = ("_clock", "_gate", "_rang")

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._gate = threading.Lock()  # locked while the flag is down
        self._gate.acquire()
        self._rang = False  # a test's clock opened the gate, not `set`

    def set(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            return  # it was up already

    async def wait(self, seconds: float | None) -> bool:
        if self._clock is not None:
            return self._wait_by(self._clock, seconds)
        with outside():
            if seconds is None:
                return self._gate.acquire()
            return self._gate.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))

    def _wait_by(self, clock: Clock, seconds: float | None) -> bool:
        if seconds is None:
            with outside():
                return self._gate.acquire()
        if self._gate.acquire(blocking=False):
            return True
        cancel = clock.alarm(clock.deadline(seconds), self._ring)
        try:
            with outside():
                self._gate.acquire()
        finally:
            cancel()
            clock.now()  # what is slept from here on counts from here on
        rang, self._rang = self._rang, False
        return not rang

    def _ring(self) -> None:
        self._rang = True
        self.set()


class ThreadGuard:
    """A thread cannot be stopped from outside; its body learns from `check()` and on the way out."""

    __slots__ = ()

    def interrupt(self) -> None:
        pass

    def close(self, exc_type: type[BaseException] | None) -> bool:
        return False


class _Owner(threading.local):
    token: object = None  # of this thread, once it is asked for; not its ident: those are used again


class ThreadWorld:
    def __init__(self, clock: Clock | None = None) -> None:
        self.blocking = True  # not a class's attribute: each acquire and release reads it
        self._clock = clock
        self.now = clock.now if clock is not None else boot_now
        self.real_time = clock is None
        self.chance = random.random
        self._owner = _Owner()

    def arrive(self) -> None:
        """Threads share it."""

    def signal(self) -> ThreadSignal:
        return ThreadSignal(self._clock)

    def guard(self, owner: object) -> ThreadGuard:
        return ThreadGuard()  # one for each body: an inner one's end says nothing about the outer one

    def owner(self) -> object:
        token = self._owner.token
        if token is None:
            token = self._owner.token = object()
        return token

    def stack(self) -> Iterator[FrameType]:
        return frames()

    def stand_in(self) -> Callable[[], None]:
        return partial(setattr, self._owner, "token", self.owner())

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        run_behind(work, name)

    async def pause(self, seconds: float) -> None:
        await self.signal().wait(seconds)

    async def beside(self, work: Awaitable[T], began: Callable[[object], object], context: Context) -> T | None:
        began(self.owner())
        return await work

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def after_fork(self) -> None:
        self._owner = _Owner()
