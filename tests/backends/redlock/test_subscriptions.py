"""The inbox of a quorum: closed with its `Locks`, whatever became of its subscriptions; and how long one may take."""

from __future__ import annotations

import asyncio
from typing import Any

import lockfast
from lockfast import BackendUnavailable
from lockfast._model import Claim, Terms
from lockfast._worlds import drive
from lockfast.backends.redlock.io.asyncio_ import AsyncioFanout
from lockfast.backends.redlock.io.fanout import Suspended, all_of_them
from tests.polling import HOUR
from tests.servers.waiting import LIMIT

NOWHERE = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
ALL = range(3)
CLAIM = Claim("c" * 32, Terms("x", "x", "me", 60.0))


def test_an_inbox_for_which_no_server_could_be_subscribed_to_is_closed() -> None:
    with lockfast.connect(NOWHERE) as locks:
        backend: Any = locks._logic.engine.backend
        fanout = backend._fanout
        assert [type(error) for error in fanout._subscribe(ALL, 1.0)] == [BackendUnavailable] * 3
        inbox = fanout.wakeups.inbox()
    assert [end.fileno() for end in (inbox._self_pipe._reader, inbox._self_pipe._writer)] == [-1, -1]


def test_no_inbox_is_made_once_all_is_closed() -> None:
    with lockfast.connect(NOWHERE) as locks:
        backend: Any = locks._logic.engine.backend
    errors = backend._fanout._subscribe(ALL, 1.0)
    assert all("this Locks is closed; connect again" in str(error) for error in errors)
    assert backend._fanout.wakeups._inbox is None


def test_a_claim_that_is_expected_when_all_is_closed_opens_no_inbox_and_is_woken() -> None:
    """Its request was under way when the caller closed the `Locks`."""
    with lockfast.connect(NOWHERE) as locks:
        backend: Any = locks._logic.engine.backend
    wakeups = backend._fanout.wakeups
    assert wakeups.expect(CLAIM) == ""
    assert wakeups._inbox is None
    assert drive(wakeups.wait(CLAIM, HOUR))


def test_a_claim_that_is_expected_when_all_is_closed_is_woken_in_asyncio_too() -> None:
    async def story() -> None:
        async with lockfast.aio.connect(NOWHERE) as locks:
            backend: Any = locks._logic.engine.backend
            backend._fanout._belong_to(asyncio.get_running_loop())
        backend._fanout.wakeups.expect(CLAIM)
        assert await asyncio.wait_for(backend._fanout.wakeups.wait(CLAIM, HOUR), LIMIT)

    asyncio.run(story())


class Answering:
    """A connection that answers everything a moment later."""

    alive = True

    def put(self, pending: Any, request: bytes, within: float) -> None:
        asyncio.get_running_loop().call_soon(pending.set_result, b"")

    def close(self) -> None: ...

    async def gone(self) -> None: ...


def test_a_subscription_that_is_begun_in_the_middle_of_a_round_takes_no_longer_than_a_reply_may() -> None:
    async def never(node: int, within: float) -> None:
        await asyncio.Event().wait()

    async def verb() -> None:
        await Suspended(b"a request", 0)
        await Suspended(b"", 0)

    async def story() -> None:
        async with lockfast.aio.connect(f"{NOWHERE}?node_timeout=0.01") as locks:
            backend: Any = locks._logic.engine.backend
            fanout: AsyncioFanout = backend._fanout
            fanout._belong_to(asyncio.get_running_loop())
            fanout._is_first = False
            connections: Any = [Answering() for _ in ALL]
            fanout._connections = connections
            fanout._listen = never  # type: ignore[method-assign]
            asked = fanout.ask([verb() for _ in ALL], all_of_them, within=HOUR)
            errors = await asyncio.wait_for(asked, LIMIT)
            assert all("did not answer in time" in str(error) for error in errors)
            assert all(member.absent for member in fanout.members)

    asyncio.run(story())
