"""Ready clients of asyncio: what is held through one is renewed while its loop is blocked, by connections of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg_pool
import pytest
import redis.asyncio
from sqlalchemy.ext.asyncio import create_async_engine

import lockfast.aio
from lockfast._model import Renewal
from lockfast._worlds import drive
from tests.servers.postgres_tables import table
from tests.servers.quorum import quorum
from tests.servers.shared import cluster, sentinels, valkey

pytestmark = pytest.mark.slow
HOUR = 3600


def _address(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port}


CLIENTS: dict[str, Callable[[Path], Any]] = {
    "redis": lambda folder: redis.asyncio.Redis.from_url(valkey().url(folder)),
    "redis sentinel": lambda folder: sentinels().replace("valkey", "redis"),
    "redis cluster": lambda folder: redis.asyncio.RedisCluster(**_address(cluster().split(",")[0])),
    "redlock": lambda folder: quorum(3).url(folder),
    "psycopg pool": lambda folder: psycopg_pool.AsyncConnectionPool(table().url(folder), open=False),
    "sqlalchemy": lambda folder: create_async_engine(table().url(folder).replace("postgresql:", "postgresql+psycopg:")),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_backend_for_threads_renews_what_is_held_through_a_client_of_asyncio(client: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(CLIENTS[client](tmp_path), namespace=uuid4().hex) as locks:
            lease = await locks.lock("x", ttl=HOUR).acquire()
            assert lease is not None
            watch = locks._logic.engine.loop_watch
            assert watch is not None
            batch = [Renewal(lease._claim, lease.ttl, lease.fence)]
            assert list(drive(watch._ask(batch, 30.0))) == [True]  # in this thread, which blocks the loop
            assert await lease.release()

    asyncio.run(main())
