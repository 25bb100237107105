"""Work that several tasks need is done once, and no caller cuts it short for the others."""

from __future__ import annotations

import asyncio

import pytest

from lockfast.backends.connecting.single_flight import MIN_WORK_S, SingleFlight
from lockfast.errors import BackendUnavailable
from tests.servers.waiting import LIMIT_S


class Work:
    """Ends when it is let."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.may_end = asyncio.Event()

    async def __call__(self, within: float) -> str:
        self.times.append(within)
        await self.may_end.wait()
        return "done"


def test_callers_that_come_together_share_one_piece_of_work() -> None:
    async def story() -> None:
        work, dialling = Work(), SingleFlight[str]("lockfast-test")
        callers = [asyncio.create_task(dialling.run(work, LIMIT_S, BackendUnavailable)) for _ in range(3)]
        await asyncio.sleep(0)
        work.may_end.set()
        assert await asyncio.gather(*callers) == ["done"] * 3
        assert len(work.times) == 1

    asyncio.run(story())


def test_a_caller_that_leaves_does_not_stop_the_work() -> None:
    async def story() -> None:
        work, dialling = Work(), SingleFlight[str]("lockfast-test")
        leaves = asyncio.create_task(dialling.run(work, LIMIT_S, BackendUnavailable))
        stays = asyncio.create_task(dialling.run(work, LIMIT_S, BackendUnavailable))
        await asyncio.sleep(0)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        work.may_end.set()
        assert await stays == "done"
        assert len(work.times) == 1

    asyncio.run(story())


def test_a_caller_without_time_is_refused_and_the_work_still_gets_some() -> None:
    async def story() -> None:
        work, dialling = Work(), SingleFlight[str]("lockfast-test")
        with pytest.raises(BackendUnavailable, match="no answer in time"):
            await dialling.run(work, 0.0, BackendUnavailable)
        work.may_end.set()
        assert await dialling.run(work, LIMIT_S, BackendUnavailable) == "done"
        assert work.times == [MIN_WORK_S]

    asyncio.run(story())


def test_work_that_has_ended_is_begun_anew() -> None:
    async def story() -> None:
        work, dialling = Work(), SingleFlight[str]("lockfast-test")
        work.may_end.set()
        for _ in range(2):
            assert await dialling.run(work, LIMIT_S, BackendUnavailable) == "done"
        assert len(work.times) == 2

    asyncio.run(story())
