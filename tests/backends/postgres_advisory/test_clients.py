"""Advisory locks where a ready client, or an option, says that they are meant: `connect(…, advisory=True)`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest

import lockfast
import lockfast.aio
from lockfast import Unsupported
from lockfast._connect import migration
from lockfast.backends.postgres_advisory.keys import key_of
from tests.servers.postgres_shared import HERE, advisory

NUMBER = key_of("a").number
KINDS = ["url", "connection", "async connection", "pool", "async pool", "parameters", "django settings", "django"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return advisory().url(tmp_path)


@pytest.fixture
def psql(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def _is_free(psql: psycopg.Connection) -> bool:
    row = psql.execute("SELECT pg_try_advisory_xact_lock(%s)", (NUMBER,)).fetchone()
    assert row is not None
    return bool(row[0])


class _DjangoConnection:
    """As much of Django's connection as is looked at."""

    __module__ = "django.db.backends.postgresql.base"
    vendor = "postgresql"

    def __init__(self, url: str) -> None:
        self._params = psycopg.conninfo.conninfo_to_dict(url)

    def get_connection_params(self) -> dict[str, Any]:
        return {**self._params, "cursor_factory": object, "context": None, "prepare_threshold": None}


@asynccontextmanager
async def _client(kind: str, url: str) -> AsyncIterator[Any]:
    if kind == "connection":
        with psycopg.connect(url) as connection:
            yield connection
    elif kind == "async connection":
        async with await psycopg.AsyncConnection.connect(url) as awaited:
            yield awaited
    elif kind == "pool":
        yield psycopg_pool.ConnectionPool(url, open=False, kwargs={"autocommit": True})
    elif kind == "async pool":
        yield psycopg_pool.AsyncConnectionPool(url, open=False)
    else:
        yield _description(kind, url)


def _description(kind: str, url: str) -> object:
    params = psycopg.conninfo.conninfo_to_dict(url)
    if kind == "parameters":
        return {**params, "waiting": 2}
    if kind == "django settings":
        libpq_names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
        return {
            "ENGINE": "django.db.backends.postgresql",
            **{name: params[param] for name, param in libpq_names.items()},
            "PASSWORD": "",
            "OPTIONS": {"sslmode": "prefer", "pool": True},
        }
    return _DjangoConnection(url) if kind == "django" else url


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_client_leads_to_advisory_locks_in_both_worlds(
    url: str, psql: psycopg.Connection, kind: str
) -> None:
    async def story() -> None:
        async with _client(kind, url) as client:
            with lockfast.connect(client, advisory=True) as locks:
                assert repr(locks).count("postgresql+advisory://") == 1
                with locks.lock("a"):
                    assert not _is_free(psql)
                assert _is_free(psql)
            async with lockfast.aio.connect(client, advisory=True) as awaited:
                async with awaited.lock("a"):
                    assert not _is_free(psql)
                assert _is_free(psql)

    asyncio.run(story())


@pytest.mark.slow
def test_the_managers_take_the_option_too(url: str, psql: psycopg.Connection) -> None:
    with lockfast.DistributedLock(psql, advisory=True) as manager:
        assert manager.acquire("a")
        assert not _is_free(psql)

    async def story() -> None:
        async with lockfast.aio.DistributedLock(psql, advisory=True) as awaited:
            assert await awaited.acquire("a")
            assert not _is_free(psql)

    asyncio.run(story())
    assert _is_free(psql)


