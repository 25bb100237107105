"""What an acquire that failed on a quorum leaves to do: nothing, if no server can have got it."""

from __future__ import annotations

import asyncio

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._model import Claim, Terms
from lockfast._worlds import drive
from lockfast.engine.core import Engine

NOWHERE = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?rejoin=0"


class Failed:
    """How an acquire failed, and what is left to be abandoned."""

    def __init__(self, engine: Engine, error: BackendUnavailable) -> None:
        self.sent = error.sent
        self.left = len(engine.unfinished.claims)


def fail(url: str, *, in_asyncio: bool) -> Failed:
    def in_threads() -> Failed:
        with lockfast.connect(url, patience=1) as locks:
            with pytest.raises(BackendUnavailable, match="fewer than 2 of the 3 lock servers answer") as caught:
                locks.lock("x", wait=0.1).acquire()
            return Failed(locks._logic.engine, caught.value)

    async def in_a_loop() -> Failed:
        async with lockfast.aio.connect(url, patience=1) as locks:
            with pytest.raises(BackendUnavailable, match="fewer than 2 of the 3 lock servers answer") as caught:
                await locks.lock("x", wait=0.1).acquire()
            return Failed(locks._logic.engine, caught.value)

    return asyncio.run(in_a_loop()) if in_asyncio else in_threads()


@pytest.mark.parametrize("in_asyncio", [False, True], ids=["threads", "asyncio"])
def test_an_acquire_that_no_server_could_be_sent_leaves_nothing_to_abandon(in_asyncio: bool) -> None:
    failed = fail(NOWHERE, in_asyncio=in_asyncio)
    assert (failed.sent, failed.left) == (False, 0)


def test_a_release_that_no_server_could_be_sent_says_so() -> None:
    with lockfast.connect(NOWHERE) as locks:
        claim, backend = Claim("a", Terms("x", "x", "a", 30.0)), locks._logic.engine.backend
        for end in (backend.release(claim, linger=0.0, within=1.0), backend.abandon(claim, within=1.0)):
            with pytest.raises(BackendUnavailable) as caught:
                drive(end)
            assert not caught.value.sent
