"""The stage in the world of asyncio: the awaited facade, and a task for each actor.

Decides: that a story runs in an event loop of its own, and that every actor has ended with it.
Leaves to `stage`: how time passes, and what is true at the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import lockfast
from lockfast import aio
from lockfast._worlds.asyncio_ import background_tasks
from lockfast._worlds.threads import ThreadWorld
from lockfast.engine.standby import Standby
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.stage import LIMIT_S, POLL_EVERY_S, Actor, Opener, Stage

T = TypeVar("T")

AT_ONCE = 20  # checks without a pause; more of them would keep a thread or a server from its work


class _TaskActor(Generic[T]):
    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.result_was_read = False
        self.task = asyncio.get_running_loop().create_task(work)

    @property
    def done(self) -> bool:
        return self.task.done()

    async def result(self) -> T:
        await asyncio.wait({self.task}, timeout=LIMIT_S)
        assert self.done, f"an actor did not finish within {LIMIT_S:g} real seconds"
        self.result_was_read = True
        return self.task.result()

    def cancel(self) -> None:
        self.result_was_read = True
        self.task.cancel()


class AsyncioStage(Stage):
    """The facade for asyncio; an actor is a task."""

    world = "asyncio"
    can = frozenset({"cancellation", "asyncio", "real clock", "fork", "processes"})

    def __init__(self, opener: Opener, url: str = "", *, real_time: bool = False) -> None:
        super().__init__(opener, url, real_time=real_time)
        self._standby = Standby(ThreadWorld(self.clock))

    def _connect(self, opener: Opener, **options: Any) -> aio.AsyncLocks:
        return aio.connect(opener, **options)

    def blocking_locks(self) -> lockfast.Locks:
        """A client of the other world on the same store. It blocks the loop, so let it never wait."""
        locks = lockfast.connect(
            lambda world, _: self._opener(world, self.clock), clock=self.clock, namespace=self.namespace
        )
        self.close_at_end(locks)
        return locks

    def stands_by(self, locks: AwaitedLocks) -> AwaitedLocks:
        """As on the machine's own clock, a thread renews while the loop is blocked. Nothing is held yet."""
        locks.raw._logic.engine.stand_by(self._standby)
        return locks

    def block_loop(self, seconds: float, *leases: Any) -> None:
        """As a body does that never awaits: that time passes, in steps in which all leases are renewed or lost."""
        end, step = self.clock.now() + seconds, 0.6 * min(lease.ttl for lease in leases)
        while self.clock.now() < end:
            self.clock.advance(step)
            self.block_until(lambda: all(lease.lost or lease.remaining > lease.ttl - step for lease in leases))

    def block_until(self, condition: Callable[[], bool]) -> None:
        limit = self._moment() + LIMIT_S
        while not condition():
            assert self._moment() < limit, "blocked in vain"
            time.sleep(POLL_EVERY_S)

    def start(self, work: Coroutine[Any, Any, T]) -> Actor[T]:
        actor = _TaskActor(work)
        self._actors.append(actor)
        return actor

    def alone(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def _at_work(self, name: str = "") -> int:
        return sum(name in ("", task.get_name()) for task in asyncio.all_tasks() | background_tasks())

    def _here(self) -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    async def breathe(self, times: int = 1) -> None:
        await asyncio.sleep(POLL_EVERY_S * times)

    async def step(self) -> None:
        await asyncio.sleep(0)

    async def _pause(self, checks: int) -> None:
        """Most of what a story waits for is done by its own loop, at once."""
        await (self.step() if checks <= AT_ONCE else super()._pause(checks - AT_ONCE))

    async def for_ever(self) -> None:
        await asyncio.Event().wait()

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.run(self._run_story(story))
        asyncio.run(self.until(lambda: not self._started(), "the threads of the story to end"))

    async def _end_actors(self) -> None:
        for actor in self._actors:
            actor.cancel()
        for locks in self._opened:
            locks.faults.heal()
        if self._actors:
            await asyncio.wait({actor.task for actor in self._actors}, timeout=LIMIT_S)
