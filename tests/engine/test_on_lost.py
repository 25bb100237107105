"""`on_lost` is called where the ContextVars are those of the acquire."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import lockfast
from lockfast import Locks
from lockfast.aio import AsyncLocks
from lockfast.engine import callbacks
from lockfast.engine.not_held import Reason
from tests.servers.waiting import join, until, until_async

request_id: ContextVar[str] = ContextVar("request_id", default="none")


class Reports:
    """What the variable was when `on_lost` was called, plain or awaited."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def plain(self, _: object) -> None:
        self.seen.append(request_id.get())

    async def awaited(self, _: object) -> None:
        await asyncio.sleep(0)
        self.seen.append(request_id.get())


@pytest.fixture
def reports() -> Iterator[Reports]:
    token = request_id.set("test")
    yield Reports()
    request_id.reset(token)


MAKE: dict[str, Callable[[Any, Any], Any]] = {
    "lock": lambda locks, on_lost: locks.lock("a", on_lost=on_lost),
    "semaphore": lambda locks, on_lost: locks.semaphore("a", 3, on_lost=on_lost),
    "several names": lambda locks, on_lost: locks.all("a", "b", on_lost=on_lost),
}


def acquired(locks: Locks, make: str, reports: Reports) -> None:
    """In a thread with a context of its own."""

    def work() -> None:
        request_id.set("r1")
        assert MAKE[make](locks, reports.plain).acquire()
        request_id.set("r2")

    thread = threading.Thread(target=work)
    thread.start()
    join(thread)


@pytest.mark.parametrize("make", MAKE)
def test_on_lost_sees_the_context_of_the_acquire_in_threads(url: str, make: str, reports: Reports) -> None:
    with lockfast.connect(url) as locks:
        acquired(locks, make, reports)
        lose(locks)
        until(lambda: reports.seen)
    assert reports.seen == ["r1"]


def lose(locks: Locks | AsyncLocks) -> None:
    engine = locks._logic.engine
    for lease in list(engine.keeper.leases.values()):
        engine.keeper.lose(lease, "denied", Reason("gone", "it was broken"))


@pytest.mark.parametrize("kind", ["plain", "awaited"])
@pytest.mark.parametrize("make", MAKE)
def test_on_lost_sees_the_context_of_the_acquire_in_asyncio(url: str, make: str, kind: str, reports: Reports) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lock = MAKE[make](locks, getattr(reports, kind))

            async def work(value: str) -> None:
                request_id.set(value)
                assert await lock.acquire()
                request_id.set("later")

            await asyncio.create_task(work("r1"))
            lose(locks)
            await until_async(lambda: reports.seen)

    asyncio.run(main())
    assert reports.seen == ["r1"]


def test_an_acquire_without_it_copies_no_context(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[object] = []
    monkeypatch.setattr(callbacks, "copy_context", lambda: copies.append(None))
    with lockfast.connect(url) as locks, locks.lock("a"):
        assert not copies
