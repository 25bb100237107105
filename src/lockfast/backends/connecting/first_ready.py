"""Two connections that tasks make at the same time, of which the one that is ready first counts.

Decides: what becomes of the other one. Leaves to `second_tries`: when there is a second one, and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from lockfast._worlds.asyncio_ import background_task, end_tasks, seen
from lockfast.backends.connecting.second_tries import CHECK_EVERY_S, SecondTries, suspect_after

T = TypeVar("T")


async def first_ready(
    tries: SecondTries, make: Callable[[], Coroutine[Any, Any, T]], within: float, drop: Callable[[T], None]
) -> T:
    """The connection that is ready first, `make()` or another one beside it, which is made if the first is suspect.

    Raises the error of the first if both fail. `drop` closes a connection that is not needed.
    """
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[T]] = []

    def begin() -> None:
        task = background_task(loop, make(), "lockfast-connect")
        task.add_done_callback(seen)
        tasks.append(task)

    begin()
    taken: asyncio.Task[T] | None = None
    try:
        await asyncio.wait(tasks, timeout=suspect_after(within))
        while not tasks[0].done():
            if tries.may_begin():
                begin()
                break
            await asyncio.wait(tasks, timeout=CHECK_EVERY_S)
        while (taken := next(filter(_is_ready, tasks), None)) is None and not all(task.done() for task in tasks):
            await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        if len(tasks) > 1 and taken is tasks[1]:
            tries.worked()
        return (taken or tasks[0]).result()
    finally:
        if loop.is_closed():
            tasks.clear()  # collected with it, they close what they were making; nothing can be cancelled any more
        for task in tasks:
            if task is not taken:
                task.cancel()
                task.add_done_callback(partial(_drop, drop))
        if taken is None and tasks:
            ending = background_task(loop, end_tasks(tasks), "lockfast-hang-up")
            while not ending.done():
                with suppress(asyncio.CancelledError):  # a second one, as by a time limit beside `close()`
                    await asyncio.shield(ending)


def _is_ready(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _drop(drop: Callable[[T], None], task: asyncio.Task[T]) -> None:
    if _is_ready(task):
        drop(task.result())
