"""SelfDeadlock where it is certain, and nowhere else: what threads, tasks and frameworks of users look like."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import lockfast
from lockfast import Lease, Lock, Locks, SelfDeadlock, aio
from tests.servers.waiting import LIMIT_S, until, until_async


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with lockfast.connect(url) as locks:
        yield locks


def dependency(lock: Lock) -> Iterator[None]:
    """As frameworks know them: each step may run in another thread."""
    with lock:
        yield


def test_a_thread_of_a_pool_that_serves_another_request_waits_for_the_first_one(locks: Locks) -> None:
    lock = locks.lock("seat")
    with ThreadPoolExecutor(1) as pool:
        first, second = dependency(lock), dependency(locks.lock("seat"))
        pool.submit(next, first).result(LIMIT_S)
        waiting = pool.submit(next, second)
        until(lambda: locks.inspect("seat").waiters == 1, "the second request to wait")
        assert next(first, "over") == "over"
        waiting.result(LIMIT_S)
        assert next(second, "over") == "over"
    assert not locks.inspect("seat").locked


def test_a_thread_of_a_pool_that_acquires_once_more_waits(locks: Locks) -> None:
    with ThreadPoolExecutor(1) as pool:
        lease = pool.submit(locks.lock("seat").acquire).result(LIMIT_S)
        waiting = pool.submit(locks.lock("seat").acquire)
        until(lambda: locks.inspect("seat").waiters == 1, "the second acquire to wait")
        assert lease is not None
        lease.release()
        assert waiting.result(LIMIT_S)


def test_a_task_waits_for_what_a_blocking_body_of_another_task_holds(url: str, locks: Locks) -> None:
    async def hold(entered: asyncio.Event, leave: asyncio.Event) -> None:
        with locks.lock("seat"):
            entered.set()
            await leave.wait()

    async def story() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()
        holder = asyncio.create_task(hold(entered, leave))
        await entered.wait()
        async with aio.connect(url) as others:
            waiter = asyncio.create_task(others.lock("seat").acquire())
            await until_async(lambda: locks.inspect("seat").waiters == 1, "the task to wait")
            leave.set()
            lease = await waiter
            assert lease is not None
            assert lease.held
        await holder

    asyncio.run(story())


def test_a_task_in_a_blocking_body_of_its_own_does_not_wait_for_it(url: str, locks: Locks) -> None:
    async def story() -> None:
        async with aio.connect(url) as others:
            with locks.lock("seat"), pytest.raises(SelfDeadlock):
                await others.lock("seat").acquire()

    asyncio.run(story())


def test_a_blocking_wait_in_the_body_of_a_task_would_stop_its_loop(url: str, locks: Locks) -> None:
    async def story() -> None:
        async with aio.connect(url) as others, others.lock("seat"):
            with pytest.raises(SelfDeadlock):
                locks.lock("seat").acquire()

    asyncio.run(story())


def test_a_task_may_wait_for_the_body_in_which_its_loop_runs(url: str, locks: Locks) -> None:
    """The loop may end without it."""

    async def story(lease: Lease) -> None:
        async with aio.connect(url) as others:
            waiter = asyncio.create_task(others.lock("seat").acquire())
            await until_async(lambda: locks.inspect("seat").waiters == 1, "the task to wait")
            lease.release()
            assert await waiter

    with locks.lock("seat") as lease:
        asyncio.run(story(lease))


if sys.version_info >= (3, 12):

    def test_a_task_that_starts_at_once_is_not_the_body_that_started_it(url: str) -> None:
        async def story() -> None:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            async with aio.connect(url) as locks:
                async with locks.lock("seat"):
                    waiter = asyncio.create_task(locks.lock("seat").acquire())
                assert await waiter

        asyncio.run(story())


def test_a_lock_that_a_stack_of_contexts_has_entered_is_no_body_of_its_caller(locks: Locks) -> None:
    """Such a stack can be handed on, so another thread may leave it."""
    with ThreadPoolExecutor(1) as pool:
        stack = ExitStack()
        pool.submit(stack.enter_context, locks.lock("seat")).result(LIMIT_S)
        waiting = pool.submit(locks.lock("seat").acquire)
        until(lambda: locks.inspect("seat").waiters == 1, "the pool to wait")
        stack.close()
        assert waiting.result(LIMIT_S)


class Large:
    pass


@pytest.mark.slow
def test_a_stack_of_contexts_keeps_no_call_alive(locks: Locks) -> None:
    stack = ExitStack()

    def enter() -> weakref.ref[Large]:
        large = Large()
        stack.enter_context(locks.lock("seat"))
        stack.enter_context(locks.all("row", "desk"))
        return weakref.ref(large)

    left = enter()
    gc.collect()
    assert left() is None
    stack.close()


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["released", "lost"])
def test_a_lease_that_is_kept_keeps_no_call_alive(locks: Locks, ends: str) -> None:
    kept: list[Lease] = []

    def work() -> weakref.ref[Large]:
        large = Large()
        with pytest.raises(lockfast.LeaseLost) if ends == "lost" else ExitStack(), locks.lock("seat") as lease:
            kept.append(lease)
            if ends == "lost":
                locks.break_lock("seat")
        return weakref.ref(large)

    left = work()
    gc.collect()
    assert left() is None
