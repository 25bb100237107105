"""What becomes of callers that wait at the lock table, or are being answered, when their `Locks` is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast._ids import new_claim_id
from lockfast._model import Busy, Claim, Grant, Terms
from lockfast.backends.postgres_table.io import asyncio_, blocking
from lockfast.backends.postgres_table.io.batching import CLEAN_UP_WITHIN_S
from lockfast.errors import BackendUnavailable, LockError
from tests.servers.postgres_tables import table
from tests.servers.waiting import LIMIT_S, join, pause, until, until_async

pytestmark = pytest.mark.slow

WAITERS = 6
OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'lockfast'"
LEFT = "SELECT (SELECT count(*) FROM distributed_locks) + (SELECT count(*) FROM lockfast_queue WHERE kind <> 'g')"

Raised = list[type[BaseException]]


def clean_up_within(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in (asyncio_, blocking):
        monkeypatch.setattr(driver, "CLEAN_UP_WITHIN_S", seconds)


@pytest.fixture(autouse=True)
def _time_to_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken back after close() has all the time that a busy machine needs."""
    clean_up_within(LIMIT_S, monkeypatch)


def ask(folder: Path, sql: str) -> int:
    with psycopg.connect(table().url(folder), autocommit=True) as connection:
        (found,) = connection.execute(sql.encode()).fetchone() or (0,)
    return int(found)


def in_threads(url: str, when: Callable[[lockfast.Locks], Any]) -> Raised:
    """The errors of waiters whose Locks is closed at that moment."""
    locks, raised = lockfast.connect(url), []

    def wait() -> None:
        try:
            locks.lock("a", wait=LIMIT_S).acquire()
        except BaseException as error:
            raised.append(type(error))

    waiters = [threading.Thread(target=wait) for _ in range(WAITERS)]
    for waiter in waiters:
        waiter.start()
    when(locks)
    locks.close()
    join(*waiters)
    return raised


def in_tasks(url: str, when: Callable[[lockfast.aio.AsyncLocks], Awaitable[Any]]) -> Raised:
    async def story() -> Raised:
        locks = lockfast.aio.connect(url)
        waiters = [asyncio.create_task(locks.lock("a", wait=LIMIT_S).acquire()) for _ in range(WAITERS)]
        await when(locks)
        await locks.close()
        return [type(one) for one in await asyncio.gather(*waiters, return_exceptions=True)]  # type: ignore[misc]

    return asyncio.run(story())


