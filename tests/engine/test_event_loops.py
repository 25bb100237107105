"""Nothing outside stops the renewal of what asyncio holds: not who cancels all tasks, not who closes the loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

import lockfast.aio
from lockfast import LeaseLost, LockError, LockInfo
from lockfast._worlds.asyncio_ import AsyncioWorld, background_tasks
from lockfast.aio import AsyncLease, AsyncLocks
from lockfast.testing.clock import FakeClock
from tests.contract.backends import BACKENDS
from tests.renewals import renew_async, renewal_state
from tests.servers.waiting import until_async

F = TypeVar("F", bound=Callable[..., None])

HOUR = 3600
ROWS = {row.name: row for row in BACKENDS if not row.chapters}  # the others repeat one of these in another set-up


@pytest.fixture(
    params=[name if name in ("memory", "sqlite") else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ROWS[request.param].url(tmp_path)


@contextlib.contextmanager
def loop_that_is_just_closed() -> Iterator[asyncio.AbstractEventLoop]:
    """As old code and some servers do it: what still runs in it is neither cancelled nor awaited."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


async def take(locks: AsyncLocks, name: str, **options: Any) -> AsyncLease:
    lease = await locks.lock(name, ttl=HOUR, **options).acquire()
    assert lease is not None
    return lease


async def cancel_all_others() -> None:
    """What a program does that ends in good order."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def never() -> None:
    await asyncio.get_running_loop().create_future()


# All tasks are cancelled


def test_what_is_held_is_renewed_after_all_tasks_were_cancelled() -> None:
    clock = FakeClock()

    async def main() -> None:
        async with lockfast.aio.connect(f"memory://{uuid4().hex}", clock=clock) as locks:
            lease = await locks.lock("x", ttl=30).acquire()
            assert lease is not None
            for _ in range(20):
                await cancel_all_others()
                await until_async(lambda: clock.next_alarm is not None, "the keeper to sleep")
                clock.advance(10)
                await until_async(lambda: lease._deadline >= clock.now() + 30, "a renewal")
            assert lease.held

    asyncio.run(main())


def test_a_caller_that_waits_for_all_tasks_to_end_does_not_wait_for_ours(url: str) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await take(locks, "x")
            waiting = asyncio.create_task(take(locks, "x"))
            await until_async(lambda: _waits(locks), "one to wait")
            await cancel_all_others()
            assert waiting.cancelled()
            await renew_async(lease)
            assert await lease.release()
            assert (await locks.inspect("x")) == LockInfo("x")

    asyncio.run(main())


async def _waits(locks: AsyncLocks) -> bool:
    return (await locks.inspect("x")).waiters > 0


def test_a_request_goes_on_while_all_other_tasks_are_cancelled(url: str) -> None:
    """Connections are made by tasks of our own."""

    async def main(steps: int) -> bool:
        async with lockfast.aio.connect(url) as locks:
            asking = asyncio.create_task(take(locks, "x"))
            for _ in range(steps):
                await asyncio.sleep(0)
            done = asking.done()
            for task in asyncio.all_tasks() - {asyncio.current_task(), asking}:
                task.cancel()
            lease = await asking
            assert lease.held
            await lease.release()
            return done

    for number in itertools.count():
        # Each of the first steps, then wider apart: how many a connection takes depends on how busy the machine is.
        steps = number if number < 100 else int(1.05**number)
        if asyncio.run(main(steps)):
            break


def test_an_interrupt_that_falls_into_the_keeper_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `asyncio.run` it is raised in whichever task runs."""
    with loop_that_is_just_closed() as loop:
        locks = lockfast.aio.connect(f"memory://{uuid4().hex}")
        lease = loop.run_until_complete(take(locks, "x"))
        engine = locks._logic.engine
        inspect = engine.keeper.inspect

        def interrupted(now: float) -> None:
            monkeypatch.setattr(engine.keeper, "inspect", inspect)
            raise KeyboardInterrupt

        monkeypatch.setattr(engine.keeper, "inspect", interrupted)
        engine.keeper.loop.poke()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(never())
        assert engine.keeper.loop.signal is not None, "another goes on"
        loop.run_until_complete(renew_async(lease))
        loop.run_until_complete(locks.close())


