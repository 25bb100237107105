"""Other people's locks on Redis for asyncio: each opened in a running loop, then one lock of its kind by name.

Decides: how each of them is used: at its defaults, with a lease of 30 s, on one client that may have as many
connections as there are tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import lockfast
from bench.peers import need
from bench.redis_peers import LEASE_S

Cycle = Callable[[], Awaitable[object]]
Maker = Callable[[str], Cycle]  # from a lock's name to one acquire and release of it
Opener = Callable[[int, int], AbstractAsyncContextManager[Maker]]  # from the server's port and how many tasks there are


@asynccontextmanager
async def ours(port: int, tasks: int) -> AsyncIterator[Maker]:
    async with lockfast.aio.connect(f"redis://127.0.0.1:{port}/0") as locks:
        yield lambda name: _cycle(locks.lock(name))


@asynccontextmanager
async def redis_py(port: int, tasks: int) -> AsyncIterator[Maker]:
    client = need("redis.asyncio").Redis(port=port, max_connections=tasks + 1)  # by default it refuses the 101st
    try:
        yield lambda name: _cycle(client.lock(name, timeout=LEASE_S))
    finally:
        await client.aclose()


@asynccontextmanager
async def redis_py_100(port: int, tasks: int) -> AsyncIterator[Maker]:
    """The same with a pool of 100 connections that tasks queue up for."""
    library = need("redis.asyncio")
    client = library.Redis(connection_pool=library.BlockingConnectionPool(port=port, max_connections=100, timeout=None))
    try:
        yield lambda name: _cycle(client.lock(name, timeout=LEASE_S))
    finally:
        await client.aclose()
        await client.connection_pool.disconnect()


@asynccontextmanager
async def coredis(port: int, tasks: int) -> AsyncIterator[Maker]:
    lock = need("coredis.patterns.lock").Lock
    async with need("coredis").Redis(port=port) as client:
        yield lambda name: _cycle(lock(client, name, timeout=LEASE_S))


@asynccontextmanager
async def aioredlock(port: int, tasks: int) -> AsyncIterator[Maker]:
    manager = need("aioredlock").Aioredlock([{"host": "127.0.0.1", "port": port}])

    def make(name: str) -> Cycle:
        async def cycle() -> None:
            await manager.unlock(await manager.lock(name, lock_timeout=LEASE_S))

        return cycle

    try:
        yield make
    finally:
        await manager.destroy()


def _cycle(lock: Any) -> Cycle:
    async def cycle() -> None:
        if not await lock.acquire():
            raise RuntimeError("a free lock was not granted")
        await lock.release()

    return cycle
