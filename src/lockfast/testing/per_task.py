"""A value of its own in each thread and in each task.

Not a ContextVar: CPython 3.11 crashes if the garbage collector runs in the middle of `ContextVar.set` and calls a
finalizer that sets one too. Ours read the clock.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PerTask(Generic[T]):
    """None where it was not set. A new task does not have the value of the task that began it."""

    def __init__(self) -> None:
        self._by_thread = threading.local()
        self._by_task: WeakKeyDictionary[asyncio.Task[Any], T | None] = WeakKeyDictionary()

    def get(self) -> T | None:
        task = _current_task()
        return getattr(self._by_thread, "value", None) if task is None else self._by_task.get(task)

    def set(self, value: T | None) -> None:
        task = _current_task()
        if task is None:
            self._by_thread.value = value
        else:
            self._by_task[task] = value


def _current_task() -> asyncio.Task[Any] | None:
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)
