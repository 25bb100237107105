"""Acquires that are cancelled at any moment, with their requests on a real wire, leave no hold and no waiter behind.

`redis/test_lost_replies.py` has the same for one Redis server. Memory and SQLite answer within one step of the loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

import lockfast.aio
from lockfast._model import LockInfo
from lockfast.aio import AsyncLocks
from tests.servers.postgres_shared import advisory
from tests.servers.postgres_tables import table
from tests.servers.quorum import quorum
from tests.servers.shared import cluster, sentinels
from tests.servers.waiting import moment, until_async

pytestmark = pytest.mark.slow

STORES: dict[str, Callable[[Path], str]] = {
    "cluster": lambda folder: cluster(),
    "sentinel": lambda folder: sentinels(),
    "redlock": lambda folder: quorum(3).url(folder),
    "postgres": lambda folder: table().url(folder),
    "advisory": lambda folder: advisory().url(folder).replace("postgresql:", "postgresql+advisory:"),
}
EACH = 40  # acquires that are cancelled, and as many that are granted before that
STEP_S = 0.0001


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](tmp_path)


class Dice:
    """When an acquire is cancelled: so late that about half of them are granted before."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._longest = 0.0  # seconds
        self.cancelled = self.granted = 0

    @property
    def enough(self) -> bool:
        return min(self.cancelled, self.granted) >= EACH

    async def cancel(self, asker: asyncio.Task[lockfast.aio.AsyncLease | None]) -> None:
        """Cancel it after a while, and release what it was granted before."""
        self._longest = max(0.0, self._longest + (STEP_S if self.cancelled > self.granted else -STEP_S))
        await moment(self._random.uniform(0, self._longest))
        asker.cancel()
        try:
            lease = await asker
        except asyncio.CancelledError:
            self.cancelled += 1
            return
        self.granted += 1
        assert lease is not None
        await lease.release()


async def _nothing_left(locks: AsyncLocks, name: str) -> None:
    async def nothing() -> bool:
        return await locks.inspect(name) == LockInfo(name)

    await until_async(nothing, "no hold and no waiter")


def test_cancelled_acquires_leave_nothing_held(url: str) -> None:
    async def story() -> None:
        dice = Dice(4)
        async with lockfast.aio.connect(url, namespace=f"free-{uuid4()}") as locks:
            while not dice.enough:
                await dice.cancel(asyncio.create_task(locks.lock("x", ttl=600).acquire()))
            await _nothing_left(locks, "x")

    asyncio.run(story())


def test_waiters_cancelled_as_the_lock_is_handed_to_them_leave_nothing_held(url: str) -> None:
    async def story() -> None:
        dice, namespace = Dice(5), f"handed-{uuid4()}"
        async with (
            lockfast.aio.connect(url, namespace=namespace) as locks,
            lockfast.aio.connect(url, namespace=namespace) as other,
        ):

            async def waits() -> bool:
                return (await other.inspect("x")).waiters == 1

            while not dice.enough:
                held = await other.lock("x", ttl=600).acquire()
                assert held is not None
                asker = asyncio.create_task(locks.lock("x", ttl=600).acquire())
                await until_async(waits, "one to wait")
                releasing = asyncio.create_task(held.release())
                await dice.cancel(asker)
                assert await releasing
                await _nothing_left(other, "x")

    asyncio.run(story())
