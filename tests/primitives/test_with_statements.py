"""Each `with` ends what it entered itself, however it is entered and in whatever order the blocks end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, aclosing
from typing import Any

import pytest

import holdfast
from holdfast import Lease, Locks
from holdfast.aio import AsyncLease, AsyncLocks
from tests.servers.waiting import LIMIT, until, until_async

Made = Callable[[Locks], AbstractContextManager[Any]]


@pytest.fixture
def locks() -> Iterator[Locks]:
    with holdfast.connect("memory://") as locks:
        yield locks


MADE: dict[str, Made] = {
    "lock": lambda locks: locks.lock("a", ttl=600),
    "reentrant": lambda locks: locks.lock("a", ttl=600, reentrant=True),
    "permit": lambda locks: locks.semaphore("a", 1, ttl=600),
    "reader": lambda locks: locks.rwlock("a", ttl=600).read(),
    "several": lambda locks: locks.all("a", "b", ttl=600),
    "leader": lambda locks: locks.election("a", ttl=600),
}


@pytest.fixture(params=MADE)
def made(request: pytest.FixtureRequest, locks: Locks) -> AbstractContextManager[Any]:
    return MADE[request.param](locks)


def test_blocks_that_do_not_end_last_in_first_out_end_each_its_own_lease(locks: Locks) -> None:
    permits = locks.semaphore("pool", 3)

    def block() -> Generator[Lease]:
        with permits as lease:
            yield lease

    blocks = [block() for _ in range(3)]
    leases = [next(each) for each in blocks]
    for number in (1, 0, 2):
        blocks[number].close()
        assert not leases[number].held
        assert [lease.held for lease in leases].count(True) == len(locks.inspect("pool").holders)


def test_async_blocks_of_one_task_that_do_not_end_last_in_first_out_end_each_its_own_lease() -> None:
    async def block(permits: Any) -> AsyncGenerator[AsyncLease]:
        async with permits as lease:
            yield lease

    async def story(locks: AsyncLocks) -> None:
        permits = locks.semaphore("pool", 2)
        async with aclosing(block(permits)) as first, aclosing(block(permits)) as second:
            early, late = await anext(first), await anext(second)
            await first.aclose()
            await until_async(lambda: not early.held)
            assert late.held

    async def main() -> None:
        async with holdfast.aio.connect("memory://") as locks:
            await story(locks)

    asyncio.run(main())


def test_a_block_that_is_over_before_its_exit_could_begin_ends_its_lease(
    made: AbstractContextManager[Any], locks: Locks
) -> None:
    """As an interrupt does it that comes before the first instruction of `__exit__`."""
    leave = made.__exit__
    lease = made.__enter__()
    del leave
    until(lambda: not lease.held)
    until(lambda: not any(info.holders for info in locks.list()))


def test_who_was_interrupted_there_can_have_the_lock_again_and_does_not_wait_for_itself(locks: Locks) -> None:
    lock = locks.lock("a", ttl=600)
    leave = lock.__exit__
    lease = lock.__enter__()
    del leave
    with lock as again:
        assert again.fence > lease.fence


def test_one_that_is_entered_and_left_by_hand_is_held_in_between(
    made: AbstractContextManager[Any], locks: Locks
) -> None:
    assert hasattr(made, "__exit__")  # to look is to do nothing
    lease = made.__enter__()
    assert lease.held
    assert hasattr(made, "__exit__")
    assert lease.held
    made.__exit__(None, None, None)
    assert not lease.held
    assert not any(info.holders for info in locks.list())


def test_a_stack_ends_what_it_entered(made: AbstractContextManager[Any], locks: Locks) -> None:
    with ExitStack() as stack:
        lease = stack.enter_context(made)
        assert lease.held
    assert not lease.held
    assert not any(info.holders for info in locks.list())


def test_an_async_stack_ends_what_it_entered() -> None:
    async def main() -> None:
        async with holdfast.aio.connect("memory://") as locks:
            for made in (locks.lock("a"), locks.all("a", "b"), locks.election("a")):
                async with AsyncExitStack() as stack:
                    lease: Any = await stack.enter_async_context(made)
                    assert lease.held
                assert not lease.held

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_how_a_block_is_left_can_be_looked_at() -> None:
    for kind in (holdfast.Lock, holdfast.MultiLock, holdfast.Election):
        assert list(inspect.signature(kind.__exit__).parameters) == ["self", "exc_type", "exc", "traceback"]
        assert issubclass(kind, AbstractContextManager)
