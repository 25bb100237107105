"""Stories about a transaction of the user's own, written once for both worlds.

In the blocking world what is called returns at once, and in the other it is awaited: `settled` takes either.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg

import lockfast
import lockfast.aio
from lockfast._reentry import run_to_end

WORLDS = ("blocking", "awaited")


def run_story(world: str, story: Coroutine[Any, Any, None]) -> None:
    """In the blocking world there is no loop."""
    if world == "blocking":
        run_to_end(story)
    else:
        asyncio.run(story)


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """A context manager of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


class Side:
    """One world: its locks, and connections of psycopg."""

    def __init__(self, world: str, plain: str, locks: Any, stack: AsyncExitStack) -> None:
        self.world = world
        self.plain = plain
        self.locks = locks
        self._stack = stack

    async def connect(self, plain: str = "", **options: Any) -> Any:
        kind: Any = psycopg.Connection if self.world == "blocking" else psycopg.AsyncConnection
        connection = await settled(kind.connect(plain or self.plain, **options))
        self._stack.push_async_callback(self._close, connection)
        return connection

    async def _close(self, connection: Any) -> None:
        await settled(connection.close())

    async def take(self, connection: Any, *names: str, wait: float | None = 30) -> int:
        return int(await settled(self.locks.in_transaction(connection, *names, wait=wait)))

    async def ask(self, connection: Any, sql: str) -> Any:
        """The first value, on a connection with the usual rows."""
        cursor = await settled(connection.execute(sql))
        return (await settled(cursor.fetchone()))[0] if sql.startswith("SELECT") else None

    async def end(self, connection: Any) -> None:
        await settled(connection.rollback())

    async def is_free(self, name: str) -> bool:
        lease = await settled(self.locks.lock(name).acquire(blocking=False))
        return lease is not None and bool(await settled(lease.release()))


@asynccontextmanager
async def side(world: str, plain: str, at: str = "") -> AsyncIterator[Side]:
    """`at` is where the locks are, if that is another URL than the connections'."""
    url = (at or plain).replace("postgresql:", "postgresql+advisory:")
    async with AsyncExitStack() as stack:
        opened = lockfast.connect(url) if world == "blocking" else lockfast.aio.connect(url)
        yield Side(world, plain, await stack.enter_async_context(entered(opened)), stack)
