"""The worlds: signals that are never missed, `drive`, shielding, and the clock that a test moves."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Awaitable, Callable
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any

import pytest

from lockfast._reentry import start_thread
from lockfast._worlds import drive
from lockfast._worlds.asyncio_ import AsyncioWorld
from lockfast._worlds.threads import ThreadWorld
from lockfast.testing.clock import FakeClock
from lockfast.testing.simulated import SimulatedWorld, Simulation
from tests.servers.waiting import LIMIT_S, join, until

LONG = LIMIT_S  # seconds that no test waits for unless it fails


async def forty_two() -> int:
    return 42


async def fails() -> int:
    raise ZeroDivisionError


async def suspends() -> None:
    await asyncio.sleep(0)


# drive


def test_drive_runs_an_operation_to_its_end() -> None:
    assert drive(forty_two()) == 42


def test_drive_passes_errors_through() -> None:
    with pytest.raises(ZeroDivisionError):
        drive(fails())


def test_drive_refuses_what_suspends() -> None:
    with pytest.raises(RuntimeError, match="tried to suspend"):
        drive(suspends())


# Signals of threads


def test_a_signal_set_before_the_wait_is_kept_and_used_up() -> None:
    signal = ThreadWorld().signal()
    signal.set()
    signal.set()  # a flag, not a count
    assert drive(signal.wait(0))
    assert not drive(signal.wait(0))


def test_a_thread_is_woken_by_another() -> None:
    signal = ThreadWorld().signal()
    thread = threading.Timer(0.01, signal.set)
    thread.start()
    assert drive(signal.wait(LONG))
    join(thread)


def test_a_wait_without_a_limit_ends_when_set() -> None:
    signal = ThreadWorld().signal()
    thread = threading.Timer(0.01, signal.set)
    thread.start()
    assert drive(signal.wait(None))
    join(thread)


def test_a_thread_that_waits_in_vain_learns_so_after_its_time() -> None:
    assert not drive(ThreadWorld().signal().wait(0.001))


def test_a_thread_can_wait_by_a_clock_that_the_test_moves() -> None:
    clock = FakeClock()
    signal = ThreadWorld(clock).signal()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(drive(signal.wait(60))))
    thread.start()
    until(lambda: clock.sleepers, "a thread that waits by the clock")
    clock.advance(59.9)
    assert answers == []
    clock.advance(0.2)
    join(thread)
    assert answers == [False]
    assert clock.sleepers == 0


# Signals of asyncio


def run(work: Awaitable[bool]) -> bool:
    async def within() -> bool:
        async with asyncio.timeout(LONG):
            return await work

    return asyncio.run(within())


def test_an_asyncio_signal_set_before_the_wait_is_kept_and_used_up() -> None:
    async def story() -> bool:
        signal = AsyncioWorld().signal()
        signal.set()
        signal.set()
        return await signal.wait(0) and not await signal.wait(0)

    assert run(story())


def test_a_task_is_woken_by_a_task_and_by_a_thread() -> None:
    async def story() -> bool:
        signal = AsyncioWorld().signal()
        asyncio.get_running_loop().call_soon(signal.set)
        by_task = await signal.wait(None)
        threading.Thread(target=signal.set).start()
        return by_task and await signal.wait(None)

    assert run(story())


def test_a_thread_may_set_a_signal_whose_loop_is_gone() -> None:
    async def make() -> bool:
        signals.append(AsyncioWorld().signal())
        return True

    signals: list[object] = []
    run(make())
    thread = threading.Thread(target=signals[0].set)  # type: ignore[attr-defined]
    thread.start()
    join(thread)


def test_a_task_that_waits_in_vain_learns_so_after_its_time() -> None:
    async def story() -> bool:
        return await AsyncioWorld().signal().wait(0.001)

    assert not run(story())


def test_a_task_can_wait_by_a_clock_that_the_test_moves() -> None:
    async def story() -> bool:
        clock = FakeClock()
        task = asyncio.ensure_future(AsyncioWorld(clock).signal().wait(60))
        await asyncio.sleep(0)
        clock.advance(59.9)
        await asyncio.sleep(0)
        assert not task.done()
        clock.advance(0.2)
        return await task

    assert not run(story())


def test_a_cancelled_wait_leaves_the_signal_usable() -> None:
    async def story() -> bool:
        signal = AsyncioWorld().signal()
        task = asyncio.ensure_future(signal.wait(None))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        signal.set()
        return await signal.wait(0)

    assert run(story())


def test_shielded_work_is_finished_before_the_cancellation_goes_on() -> None:
    async def story() -> bool:
        world, steps = AsyncioWorld(), []

        async def work() -> None:
            for step in range(3):
                await asyncio.sleep(0)
                steps.append(step)

        task = asyncio.ensure_future(world.shielded(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled() and steps == [0, 1, 2]

    assert run(story())


def test_shielded_work_gives_its_result_and_its_error() -> None:
    async def story() -> bool:
        world = AsyncioWorld()
        with pytest.raises(ZeroDivisionError):
            await world.shielded(fails())
        return await world.shielded(forty_two()) == 42

    assert run(story())


# The simulated world keeps the same promises


@pytest.fixture
def machine() -> SimulatedWorld:
    return SimulatedWorld(Simulation(1), "machine", rate=1.005, start=100.0)


def test_a_simulated_signal_is_kept_and_a_wait_takes_no_real_time(machine: SimulatedWorld) -> None:
    async def story() -> tuple[bool, bool, float]:
        signal, started = machine.signal(), machine.now()
        signal.set()
        return await signal.wait(5.0), await signal.wait(3600.0), machine.now() - started

    kept, woken, took = machine.simulation.run_until_done(machine.task(story(), "job"), within=4000.0)
    assert (kept, woken) == (True, False)
    assert took == pytest.approx(3600.0, abs=0.01)
    assert machine.simulation.time == pytest.approx(3600.0 / 1.005, abs=0.01), "its clock runs fast"


def test_a_frozen_machine_does_nothing_and_its_clock_goes_on(machine: SimulatedWorld) -> None:
    async def story() -> float:
        await machine.pause(1.0)
        return machine.now()

    task = machine.task(story(), "job")
    machine.freeze(10.0)
    machine.simulation.run(9.9)
    assert not task.done
    assert machine.simulation.run_until_done(task) >= 100.0 + 10.0 * 1.005


def test_a_crashed_machine_does_nothing_ever_again(machine: SimulatedWorld) -> None:
    async def story() -> None:
        await machine.pause(1.0)

    task = machine.task(story(), "job")
    machine.simulation.run(0.5)
    machine.crash()
    machine.simulation.run(1000.0)
    assert not task.done
    machine.simulation.close()


# Work in the background, and interrupts


async def _note(done: list[str]) -> None:
    done.append(threading.current_thread().name)


def test_work_runs_in_a_thread_of_its_name_whichever_thread_asks() -> None:
    done: list[str] = []
    ThreadWorld().spawn(_note(done), "named-by-main")
    until(lambda: done == ["named-by-main"])
    other = threading.Thread(target=lambda: ThreadWorld().spawn(_note(done), "named-by-another"))
    other.start()
    other.join()
    until(lambda: done == ["named-by-main", "named-by-another"])


def _spawn(done: list[str]) -> None:
    ThreadWorld().spawn(_note(done), "work")


def _start_thread(done: list[str]) -> None:
    start_thread("work", lambda: done.append(threading.current_thread().name))


@pytest.mark.parametrize("begins", [True, False], ids=["after it was started", "before it was started"])
@pytest.mark.parametrize("begin", [_spawn, _start_thread])
def test_work_runs_once_though_an_interrupt_falls_into_its_start(
    begin: Callable[[list[str]], None], begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    usual, calls = _thread.start_new_thread, []

    def start(*args: Any) -> int:
        calls.append(args)
        if len(calls) > 1:
            return usual(*args)
        if begins:
            usual(*args)
            until(lambda: done)
        raise KeyboardInterrupt

    monkeypatch.setattr(_thread, "start_new_thread", start)
    with pytest.raises(KeyboardInterrupt):
        begin(done)
    until(lambda: done)
    until(lambda: all(thread.name != "work" for thread in threading.enumerate()))
    assert done == ["work"]


def test_a_thread_that_was_started_can_be_joined_though_it_has_not_begun() -> None:
    done: list[int] = []
    for number in range(20):
        start_thread("work", done.append, number).join()
    assert done == list(range(20))


def test_work_that_no_thread_can_be_started_for_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    work = _note([])
    with pytest.raises(RuntimeError, match="can't start"):
        ThreadWorld().spawn(work, "work")
    assert getcoroutinestate(work) == CORO_CLOSED


def test_work_runs_where_there_is_one_thread_left_and_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    done: list[str] = []
    ThreadWorld().spawn(_note(done), "work")
    until(lambda: len(done) == 1)


# The clock that a test moves


def test_alarms_ring_in_order_at_their_own_time() -> None:
    clock = FakeClock(100.0)
    rang: list[tuple[str, float]] = []
    clock.alarm(103.0, lambda: rang.append(("later", clock.now())))
    clock.alarm(101.0, lambda: rang.append(("sooner", clock.now())))
    clock.advance(10.0)
    assert rang == [("sooner", 101.0), ("later", 103.0)]
    assert clock.now() == 110.0


def test_an_alarm_that_is_due_rings_at_once_and_one_taken_back_never() -> None:
    clock = FakeClock()
    rang: list[str] = []
    clock.alarm(clock.now(), lambda: rang.append("due"))
    assert rang == ["due"]
    take_back = clock.alarm(clock.now() + 1, lambda: rang.append("never"))
    take_back()
    take_back()
    clock.advance(5)
    assert rang == ["due"]
    assert clock.sleepers == 0


def test_an_alarm_may_set_another_one_on_the_way() -> None:
    clock = FakeClock(0.0)
    rang: list[float] = []

    def ring() -> None:
        rang.append(clock.now())
        if len(rang) < 3:
            clock.alarm(clock.now() + 1.0, ring)

    clock.alarm(1.0, ring)
    clock.advance(2.5)
    assert rang == [1.0, 2.0]


def _advance_elsewhere(clock: FakeClock, seconds: float) -> None:
    mover = threading.Thread(target=clock.advance, args=(seconds,))
    mover.start()
    mover.join()


def test_a_thread_that_falls_asleep_after_its_time_has_come_wakes_at_once() -> None:
    clock = FakeClock()
    world = ThreadWorld(clock)
    world.now()  # from here on it computes how long to sleep
    _advance_elsewhere(clock, 60)
    assert not drive(world.signal().wait(60))
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(drive(world.signal().wait(1))), daemon=True)
    thread.start()
    until(lambda: clock.sleepers)  # a thread that has not read the clock sleeps from now on
    clock.advance(1)
    thread.join(LONG)
    assert answers == [False]


def test_a_thread_that_slept_counts_its_next_sleep_from_when_it_woke() -> None:
    clock = FakeClock()
    world = ThreadWorld(clock)
    world.now()
    _advance_elsewhere(clock, 60)
    assert not drive(world.signal().wait(60))
    assert clock.deadline(1) == clock.now() + 1


def test_a_task_that_falls_asleep_after_its_time_has_come_wakes_at_once() -> None:
    clock = FakeClock()

    async def story() -> None:
        world = AsyncioWorld(clock)
        world.now()
        _advance_elsewhere(clock, 60)
        assert not await world.signal().wait(60)
        assert clock.deadline(1) == clock.now() + 1

    asyncio.run(story())


def test_what_one_task_has_read_says_nothing_of_another() -> None:
    clock = FakeClock(100.0)

    async def read() -> None:
        clock.now()

    async def story() -> None:
        clock.now()
        _advance_elsewhere(clock, 60)
        await asyncio.create_task(read())
        assert clock.deadline(1) == 101.0

    asyncio.run(story())


def test_one_that_the_clock_has_woken_counts_as_waking_until_it_is_up() -> None:
    clock = FakeClock()
    up = clock.alarm(clock.now() + 1, lambda: None)
    assert (clock.sleepers, clock.waking) == (1, 0)
    clock.advance(1)
    assert (clock.sleepers, clock.waking) == (0, 1)
    up()
    assert (clock.sleepers, clock.waking) == (0, 0)
    late = clock.alarm(clock.now(), lambda: None)
    assert (clock.sleepers, clock.waking) == (0, 1)
    late()
    assert clock.waking == 0
