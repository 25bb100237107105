"""Locks inside a transaction of the caller's own: psycopg's and SQLAlchemy's connections, blocking and awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

import lockfast
import lockfast.aio
from lockfast import AcquireTimeout, Locks, SelfDeadlock, Unsupported
from tests.servers.waiting import join, until

pytestmark = pytest.mark.slow
Open = Callable[[str], AbstractContextManager[Any]]
OpenAsync = Callable[[str], AbstractAsyncContextManager[Any]]


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with lockfast.connect(url) as locks:
        yield locks


def _free(locks: Locks, name: str) -> bool:
    lease = locks.lock(name).acquire(blocking=False)
    return lease is not None and lease.release()


# Each gives something with execute(), commit(), rollback()


@contextmanager
def psycopg_connection(plain: str) -> Iterator[Any]:
    with psycopg.connect(plain) as connection:
        yield connection


@contextmanager
def sqlalchemy_connection(plain: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(plain.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def sqlalchemy_session(plain: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(plain.replace("postgresql:", "postgresql+psycopg:"))
    with sqlalchemy.orm.Session(engine) as session:
        yield session
    engine.dispose()


each = pytest.mark.parametrize("open_", [psycopg_connection, sqlalchemy_connection, sqlalchemy_session])


@each
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_end_of_the_transaction_ends_the_lock(locks: Locks, plain: str, open_: Open, end: str) -> None:
    with open_(plain) as connection:
        fence = locks.in_transaction(connection, "account:42")
        assert locks.lock("account:42").acquire(blocking=False) is None
        getattr(connection, end)()
        lease = locks.lock("account:42").acquire(blocking=False)
        assert lease is not None
        assert lease.fence > fence > 0


@each
@pytest.mark.parametrize("wait", [0, 0.15])
def test_what_another_holds_is_not_had_and_the_transaction_goes_on(
    locks: Locks, plain: str, open_: Open, wait: float
) -> None:
    with open_(plain) as connection, locks.lock("b"):
        for names in (["b"], ["a", "b"]):
            message = "'b' is still held by .* after " if wait else f"'b' is held by {locks.holder!r}; none"
            with pytest.raises(AcquireTimeout, match=message) as missed:
                locks.in_transaction(connection, *names, wait=wait)
            assert missed.value.waited >= wait
        assert _free(locks, "a")  # all or none
        assert locks.in_transaction(connection, "c") > 0  # the transaction is not spoilt
        setting = psycopg_or_text(open_, "SELECT current_setting('lock_timeout')")
        assert connection.execute(setting).fetchone()[0] == "0"
        connection.commit()
        assert _free(locks, "c")


def psycopg_or_text(open_: Open, sql: str) -> Any:
    return sql if open_ is psycopg_connection else sqlalchemy.text(sql)


@each
def test_a_wait_is_over_as_soon_as_the_lock_is_free(locks: Locks, plain: str, open_: Open) -> None:
    lease = locks.lock("account:42").acquire()
    assert lease is not None
    with open_(plain) as connection:
        connection.execute(psycopg_or_text(open_, "SET lock_timeout = '77s'"))
        fences: list[int] = []
        waiter = threading.Thread(
            target=lambda: fences.append(locks.in_transaction(connection, "account:42", "other", wait=60))
        )
        waiter.start()
        until(lambda: locks.inspect("account:42").waiters == 1)
        lease.release()
        join(waiter)
        assert fences[0] > lease.fence
        setting = psycopg_or_text(open_, "SELECT current_setting('lock_timeout')")
        assert connection.execute(setting).fetchone()[0] == "77s"  # as it was
        assert [info.name for info in locks.list()] == ["account:42", "other"]
        connection.rollback()
        assert locks.list() == []


def test_several_names_are_locked_in_one_order_so_there_is_no_deadlock(locks: Locks, plain: str) -> None:
    done: list[int] = []

    def work(*names: str) -> None:
        with closing(psycopg.connect(plain)) as connection:
            for _ in range(30):
                done.append(locks.in_transaction(connection, *names))
                connection.commit()

    threads = [threading.Thread(target=work, args=names) for names in (("a", "b", "c"), ("c", "b", "a"))]
    for thread in threads:
        thread.start()
    join(*threads)
    assert len(set(done)) == 60


def test_a_savepoint_that_is_rolled_back_gives_the_lock_back(locks: Locks, plain: str) -> None:
    with psycopg.connect(plain) as connection:
        with connection.transaction(force_rollback=True):
            locks.in_transaction(connection, "a")
            assert not _free(locks, "a")
        assert _free(locks, "a")


def test_a_connection_that_commits_each_statement_is_refused(locks: Locks, plain: str) -> None:
    with psycopg.connect(plain, autocommit=True) as connection:
        with pytest.raises(Unsupported, match="no transaction open"):
            locks.in_transaction(connection, "a")
        with connection.transaction():
            locks.in_transaction(connection, "a")
            assert not _free(locks, "a")
    engine = sqlalchemy.create_engine(plain.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection_of_sqlalchemy:
        for names in (["a"], ["a", "b"]):
            with pytest.raises(Unsupported, match="no transaction open"):
                locks.in_transaction(connection_of_sqlalchemy, *names)
    engine.dispose()


def test_waiting_without_end_for_what_one_holds_oneself_is_an_error(locks: Locks, plain: str) -> None:
    with locks.lock("a"), psycopg.connect(plain) as connection, pytest.raises(SelfDeadlock):
        locks.in_transaction(connection, "a")


def test_what_makes_no_sense_is_refused_before_anything_is_sent(locks: Locks, plain: str) -> None:
    with psycopg.connect(plain) as connection:
        for names, why in (([], "at least one"), (["a", "a"], "each name once"), ([""], "empty")):
            with pytest.raises(ValueError, match=why):
                locks.in_transaction(connection, *names)
        with pytest.raises(ValueError, match="wait"):
            locks.in_transaction(connection, "a", wait=-1)
        with pytest.raises(ValueError, match="psycopg"):
            locks.in_transaction(object(), "a")  # type: ignore[arg-type]
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with lockfast.connect("memory://") as other, pytest.raises(Unsupported, match="transaction"):
        other.in_transaction(object(), "a")  # type: ignore[arg-type]


# Awaited


@asynccontextmanager
async def async_psycopg(plain: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(plain) as connection:
        yield connection


@asynccontextmanager
async def async_sqlalchemy_connection(plain: str) -> AsyncIterator[Any]:
    engine = sqlalchemy.ext.asyncio.create_async_engine(plain.replace("postgresql:", "postgresql+psycopg:"))
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


@asynccontextmanager
async def async_sqlalchemy_session(plain: str) -> AsyncIterator[Any]:
    engine = sqlalchemy.ext.asyncio.create_async_engine(plain.replace("postgresql:", "postgresql+psycopg:"))
    async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
        yield session
    await engine.dispose()


@pytest.mark.parametrize("open_", [async_psycopg, async_sqlalchemy_connection, async_sqlalchemy_session])
def test_an_awaited_transaction_holds_and_waits_as_well(url: str, plain: str, open_: OpenAsync) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url) as locks, open_(plain) as connection:
            fence = await locks.in_transaction(connection, "a", "b")
            assert await locks.lock("a").acquire(blocking=False) is None
            await connection.rollback()
            async with locks.lock("a") as lease:
                assert lease.fence > fence
                with pytest.raises(AcquireTimeout):
                    await locks.in_transaction(connection, "a", wait=0.1)
            assert await locks.in_transaction(connection, "a") > lease.fence
            await connection.commit()
            assert await locks.list() == []

    asyncio.run(story())


def test_each_world_takes_its_own_kind_of_connection(url: str, plain: str) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url) as awaited, async_psycopg(plain) as connection:
            with psycopg.connect(plain) as blocking, pytest.raises(ValueError, match="a blocking connection"):
                await awaited.in_transaction(blocking, "a")  # type: ignore[arg-type]
            with lockfast.connect(url) as locks, pytest.raises(ValueError, match="an awaited connection"):
                locks.in_transaction(connection, "a")

    asyncio.run(story())
