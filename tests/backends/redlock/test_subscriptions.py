"""The inbox of a quorum: closed with its `Locks`, whatever became of its subscriptions; and how long one may take."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._model import Claim, Terms
from lockfast._worlds import drive
from lockfast.backends.redlock.io import asyncio_ as redlock_asyncio
from lockfast.backends.redlock.io import blocking as redlock_blocking
from lockfast.backends.redlock.io.asyncio_ import AsyncioFanout
from lockfast.backends.redlock.io.blocking import BlockingFanout
from lockfast.backends.redlock.io.fanout import Suspended, all_of_them
from lockfast.backends.redlock.io.rounds import Round
from tests.polling import HOUR
from tests.servers.waiting import LIMIT_S, happens

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
        assert await asyncio.wait_for(backend._fanout.wakeups.wait(CLAIM, HOUR), LIMIT_S)

    asyncio.run(story())


def test_a_thread_waits_for_the_subscription_of_another_no_longer_than_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialled, end, gave_up = threading.Event(), threading.Event(), threading.Event()
    errors: list[BackendUnavailable] = []

    def hangs(*_: object) -> None:
        dialled.set()
        end.wait()
        raise BackendUnavailable("no connection")

    def hurries(fanout: BlockingFanout) -> None:
        errors.extend(error for error in fanout._subscribe([2], 0.01) if error is not None)
        gave_up.set()

    monkeypatch.setattr(redlock_blocking, "BlockingConnection", hangs)
    with lockfast.connect(f"{NOWHERE}?node_timeout={LIMIT_S}") as locks:
        backend: Any = locks._logic.engine.backend
        threads = [threading.Thread(target=backend._fanout._subscribe, args=([2], HOUR), daemon=True)]
        threads.append(threading.Thread(target=hurries, args=(backend._fanout,), daemon=True))
        try:
            threads[0].start()
            happens(dialled, "a connection that hangs")
            threads[1].start()
            happens(gave_up, "the end of the time of the second thread")
            assert ["did not answer in time" in str(error) for error in errors] == [True]
            assert not backend._fanout.members[2].absent, "it had less time than it may take"
        finally:
            end.set()
            for thread in threads:
                thread.join()


def test_a_server_has_the_time_of_one_request_to_connect_and_to_subscribe(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = 1000.0, []

    def connects_slowly(member: object, address: object, within: float) -> None:
        nonlocal now
        given.append(within)
        now += 0.75

    def subscribes(node: int, connection: object, within: float) -> None:
        given.append(within)

    monkeypatch.setattr(redlock_blocking, "BlockingConnection", connects_slowly)
    monkeypatch.setattr(redlock_blocking, "boot_now", lambda: now)
    with lockfast.connect(f"{NOWHERE}?node_timeout=1") as locks:
        backend: Any = locks._logic.engine.backend
        inbox = backend._fanout.wakeups.inbox()
        monkeypatch.setattr(inbox, "subscribe", subscribes)
        assert backend._fanout._subscribe([2], HOUR) == [None]
    assert given == [1.0, 0.25]


class Answering:
    """A connection that answers everything a moment later."""

    alive = True

    def put(self, round: Round, node: int, request: bytes, replies: int, within: float, asked_at: float) -> None:
        asyncio.get_running_loop().call_soon(round.on_reply, node, b"")

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
            errors = await asyncio.wait_for(asked, LIMIT_S)
            assert all("did not answer in time" in str(error) for error in errors)
            assert all(member.absent for member in fanout.members)

    asyncio.run(story())


def test_a_round_in_a_loop_has_what_connecting_has_left_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = 1000.0, list[float]()

    async def connects_slowly(node: int, within: float) -> None:
        nonlocal now
        now += 0.25

    def notes_its_time(round: Round, transport: object, within: float, node_timeout: float) -> None:
        given.append(within)

    async def story() -> None:
        async with lockfast.aio.connect(NOWHERE) as locks:
            backend: Any = locks._logic.engine.backend
            fanout: AsyncioFanout = backend._fanout
            fanout._dial = connects_slowly  # type: ignore[method-assign]
            await fanout.ask([None] * 3, all_of_them, within=2.0)

    monkeypatch.setattr(redlock_asyncio, "boot_now", lambda: now)
    monkeypatch.setattr(Round, "start", notes_its_time)
    asyncio.run(story())
    assert given == [2.0 - 3 * 0.25]
