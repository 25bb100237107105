"""Locks inside a transaction: who is refused, and what is left when a wait ends otherwise than by a grant."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from lockfast import AcquireTimeout, BackendUnavailable, Unsupported
from lockfast.backends.postgres_advisory import acquiring as acquiring_module
from lockfast.backends.postgres_advisory import holds as holds_module
from lockfast.backends.postgres_advisory import in_transaction as in_transaction_module
from lockfast.backends.postgres_advisory.in_transaction import _HeldLock, _is_other_name
from lockfast.backends.postgres_advisory.keys import Key, key_of
from tests.backends.postgres_advisory.transactions import WORLDS, Side, entered, run_story, settled, side
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_shared import advisory
from tests.servers.waiting import join, until, until_async

pytestmark = pytest.mark.slow
each = pytest.mark.parametrize("world", WORLDS)


@pytest.fixture
def watcher(plain: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


def _waits(watcher: psycopg.Connection) -> bool:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return watcher.execute(sql).fetchall() == [(1,)]


def _held(watcher: psycopg.Connection) -> int:
    sql = """SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
             WHERE l.locktype = 'advisory' AND d.datname = current_database()"""
    return int(watcher.execute(sql).fetchall()[0][0])


# Another database, another server


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@each
def test_a_connection_to_another_database_or_server_is_refused_and_takes_nothing(
    plain: str, world: str, elsewhere: PostgresServer, watcher: psycopg.Connection
) -> None:
    async def story() -> None:
        own = advisory().server.url  # a database of the same name is at both servers
        async with side(world, plain, at=own) as here:
            connection = await here.connect(own)
            assert await here.take(connection, "a") > 0
            await here.end(connection)
            for other in (plain, elsewhere.url):
                connection = await here.connect(other)
                for names in (["a"], ["a", "b"]):
                    with pytest.raises(ValueError, match="another server or database than postgresql"):
                        await here.take(connection, *names)
                    sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
                    assert await here.ask(connection, sql) == 0

    run_story(world, story())


@each
def test_a_server_that_was_restarted_is_still_the_same(world: str, elsewhere: PostgresServer) -> None:
    async def story() -> None:
        async with side(world, elsewhere.url) as here:
            before = await here.take(await here.connect(), "a")
            elsewhere.restart()
            assert await here.take(await here.connect(), "a") > before

    run_story(world, story())


@pytest.fixture(scope="module")
def replica(elsewhere: PostgresServer) -> Iterator[PostgresServer]:
    with elsewhere.replica() as server:
        yield server


@each
def test_a_replica_is_another_server_and_grants_nothing_itself(
    world: str, elsewhere: PostgresServer, replica: PostgresServer
) -> None:
    async def story() -> None:
        async with side(world, elsewhere.url) as here, side(world, replica.url) as there:
            connection = await there.connect()
            with pytest.raises(ValueError, match="another server or database"):
                await here.take(connection, "a")
            with pytest.raises(BackendUnavailable, match="is a replica"):
                await there.take(connection, "a")

    run_story(world, story())


@each
def test_where_the_locks_are_must_be_known(plain: str, world: str) -> None:
    async def story() -> None:
        async with side(world, plain, at=plain.replace(str(advisory().server.port), "1")) as here:
            connection = await here.connect()
            with pytest.raises(BackendUnavailable):
                await here.take(connection, "a", wait=0)

    run_story(world, story())


# Two names that meet on one number

MEET = {"one": Key(7, 7 << 24 | 1), "other": Key(7, 7 << 24 | 2)}


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (acquiring_module, holds_module, in_transaction_module):
        monkeypatch.setattr(module, "key_of", lambda name: MEET.get(name) or key_of(name))


@each
@pytest.mark.usefixtures("meet")
def test_two_names_with_one_number_are_refused_in_one_transaction(plain: str, world: str) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            connection = await here.connect()
            with pytest.raises(Unsupported, match="'other' has the same 64-bit number as 'one'"):
                await here.take(connection, "one", "other")
            await here.ask(connection, "SAVEPOINT before")
            for names in (["one"], ["one", "third"]):
                assert await here.take(connection, *names) > 0
                for twice in (["other"], ["fourth", "other"]):
                    with pytest.raises(Unsupported, match="'other' has the same 64-bit number"):
                        await here.take(connection, *twice)
                assert await here.take(connection, "one") > 0  # the same name again is the same lock
                await here.ask(connection, "ROLLBACK TO SAVEPOINT before")
            assert await here.take(connection, "other") > 0  # the savepoint took the first one back
            await here.end(connection)
            assert await here.take(connection, "one") > 0

    run_story(world, story())


@each
@pytest.mark.parametrize("wait", [0, 0.05, None])
@pytest.mark.parametrize("holder", ["transaction", "session"])
@pytest.mark.usefixtures("meet")
def test_two_names_with_one_number_are_refused_between_transactions(
    plain: str, world: str, holder: str, wait: float | None
) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            connection = await here.connect()
            if holder == "transaction":
                assert await here.take(await here.connect(), "one") > 0
            else:
                await settled(here.locks.lock("one").acquire())
            for names in (["other"], ["fourth", "other"]):
                with pytest.raises(Unsupported, match="'other' has the same 64-bit number"):
                    await here.take(connection, *names, wait=wait)
            with pytest.raises(AcquireTimeout, match="'one' is held by"):
                await here.take(connection, "one", wait=0)
            if holder == "transaction":
                with pytest.raises(Unsupported, match="'other' has the same 64-bit number"):
                    await settled(here.locks.lock("other").acquire(blocking=False))

    run_story(world, story())


@each
def test_locks_that_others_make_of_two_numbers_are_not_taken_for_another_name(
    plain: str, world: str, watcher: psycopg.Connection
) -> None:
    key = key_of("a")
    watcher.execute("SELECT pg_advisory_lock(%s), pg_advisory_lock(%s, 1)", (key.number, key.tag ^ 1))

    async def story() -> None:
        async with side(world, plain) as here:
            with pytest.raises(AcquireTimeout, match="'a' is held by"):
                await here.take(await here.connect(), "a", wait=0)

    run_story(world, story())


def test_a_holder_whose_tag_is_not_there_yet_is_not_taken_for_another_name() -> None:
    key = Key(7, 7 << 24 | 1)
    number, another = _HeldLock(1, 0, 7, 1, "x"), _HeldLock(1, 0, 256 + 7, 1, "x")
    ours, tag = _HeldLock(1, 7 << 24 | 1, 5, 2, "x"), _HeldLock(1, 7 << 24 | 2, 5, 2, "x")
    assert _is_other_name(key, [number, tag])
    assert not _is_other_name(key, [number, ours])
    assert not _is_other_name(key, [number])  # a statement of the user's own, without lockfast
    assert not _is_other_name(key, [number, another, tag])  # the tag is that of the other number
    assert _is_other_name(key, [number, another, tag, tag._replace(high=7 << 24 | 3)])
    assert not _is_other_name(key, [number, another, tag, ours])


# The transaction, and how a wait ends


@each
def test_a_savepoint_that_is_rolled_back_to_gives_back_what_was_taken_after_it(plain: str, world: str) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            connection = await here.connect()
            await here.take(connection, "before")
            await here.ask(connection, "SAVEPOINT lockfast")  # a name that we use too
            await here.take(connection, "after", "later")
            await here.ask(connection, "ROLLBACK TO SAVEPOINT lockfast")
            assert await here.is_free("after")
            assert await here.is_free("later")
            assert not await here.is_free("before")

    run_story(world, story())


@each
def test_a_transaction_that_has_failed_raises_the_clients_error_and_can_be_rolled_back(plain: str, world: str) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            connection = await here.connect()
            with pytest.raises(psycopg.errors.DivisionByZero):
                await here.ask(connection, "SELECT 1 / 0")
            for names in (["a"], ["a", "b"]):
                with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                    await here.take(connection, *names)
            await here.end(connection)
            assert await here.take(connection, "a", "b") > 0

    run_story(world, story())


async def _goes_on(here: Side, connection: Any, watcher: psycopg.Connection) -> None:
    """The transaction is as it was before the wait: nothing of that is left, and it can be used."""
    assert not _waits(watcher)
    assert await here.ask(connection, "SELECT current_setting('lock_timeout')") == "77s"
    assert await here.ask(connection, "SELECT x FROM mine") == 1
    assert _held(watcher) == 2  # the holder's: a number and a tag
    await here.end(connection)


async def _send(here: Side) -> Any:
    connection = await here.connect()
    for sql in ("SET lock_timeout = '77s'", "CREATE TEMP TABLE mine AS SELECT 1 AS x"):
        await here.ask(connection, sql)
    return connection


@each
def test_a_wait_lasts_as_long_as_was_asked_for_however_many_names(
    plain: str, world: str, watcher: psycopg.Connection
) -> None:
    async def story() -> None:
        async with side(world, plain) as here, entered(here.locks.lock("z")):
            for names in (["z"], ["a", "b", "z"]):
                connection = await _send(here)
                with pytest.raises(AcquireTimeout) as missed:
                    await here.take(connection, *names, wait=0.2)
                assert missed.value.waited >= 0.2
                await _goes_on(here, connection, watcher)

    run_story(world, story())


@each
def test_a_time_limit_of_the_users_own_is_reported_as_such(plain: str, world: str, watcher: psycopg.Connection) -> None:
    async def story() -> None:
        async with side(world, plain) as here, entered(here.locks.lock("z")):
            for names in (["z"], ["a", "z"]):
                connection = await _send(here)
                await here.ask(connection, "SET statement_timeout = '700ms'")  # nothing but the wait takes as long
                with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
                    await here.take(connection, *names)
                await here.ask(connection, "SET statement_timeout = 0")
                await _goes_on(here, connection, watcher)

    run_story(world, story())


@pytest.mark.parametrize("names", [["z"], ["a", "z"]])
def test_an_interrupted_wait_leaves_nothing_and_the_transaction_goes_on(
    plain: str, watcher: psycopg.Connection, names: list[str]
) -> None:
    async def story() -> None:
        async with side("blocking", plain) as here, entered(here.locks.lock("z")):
            connection = await _send(here)
            thread = threading.Thread(target=interrupt, args=(threading.get_ident(),))
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                await here.take(connection, *names)
            join(thread)
            await _goes_on(here, connection, watcher)

    def interrupt(waiting: int) -> None:
        until(lambda: _waits(watcher))
        signal.pthread_kill(waiting, signal.SIGINT)

    def cut_short() -> bool:
        """It came after psycopg had sent the statement and before it waited: then psycopg leaves it unanswered."""
        try:
            run_story("blocking", story())
        except psycopg.OperationalError as error:
            assert "already in progress" in str(error)  # noqa: PT017
            return True
        return False

    assert any(not cut_short() for _ in range(5))


@pytest.mark.parametrize("names", [["z"], ["a", "z"]])
def test_a_cancelled_wait_leaves_nothing_and_the_transaction_goes_on(
    plain: str, watcher: psycopg.Connection, names: list[str]
) -> None:
    async def story() -> None:
        async with side("awaited", plain) as here, entered(here.locks.lock("z")):
            connection = await _send(here)
            task = asyncio.ensure_future(here.take(connection, *names))
            await until_async(lambda: _waits(watcher), "it to wait")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await _goes_on(here, connection, watcher)

    run_story("awaited", story())


@each
def test_a_deadlock_with_a_row_is_reported_as_a_deadlock(plain: str, world: str, watcher: psycopg.Connection) -> None:
    watcher.execute("DROP TABLE IF EXISTS rows; CREATE TABLE rows AS SELECT 1 AS x")

    async def story() -> None:
        async with side(world, plain) as here:
            connection, other = await here.connect(), await here.connect()
            await here.ask(connection, "SET deadlock_timeout = '20ms'")
            await here.ask(other, "SET deadlock_timeout = '60s'")  # so that it is not the one to give way
            await here.ask(connection, "UPDATE rows SET x = 2")
            await here.take(other, "a")
            finish = await _meanwhile(here, other, "UPDATE rows SET x = 3")
            if world == "awaited":
                await until_async(lambda: _waits(watcher), "the other to wait")
            else:
                until(lambda: _waits(watcher), "the other to wait")
            with pytest.raises(psycopg.errors.DeadlockDetected):
                await here.take(connection, "a")
            await here.end(connection)
            await finish()
            assert not await here.is_free("a")

    run_story(world, story())


async def _meanwhile(here: Side, connection: Any, sql: str) -> Callable[[], Awaitable[None]]:
    """Run it beside us; what is given back waits for its end."""
    if here.world == "awaited":
        task = asyncio.ensure_future(connection.execute(sql))

        async def finish() -> None:
            await task

    else:
        thread = threading.Thread(target=connection.execute, args=(sql,))
        thread.start()

        async def finish() -> None:
            join(thread)

    return finish
