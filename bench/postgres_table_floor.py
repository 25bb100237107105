"""The least that a durable lock in a table of PostgreSQL can be, and a released package that keeps one.

Decides: what the bare functions do: one upsert that respects an expiry and hands out a fence, and one delete. They know
no queue, no wake-up, no shared mode and no names that another transaction has locked.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg

from bench.peers import Missing, need
from bench.postgres_advisory_peers import Cycle
from lockfast.backends.postgres_table.schema import script

ROOM: Final = {"max_connections": "200", "shared_buffers": "128MB", "max_wal_size": "1GB"}  # settings of a server
DURABLE: Final = {**ROOM, "fsync": "on"}
NOT_DURABLE: Final = {**ROOM, "synchronous_commit": "off"}  # no commit waits for the disk, which would hide the rest
_BARE = """
CREATE TABLE bare (name varchar(255) PRIMARY KEY, holder text, acquired_at timestamptz, expires_at timestamptz,
    metadata jsonb, fence bigint);
CREATE INDEX ON bare (expires_at);
CREATE SEQUENCE bare_fence;
CREATE FUNCTION bare_acquire(n text, h text, ttl float8) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE f bigint;
BEGIN
    INSERT INTO bare VALUES (n, h, clock_timestamp(), clock_timestamp() + ttl * interval '1 second', '{}',
        nextval('bare_fence'))
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = excluded.fence,
            acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
            WHERE bare.expires_at < clock_timestamp()
        RETURNING fence INTO f;
    RETURN f;
END $$;
CREATE FUNCTION bare_release(n text, h text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM bare WHERE name = n AND holder = h;
    RETURN found;
END $$
"""


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script("public").encode())
        connection.execute(_BARE.encode())


def bare_functions(url: str) -> Cycle:
    cursor = psycopg.connect(url, autocommit=True).cursor()

    def cycle() -> None:
        cursor.execute("SELECT bare_acquire(%s, %s, %s)", ("bench", "h", 30.0), prepare=True).fetchone()
        cursor.execute("SELECT bare_release(%s, %s)", ("bench", "h"), prepare=True).fetchone()

    return cycle


def round_trip(url: str) -> Cycle:
    cursor = psycopg.connect(url, autocommit=True).cursor()
    return lambda: cursor.execute("SELECT 1", prepare=True).fetchone()


@asynccontextmanager
async def one_by_one(url: str, connections: int) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """One statement for each request, by way of a pool: what any client can do with the functions of the schema."""
    pool = need("psycopg_pool").AsyncConnectionPool(
        url, min_size=connections, max_size=connections, kwargs={"autocommit": True}, open=False, timeout=120
    )

    async def cycle(number: int) -> None:
        for function in ("acquire_lock", "release_lock"):
            async with pool.connection() as connection:
                await connection.execute(f"SELECT {function}(%s, %s)", (f"single-{number}", "h"), prepare=True)

    await pool.open()
    try:
        yield cycle
    finally:
        await pool.close()


def distributed_pg_lock(url: str) -> dict[str, Cycle]:
    """The one released package that keeps its locks in a table; nothing if it is not installed."""
    try:
        package: Any = need("distributed_pg_lock")
        database: Any = need("distributed_pg_lock.db").db
    except Missing:
        return {}
    logging.getLogger("distributed_pg_lock").setLevel(logging.WARNING)  # two lines a cycle are not what is measured
    database.initialize(url.replace("postgresql:", "postgresql+psycopg:"))
    database.create_tables()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    lock = package.DistributedLockManager().get_lock("bench")
    for number, handler in before.items():  # which it takes for itself
        signal.signal(number, handler)

    def cycle() -> None:
        assert lock.acquire()
        lock.release()

    return {"distributed-pg-lock": cycle}
