"""Coroutine functions and async generators under a lock: cancelled at a loss, released at every end."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import AcquireTimeout, LeaseLost, SelfDeadlock
from lockfast.aio import AsyncLease, AsyncLocks
from lockfast.testing import FakeClock
from tests.servers.waiting import LIMIT_S, until_async

Story = Callable[[AsyncLocks, FakeClock], Coroutine[Any, Any, None]]


@pytest.fixture(params=["memory", "sqlite"])
def run_story(request: pytest.FixtureRequest, url: str, clock: FakeClock, tmp_path: Path) -> Callable[[Story], None]:
    """Run a story in an event loop of its own."""
    where = url if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"

    async def played(story: Story) -> None:
        async with asyncio.timeout(LIMIT_S), lockfast.aio.connect(where, clock=clock) as locks:
            await story(locks, clock)

    return lambda story: asyncio.run(played(story))


async def names(locks: AsyncLocks) -> list[str]:
    return [info.name for info in await locks.list()]


def test_a_coroutine_function_runs_under_the_lock_of_its_arguments(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, _: FakeClock) -> None:
        @locks.locked("job:{job_id}", lease_as="lease")
        async def run(job_id: int, *, lease: AsyncLease) -> tuple[list[str], AsyncLease]:
            """Runs it."""
            return await names(locks), lease

        held, lease = await run(7)
        assert held == ["job:7"]
        assert isinstance(lease, AsyncLease)
        assert await names(locks) == []
        assert inspect.iscoroutinefunction(run)
        assert (run.__name__, run.__doc__) == ("run", "Runs it.")

    run_story(story)


def test_methods_of_every_kind_can_be_decorated(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, _: FakeClock) -> None:
        class Shop:
            id = 7

            @locks.locked("shop:{self.id}")
            async def method(self) -> list[str]:
                return await names(locks)

            @locks.locked("class:{cls.__name__}")
            @classmethod
            async def outer_class(cls) -> list[str]:
                return await names(locks)

            @locks.locked("static:{item}")
            @staticmethod
            async def outer_static(item: str) -> list[str]:
                return await names(locks)

        assert await Shop().method() == ["shop:7"]
        assert await Shop.outer_class() == ["class:Shop"]
        assert await Shop.outer_static("a") == ["static:a"]

    run_story(story)


def _plain() -> None: ...
def _items() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [_plain, _items, functools.partial(_plain), staticmethod(_plain)])
def test_what_is_not_asynchronous_is_refused_when_decorating(url: str, function: Any) -> None:
    locks = lockfast.aio.connect(url)
    for decorate in (locks.locked, locks.singleton):
        with pytest.raises(TypeError, match=r"is not asynchronous; decorate it with the locks of lockfast\.connect"):
            decorate("job")(function)


def test_what_cannot_work_is_refused_when_decorating(url: str) -> None:
    async def run(job_id: int) -> None: ...
    async def items() -> AsyncIterator[int]:
        yield 1

    locks = lockfast.aio.connect(url)
    with pytest.raises(ValueError, match="names 'id'"):
        locks.locked("job:{id}")(run)
    with pytest.raises(ValueError, match="makes no sense"):
        locks.singleton("job", wait=5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="yields nothing when it is skipped"):
        locks.singleton("job", default=0)(items)  # type: ignore[arg-type]


def test_a_coroutine_is_cancelled_when_the_lease_is_lost(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, clock: FakeClock) -> None:
        ended: list[str] = []

        @locks.locked("job", renew=False, ttl=10)
        async def run() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        running = asyncio.create_task(run())
        await until_async(lambda: locks.lock("job").locked())
        await until_async(lambda: _true(clock.sleepers > 0))
        clock.advance(10)
        with pytest.raises(LeaseLost):
            await running
        assert ended == ["cancelled"]

    run_story(story)


async def _true(value: bool) -> bool:
    return value


def test_a_singleton_skips_and_is_kept_for_its_time(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, clock: FakeClock) -> None:
        @locks.singleton("cron:{task}", default="skipped", min_hold=60)
        async def run(task: str) -> str:
            return f"did {task}"

        @locks.singleton("cron:{task}")
        async def items(task: str) -> AsyncIterator[int]:
            yield 1

        async with locks.lock("cron:daily"):
            assert await run("daily") == "skipped"
            assert [item async for item in items("daily")] == []
        assert await run("daily") == "did daily"
        clock.advance(59)
        assert await run("daily") == "skipped"
        clock.advance(1)
        assert await run("daily") == "did daily"

    run_story(story)


def test_a_timeout_that_the_body_raises_is_not_taken_for_a_skip(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, _: FakeClock) -> None:
        @locks.singleton("job")
        async def busy() -> None:
            raise AcquireTimeout("mine")

        @locks.singleton("job")
        async def busy_items() -> AsyncIterator[int]:
            yield 1
            raise AcquireTimeout("mine")

        with pytest.raises(AcquireTimeout, match="mine"):
            await busy()
        with pytest.raises(AcquireTimeout, match="mine"):
            [item async for item in busy_items()]
        async with locks.lock("other"):
            with pytest.raises(AcquireTimeout):
                await locks.locked("other", wait=0)(busy)()

    run_story(story)


def test_recursion_is_an_error_at_once_unless_the_lock_is_reentrant(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, _: FakeClock) -> None:
        async def down(count: int) -> int:
            return 0 if count == 0 else 1 + await again(count - 1)

        again = locks.locked("job")(down)
        with pytest.raises(SelfDeadlock, match="'job' is held by the `with` block around this very call"):
            await again(3)
        again = locks.locked("job", reentrant=True)(down)
        assert await again(3) == 3
        assert await names(locks) == []

    run_story(story)


# Async generators


def test_an_async_generator_holds_the_lock_while_it_is_iterated(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, _: FakeClock) -> None:
        @locks.locked("items:{first}")
        async def items(first: int) -> AsyncIterator[int]:
            yield first
            yield first + 1

        running = items(5)
        assert inspect.isasyncgenfunction(items)
        assert await names(locks) == []
        assert await anext(running) == 5
        assert await names(locks) == ["items:5"]
        assert [item async for item in running] == [6]
        assert await names(locks) == []

    run_story(story)


@pytest.mark.parametrize("ending", ["aclose", "athrow"])
def test_an_async_generator_that_is_ended_early_ends_under_the_lock_and_releases_it(
    run_story: Callable[[Story], None], ending: str
) -> None:
    async def story(locks: AsyncLocks, _: FakeClock) -> None:
        held_at_the_end: list[str] = []

        @locks.locked("items")
        async def items() -> Any:
            try:
                yield 1
            finally:
                held_at_the_end.extend(await names(locks))

        running = items()
        await anext(running)
        if ending == "aclose":
            await running.aclose()
        else:
            with pytest.raises(LookupError):
                await running.athrow(LookupError("mine"))
        assert held_at_the_end == ["items"]
        assert await names(locks) == []  # at once, not some time later

    run_story(story)


def test_an_async_generator_can_be_sent_values_and_errors(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, _: FakeClock) -> None:
        @locks.locked("items")
        async def items() -> Any:
            got = yield "first"
            try:
                yield got
            except LookupError as error:
                yield str(error)

        running = items()
        assert await anext(running) == "first"
        assert await running.asend("sent") == "sent"
        assert await running.athrow(LookupError("thrown")) == "thrown"
        with pytest.raises(StopAsyncIteration):
            await anext(running)

    run_story(story)


def test_an_async_generator_is_cancelled_when_the_lease_is_lost_while_it_works(
    run_story: Callable[[Story], None],
) -> None:
    async def story(locks: AsyncLocks, clock: FakeClock) -> None:
        @locks.locked("items", renew=False, ttl=10)
        async def items() -> AsyncGenerator[int, None]:
            yield 1
            await asyncio.Event().wait()

        async def iterate() -> None:
            async with aclosing(items()) as running:
                async for _ in running:
                    pass

        task = asyncio.create_task(iterate())
        await until_async(lambda: locks.lock("items").locked())
        await until_async(lambda: _true(clock.sleepers > 0))
        clock.advance(10)
        with pytest.raises(LeaseLost):
            await task
        assert task.cancelling() == 0

    run_story(story)


def test_a_loss_between_two_items_is_raised_to_the_caller_that_iterates(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, clock: FakeClock) -> None:
        @locks.locked("items", renew=False, ttl=10, lease_as="lease")
        async def items(lease: AsyncLease) -> AsyncGenerator[AsyncLease, None]:
            while True:
                yield lease

        async with aclosing(items()) as running:
            lease = await anext(running)
            await until_async(lambda: _true(clock.sleepers > 0))
            clock.advance(10)
            await until_async(lambda: _true(lease._state == "lost"))  # the caller is not cancelled: it is no generator
            await asyncio.sleep(0)
            with pytest.raises(LeaseLost):
                await anext(running)

    run_story(story)


def test_an_async_generator_may_release_its_lease_early(run_story: Callable[[Story], None]) -> None:
    async def story(locks: AsyncLocks, _: FakeClock) -> None:
        @locks.locked("items", lease_as="lease")
        async def items(lease: AsyncLease) -> AsyncIterator[int]:
            yield 1
            await lease.release()
            yield 2
            yield 3

        assert [item async for item in items()] == [1, 2, 3]

    run_story(story)


def test_an_async_generator_that_enters_again_leaves_what_is_around_it_its_guard(
    run_story: Callable[[Story], None],
) -> None:
    async def story(locks: AsyncLocks, clock: FakeClock) -> None:
        @locks.locked("items", reentrant=True)
        async def items() -> AsyncIterator[int]:
            yield 1

        async def iterate() -> None:
            async with locks.lock("items", reentrant=True, renew=False, ttl=10):
                assert [item async for item in items()] == [1]
                await until_async(lambda: _true(clock.sleepers > 0))
                asyncio.get_running_loop().call_soon(clock.advance, 10)
                await asyncio.Event().wait()

        with pytest.raises(LeaseLost):
            await iterate()

    run_story(story)
