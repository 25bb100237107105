"""Worlds in which a pause between two tries takes no real time: it moves a clock instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from lockfast._connect import open_backend
from lockfast._facades.lock import AsyncLease, Lease
from lockfast._worlds import World, drive
from lockfast._worlds.asyncio_ import AsyncioWorld
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.base import Backend
from lockfast.engine.core import Engine
from lockfast.primitives.locks import LocksLogic
from lockfast.testing import FakeClock

Work = Callable[[LocksLogic], Coroutine[Any, Any, Any]]


class HurriedThreads(ThreadWorld):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._fake = clock

    async def pause(self, seconds: float) -> None:
        self._fake.advance(seconds)


class HurriedAsyncio(AsyncioWorld):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._fake = clock

    async def pause(self, seconds: float) -> None:
        self._fake.advance(seconds)
        await asyncio.sleep(0)


def on_url(url: str) -> Callable[[World], Backend]:
    """The backend of a URL. Only the engine is hurried: connections keep real time."""
    return lambda world: open_backend(url, world)


def run_hurried(kind: str, make: Callable[[World], Backend], work: Work, clock: FakeClock) -> Any:
    """What `work` gives, in threads or in asyncio, with the locks of that backend."""
    if kind == "threads":
        return drive(_with_locks(make, HurriedThreads(clock), Lease, work))
    return asyncio.run(_with_locks(make, HurriedAsyncio(clock), AsyncLease, work))


async def _with_locks(make: Callable[[World], Backend], world: World, lease_type: type[Any], work: Work) -> Any:
    logic = LocksLogic(Engine(make(world), world, lease_type=lease_type, holder="us"), "lockfast")
    try:
        return await work(logic)
    finally:
        await logic.close()
