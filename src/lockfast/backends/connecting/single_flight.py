"""Work that several tasks need and one task does, such as connecting.

Decides: that a caller which stops waiting does not stop the work. `turns` is the same for threads.
Leaves to each driver: what is made, and what its failure means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from lockfast._worlds.asyncio_ import background_task, seen

T = TypeVar("T")

MIN_WORK_S: Final = 1.0  # for the work, even if its first caller has less time: later callers may have more


class SingleFlight(Generic[T]):
    def __init__(self, name: str) -> None:
        """`name` is what its tasks are called."""
        self._name = name
        self.task: asyncio.Task[T] | None = None

    @property
    def under_way(self) -> bool:
        return self.task is not None and not self.task.done()

    def start(self, work: Callable[[float], Coroutine[Any, Any, T]], within: float) -> asyncio.Task[T]:
        """The task that is under way, or else a new one of `work`, which is passed the time that it may take."""
        task = self.task
        if task is None or task.done():
            loop = asyncio.get_running_loop()
            task = self.task = background_task(loop, work(max(within, MIN_WORK_S)), self._name)
            task.add_done_callback(seen)
        return task

    async def run(
        self, work: Callable[[float], Coroutine[Any, Any, T]], within: float, failed: Callable[[str], Exception]
    ) -> T:
        """The result of the work that is under way, or else of `work`, as in `start`.

        Raises what `failed` makes of work that takes too long, or that was cancelled: client libraries start tasks of
        their own for it, and a program that cancels all tasks cancels those too.
        """
        task = self.start(work, within)
        await asyncio.wait({task}, timeout=within)
        if not task.done():
            raise failed("no answer in time")
        if task.cancelled():
            raise failed("connecting was cancelled")
        return task.result()
