"""Debug mode warns of locks taken in two orders, and of callers that would wait for themselves. It refuses nothing."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import lockfast
from lockfast.engine.checks import lock_order
from lockfast.engine.order import ORDER, LockOrder, LockOrderWarning
from lockfast.sync import Locks
from lockfast.testing import FakeClock
from tests.forks import child_may_take
from tests.servers.waiting import join, until


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with lockfast.connect(url, debug=True) as locks:
        yield locks


def nested(*names: str, of: Locks) -> list[int]:
    """Take these locks one inside the other; all are granted, whatever is warned of."""
    with ExitStack() as stack:
        return [stack.enter_context(of.lock(name)).fence for name in names]


def in_a_thread(work: Callable[[], object]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    join(thread)
    if failed:
        raise failed[0]


def here(above: int = 0) -> str:
    """The file and the line of the caller, that many lines further up."""
    frame = inspect.stack()[1]
    return f"{frame.filename}:{frame.lineno - above}"


# Two orders


def test_two_locks_taken_in_two_orders_are_warned_of_and_granted(locks: Locks) -> None:
    nested("a", "b", of=locks)
    with pytest.warns(LockOrderWarning, match=r"'a' is asked for .* while 'b' is held, but 'b' .* while 'a' is held"):
        assert len(nested("b", "a", of=locks)) == 2


def test_both_places_are_named_and_the_warning_points_at_the_second(locks: Locks) -> None:
    with locks.lock("a"), locks.lock("b"):
        first = here(above=1)
    with pytest.warns(LockOrderWarning) as warned:
        with locks.lock("b"), locks.lock("a"):
            second = here(above=1)
    (warning,) = warned
    text = str(warning.message)
    assert text.startswith(f"'a' is asked for at {second} while 'b' is held, but 'b' is asked for at {first} ")
    assert f"{warning.filename}:{warning.lineno}" == second


def test_three_in_a_ring_are_noticed_and_every_step_is_named(locks: Locks) -> None:
    nested("a", "b", of=locks)
    nested("b", "c", of=locks)
    with pytest.warns(LockOrderWarning) as warned:
        nested("c", "a", of=locks)
    (warning,) = warned
    steps = re.findall(r"'(.)' is asked for at \S+ while '(.)' is held", str(warning.message))
    assert steps == [("a", "c"), ("b", "a"), ("c", "b")]


def test_one_order_is_never_warned_of(locks: Locks) -> None:
    for _ in range(3):
        nested("a", "b", "c", of=locks)
        nested("a", "c", of=locks)
        nested("b", "c", of=locks)
        nested("c", of=locks)
        nested("a", of=locks)


def test_an_inversion_is_reported_once(locks: Locks) -> None:
    nested("a", "b", of=locks)
    with pytest.warns(LockOrderWarning):
        nested("b", "a", of=locks)
    nested("b", "a", of=locks)
    nested("a", "b", of=locks)


def test_what_was_released_before_is_no_order(locks: Locks) -> None:
    nested("a", of=locks)
    nested("b", of=locks)
    nested("b", "a", of=locks)


def test_what_was_lost_is_no_order(url: str) -> None:
    clock = FakeClock()
    with lockfast.connect(url, debug=True, clock=clock) as locks:
        nested("a", "b", of=locks)
        lease = locks.lock("b", ttl=10, renew=False).acquire()
        clock.advance(10)
        nested("a", of=locks)
        assert lease is not None
        assert lease.lost


def test_what_was_tried_for_counts_too(locks: Locks) -> None:
    with locks.lock("a"):
        assert locks.lock("b").acquire(blocking=False)
    with pytest.warns(LockOrderWarning, match="'a' is asked for .* while 'b' is held"):
        nested("a", of=locks)


def test_an_order_across_two_locks_objects_of_one_store(url: str) -> None:
    with lockfast.connect(url, debug=True) as one, lockfast.connect(url, debug=True) as two:
        with one.lock("a"), two.lock("b"):
            pass
        with pytest.warns(LockOrderWarning), one.lock("b"), two.lock("a"):
            pass


def test_an_order_across_two_stores(url: str, tmp_path: Path) -> None:
    with lockfast.connect(url, debug=True) as one, lockfast.connect(f"sqlite:///{tmp_path}/2.db", debug=True) as two:
        with one.lock("a"), two.lock("a"):  # another lock, though it has the same name
            pass
        with pytest.warns(LockOrderWarning), two.lock("a"), one.lock("a"):
            pass


def test_an_order_across_two_namespaces(url: str) -> None:
    with lockfast.connect(url, debug=True) as one, lockfast.connect(url, debug=True, namespace="other") as two:
        with one.lock("a"), two.lock("a"):
            pass
        with pytest.warns(LockOrderWarning), two.lock("a"), one.lock("a"):
            pass


def test_an_order_across_threads(locks: Locks) -> None:
    in_a_thread(lambda: nested("a", "b", of=locks))
    with pytest.warns(LockOrderWarning):
        in_a_thread(lambda: nested("b", "a", of=locks))


def test_what_another_thread_holds_is_no_order(locks: Locks) -> None:
    with locks.lock("a"):
        in_a_thread(lambda: nested("b", of=locks))
    with locks.lock("b"):
        in_a_thread(lambda: nested("a", of=locks))


def test_readers_permits_and_several_names_have_an_order_too(locks: Locks) -> None:
    with locks.rwlock("a").read(), locks.semaphore("b", 2):
        pass
    with pytest.warns(LockOrderWarning), locks.semaphore("b", 2), locks.all("c", "a"):
        pass


def test_several_names_are_always_taken_in_order(locks: Locks) -> None:
    for names in (("a", "b", "c"), ("c", "b", "a"), ("b", "a")):
        with locks.all(*names):
            pass


def test_the_warning_is_in_the_log_too(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    nested("a", "b", of=locks)
    with caplog.at_level(logging.WARNING, "lockfast"), pytest.warns(LockOrderWarning):
        nested("b", "a", of=locks)
    (record,) = caplog.records
    assert record.getMessage().startswith("lock order: 'a' is asked for at ")


def test_a_warning_made_an_error_leaves_nothing_held(locks: Locks) -> None:
    nested("a", "b", of=locks)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LockOrderWarning)
        with pytest.raises(LockOrderWarning):
            nested("b", "a", of=locks)
    assert locks.list() == []


# Waiting for oneself


def test_a_bounded_wait_for_what_one_holds_is_warned_of_and_stays_what_it_is(locks: Locks) -> None:
    with locks.lock("a"):
        with pytest.warns(LockOrderWarning, match=r"'a' is asked for at .* by a caller that holds it already"):
            assert locks.lock("a").acquire(timeout=0.01) is None


def test_a_reader_that_reads_again_may_find_a_writer_in_between(locks: Locks) -> None:
    with locks.rwlock("a").read(), pytest.warns(LockOrderWarning, match="holds it already"):
        with locks.rwlock("a", wait=1).read():
            pass


def test_a_try_for_what_one_holds_is_not_warned_of(locks: Locks) -> None:
    with locks.lock("a"):
        assert locks.lock("a").acquire(blocking=False) is None


def test_a_lock_that_is_entered_again_is_not_warned_of(locks: Locks) -> None:
    lock = locks.lock("a", reentrant=True)
    with lock, lock:
        pass


def test_another_permit_of_a_semaphore_is_not_warned_of(locks: Locks) -> None:
    with locks.semaphore("a", 2), locks.semaphore("a", 2):
        pass


# asyncio


def test_tasks_have_an_order_each_of_its_own(url: str) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url, debug=True) as locks:

            async def take(*names: str) -> None:
                async with locks.lock(names[0]), locks.lock(names[1]):
                    pass

            async with locks.lock("b"):  # held by this task, so no other is in order or out of it
                await asyncio.create_task(take("a", "c"))
            await asyncio.create_task(take("a", "b"))
            with pytest.warns(LockOrderWarning, match=f"{re.escape(__file__)}:.*{re.escape(__file__)}:"):
                await asyncio.create_task(take("b", "a"))

    asyncio.run(story())


def test_an_acquire_counts_for_the_task_that_runs_it(url: str) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url, debug=True) as locks:
            async with locks.lock("b"), locks.lock("c", reentrant=True) as mine:
                other = await asyncio.create_task(locks.lock("a").acquire())  # held by a task that does not hold "b"
                assert other
                assert await asyncio.create_task(locks.lock("c", reentrant=True).acquire(blocking=False)) is None
                await other.release()
                assert mine.held
            async with locks.lock("a"), locks.lock("b"):
                pass

    asyncio.run(story())


def test_both_worlds_in_one_process_share_one_order(url: str) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url, debug=True) as locks:
            with lockfast.connect(url, debug=True) as blocking:
                async with locks.lock("a"):
                    nested("b", of=blocking)
                in_a_thread(lambda: nested("b", of=blocking))  # where no loop runs
                with pytest.warns(LockOrderWarning), blocking.lock("b"):
                    async with locks.lock("a"):
                        pass

    asyncio.run(story())


# What it costs


def test_its_memory_is_bounded(url: str) -> None:
    order = LockOrder(max_pairs=5)
    with lockfast.connect(url) as locks:
        locks._logic.engine.order = order
        with locks.lock("outer"):
            for number in range(50):
                nested(f"inner-{number}", of=locks)
        assert len(order._pairs) == 5
        assert sum(map(len, order._after.values())) == 5
        nested("inner-0", "outer", of=locks)  # too long ago to be remembered
        with pytest.warns(LockOrderWarning):
            nested("inner-49", "outer", of=locks)
    assert len(order._after) <= 5


@pytest.mark.slow
def test_the_record_of_orders_keeps_no_locks_alive(url: str) -> None:
    order = LockOrder()
    locks = lockfast.connect(url)
    locks._logic.engine.order = order
    nested("a", "b", of=locks)
    engine = weakref.ref(locks._logic.engine)
    locks.close()
    del locks

    def gone() -> bool:
        gc.collect()
        return engine() is None

    until(gone, "its keeper's thread to end")


def test_a_child_of_a_fork_does_not_wait_for_a_thread_of_its_parent() -> None:
    assert child_may_take(lambda: ORDER._mutex)


PROGRAM = """
import sys, lockfast
with lockfast.connect("memory://", **{options}) as locks, locks.lock("a"):
    pass
print("lockfast.engine.order" in sys.modules)
"""


@pytest.mark.parametrize(
    ("variable", "options", "on"),
    [
        (None, {}, False),
        ("", {}, False),
        ("0", {}, False),
        ("1", {}, True),
        ("1", {"debug": False}, False),
        (None, {"debug": True}, True),
    ],
)
def test_debug_mode_is_off_unless_asked_for_and_then_not_even_imported(
    variable: str | None, options: dict[str, bool], on: bool
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "LOCKFAST_DEBUG"}
    if variable is not None:
        env["LOCKFAST_DEBUG"] = variable
    program = PROGRAM.format(options=options)
    answer = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30)
    assert (answer.stdout.strip(), answer.stderr) == (str(on), "")


def test_all_who_ask_for_it_share_the_one_order_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lock_order(True) is ORDER
    assert lock_order(False) is None
    monkeypatch.setenv("LOCKFAST_DEBUG", "1")
    assert lock_order(None) is ORDER
    monkeypatch.delenv("LOCKFAST_DEBUG")
    assert lock_order(None) is None
