"""The lock table when many want one name: a release grants to the next waiter of its own process, which then need not
ask; and what an acquire reads does not grow with the queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast._time import boot_now
from lockfast.backends.postgres_table.backend import PostgresTableBackend
from lockfast.backends.postgres_table.io.asyncio_ import AsyncioPostgres
from lockfast.backends.postgres_table.io.batching import TableRequest
from lockfast.backends.postgres_table.io.blocking import BlockingPostgres
from lockfast.errors import BackendUnavailable
from tests.servers.postgres_tables import table
from tests.servers.waiting import join, pause, until, until_async

pytestmark = pytest.mark.slow

TTL_S = 600.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return table().url(tmp_path)


@pytest.fixture
def locks(url: str) -> Iterator[lockfast.Locks]:
    with lockfast.connect(url) as locks:
        yield locks


class Waiter:
    """A thread that takes the lock as soon as it can, and releases it on demand."""

    def __init__(self, locks: lockfast.Locks, wait: float | None = None) -> None:
        self.lease: lockfast.Lease | None = None
        self._lock = locks.lock("x", ttl=TTL_S, wait=wait)
        self._thread = threading.Thread(target=self._take)
        self._thread.start()
        until(lambda: locks.inspect("x").waiters == 1 or not self._thread.is_alive(), "one to wait")

    def _take(self) -> None:
        self.lease = self._lock.acquire()

    def granted(self) -> lockfast.Lease:
        join(self._thread)
        assert self.lease is not None
        return self.lease

    def gave_up(self) -> bool:
        join(self._thread)
        return self.lease is None


def held(locks: lockfast.Locks) -> lockfast.Lease:
    lease = locks.lock("x", ttl=TTL_S).acquire()
    assert lease is not None
    return lease


def answers(monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[], None]) -> None:
    """Do something after the server has answered a request of that kind, before any caller gets the answer."""
    ask = BlockingPostgres.ask

    async def then(self: BlockingPostgres, request: TableRequest, within: float) -> Any:
        answer = await ask(self, request, within)
        if request.kind == kind:
            change()
        return answer

    monkeypatch.setattr(BlockingPostgres, "ask", then)


def test_a_waiter_of_our_own_need_not_ask_again(locks: lockfast.Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = held(locks)
    waiter = Waiter(locks)
    asked: list[str] = []
    answers(monkeypatch, "acquire", lambda: asked.append("acquire"))
    lease.release()
    assert waiter.granted().fence > lease.fence
    assert asked == []
    assert [holder.fence for holder in locks.inspect("x").holders] == [waiter.granted().fence]


async def _waits(locks: lockfast.aio.AsyncLocks) -> bool:
    return (await locks.inspect("x")).waiters == 1


def test_a_task_of_our_own_need_not_ask_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = AsyncioPostgres.ask

    async def noted(self: AsyncioPostgres, request: TableRequest, within: float) -> Any:
        asked.append(request.kind)
        return await ask(self, request, within)

    async def story() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await locks.lock("x").acquire()
            assert lease is not None
            waiter = asyncio.create_task(locks.lock("x").acquire())
            await until_async(lambda: _waits(locks), "one to wait")
            monkeypatch.setattr(AsyncioPostgres, "ask", noted)
            await lease.release()
            after = await waiter
            assert after is not None
            assert after.fence > lease.fence
            assert asked == ["release"]

    asyncio.run(story())


def test_the_waiter_believes_from_before_the_release_was_sent(
    locks: lockfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = held(locks)
    waiter = Waiter(locks)
    answers(monkeypatch, "release", lambda: pause(0.3))  # the answer was long on its way
    sent_at = boot_now()
    lease.release()
    assert waiter.granted()._deadline <= sent_at + TTL_S


def test_the_waiter_finds_its_grant_if_the_answer_to_the_release_is_lost(
    locks: lockfast.Locks, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = held(locks)
    waiter = Waiter(locks)

    def lost() -> None:
        monkeypatch.undo()
        raise BackendUnavailable("lost on the way", transient=True)

    answers(monkeypatch, "release", lost)
    lease.release()
    with psycopg.connect(url) as other:
        [(granted,)] = other.execute("SELECT fence FROM distributed_locks").fetchall()
    assert waiter.granted().fence == granted


def test_nothing_is_left_if_the_waiter_gives_up_during_the_hand_over(
    locks: lockfast.Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresTableBackend, "_hand_on", lambda *_: None)  # it is not woken in time
    monkeypatch.setattr("lockfast._model.MAX_POLL_S", 60.0)
    lease = held(locks)
    waiter = Waiter(locks, wait=0.4)
    lease.release()
    assert waiter.gave_up() or waiter.granted().release()
    assert not locks.inspect("x").locked
    assert locks.inspect("x").waiters == 0


# A long line

ASK = "SELECT lockfast_acquire('', 'x', %s, 'h', 30, 'exclusive', NULL, NULL, '')"
LOOKED_AT = """SELECT sum(coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0))::int FROM pg_stat_xact_user_tables
    WHERE relname IN ('lockfast_queue', 'distributed_locks')"""


def looked_at(connection: psycopg.Connection[Any], claim: str) -> int:
    """How many rows it takes to answer that claim."""
    with connection.transaction():
        (before,) = connection.execute(LOOKED_AT).fetchone() or (0,)  # of earlier transactions, reported late
        connection.execute(ASK, (claim,))
        (after,) = connection.execute(LOOKED_AT).fetchone() or (0,)
    return int(after - before)


def test_what_an_acquire_reads_does_not_grow_with_the_queue(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(10):  # so that each statement has a plan, made for an empty table
            connection.execute(ASK, (f"early-{number}",))
        for number in range(1000):
            connection.execute(ASK, (f"late-{number}",))
        at_the_end = [looked_at(connection, "new"), looked_at(connection, "late-999")]
        in_front = looked_at(connection, "early-5")
    assert max(at_the_end) < 100
    assert in_front < 100
