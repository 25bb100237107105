"""Tasks of one process that want one lock all the time, beside the threads and processes of `competitors`."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import lockfast
from bench.competitors import Competitors, OpenedTasks, Task

TASKS: Final = "tasks of one process"


def task_competitors(url: str, name: str, waiters: int) -> Competitors:
    return Competitors(1, _opened, url, name, waiters, preload=("asyncio", "lockfast.aio"))


@contextmanager
def _opened(url: str, name: str, waiters: int) -> Iterator[OpenedTasks]:
    with asyncio.Runner() as runner:
        locks = lockfast.aio.connect(url)
        yield lambda task: runner.run(_all(task, [locks.lock(name) for _ in range(waiters)]))
        runner.run(locks.close())


async def _all(task: Task, locks: list[lockfast.aio.AsyncLock]) -> list[array[float]]:
    await asyncio.sleep(max(0.0, task.begin - time.monotonic()))
    return await asyncio.gather(*[_hold_again_and_again(task, lock) for lock in locks])


async def _hold_again_and_again(task: Task, lock: lockfast.aio.AsyncLock) -> array[float]:
    notes, now = array("d"), time.monotonic
    while (asked := now()) < task.until:
        async with lock:
            granted = now()
            released = now()
        notes.extend((asked, granted, released))
    return notes