def test_a_keeper_that_fails_reports_the_loss_to_every_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []

    async def main() -> None:
        async with lockfast.aio.connect(f"memory://{uuid4().hex}") as locks:
            lease = await take(locks, "x", on_lost=lambda lease: reported.append(lease.name))
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)

            def fails(now: float) -> None:
                raise ZeroDivisionError("a mistake of ours")

            monkeypatch.setattr(locks._logic.engine.keeper, "inspect", fails)
            locks._logic.engine.keeper.loop.poke()
            await until_async(lambda: reported)
            with pytest.raises(LeaseLost, match="renewing failed: ZeroDivisionError: a mistake of ours"):
                lease.check()

    asyncio.run(main())
    assert reported == ["x"]


# The loop is closed


@pytest.fixture
def connections_may_be_left_open() -> Iterator[None]:
    """When a loop is closed before its locks, Python warns of that, and rightly."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def just_closed(test: F) -> F:
    ignored = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    marked: F = pytest.mark.usefixtures("connections_may_be_left_open")(pytest.mark.filterwarnings(*ignored)(test))
    return marked


@just_closed
def test_what_was_held_when_the_loop_was_closed_is_renewed_in_the_next_one(url: str) -> None:
    locks = lockfast.aio.connect(url)
    with loop_that_is_just_closed() as loop:
        lease = loop.run_until_complete(take(locks, "x"))

    async def main() -> None:
        other = await take(locks, "y")
        await renew_async(other)
        if lease.lost:  # it ended with the connection that the loop had
            assert "advisory" in url
        else:
            await renew_async(lease)
            assert await lease.release()
        await locks.close()

    asyncio.run(main())


@just_closed
def test_leases_of_every_next_loop_are_renewed(url: str) -> None:
    locks = lockfast.aio.connect(url)
    for number in range(3):
        with loop_that_is_just_closed() as loop:
            lease = loop.run_until_complete(take(locks, f"x{number}"))
            loop.run_until_complete(renew_async(lease))
    asyncio.run(locks.close())


@pytest.mark.parametrize("first", ["extend", "release", "acquire"])
def test_whatever_is_asked_first_in_the_next_loop_what_is_held_is_renewed(first: str) -> None:
    locks = lockfast.aio.connect(f"memory://{uuid4().hex}")
    with loop_that_is_just_closed() as loop:
        leases = [loop.run_until_complete(take(locks, name)) for name in "xy"]

    async def main() -> None:
        if first == "acquire":
            await take(locks, "z")
        else:
            await getattr(leases[1], first)()
        assert [task.get_name() for task in background_tasks()] == ["lockfast-keeper"]
        await renew_async(leases[0])
        await locks.close()

    asyncio.run(main())


@just_closed
def test_a_body_whose_loop_was_closed_has_lost_its_lock(url: str) -> None:
    """It never goes on, so nothing would ever release it."""
    lost: list[str] = []
    locks = lockfast.aio.connect(url)
    entered: list[AsyncLease] = []

    async def hold() -> None:
        async with locks.lock("x", ttl=HOUR, on_lost=lambda lease: lost.append(lease.name)) as lease:
            entered.append(lease)
            await never()

    async def enter() -> asyncio.Task[None]:
        holding = asyncio.create_task(hold())
        await until_async(lambda: entered)
        return holding

    with loop_that_is_just_closed() as loop:
        holding = loop.run_until_complete(enter())
        holding._log_destroy_pending = False  # type: ignore[attr-defined]

    async def main() -> None:
        assert await locks.lock("y").acquire()
        await until_async(lambda: lost == ["x"])
        with pytest.raises(LeaseLost):
            entered[0].check()
        await locks.close()

    asyncio.run(main())


@just_closed
def test_a_waiter_in_a_loop_that_was_closed_leaves_the_queue(url: str) -> None:
    async def wait() -> asyncio.Task[AsyncLease]:
        waiting = asyncio.create_task(take(locks, "x", wait=HOUR))
        await until_async(lambda: _waits(locks), "one to wait")
        return waiting

    with lockfast.connect(url) as others:
        others.lock("x", ttl=HOUR).acquire()
        locks = lockfast.aio.connect(url)
        with loop_that_is_just_closed() as loop:
            waiting = loop.run_until_complete(wait())
            waiting._log_destroy_pending = False  # type: ignore[attr-defined]

        async def main() -> None:
            assert await locks.lock("y").acquire()
            await until_async(lambda: not others.inspect("x").waiters, "the queue to be empty")
            await locks.close()

        asyncio.run(main())


def test_a_loop_that_is_closed_does_not_complain_of_our_tasks(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        locks = lockfast.aio.connect(f"memory://{uuid4().hex}")
        lease = await take(locks, "x")
        await lease.release()
        assert background_tasks()

    with loop_that_is_just_closed() as loop:
        loop.run_until_complete(use())
    gc.collect()
    assert caplog.records == []


def test_background_work_that_its_loop_never_began_is_closed_without_a_complaint() -> None:
    """As where another thread starts it, or the last step of a program that is over."""
    begun: list[str] = []

    async def work(where: str) -> None:
        begun.append(where)

    async def arrive() -> None:
        world.arrive()

    def last_step() -> None:
        world.spawn(work("in its last step"), "never")
        loop.stop()

    world = AsyncioWorld()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with loop_that_is_just_closed() as loop:
            loop.run_until_complete(arrive())
            loop.call_soon(last_step)
            loop.run_forever()
            world.spawn(work("from a thread"), "never")  # no loop runs here
        world._tasks.clear()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert begun == []


def test_a_second_loop_beside_the_first_is_refused_before_anything_is_sent(url: str) -> None:
    async def use(locks: AsyncLocks, lease: AsyncLease) -> None:
        for ask in (locks.lock("y").acquire, lease.extend, lease.release):
            with pytest.raises(RuntimeError, match="another event loop"):
                await ask()

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await take(locks, "x")
            await asyncio.to_thread(asyncio.run, use(locks, lease))
            assert lease.held
            assert not (await locks.inspect("y")).locked

    asyncio.run(main())


@pytest.mark.parametrize("question", ["inspect", "list"])
def test_a_question_is_enough_to_be_kept_in_the_next_loop_and_refused_beside_a_living_one(question: str) -> None:
    locks = lockfast.aio.connect(f"memory://{uuid4().hex}")
    with loop_that_is_just_closed() as loop:
        lease = loop.run_until_complete(take(locks, "x"))

        async def ask_once() -> None:
            await getattr(locks, question)(*(["x"] if question == "inspect" else []))

        async def beside() -> None:
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, ask_once())

        loop.run_until_complete(beside())

    async def main() -> None:
        await ask_once()
        assert [task.get_name() for task in background_tasks()] == ["lockfast-keeper"]
        assert lease.held
        await locks.close()

    asyncio.run(main())


def test_what_a_loop_that_was_closed_left_does_not_harm_the_next_one_when_it_is_collected() -> None:
    locks = lockfast.aio.connect(f"memory://{uuid4().hex}")
    with loop_that_is_just_closed() as loop:
        loop.run_until_complete(take(locks, "x"))
    del loop

    async def main() -> None:
        await take(locks, "y")
        keeper = locks._logic.engine.keeper
        signal = keeper.loop.signal
        gc.collect()
        await take(locks, "z")
        assert keeper.loop.signal is signal
        assert [task.get_name() for task in background_tasks()] == ["lockfast-keeper"]
        await locks.close()

    asyncio.run(main())


def test_a_callback_that_reports_a_loss_is_the_programs_own_task_and_cancelling_it_stops_no_other() -> None:
    reported: list[str] = []

    async def waits(lease: AsyncLease) -> None:
        reported.append(lease.name)
        try:
            await never()
        finally:
            reported.append(f"{lease.name} was cancelled")

    async def main() -> None:
        async with lockfast.aio.connect(f"memory://{uuid4().hex}") as locks:
            await take(locks, "x", on_lost=waits)
            await take(locks, "y", on_lost=lambda lease: reported.append(lease.name))
            await lose(locks, "x", "y")
            await until_async(lambda: reported == ["x"], "the first to be called")
            await cancel_all_others()
            await until_async(lambda: reported == ["x", "x was cancelled", "y"], "the other to be called")

    asyncio.run(main())


async def lose(locks: AsyncLocks, *names: str) -> None:
    for name in names:
        await locks.break_lock(name)
    for lease in list(locks._logic.engine.keeper.leases.values()):
        renewal_state(lease).renew_not_before(0.0)
        locks._logic.engine.keeper.reschedule(lease)


async def see_another_task() -> None:
    """As soon as there is one, before its first step."""
    for _ in itertools.count():
        if len(asyncio.all_tasks()) > 1:
            return
        await asyncio.sleep(0)


def test_a_callback_that_is_cancelled_before_it_begins_ends_as_any_task_of_the_program_does() -> None:
    begun: list[str] = []

    async def waits(lease: AsyncLease) -> None:
        begun.append(lease.name)
        await never()

    async def main() -> None:
        async with lockfast.aio.connect(f"memory://{uuid4().hex}") as locks:
            await take(locks, "x", on_lost=waits)
            await take(locks, "y", on_lost=lambda lease: begun.append(lease.name))
            await lose(locks, "x", "y")
            await see_another_task()
            await cancel_all_others()
            await until_async(lambda: begun == ["y"], "the other to be called")
        gc.collect()  # where a coroutine that was never awaited would be found

    asyncio.run(main())


def test_several_names_are_released_though_the_callback_is_cancelled_before_it_begins() -> None:
    async def waits(_: object) -> None:
        await never()

    async def main() -> None:
        async with lockfast.aio.connect(f"memory://{uuid4().hex}") as locks:
            await locks.all("x", "y", ttl=HOUR, on_lost=waits).acquire()
            await lose(locks, "x")
            await see_another_task()
            await cancel_all_others()

            async def is_free() -> bool:
                return not (await locks.inspect("y")).locked

            await until_async(is_free, "the other name to be free")

    asyncio.run(main())


def test_closing_that_is_cancelled_and_called_again_frees_what_it_took_from_a_body() -> None:
    url = f"memory://{uuid4().hex}"

    async def body(locks: AsyncLocks, inside: asyncio.Event) -> None:
        async with locks.lock("x", ttl=HOUR):
            inside.set()
            await never()

    async def main() -> None:
        locks, inside = lockfast.aio.connect(url), asyncio.Event()
        backend = locks._logic.engine.backend
        release, asked = backend.release, asyncio.Event()

        async def hangs(*_: object, **__: object) -> bool:
            asked.set()
            await never()
            return True

        running = asyncio.create_task(body(locks, inside))
        await inside.wait()
        backend.release = hangs  # type: ignore[method-assign]
        closing = asyncio.create_task(locks.close())
        await asked.wait()
        closing.cancel()
        await asyncio.wait({closing, running})
        assert isinstance(running.exception(), LeaseLost)
        backend.release = release  # type: ignore[method-assign]
        await locks.close()
        async with lockfast.aio.connect(url) as others:
            assert not (await others.inspect("x")).locked

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["redis", "redlock", "postgresql", "postgresql+advisory"])
def test_closing_while_a_connection_is_made_leaves_nothing_of_it(scheme: str) -> None:
    """Python would warn of what is open when the loop is closed, and that fails a test."""
    with socket.create_server(("127.0.0.1", 0)) as mute:

        async def main() -> None:
            others = ",127.0.0.1:1,127.0.0.1:2" if scheme == "redlock" else ""
            url = f"{scheme}://127.0.0.1:{mute.getsockname()[1]}{others}/0"
            locks = lockfast.aio.connect(url, patience=0.5)
            asking = asyncio.create_task(locks.lock("x").acquire())
            client, _ = await asyncio.to_thread(mute.accept)
            making = [task for task in background_tasks() if task.get_name() != "lockfast-keeper"]
            assert making
            with client:
                await locks.close()
                # A quorum may have begun to connect for its wake-ups meanwhile.
                making += [task for task in background_tasks() if task.get_name() == "lockfast-node"]
                assert [task.get_name() for task in making if not (task.done() or task.cancelling())] == []
                await until_async(lambda: all(task.done() for task in making), "their end")
                with pytest.raises(LockError):
                    await asking

        asyncio.run(main())
        gc.collect()
