"""What the backend asks of either driver of SQLite, and which of the two it gets.

Decides: what a transaction offers to a step of the backend. Leaves to `blocking` and `asyncio_`: how one is run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from lockfast._model import Grant
from lockfast._worlds import Clock, World
from lockfast.backends.sqlite.io import file as sqlite_file
from lockfast.backends.sqlite.io.datagrams import DatagramInbox, open_inbox
from lockfast.backends.sqlite.io.host import HostIdentity
from lockfast.backends.wakeups import Wakeups, write_wake_up
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.backends.wakeups.flood_guard import FloodGuard

T = TypeVar("T")

VERSION: Final = sqlite3.sqlite_version

Execute = Callable[..., sqlite3.Cursor]


class WakeUp(NamedTuple):
    """A message to the process at `address`: its claim holds by that grant, or should ask again."""

    address: str
    key: str
    claim: str
    ends_at: float  # of the claim's row, as this transaction has left it
    grant: Grant | None = None

    @property
    def text(self) -> str:
        return write_wake_up(self.claim, self.grant)


class SqliteTransaction:
    """What a step of the backend uses during one transaction."""

    __slots__ = ("counter", "execute", "host", "inbox", "now", "wakeups")

    def __init__(self, execute: Execute, host: HostIdentity, inbox: Wakeups) -> None:
        self.execute = execute
        self.host = host
        self.inbox = inbox  # where the waiters of this process are woken
        self.now = host.now()
        self.counter = 0  # the store's own, once a step that writes has read it
        self.wakeups: list[WakeUp] = []  # sent after the commit


Step = Callable[..., T]

# `step(transaction, *args)`, `args`, `quick` and `reads`. `quick`, a single statement, is tried first; a result other
# than None is final. A step that only `reads` sees one state of the file, delays no writer and waits for none. A plain
# tuple costs least.
SqliteRequest = tuple[Step[Any], tuple[Any, ...], Step[Any] | None, bool]


class SqliteSchema(NamedTuple):
    """What the backend checks and does in a file that was just opened."""

    is_current: Callable[[SqliteTransaction], bool]  # only reads; raises BackendUnavailable for another program's file
    prepare: Callable[[SqliteTransaction], None]  # before the first write through a connection


class SqliteDriver(Protocol):
    """The driver of either world, as the backend uses it."""

    @property
    def wakeups(self) -> Wakeups: ...
    async def transact(self, request: SqliteRequest, within: float) -> tuple[Any, list[WakeUp]]:
        """Run the request in one transaction; its result, and the wake-ups that reached no process."""
        ...

    @property
    def path(self) -> Path:
        """The file that was named, which may be a link to the store."""
        ...

    @property
    def url(self) -> str: ...
    async def close(self) -> None: ...
    def before_fork(self) -> None: ...
    def after_fork(self, *, child: bool) -> None: ...


def open_driver(path: Path, schema: SqliteSchema, world: World, clock: Clock | None) -> SqliteDriver:
    """The driver for that world. Nothing is opened yet."""
    from lockfast.backends.sqlite.io.blocking import BlockingSqlite

    def inbox() -> DatagramInbox | None:
        return open_inbox(sqlite_file.follow(path))

    guard = FloodGuard() if clock is None else None  # a test's clock may stand still
    if world.blocking:
        return BlockingSqlite(path, schema, BlockingWakeups(clock, inbox, guard), clock)
    from lockfast.backends.sqlite.io.asyncio_ import AsyncioSqlite, AsyncioSqliteWakeups

    wakeups = AsyncioSqliteWakeups(clock, inbox, guard)
    return AsyncioSqlite(BlockingSqlite(path, schema, wakeups, clock, checkpoints=False), wakeups)
