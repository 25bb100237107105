"""Each `with` ends what it entered itself, however it is entered and in whatever order the blocks end."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, aclosing, suppress
from typing import Any
from weakref import ref

import pytest

import lockfast
from lockfast import Lease, Locks
from lockfast._reentry import drive
from lockfast.aio import AsyncLease, AsyncLocks
from lockfast.primitives import statement
from tests.servers.waiting import LIMIT_S, join, until, until_async

Made = Callable[[Locks], AbstractContextManager[Any]]


@pytest.fixture
def locks() -> Iterator[Locks]:
    with lockfast.connect("memory://") as locks:
        yield locks


MADE: dict[str, Made] = {
    "lock": lambda locks: locks.lock("a", ttl=600),
    "reentrant": lambda locks: locks.lock("a", ttl=600, reentrant=True),
    "permit": lambda locks: locks.semaphore("a", 1, ttl=600),
    "reader": lambda locks: locks.rwlock("a", ttl=600).read(),
    "several": lambda locks: locks.all("a", "b", ttl=600),
    "leader": lambda locks: locks.election("a", ttl=600),
}


def entered_and_cut_short(made: AbstractContextManager[Any]) -> Any:
    """As by an interrupt that comes before the first instruction of `__exit__`."""
    entered = None

    def interrupted(work: Coroutine[Any, Any, Any], *_: object) -> None:
        work.close()
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        with made as entered:
            patch.setattr(statement, "drive", interrupted)  # the first that `__exit__` calls
        pytest.fail("it was not interrupted")
    return entered


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
        async with lockfast.aio.connect("memory://") as locks:
            await story(locks)

    asyncio.run(main())


def test_a_block_that_is_over_before_its_exit_could_begin_ends_its_lease(
    made: AbstractContextManager[Any], locks: Locks
) -> None:
    lease = entered_and_cut_short(made)
    until(lambda: not lease.held)
    until(lambda: not any(info.holders for info in locks.list()))


def test_a_caller_interrupted_on_entry_can_take_the_lock_again_and_does_not_wait_for_itself(
    made: AbstractContextManager[Any],
) -> None:
    lease = entered_and_cut_short(made)
    with made as again:
        assert again is not lease
        assert again.held
    assert not again.held


def test_a_caller_interrupted_in_an_inner_block_goes_on_in_the_outer_one(locks: Locks) -> None:
    lock = locks.lock("a", ttl=600, reentrant=True)
    with lock as lease:
        assert entered_and_cut_short(lock) is lease
        assert lease._depth == 1
        assert lease.held
    assert not locks.inspect("a").locked


def test_what_is_about_to_end_is_not_entered_again(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, engine = locks.lock("a", ttl=600, reentrant=True), locks._logic.engine
    put_off: list[Any] = []
    monkeypatch.setattr(engine, "put_off", put_off.append)
    lease = entered_and_cut_short(lock)
    assert lock.acquire(blocking=False) is None
    [end] = put_off
    drive(end)
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
        async with lockfast.aio.connect("memory://") as locks:
            for made in (locks.lock("a"), locks.all("a", "b"), locks.election("a")):
                async with AsyncExitStack() as stack:
                    lease: Any = await stack.enter_async_context(made)
                    assert lease.held
                assert not lease.held

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


class Wrapper:
    """Looks `__enter__` and `__exit__` up once, and uses them for many blocks."""

    def __init__(self, made: AbstractContextManager[Any]) -> None:
        self._leave = made.__exit__
        self._enter = made.__enter__

    def __enter__(self) -> Any:
        return self._enter()

    def __exit__(self, *exc: Any) -> None:
        self._leave(*exc)


def test_what_was_looked_up_once_ends_each_block_that_it_is_used_for(
    made: AbstractContextManager[Any], locks: Locks
) -> None:
    wrapper = Wrapper(made)
    for _ in range(3):
        with wrapper as lease:
            assert lease.held
        assert not lease.held
    assert not any(info.holders for info in locks.list())


def test_what_was_looked_up_once_does_not_end_the_block_of_another_thread(locks: Locks) -> None:
    wrapper = Wrapper(locks.semaphore("pool", 3, ttl=600))

    def other() -> None:
        with wrapper:
            pass

    with wrapper as lease:
        thread = threading.Thread(target=other)
        thread.start()
        join(thread)
        assert lease.held
    assert not locks.inspect("pool").locked


def test_a_lease_does_not_depend_on_what_was_looked_up_before_it_was_entered(
    made: AbstractContextManager[Any],
) -> None:
    looked_up = inspect.getmembers(made)
    with ExitStack() as stack:
        lease = stack.enter_context(made)
        del looked_up
        assert made.__exit__ is not None
        leave = made.__exit__
        del leave
        assert lease.held
        assert statement._found[threading.get_ident()][0]() is None
    assert not lease.held


class Handled(statement._Exit):
    """Runs a handler after `__exit__` was looked up, as a signal or the garbage collector may."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[[], object]) -> None:
        super().__init__(statement._leave, statement._leave_last)
        self.handler: Callable[[], object] | None = handler

    def __get__(self, lock: Any, cls: type) -> Any:
        if lock is None:
            return super().__get__(lock, cls)
        leave = statement._find(lock._logic, self._leave, sys._getframe(1))
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        return leave


@pytest.mark.parametrize("by", ["stack", "hand", "with"])
def test_a_handler_that_uses_the_same_lock_before_it_is_entered_changes_nothing(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    permits = locks.semaphore("pool", 3, ttl=600)

    def handler() -> None:
        if by == "stack":
            with ExitStack() as stack:
                stack.enter_context(permits)
        elif by == "with":
            with permits:
                pass
        else:
            permits.__enter__()
            permits.__exit__(None, None, None)

    monkeypatch.setattr(statement.Exits, "__exit__", Handled(handler))
    with permits as lease:
        assert lease.held
    assert not lease.held
    assert not locks.inspect("pool").locked


def test_a_collected_cycle_keeps_its_lease_to_the_end_of_its_body(locks: Locks) -> None:
    """The collector calls back for what is gone before it closes a generator, whose body still runs then."""
    lock, held = locks.lock("a", ttl=600), []

    def block() -> Generator[None]:
        with lock as lease:
            try:
                yield
            finally:
                held.append(lease.held)

    cycle: list[Any] = [block()]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert held == [True]
    until(lambda: not locks.inspect("a").locked)


def test_a_lock_whose_exit_was_only_looked_up_keeps_nothing_alive() -> None:
    locks = lockfast.connect("memory://")
    assert hasattr(locks.lock("a"), "__exit__")
    engine = ref(locks._logic.engine)
    locks.close()
    del locks
    gc.collect()
    assert engine() is None


def test_a_block_that_is_over_keeps_its_lock_alive_no_longer() -> None:
    locks = lockfast.connect("memory://")
    with locks.lock("a"):
        pass
    engine = ref(locks._logic.engine)
    locks.close()
    del locks
    until(lambda: gc.collect() >= 0 and engine() is None)  # its keeper ends in a thread of its own


def test_the_exit_of_a_lock_can_be_inspected() -> None:
    for kind in (lockfast.Lock, lockfast.MultiLock, lockfast.Election):
        assert list(inspect.signature(kind.__exit__).parameters) == ["self", "exc_type", "exc", "traceback"]
        assert issubclass(kind, AbstractContextManager)
