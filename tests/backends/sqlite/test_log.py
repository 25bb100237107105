"""The log of an SQLite store in an event loop: who copies it into the file, and when."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.aio import AsyncLocks
from lockfast.backends.sqlite.io import blocking as sqlite
from lockfast.backends.sqlite.io.blocking import BlockingSqlite
from lockfast.backends.sqlite.io.driver import SqliteTransaction
from tests.servers.waiting import LIMIT_S, until_async

SHORT_BYTES = 1 << 16  # bytes


@pytest.fixture(autouse=True)
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOG_LIMIT_BYTES", SHORT_BYTES)
    monkeypatch.setattr(sqlite, "CHECK_FILE_EVERY_S", 0.0)
    monkeypatch.setattr(sqlite, "CHECKPOINT_EVERY_S", 0.0)


@pytest.fixture
def copied_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread of each time that the log was copied into the file."""
    threads: list[int] = []

    def checkpoint(driver: BlockingSqlite) -> None:
        threads.append(threading.get_ident())
        before(driver)

    before = BlockingSqlite.checkpoint
    monkeypatch.setattr(BlockingSqlite, "checkpoint", checkpoint)
    return threads


async def _cycle(locks: AsyncLocks) -> None:
    async with locks.lock("x"):
        pass


def _length_of_log(path: Path) -> int:
    return path.with_name("locks.db-wal").stat().st_size


def test_no_request_in_the_loop_copies_the_log_into_the_file(path: Path, copied_in: list[int]) -> None:
    """That waits for the disk, twice."""

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            driver: Any = locks._logic.engine.backend
            by_itself, _ = await driver._driver.transact((_ask_by_itself, (), None, False), LIMIT_S)
            assert by_itself == (0,)
            for _ in range(500):
                await _cycle(locks)
            assert _length_of_log(path) < 4 * SHORT_BYTES

    asyncio.run(main())
    assert len(copied_in) > 5
    assert threading.get_ident() not in copied_in


def _ask_by_itself(t: SqliteTransaction) -> Any:
    return t.execute("PRAGMA wal_autocheckpoint").fetchone()


def test_a_log_that_grew_during_a_long_read_is_truncated_after_it(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:

            async def is_cut() -> bool:
                await _cycle(locks)
                return _length_of_log(path) <= SHORT_BYTES

            await _cycle(locks)
            with closing(sqlite3.connect(path, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM claims").fetchall()
                while _length_of_log(path) < 4 * SHORT_BYTES:
                    await _cycle(locks)
            await until_async(is_cut)

    asyncio.run(main())


def test_a_log_that_a_reader_keeps_from_being_truncated_is_checkpointed_only_now_and_then(
    path: Path, monkeypatch: pytest.MonkeyPatch, copied_in: list[int]
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_EVERY_S", 3600.0)

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            with closing(sqlite3.connect(path, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM claims").fetchall()
                while _length_of_log(path) < 4 * SHORT_BYTES:
                    await _cycle(locks)

    asyncio.run(main())
    assert len(copied_in) == 1


def test_a_request_that_comes_while_the_log_is_copied_does_not_stop_the_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves_on, begun = threading.Event(), threading.Event()
    notified: list[bool] = []

    def checkpoint(driver: BlockingSqlite) -> None:
        with driver._mutex:
            begun.set()
            notified.append(moves_on.wait(LIMIT_S))

    monkeypatch.setattr(BlockingSqlite, "checkpoint", checkpoint)

    async def cycle_until_stopped(locks: AsyncLocks) -> None:
        while not moves_on.is_set():
            await _cycle(locks)

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            cycling = asyncio.ensure_future(cycle_until_stopped(locks))
            driver: Any = locks._logic.engine.backend
            await until_async(lambda: begun.is_set() and driver._driver._queue, "a request to wait for the log")
            moves_on.set()
            await cycling

    asyncio.run(main())
    assert all(notified), "the loop went on meanwhile, and could end it"
