"""What is true of SQLite in an event loop alone: its thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import BackendUnavailable
from holdfast._reentry import Job, start_thread
from holdfast.aio import AsyncLocks
from holdfast.drivers import sqlite_asyncio as driver
from tests.no_threads import no_thread_left
from tests.patience import impatient
from tests.servers.waiting import LIMIT


def _driver_of(locks: AsyncLocks) -> Any:
    backend: Any = locks._logic.engine.backend
    return backend._driver


async def _cycle(locks: AsyncLocks) -> None:
    lease = await locks.lock("x").acquire()
    assert lease is not None
    await lease.release()


# The start of the thread


def test_a_thread_that_could_not_be_started_is_started_by_the_next_try(path: Path) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(f"sqlite:///{path}") as locks:
            with no_thread_left(once=True) as refused:
                await _cycle(locks)
            assert "holdfast-sqlite" in refused

    asyncio.run(main())


def test_a_store_without_a_thread_is_unavailable_until_there_is_one(path: Path) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(f"sqlite:///{path}") as locks:
            with no_thread_left(), impatient(locks, 0.0):
                with pytest.raises(BackendUnavailable, match="no thread could be started") as raised:
                    await locks.lock("x").acquire()
                assert raised.value.transient
            await _cycle(locks)

    asyncio.run(main())


class _Interrupt(BaseException):
    pass


def test_an_interrupt_in_the_start_of_the_thread_does_not_close_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(f"sqlite:///{path}") as locks:
            started: list[Job] = []

            def start_and_interrupt(*args: Any) -> None:
                started.append(start_thread(*args))
                raise _Interrupt

            with monkeypatch.context() as patch:
                patch.setattr(driver, "start_thread", start_and_interrupt)
                with pytest.raises(_Interrupt):
                    await _driver_of(locks).transact(lambda transaction: None, (), LIMIT)
            started[0].join()
            await _cycle(locks)

    asyncio.run(main())
