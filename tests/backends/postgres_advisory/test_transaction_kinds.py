"""Locks inside a transaction: whatever connection the user has, and however it is set up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import django.conf  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import django.db.transaction  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from django.db.utils import ConnectionHandler  # type: ignore[import-untyped]
from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped]
from psycopg.rows import dict_row, scalar_row

import lockfast
from lockfast import AcquireTimeout, Unsupported
from tests.backends.postgres_advisory.transactions import WORLDS, Side, entered, run_story, settled, side
from tests.servers.postgres_pooler import Pooler
from tests.servers.postgres_shared import advisory

pytestmark = pytest.mark.slow
each = pytest.mark.parametrize("world", WORLDS)


async def _takes_part(here: Side, connection: Any) -> None:
    """Alone and several, granted and refused; then the transaction is as good as before."""
    assert await here.take(connection, "a") > 0
    assert await here.take(connection, "b", "c") > 0
    assert not await here.is_free("a")
    assert not await here.is_free("c")
    async with entered(here.locks.lock("held")):
        for names in (["held"], ["d", "held"]):
            for wait in (0, 0.02):
                with pytest.raises(AcquireTimeout, match=f"'held' is {'still ' if wait else ''}held by"):
                    await here.take(connection, *names, wait=wait)
    assert await here.is_free("d")
    assert await here.take(connection, "d") > 0
    assert not await here.is_free("a")


@each
@pytest.mark.parametrize(
    "options",
    [
        {"row_factory": dict_row},
        {"row_factory": scalar_row},
        {"client_encoding": "sql_ascii"},  # text comes as bytes
        {"prepare_threshold": 0},
    ],
    ids=["dicts", "scalars", "bytes", "prepared"],
)
def test_how_a_connection_of_psycopg_gives_rows_does_not_matter(
    plain: str, world: str, options: dict[str, Any]
) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            connection = await here.connect(**options)
            await _takes_part(here, connection)
            await here.end(connection)
            assert await here.is_free("a")

    run_story(world, story())


@each
def test_a_pipeline_goes_on_after_a_grant_and_after_a_refusal(plain: str, world: str) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            connection = await here.connect()
            async with entered(connection.pipeline()):
                await _takes_part(here, connection)
                assert await here.ask(connection, "SELECT 1") == 1
            await here.end(connection)

            await settled(connection.set_autocommit(True))
            async with entered(connection.pipeline()):
                with pytest.raises(Unsupported, match="no transaction open"):
                    await here.take(connection, "a")
                async with entered(connection.transaction()):  # its BEGIN has not been sent yet
                    await here.take(connection, "a")
                    assert not await here.is_free("a")
            assert await here.is_free("a")

    run_story(world, story())


# SQLAlchemy


class MySession(sqlalchemy.orm.Session):
    pass


class MyAsyncSession(sqlalchemy.ext.asyncio.AsyncSession):
    pass


@asynccontextmanager
async def _sqlalchemy(here: Side, client: str, kind: str, options: dict[str, Any]) -> AsyncIterator[Any]:
    url = here.plain.replace("postgresql:", f"postgresql+{client}:")
    if here.world == "blocking":
        engine: Any = sqlalchemy.create_engine(url, execution_options=options)
        maker: Any = sqlalchemy.orm.sessionmaker(engine, class_=MySession)
        kinds = {"connection": engine.connect, "session": maker, "scoped": sqlalchemy.orm.scoped_session(maker)}
    else:
        engine = sqlalchemy.ext.asyncio.create_async_engine(url, execution_options=options)
        maker = sqlalchemy.ext.asyncio.async_sessionmaker(engine, class_=MyAsyncSession)
        scoped = sqlalchemy.ext.asyncio.async_scoped_session(maker, asyncio.current_task)
        kinds = {"connection": engine.connect, "session": maker, "scoped": scoped}
    try:
        if kind == "scoped":
            yield kinds[kind]
            await settled(kinds[kind].remove())
        else:
            async with entered(kinds[kind]()) as connection:
                yield connection
    finally:
        await settled(engine.dispose())


@each
@pytest.mark.parametrize(
    ("client", "kind", "options"),
    [
        ("psycopg", "session", {}),  # a subclass, as people have them
        ("psycopg", "scoped", {}),
        ("psycopg", "connection", {"stream_results": True}),
        ("psycopg", "connection", {"yield_per": 1}),
        ("another", "connection", {}),
        ("another", "session", {}),
    ],
)
def test_any_session_or_connection_of_sqlalchemy_over_any_client_is_taken(
    plain: str, world: str, client: str, kind: str, options: dict[str, Any]
) -> None:
    clients = {"psycopg": "psycopg", "another": "psycopg2" if world == "blocking" else "asyncpg"}

    async def story() -> None:
        async with side(world, plain) as here, _sqlalchemy(here, clients[client], kind, options) as connection:
            await _takes_part(here, connection)
            await here.end(connection)
            assert await here.is_free("a")

    run_story(world, story())


@each
def test_another_client_that_commits_each_statement_is_refused(plain: str, world: str) -> None:
    client = "psycopg2" if world == "blocking" else "asyncpg"

    async def story() -> None:
        options = {"isolation_level": "AUTOCOMMIT"}
        async with side(world, plain) as here, _sqlalchemy(here, client, "connection", options) as connection:
            for names in (["a"], ["a", "b"]):
                with pytest.raises(Unsupported, match="no transaction open"):
                    await here.take(connection, *names)
            assert await here.is_free("a")

    run_story(world, story())


@each
@pytest.mark.parametrize("kind", ["engine", "maker"])
def test_what_of_sqlalchemy_has_no_transaction_is_refused(plain: str, world: str, kind: str) -> None:
    url = plain.replace("postgresql:", "postgresql+psycopg:")
    engine: Any
    maker: Any
    if world == "blocking":
        engine, maker = sqlalchemy.create_engine(url), sqlalchemy.orm.sessionmaker()
    else:
        engine, maker = sqlalchemy.ext.asyncio.create_async_engine(url), sqlalchemy.ext.asyncio.async_sessionmaker()

    async def story() -> None:
        async with side(world, plain) as here:
            with pytest.raises(
                ValueError, match=r"takes a connection .*, not sqlalchemy.*(Engine, which|sessionmaker)"
            ):
                await here.take(engine if kind == "engine" else maker, "a")

    run_story(world, story())


@each
def test_a_raw_connection_of_sqlalchemy_is_what_its_client_made(plain: str, world: str) -> None:
    async def story() -> None:
        async with side(world, plain) as here, _sqlalchemy(here, "psycopg", "connection", {}) as connection:
            raw = connection.connection if world == "blocking" else await connection.get_raw_connection()
            await _takes_part(here, raw)
            await here.end(raw.driver_connection)
            assert await here.is_free("a")

    run_story(world, story())


# Isolation


@each
@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_transaction_that_reads_the_past_is_refused_and_nothing_is_locked(
    plain: str, world: str, level: psycopg.IsolationLevel
) -> None:
    async def story() -> None:
        async with side(world, plain) as here:
            connection = await here.connect()
            await settled(connection.set_isolation_level(level))
            for names in (["a"], ["a", "b"]):
                for wait in (0, None):
                    with pytest.raises(Unsupported, match=r"REPEATABLE READ or SERIALIZABLE.*with locks\.lock\("):
                        await here.take(connection, *names, wait=wait)
            assert await here.is_free("a")
            assert await here.ask(connection, "SELECT 1") == 1  # the transaction goes on
            await here.end(connection)
            await settled(connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED))
            assert await here.take(connection, "a") > 0

    run_story(world, story())


# Django


@pytest.fixture
def connection(plain: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As `django.db.connection` is."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(LOGGING_CONFIG=None)
        django.setup()
    parts = psycopg.conninfo.conninfo_to_dict(plain)
    where = {"NAME": parts["dbname"], "USER": parts["user"], "HOST": parts["host"], "PORT": parts["port"]}
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.postgresql", **where}, "lite": lite})
    monkeypatch.setattr(django.db.transaction, "connections", handler)
    yield ConnectionProxy(handler, "default")
    handler.close_all()


def test_the_connection_of_django_is_taken_within_atomic(plain: str, connection: Any) -> None:
    async def story() -> None:
        async with side("blocking", plain) as here:
            with pytest.raises(Unsupported, match="no transaction open"):
                here.locks.in_transaction(connection, "a")
            with django.db.transaction.atomic():
                await _takes_part(here, connection)
            assert await here.is_free("a")
            with django.db.transaction.atomic():
                with django.db.transaction.atomic():
                    here.locks.in_transaction(connection, "a")
                    django.db.transaction.set_rollback(True)
                assert await here.is_free("a")  # a savepoint was rolled back to

    run_story("blocking", story())


def test_django_without_postgresql_or_in_the_other_world_is_refused(plain: str, connection: Any) -> None:
    lite = ConnectionProxy(connection._connections, "lite")
    url = plain.replace("postgresql:", "postgresql+advisory:")
    with lockfast.connect(url) as locks, pytest.raises(ValueError, match="connection to sqlite, not to PostgreSQL"):
        locks.in_transaction(lite, "a")
    with pytest.raises(ValueError, match=r"only PostgreSQL can keep locks .*, not 'sqlite'"):
        lockfast.connect(lite)

    async def story() -> None:
        async with side("awaited", plain) as here:
            with pytest.raises(ValueError, match="a blocking connection"):
                await here.take(connection, "a")

    run_story("awaited", story())


# A pooler


@each
def test_a_pooler_in_transaction_mode_may_stand_before_the_connection_and_the_locks(plain: str, world: str) -> None:
    async def story() -> None:
        with Pooler(advisory().server.port, transactions=True) as pooler:
            through = plain.replace(f":{advisory().server.port}/", f":{pooler.port}/")
            async with side(world, plain) as direct, side(world, through) as here:
                connection = await here.connect()
                assert await here.take(connection, "a", "b") > 0
                with pytest.raises(AcquireTimeout):
                    await direct.take(await direct.connect(), "a", wait=0)
            assert pooler.prepared == 0

    run_story(world, story())
