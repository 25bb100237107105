"""What can be connected to, and what is no client, as a type checker sees it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

import psycopg
import psycopg_pool
import pytest
import redis
import redis.asyncio
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

import lockfast
from lockfast import DistributedLock, LockOptions, LockResult, Locks
from lockfast.aio import AsyncLocks


def every_url_and_client_is_taken(
    one: redis.Redis,
    awaited: redis.asyncio.Redis,
    cluster: redis.RedisCluster,
    awaited_cluster: redis.asyncio.RedisCluster,
    connection: psycopg.Connection[Any],
    awaited_connection: psycopg.AsyncConnection[Any],
    pool: psycopg_pool.ConnectionPool[Any],
    awaited_pool: psycopg_pool.AsyncConnectionPool[Any],
    parameters: Mapping[str, str],
    url: str | None,
) -> None:
    """In either world: only the settings of a client are used."""
    for client in (one, awaited, cluster, awaited_cluster):
        assert_type(lockfast.connect(client), Locks)
        assert_type(lockfast.aio.connect(client), AsyncLocks)
    for of_postgres in (connection, awaited_connection, pool, awaited_pool, parameters, {"host": "h", "port": 5432}):
        assert_type(lockfast.connect(of_postgres, advisory=True), Locks)
        assert_type(lockfast.aio.connect(of_postgres), AsyncLocks)
    lockfast.connect(url)
    lockfast.connect([one, one, one])
    lockfast.aio.connect((awaited, "redis://h2", "redis://h3"))
    DistributedLock(one)
    lockfast.aio.DistributedLock(pool)
    lockfast.get_distributed_lock(connection)
    lockfast.connect(sqlite3.connect(":memory:"))  # type: ignore[arg-type]
    lockfast.connect([cluster, cluster, cluster])  # type: ignore[list-item]
    lockfast.connect(lambda: 42)  # type: ignore[arg-type]


def test_what_is_no_url_and_no_client_is_refused() -> None:
    with pytest.raises(ValueError, match="not int"):
        lockfast.connect(42)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not object"):
        lockfast.connect(object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not bytes"):
        lockfast.connect(b"memory://")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not set"):
        lockfast.connect({"memory://"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not of int"):
        lockfast.aio.connect([1, 2, 3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a client, not its class Redis"):
        lockfast.connect(redis.Redis)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not int"):
        DistributedLock(42)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not int"):
        lockfast.aio.DistributedLock(42)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not int"):
        lockfast.get_distributed_lock(42)  # type: ignore[arg-type]


def test_a_misspelt_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="namspace"):
        lockfast.connect("memory://", namspace="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="namspace"):
        lockfast.aio.connect("memory://", namspace="x")  # type: ignore[call-arg]
    with DistributedLock("memory://typing-connect") as manager, pytest.raises(TypeError, match="timeout"):
        manager.acquire("x", timeout=3)  # type: ignore[call-arg]


def test_the_options_of_a_manager_can_be_kept_and_passed_on() -> None:
    options: LockOptions = {"timeout_seconds": 60, "blocking": True, "blocking_timeout_seconds": None}
    with DistributedLock("memory://typing-connect") as manager:
        assert_type(manager.acquire("x", **options), LockResult)
        assert_type(manager.acquire("x", **LockOptions(metadata={"a": 1})), LockResult)
        assert_type(manager.with_lock("y", lambda: 1, **options), int)
    wrong: LockOptions = {"timeout": 60}  # type: ignore[typeddict-unknown-key]
    assert wrong


async def a_transaction_of_the_callers_own_is_on_a_connection_of_its_own_world(
    locks: Locks,
    connection: psycopg.Connection[Any],
    session: sqlalchemy.orm.Session,
    scoped: sqlalchemy.orm.scoped_session[sqlalchemy.orm.Session],
    of_sqlalchemy: sqlalchemy.Connection,
    awaited: AsyncLocks,
    awaited_connection: psycopg.AsyncConnection[Any],
    awaited_session: sqlalchemy.ext.asyncio.AsyncSession,
    awaited_of_sqlalchemy: sqlalchemy.ext.asyncio.AsyncConnection,
) -> None:
    for one in (connection, session, scoped, of_sqlalchemy):
        assert_type(locks.in_transaction(one, "a", wait=3), int)
    for other in (awaited_connection, awaited_session, awaited_of_sqlalchemy):
        assert_type(await awaited.in_transaction(other, "a"), int)
    locks.in_transaction(awaited_session, "a")  # type: ignore[arg-type]
    locks.in_transaction(awaited_connection, "a")  # type: ignore[arg-type]
    locks.in_transaction(sqlite3.connect(":memory:"), "a")  # type: ignore[arg-type]
    await awaited.in_transaction(connection, "a")  # type: ignore[arg-type]
    await awaited.in_transaction(session, "a")  # type: ignore[arg-type]


PROGRAM = '''
from typing import assert_type
import lockfast

class Client:
    """Of a library that is not installed."""
    connection_pool: int = 0
    def execute_command(self, command: str) -> None: ...

locks = lockfast.connect(Client())
assert_type(locks, lockfast.Locks)

@locks.singleton("cron", default=None)
def job(x: int) -> str:
    return str(x)

assert_type(job(1), str | None)
lockfast.connect(42)  # type: ignore[arg-type]
locks.lock("x", tll=3)  # type: ignore[call-arg]
'''


@pytest.mark.slow
def test_a_program_is_checked_the_same_without_any_client_library(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    source = Path(lockfast.__file__).parent.parent
    options = ["--strict", "--no-site-packages", "--follow-imports=silent", f"--cache-dir={os.devnull}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", *options, str(program)],
        env={**os.environ, "MYPYPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("Success"), done.stdout + done.stderr
