"""`lockfast.aio` as a type checker sees it: the same, awaited."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, assert_type

import lockfast
from lockfast import Diagnosis, LockInfo
from lockfast.aio import AsyncLease, AsyncLock, AsyncLocks, AsyncMultiLease


async def connecting_gives_locks() -> None:
    plain = lockfast.aio.connect("memory://typing-aio")
    assert_type(plain, AsyncLocks)
    assert_type(plain.holder, str)
    await plain.close()
    retry = lockfast.Backoff(0.1, cap=2)
    async with lockfast.aio.connect("memory://typing-aio", holder="worker-7", patience=5, retry=retry) as locks:
        assert_type(locks, AsyncLocks)
        assert_type(locks.lock("order:42", renew_every=5, max_hold=timedelta(hours=1)), AsyncLock)
        locks.locked("order:{id}", renew_every=5, max_hold=3600)


async def entering_gives_the_lease(locks: AsyncLocks) -> None:
    async with locks.lock("order:42", ttl=timedelta(seconds=30), wait=30) as lease:
        assert_type(lease, AsyncLease)
        assert_type(lease.name, str)
        assert_type(lease.fence, int)
        assert_type(lease.holder, str)
        assert_type(lease.claim_id, str)
        assert_type(lease.acquired_at, float)
        assert_type(lease.expires_at, float)
        assert_type(lease.ttl, float)
        assert_type(lease.metadata, Any)
        assert_type(lease.held, bool)
        assert_type(lease.lost, bool)
        assert_type(lease.remaining, float)
        lease.check()
        assert_type(await lease.extend(), None)
        assert_type(await lease.extend(60), None)
        assert_type(await lease.release(), bool)


async def acquiring_may_give_none(locks: AsyncLocks) -> None:
    lock = locks.lock("order:42")
    assert_type(lock, AsyncLock)
    lease = await lock.acquire(timeout=10)
    assert_type(lease, AsyncLease | None)
    if lease is not None:
        assert_type(lease, AsyncLease)
    assert_type(await lock.acquire(False), AsyncLease | None)
    assert_type(await lock.locked(), bool)
    await lock.release()


async def a_loss_is_passed_to_a_function_or_a_coroutine(locks: AsyncLocks) -> None:
    async def lost(lease: AsyncLease) -> None:
        assert_type(lease.fence, int)

    assert_type(locks.lock("order:42", on_lost=lost), AsyncLock)
    assert_type(locks.lock("order:42", on_lost=lambda lease: lease.name), AsyncLock)


async def looking_from_outside(locks: AsyncLocks) -> None:
    assert_type(await locks.inspect("order:42"), LockInfo)
    assert_type(await locks.list(prefix="order:"), list[LockInfo])
    assert_type(await locks.break_lock("order:42"), LockInfo)
    assert_type(await locks.doctor(), Diagnosis)


async def an_integer_is_a_key_of_advisory_locks(locks: AsyncLocks) -> None:
    assert_type(locks.lock(42), AsyncLock)
    assert_type(await locks.inspect(42), LockInfo)
    assert_type(await locks.break_lock(42), LockInfo)
    locks.cell(42)  # type: ignore[arg-type]


async def a_stack_takes_locks(locks: AsyncLocks) -> None:
    async with AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(locks.lock("stack")), AsyncLease)
        assert_type(await stack.enter_async_context(locks.all("stack:1", "stack:2")), AsyncMultiLease)
        assert_type(await stack.enter_async_context(locks.election("stack:3")), AsyncLease)


def test_the_awaited_api_is_typed_like_the_other() -> None:
    async def all_of_it() -> None:
        await connecting_gives_locks()
        async with lockfast.aio.connect("memory://typing-aio") as locks:
            await entering_gives_the_lease(locks)
            await acquiring_may_give_none(locks)
            await a_loss_is_passed_to_a_function_or_a_coroutine(locks)
            await looking_from_outside(locks)
            await a_stack_takes_locks(locks)

    asyncio.run(all_of_it())
