"""Decorators, the manager and the fencing helpers as a type checker sees them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import timedelta
from typing import assert_type

import pytest

import lockfast
from lockfast import DistributedLock, Lease, Lock, LockInfo, LockResult, Locks, fencing
from lockfast.aio import AsyncLease, AsyncLock, AsyncLocks


def test_a_decorated_function_keeps_its_type() -> None:
    with lockfast.connect("memory://typing-primitives") as locks:

        @locks.locked("job:{job_id}", ttl=timedelta(seconds=30))
        def run(job_id: int, *, fast: bool = False) -> list[str]:
            return [str(job_id), str(fast)]

        @locks.singleton("cron:daily", min_hold=0, default=None)
        def daily() -> str | None:
            return "done"

        @locks.locked("items")
        def items() -> Iterator[int]:
            yield 1

        assert_type(run(1, fast=True), list[str])
        assert_type(daily(), str | None)
        assert_type(next(items()), int)
        with pytest.raises(TypeError):
            run("1", slow=True)  # type: ignore[call-arg, arg-type]


def test_a_decorated_method_keeps_its_type() -> None:
    with lockfast.connect("memory://typing-primitives") as locks:

        class Shop:
            @locks.locked("shop:{item}")
            def sell(self, item: str) -> int:
                return len(item)

            @classmethod
            @locks.locked("shop:{item}")
            def find(cls, item: str) -> int:
                return len(item)

        assert_type(Shop().sell("a"), int)
        assert_type(Shop.find("a"), int)


async def decorated_coroutines_keep_theirs(locks: AsyncLocks) -> None:
    @locks.locked("job:{job_id}")
    async def run(job_id: int) -> list[str]:
        return [str(job_id)]

    @locks.singleton("items")
    async def items() -> AsyncIterator[int]:
        yield 1

    assert_type(await run(1), list[str])
    async for item in items():
        assert_type(item, int)


def test_the_manager_is_typed() -> None:
    with DistributedLock("memory://typing-manager", holder_id="worker-7", namespace="shop") as manager:
        assert_type(manager, DistributedLock)
        assert_type(manager.holder_id, str)
        result = manager.acquire(
            "a", 30, blocking=True, blocking_timeout_seconds=timedelta(seconds=1), metadata={"a": 1}
        )
        assert_type(result, LockResult)
        assert_type(result.acquired, bool)
        assert_type(result.lock, LockInfo | None)
        assert_type(result.error, str | None)
        assert_type(result.fence, int | None)
        row = result.lock or LockInfo("a")
        assert_type(row.lock_name, str)
        assert_type(row.holder_id, str | None)
        assert_type(row.acquired_at, float | None)
        assert_type(row.expires_at, float | None)
        assert_type(manager.with_lock(lock_name="b", fn=lambda: 42), int)
        assert_type(manager.extend("a", 10), bool)
        assert_type(manager.release("a"), bool)
        assert_type(manager.release_all(), int)
        assert_type(manager.with_lock("a", lambda: 42), int)
        assert_type(manager.lock("a"), Lock)
        with manager.lock("a", timeout_seconds=5) as lease:
            assert_type(lease, Lease)
    with pytest.raises(TypeError):
        DistributedLock("memory://", holder=3)  # type: ignore[call-arg]


async def the_awaited_manager_is_typed_like_the_other() -> None:
    manager = lockfast.aio.get_distributed_lock("memory://typing-manager")
    assert_type(manager, lockfast.aio.DistributedLock)

    async def work() -> str:
        return "done"

    async with lockfast.aio.DistributedLock("memory://typing-manager") as other:
        assert_type(other, lockfast.aio.DistributedLock)
        assert_type(await other.acquire("a"), LockResult)
        assert_type(await other.release("a"), bool)
        assert_type(await other.with_lock("a", work), str)
        assert_type(other.lock("a"), AsyncLock)
        async with other.lock("a") as lease:
            assert_type(lease, AsyncLease)
    await manager.close()


def test_the_awaited_ones_are_typed_too() -> None:
    async def all_of_it() -> None:
        async with lockfast.aio.connect("memory://typing-primitives") as locks:
            await decorated_coroutines_keep_theirs(locks)
        await the_awaited_manager_is_typed_like_the_other()

    asyncio.run(all_of_it())


def test_the_one_manager_and_the_statements_are_typed() -> None:
    with lockfast.get_distributed_lock("memory://typing-manager") as manager:
        assert_type(manager, DistributedLock)
    statement = fencing.update_statement("t", {"x": 1}, key={"id": 1}, fence=3)
    assert_type(statement, fencing.UpdateStatement)
    assert_type(statement.sql, str)
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (id, x, fence)")
        db.execute("INSERT INTO t VALUES (1, 0, 0)")
        fencing.guarded_update(db, "t", {"x": 1}, key={"id": 1}, fence=3)
        with pytest.raises(ValueError, match="whole number"):
            fencing.guarded_update(db, "t", {"x": 1}, key={"id": 1}, fence="3")  # type: ignore[arg-type]


def both_faces_take_a_plain_name(locks: Locks) -> None:
    locks.locked(42)  # type: ignore[call-overload]