def test_what_is_ours_among_parameters_is_understood_and_what_is_the_tables_is_refused() -> None:
    with lockfast.connect({"host": "127.0.0.1", "waiting": "3", "pooler": "session"}, advisory=True) as locks:
        backend: Any = locks._logic.engine.backend
        assert (backend._endpoint.waiting, backend._endpoint.pooler) == (3, "session")
    for name, value in {"schema": "locks", "synchronous_commit": "off"}.items():
        with pytest.raises(ValueError, match=f"{name} is an option of the lock table"):
            lockfast.connect({name: value}, advisory=True)
        with pytest.raises(ValueError, match=f"{name} is an option of the lock table"):
            lockfast.connect(f"postgresql+advisory://localhost/a?{name}={value}")
    for name in ("waiting", "pooler"):
        with pytest.raises(ValueError, match=f"{name} is an option of advisory locks"):
            lockfast.connect(f"postgresql://localhost/a?{name}=1")


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
def test_what_cannot_be_is_refused_at_once(connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("memory://", f"sqlite:///{tmp_path}/a.db", "redis://localhost", lambda world, clock: None):
        with pytest.raises(Unsupported, match="has no advisory locks"):
            connect(other, advisory=True)
    monkeypatch.setenv("LOCKFAST_URL", "memory://")
    with pytest.raises(Unsupported, match="has no advisory locks"):
        connect(advisory=True)
    for where in ("postgresql://localhost/a", {"host": "localhost"}):
        with pytest.raises(Unsupported, match="have no schema to choose"):
            connect(where, advisory=True, schema="locks")
        with pytest.raises(Unsupported, match="on no replica"):
            connect(where, advisory=True, replicas=1)
    with pytest.raises(ValueError, match="True or False"):
        connect("postgresql://localhost/a", advisory="yes")


def test_no_text_about_an_endpoint_shows_its_secrets() -> None:
    given = {"host": "h1,h2", "port": "1,2", "user": "me", "password": "secret", "dbname": "app"}
    with lockfast.connect(given, advisory=True) as locks:
        assert "secret" not in repr(locks)
        assert "on postgresql+advisory://h1:1,h2:2/app," in repr(locks)


class _OtherConnection:
    """As much of Django's connection to another database as is looked at. Oracle's says no more about itself."""

    __module__ = "django.db.backends.oracle.base"
    vendor = "oracle"

    def get_connection_params(self) -> dict[str, Any]:
        return {}


ENGINES = ("django.db.backends.mysql", "django.db.backends.oracle", "django.db.backends.sqlite3", "mssql", "", None)
DATABASES = [{"ENGINE": engine, "NAME": "app", "USER": "me", "PASSWORD": "s3cret"} for engine in ENGINES]


@pytest.mark.parametrize("advisory", [False, True])
@pytest.mark.parametrize("client", [*DATABASES, _OtherConnection()], ids=[*map(str, ENGINES), "connection"])
def test_another_database_of_djangos_is_refused_with_those_that_keep_locks(client: Any, advisory: bool) -> None:
    for connect in (lockfast.connect, lockfast.aio.connect):
        with pytest.raises(
            ValueError, match=r"only PostgreSQL .*django\.db\.backends\.postgresql.*sqlite:///"
        ) as refused:
            connect(client, advisory=advisory)
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("engine", ["django.contrib.gis.db.backends.postgis", "django_tenants.postgresql_backend"])
def test_engines_on_top_of_djangos_for_postgresql_are_postgresql(engine: str) -> None:
    with lockfast.connect({"ENGINE": engine, "NAME": "app", "HOST": "h"}) as locks:
        assert "on postgresql://h/app," in repr(locks)


# What is left at the end of a program


ENDS = """
import asyncio, gc, sys, lockfast, lockfast.aio

def blocking(url):
    locks = lockfast.connect(url, advisory=True)
    locks.lock("kept").acquire()
    locks.lock("again").acquire().release()
    return locks

async def awaited(url):
    locks = lockfast.aio.connect(url, advisory=True)
    await locks.lock("awaited").acquire()
    return locks

async def closed(url):
    async with lockfast.aio.connect(url, advisory=True) as locks:
        await locks.lock("closed").acquire()

first = blocking(sys.argv[1])
second = asyncio.run(awaited(sys.argv[1]))
asyncio.run(closed(sys.argv[1]))
with lockfast.connect(sys.argv[1], advisory=True) as third:
    third.lock("third").acquire()
dropped = lockfast.connect(sys.argv[1], advisory=True)
dropped.lock("dropped").acquire().release()
dropped = None
gc.collect()
print("done")
"""


@pytest.mark.slow
def test_a_program_that_ends_while_it_holds_locks_ends_quietly(url: str, psql: psycopg.Connection) -> None:
    """Python reports everything that is left open then, and so is an error in whatever runs at the end."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "always", "-c", ENDS, url]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    left = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND {HERE}"
    assert psql.execute(left.encode()).fetchone() == (0,)


ENDS_ELSEWHERE = """
import asyncio, sys, psycopg, lockfast.aio

async def hold(url):
    async with await psycopg.AsyncConnection.connect(url) as client:
        locks = lockfast.aio.connect(client, schema="locks")
        await locks.lock("a").acquire()
    return locks  # and the client is closed

kept = asyncio.run(hold(sys.argv[1]))
"""


@pytest.mark.slow
def test_what_a_program_held_in_a_chosen_schema_is_released_at_its_end_though_its_client_is_closed(
    url: str, psql: psycopg.Connection
) -> None:
    """The same opener makes the backend that releases, for both kinds of locks."""
    migration(url, "locks").run(print)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ENDS_ELSEWHERE, url]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert psql.execute("SELECT count(*) FROM locks.distributed_locks").fetchone() == (0,)