def in_world(world: str, folder: Path, story: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Run a story with a Locks of either world."""

    async def in_a_loop() -> None:
        await story(lockfast.aio.connect(table().url(folder)))

    if world == "asyncio":
        asyncio.run(in_a_loop())
        return
    with pytest.raises(StopIteration):
        story(lockfast.connect(table().url(folder))).send(None)


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize("moment", range(12))
def test_every_waiting_thread_gets_an_error_when_its_locks_is_closed_and_nothing_is_left(
    tmp_path: Path, moment: int
) -> None:
    with lockfast.connect(table().url(tmp_path)) as others, others.lock("a"):
        raised = in_threads(table().url(tmp_path), lambda _: pause(moment * 0.004))
    assert raised == [LockError] * WAITERS
    assert ask(tmp_path, LEFT) == 0


@pytest.mark.parametrize("moment", range(0, 48, 4))
def test_every_waiting_task_gets_an_error_when_its_locks_is_closed_and_nothing_is_left(
    tmp_path: Path, moment: int
) -> None:
    with lockfast.connect(table().url(tmp_path)) as others, others.lock("a"):
        raised = in_tasks(table().url(tmp_path), lambda _: turns(moment))
    assert raised == [LockError] * WAITERS
    assert ask(tmp_path, LEFT) == 0


def test_tasks_that_wait_for_the_connection_that_listens_are_not_cancelled(tmp_path: Path) -> None:
    async def begins_to_listen(locks: lockfast.aio.AsyncLocks) -> None:
        driver: Any = locks._logic.engine.backend._driver  # type: ignore[attr-defined]
        connect = driver._connect

        async def never(within: float, version: int) -> Any:
            return await (connect(within, version) if version else asyncio.Event().wait())

        driver._connect = never
        await until_async(lambda: driver._listening is not None, "it to begin to listen")

    with lockfast.connect(table().url(tmp_path)) as others, others.lock("a"):
        assert in_tasks(table().url(tmp_path), begins_to_listen) == [LockError] * WAITERS


def test_a_caller_whose_backend_was_closed_reads_that_its_locks_is_closed() -> None:
    with lockfast.connect("memory://closed-meanwhile") as locks:
        engine = locks._logic.engine

        async def find_closed(claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
            engine.closed = True
            raise BackendUnavailable("it is closed", transient=False)

        engine.backend.acquire = find_closed  # type: ignore[method-assign]
        with pytest.raises(LockError, match="closed") as caught:
            locks.lock("a").acquire()
        assert type(caught.value) is LockError


async def no_connection_is_left(world: str, folder: Path) -> None:
    """The loop goes on meanwhile: it is the loop that closes them."""

    def none_left() -> bool:
        return ask(folder, f"SELECT count(*) {OURS}") == 0

    what = "no connection to be left"
    await asyncio.to_thread(until, none_left, what) if world == "asyncio" else until(none_left, what)


@pytest.mark.parametrize("world", ["threads", "asyncio"])
def test_what_was_granted_to_one_that_was_closed_meanwhile_is_taken_back(tmp_path: Path, world: str) -> None:
    """Its answer comes after everything was closed; then a connection of its own takes it back, and ends."""
    claims = [Claim(new_claim_id(), Terms(f"a{number}", f"a{number}", "h", 60.0)) for number in range(20)]

    async def story(locks: Any) -> None:
        backend = locks._logic.engine.backend
        for claim in claims:
            assert isinstance(await backend.acquire(claim, enqueue=True, within=LIMIT_S), Grant)
        await backend.close()
        await no_connection_is_left(world, tmp_path)
        with pytest.raises(BackendUnavailable, match="is closed"):
            await backend.acquire(claims[0], enqueue=True, within=LIMIT_S)
        if world == "asyncio":
            await asyncio.gather(*(backend.abandon(claim, within=LIMIT_S) for claim in claims))
        else:
            for claim in claims:
                await backend.abandon(claim, within=LIMIT_S)
        await no_connection_is_left(world, tmp_path)

    in_world(world, tmp_path, story)
    assert ask(tmp_path, LEFT) == 0


@pytest.mark.parametrize("world", ["threads", "asyncio"])
def test_what_cannot_be_taken_back_after_closing_is_tried_once_and_left_to_time(
    tmp_path: Path, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may go on for as long as a ttl after a caller has closed everything."""
    clean_up_within(CLEAN_UP_WITHIN_S, monkeypatch)
    claim = Claim(new_claim_id(), Terms("a", "a", "h", 600.0))

    async def story(locks: Any) -> None:
        backend = locks._logic.engine.backend
        assert isinstance(await backend.acquire(claim, enqueue=True, within=LIMIT_S), Grant)
        await backend.close()
        with psycopg.connect(table().url(tmp_path)) as slow:
            slow.execute("LOCK TABLE distributed_locks IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(BackendUnavailable) as caught:
                await backend.abandon(claim, within=3600)
            assert not caught.value.transient

    in_world(world, tmp_path, story)


def test_what_arrives_after_it_was_given_up_for_it_is_given_up_again(tmp_path: Path) -> None:
    """`close` gives up for callers that wait, while a request of theirs may be on its way."""
    claim = Claim(new_claim_id(), Terms("a", "a", "h", 60.0))

    async def story(locks: lockfast.Locks) -> None:
        backend = locks._logic.engine.backend
        await backend.abandon(claim, within=LIMIT_S)
        assert isinstance(await backend.acquire(claim, enqueue=True, within=LIMIT_S), Grant)
        await backend.abandon(claim, within=LIMIT_S)

    with lockfast.connect(table().url(tmp_path)) as locks, pytest.raises(StopIteration):
        story(locks).send(None)
    assert ask(tmp_path, LEFT) == 0
