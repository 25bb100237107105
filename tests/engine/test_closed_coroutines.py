"""A coroutine that is closed in the middle, as a collected one is, cannot await any more; others clean up behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.aio import AsyncLocks
from tests.servers.waiting import LIMIT_S


async def _hold_for_ever(locks: AsyncLocks, inside: asyncio.Event) -> None:
    async with locks.lock("x", ttl=60):
        inside.set()
        await asyncio.Event().wait()


def _step(work: Coroutine[Any, Any, None]) -> Any:
    """As a task would: run it to its next suspension; what it waits for there."""
    future = work.send(None)
    future._asyncio_future_blocking = False
    return future


async def _close_when(url: str, *, inside: bool) -> None:
    async with lockfast.aio.connect(url) as locks:
        entered = asyncio.Event()
        body = _hold_for_ever(locks, entered)
        await asyncio.wait([_step(body)])  # to the request of the acquire
        if inside:
            _step(body)
            assert entered.is_set()
        assert (await locks.inspect("x")).locked
        body.close()
        next_one = await locks.lock("x", wait=LIMIT_S).acquire()
        assert next_one is not None


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True], ids=["asking", "holding"])
def test_a_closed_coroutine_leaves_nothing_behind(tmp_path: Path, inside: bool) -> None:
    asyncio.run(_close_when(f"sqlite:///{tmp_path / 'locks.db'}", inside=inside))
