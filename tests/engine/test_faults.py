"""Faults on demand: what is healed stays healed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockfast import aio
from lockfast._connect import open_backend
from lockfast._worlds import World
from lockfast.backends.base import Backend
from lockfast.testing import ALWAYS, FaultyBackend
from tests.servers.waiting import LIMIT_S


@pytest.mark.parametrize("end", ["heal", "resume"])
def test_a_call_that_was_about_to_hang_when_all_was_healed_does_not(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FaultyBackend] = []

    def open_it(world: World, clock: Any) -> Backend:
        made.append(FaultyBackend(open_backend("memory://", world, clock), world))
        return made[0]

    async def story() -> None:
        async with asyncio.timeout(LIMIT_S), aio.connect(open_it) as locks:
            lease = await locks.lock("seat").acquire()
            [faults] = made
            release = faults.inner.release

            async def release_and_heal(*args: Any, **kwargs: Any) -> bool:
                freed = await release(*args, **kwargs)
                getattr(faults, end)()
                return freed

            monkeypatch.setattr(faults.inner, "release", release_and_heal)
            faults.hang_reply("release", ALWAYS)
            assert lease is not None
            assert await lease.release()

    asyncio.run(story())
