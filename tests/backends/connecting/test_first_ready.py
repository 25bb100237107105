"""Two connections that tasks make at the same time: the one that is ready first counts, and the other is closed."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from lockfast._worlds.asyncio_ import background_task
from lockfast.backends.connecting import second_tries
from lockfast.backends.connecting.first_ready import first_ready
from lockfast.backends.connecting.second_tries import SecondTries
from tests.polling import HOUR
from tests.servers.waiting import LIMIT_S, moment, until_async


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_tries, "SUSPECT_AFTER_S", 0.01)


class Dials:
    """Attempts that end when the test says so. Like redis-py, they may swallow a cancellation."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.results: list[asyncio.Future[int]] = []
        self.dropped: list[int] = []
        self.tries = SecondTries()
        self._stubborn = stubborn

    async def _make(self) -> int:
        result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.results.append(result)
        while True:
            try:
                return await asyncio.shield(result)
            except asyncio.CancelledError:
                if not self._stubborn:
                    raise

    def run(self) -> Coroutine[Any, Any, int]:
        return first_ready(self.tries, self._make, LIMIT_S, self.dropped.append)

    async def begun(self, number: int) -> None:
        await until_async(lambda: len(self.results) == number, f"{number} attempts")


def test_one_that_is_under_way_when_its_loop_is_closed_ends_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that was begun for a request which is sent after `close()`."""
    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    dials, loop = Dials(), asyncio.new_event_loop()

    async def begin() -> None:
        background_task(loop, dials.run(), "dial")
        await dials.begun(1)

    loop.run_until_complete(begin())
    loop.close()
    dials.results.clear()
    gc.collect()
    assert [str(error.exc_value) for error in errors] == []


def test_the_second_counts_if_the_first_stays_silent() -> None:
    async def story() -> None:
        dials = Dials(stubborn=True)
        caller = asyncio.create_task(dials.run())
        await dials.begun(2)
        dials.results[1].set_result(2)
        assert await caller == 2
        dials.results[0].set_result(1)
        await until_async(lambda: dials.dropped == [1], "the first to be closed")

    asyncio.run(story())


def test_the_first_counts_if_it_answers_before_the_second() -> None:
    async def story() -> None:
        dials = Dials(stubborn=True)
        caller = asyncio.create_task(dials.run())
        await dials.begun(2)
        dials.results[0].set_result(1)
        assert await caller == 1
        dials.results[1].set_result(2)
        await until_async(lambda: dials.dropped == [2], "the second to be closed")

    asyncio.run(story())


def test_the_other_goes_on_if_one_fails_and_the_first_error_is_reported() -> None:
    async def story() -> None:
        dials = Dials()
        caller = asyncio.create_task(dials.run())
        await dials.begun(2)
        dials.results[1].set_exception(OSError("second"))
        await asyncio.sleep(0)
        assert not caller.done()
        dials.results[0].set_exception(OSError("first"))
        with pytest.raises(OSError, match="first"):
            await caller

    asyncio.run(story())


def test_a_caller_that_is_cancelled_leaves_no_attempt_behind() -> None:
    async def story() -> None:
        dials = Dials()
        caller = asyncio.create_task(dials.run())
        await dials.begun(2)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not [result for result in dials.results if result.done()]

    asyncio.run(story())


def test_callers_share_the_limit_until_a_second_connection_was_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_tries, "SPACING_S", HOUR)

    async def story() -> None:
        one, other = Dials(), Dials()
        other.tries = one.tries
        callers = [asyncio.create_task(one.run())]
        await one.begun(2)
        callers.append(asyncio.create_task(other.run()))
        await other.begun(1)
        await moment(0.05)
        assert len(other.results) == 1, "the server may only be slow"
        one.results[1].set_result(2)
        assert await callers[0] == 2
        await other.begun(2)
        other.results[1].set_result(2)
        assert await callers[1] == 2

    asyncio.run(story())
