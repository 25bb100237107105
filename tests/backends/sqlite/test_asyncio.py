"""What is true of SQLite in an event loop alone: which thread runs a request, in which order, and what waits for it."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._reentry import BackgroundJob, is_inside, run_to_end, start_thread
from lockfast._time import boot_now
from lockfast.aio import AsyncLease, AsyncLocks
from lockfast.backends.sqlite.io import asyncio_ as sqlite_asyncio
from lockfast.backends.sqlite.io import blocking as sqlite
from lockfast.backends.sqlite.io import thread as sqlite_thread
from lockfast.backends.sqlite.io.blocking import BlockingSqlite
from lockfast.backends.sqlite.io.driver import SqliteTransaction
from lockfast.backends.sqlite.io.stalls import Stalls
from lockfast.backends.sqlite.io.thread import SqliteThread
from tests.no_threads import no_thread_left
from tests.patience import impatient
from tests.servers.waiting import LIMIT_S, happens, until_async


def _driver_of(locks: AsyncLocks) -> Any:
    backend: Any = locks._logic.engine.backend
    return backend._driver


async def _cycle(locks: AsyncLocks) -> None:
    lease = await locks.lock("x").acquire()
    assert lease is not None
    await lease.release()


async def _ask(locks: AsyncLocks, step: Callable[[SqliteTransaction], Any], within: float = LIMIT_S) -> Any:
    answer, _ = await _driver_of(locks).transact((step, (), None, False), within)
    return answer


def _asked(locks: AsyncLocks, step: Callable[[SqliteTransaction], Any], within: float = LIMIT_S) -> asyncio.Task[Any]:
    return asyncio.ensure_future(_ask(locks, step, within))


def _thread(_: SqliteTransaction) -> int:
    return threading.get_ident()


def _stalled(locks: AsyncLocks) -> None:
    """The disk has stopped the loop, so requests go to the thread for a while."""
    _driver_of(locks)._stalls.took(LIMIT_S, boot_now())


def _well_again(locks: AsyncLocks) -> None:
    _driver_of(locks)._stalls = Stalls()


def _is_queued_after(locks: AsyncLocks, step: Callable[[SqliteTransaction], Any]) -> bool:
    queue = _driver_of(locks)._queue
    return bool(queue) and queue[-1].request[0] is not step


@contextmanager
def _in_use(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program has the file, until it commits."""
    stranger = sqlite3.connect(path, isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    try:
        yield stranger
    finally:
        stranger.close()


# In the loop's own thread


def test_a_request_waits_for_no_other_thread(path: Path) -> None:
    """In one of its own it would wait for the GIL beside tasks that compute, and others for the file meanwhile."""

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            assert await _ask(locks, _thread) == threading.get_ident()

    asyncio.run(main())


def test_a_lock_that_is_held_is_none_in_time_though_no_other_thread_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks, locks.lock("held", ttl=LIMIT_S):
            with monkeypatch.context() as patch:
                patch.setattr(SqliteThread, "do", _never)
                assert await locks.lock("held").acquire(timeout=0.02) is None

    asyncio.run(main())


def _never(*_: object) -> None:
    """A thread that does not get to run."""


def test_a_request_in_the_loop_is_inside_an_operation(path: Path) -> None:
    """So what a finalizer ends in the middle of its transaction is put off."""

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            assert await _ask(locks, lambda _: is_inside())
            assert not is_inside()

    asyncio.run(main())


def test_a_task_that_always_finds_its_lock_free_lets_others_run(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            ran: list[str] = []
            asyncio.get_running_loop().call_soon(ran.append, "another")
            for _ in range(100):
                await _cycle(locks)
            assert ran

    asyncio.run(main())


def test_a_request_in_the_next_turn_of_the_loop_is_answered_at_once(path: Path) -> None:
    """Not in the turn after that, before which tasks that compute would come."""

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            for _ in range(5):
                await asyncio.sleep(0)
                assert run_to_end(_ask(locks, _thread)) == threading.get_ident()
                _driver_of(locks)._spent_s = sqlite_asyncio.SLICE_S

    asyncio.run(main())


def test_the_tables_of_a_new_file_are_not_made_in_the_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_in: list[int] = []

    def set_up(driver: BlockingSqlite, db: sqlite3.Connection) -> None:
        opened_in.append(threading.get_ident())
        before(driver, db)

    before = BlockingSqlite._set_up
    monkeypatch.setattr(BlockingSqlite, "_set_up", set_up)

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            await _cycle(locks)

    asyncio.run(main())
    assert len(opened_in) == 1
    assert threading.get_ident() not in opened_in


def test_a_file_that_can_no_longer_be_checked_is_a_clear_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sqlite, "CHECK_FILE_EVERY_S", 0.0)

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            with monkeypatch.context() as patch:
                patch.setattr(BlockingSqlite, "_identify", refuse)
                with pytest.raises(BackendUnavailable, match="cannot be used: permission denied"):
                    await _cycle(locks)
            await _cycle(locks)

    asyncio.run(main())


# A file that another process has


def test_the_loop_goes_on_while_another_program_has_the_file(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            with _in_use(path) as stranger:
                waits = _asked(locks, _thread)
                driver = _driver_of(locks)
                await until_async(
                    lambda: driver._refused > sqlite.TRIES_WITHOUT_PAUSE, "the file to be asked for again and again"
                )
                assert not waits.done()
                stranger.rollback()
                assert await waits == threading.get_ident()

    asyncio.run(main())


def test_requests_that_wait_for_the_file_are_answered_in_their_order(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            ran: list[int] = []
            with _in_use(path) as stranger:
                asked = [_asked(locks, partial(_note, ran, number)) for number in range(5)]
                await until_async(lambda: len(_driver_of(locks)._queue) == 5)
                asked[2].cancel()
                stranger.rollback()
                await asyncio.gather(*asked, return_exceptions=True)
            assert ran == [0, 1, 3, 4], "what was cancelled is not run any more"

    asyncio.run(main())


def _note(ran: list[int], number: int, _: SqliteTransaction) -> None:
    ran.append(number)


def test_a_file_that_stays_in_use_is_not_reported_as_a_held_lock(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            with _in_use(path), impatient(locks), pytest.raises(BackendUnavailable, match="stayed locked") as refused:
                await locks.lock("x", wait=0).acquire()
            assert refused.value.transient
            await _cycle(locks)

    asyncio.run(main())


def test_waiting_requests_fail_when_the_store_is_closed_while_another_program_has_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_asyncio, "CLOSE_WITHIN_S", 0.0)

    async def main() -> None:
        locks = lockfast.aio.connect(f"sqlite:///{path}")
        await _cycle(locks)
        with _in_use(path):
            waits = _asked(locks, _thread)
            await until_async(lambda: _driver_of(locks)._queue)
            await locks.close()
            with pytest.raises(BackendUnavailable, match="is closed"):
                await waits

    asyncio.run(main())


def test_an_interrupt_in_a_request_of_the_queue_strands_no_other_and_repeats_none(path: Path) -> None:
    done: list[str] = []

    def interrupted(_: SqliteTransaction) -> None:
        done.append("once")
        raise KeyboardInterrupt

    async def ask_both(locks: AsyncLocks) -> asyncio.Future[tuple[Any, Any]]:
        asked = asyncio.gather(_ask(locks, interrupted), _ask(locks, _thread), return_exceptions=True)
        await until_async(lambda: len(_driver_of(locks)._queue) == 2)
        return asked

    with asyncio.Runner() as runner:
        locks = lockfast.aio.connect(f"sqlite:///{path}")
        runner.run(_cycle(locks))
        with _in_use(path):  # until the loop stands still, so that the interrupt falls into the next run of it
            asked = runner.run(ask_both(locks))
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(asked)
        lost, thread = runner.get_loop().run_until_complete(asked)
        assert isinstance(lost, BackendUnavailable)
        assert lost.transient
        assert (done, thread) == (["once"], threading.get_ident())
        runner.run(locks.close())


def test_a_release_that_is_interrupted_after_its_effect_is_no_loss(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def release_later(locks: AsyncLocks, lease: AsyncLease) -> asyncio.Future[bool]:
        released = asyncio.ensure_future(lease.release())
        await until_async(lambda: len(_driver_of(locks)._queue) == 1)
        return released

    with asyncio.Runner() as runner:
        locks = lockfast.aio.connect(f"sqlite:///{path}")
        lease = runner.run(locks.lock("x", ttl=600).acquire())
        assert lease is not None
        with _in_use(path):  # until the loop stands still, so that the interrupt falls into the next run of it
            released = runner.run(release_later(locks, lease))
        blocking = _driver_of(locks)._blocking
        attempt = blocking.attempt

        def interrupted(*args: Any) -> Any:
            answer = attempt(*args)
            if answer is not None:
                monkeypatch.undo()
                raise KeyboardInterrupt
            return answer

        monkeypatch.setattr(blocking, "attempt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(released)
        assert runner.get_loop().run_until_complete(released) is True
        runner.run(locks.close())


def test_a_task_that_is_dropped_with_its_loop_leaves_the_queue_silently(path: Path) -> None:
    async def waits(locks: AsyncLocks) -> asyncio.Task[None]:
        task = asyncio.ensure_future(_cycle(locks))
        await until_async(lambda: len(_driver_of(locks)._queue) == 1)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    locks = lockfast.aio.connect(f"sqlite:///{path}")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_cycle(locks))
    with _in_use(path):
        tasks = [loop.run_until_complete(waits(locks))]
        loop.close()
    tasks.clear()
    gc.collect()  # pytest fails what is raised there

    async def in_another_loop() -> None:
        await _cycle(locks)
        await locks.close()

    asyncio.run(in_another_loop())


# A disk that stalls


def test_requests_go_to_the_thread_while_the_disk_stalls(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            _stalled(locks)
            assert await _ask(locks, _thread) != threading.get_ident()
            _well_again(locks)
            assert await _ask(locks, _thread) == threading.get_ident()

    asyncio.run(main())


def test_after_a_request_that_stops_the_loop_for_long_the_next_ones_run_in_the_thread(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            stalls = threading.Event()  # that is never set
            await _ask(locks, lambda _: stalls.wait(0.25))
            assert await _ask(locks, _thread) != threading.get_ident()

    asyncio.run(main())


def test_a_request_that_was_slow_because_it_lost_the_cpu_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            with monkeypatch.context() as patch:
                patch.setattr(sqlite_asyncio, "waits", lambda: 7)  # it was never seen to wait
                await _ask(locks, lambda _: threading.Event().wait(0.25))
            assert await _ask(locks, _thread) == threading.get_ident()

    asyncio.run(main())


def test_a_request_in_the_loop_does_not_overtake_one_in_the_thread(path: Path) -> None:
    """Also when the caller of that one was cancelled: what cleans up after a request runs after it."""
    ran: list[str] = []
    moves_on, begun = threading.Event(), threading.Event()

    def slow(_: SqliteTransaction) -> None:
        begun.set()
        happens(moves_on)
        ran.append("in the thread")

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            _stalled(locks)
            first = _asked(locks, slow)
            await until_async(begun.is_set)
            _well_again(locks)
            first.cancel()
            second = _asked(locks, lambda _: ran.append("after it"))
            await until_async(partial(_is_queued_after, locks, slow))
            assert ran == []
            moves_on.set()
            await second
            assert ran == ["in the thread", "after it"]

    asyncio.run(main())


def test_a_new_loop_waits_for_what_the_thread_does_for_the_old_one(path: Path) -> None:
    moves_on, begun = threading.Event(), threading.Event()
    ran: list[str] = []

    def slow(_: SqliteTransaction) -> None:
        begun.set()
        happens(moves_on)
        ran.append("for the old loop")

    async def leave(locks: AsyncLocks) -> None:
        await _cycle(locks)
        _stalled(locks)
        task = _asked(locks, slow)
        await until_async(begun.is_set)
        task.cancel()

    async def come_back(locks: AsyncLocks) -> None:
        _well_again(locks)
        asked = _asked(locks, lambda _: ran.append("for the new one"))
        await until_async(partial(_is_queued_after, locks, slow))
        moves_on.set()
        await asked
        await locks.close()

    locks = lockfast.aio.connect(f"sqlite:///{path}")
    asyncio.run(leave(locks))
    asyncio.run(come_back(locks))
    assert ran == ["for the old loop", "for the new one"]


def test_a_process_that_stood_still_past_the_time_of_a_request_finds_its_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread could not run meanwhile either, so the time says nothing about the store."""
    time_is_up, moves_on = sqlite_asyncio.AsyncioSqlite._give_up, threading.Event()

    def stand_still_until_then(*args: Any) -> None:
        moves_on.set()
        time_is_up(*args)

    monkeypatch.setattr(sqlite_asyncio, "LATE_S", LIMIT_S)
    monkeypatch.setattr(sqlite_asyncio.AsyncioSqlite, "_give_up", stand_still_until_then)

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            _stalled(locks)
            await _ask(locks, lambda _: happens(moves_on), within=0.0)

    asyncio.run(main())


# The thread


def test_the_thread_gets_to_run_beside_tasks_that_compute(path: Path) -> None:
    """Each gives the GIL back for so short a time that a thread which waits for it is not awake before it is gone."""

    async def main() -> None:
        computing = asyncio.ensure_future(_compute())
        async with lockfast.aio.connect(f"sqlite:///{path}", patience=LIMIT_S) as locks:
            await _cycle(locks)
        computing.cancel()

    asyncio.run(main())


async def _compute() -> None:
    while True:
        sum(range(100_000))
        await asyncio.sleep(0)


def test_the_loop_stands_aside_as_long_as_the_thread_has_work_and_no_longer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, aside = SqliteThread._yield_to_thread, [0]

    def stand_aside(thread: SqliteThread, work: Any) -> None:
        aside[0] += thread.has_work
        before(thread, work)

    monkeypatch.setattr(SqliteThread, "_yield_to_thread", stand_aside)
    monkeypatch.setattr(sqlite_thread, "YIELD_EVERY_S", 0.0)
    moves_on = threading.Event()

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            await _cycle(locks)
            _stalled(locks)
            slow = _asked(locks, lambda _: happens(moves_on))
            await until_async(lambda: aside[0] > 5)
            moves_on.set()
            await slow
            _well_again(locks)
            aside[0] = 0
            await _cycle(locks)
            assert aside == [0]

    asyncio.run(main())


def test_a_thread_that_could_not_be_started_is_started_by_the_next_try(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            with no_thread_left(once=True) as refused:
                await _cycle(locks)
            assert "lockfast-sqlite" in refused

    asyncio.run(main())


def test_a_store_without_a_thread_is_unavailable_until_there_is_one(path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
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
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            started: list[BackgroundJob] = []

            def start_and_interrupt(*args: Any) -> None:
                started.append(start_thread(*args))
                raise _Interrupt

            with monkeypatch.context() as patch:
                patch.setattr(sqlite_thread, "start_thread", start_and_interrupt)
                with pytest.raises(_Interrupt):
                    await _ask(locks, _thread)
            started[0].join()
            await _cycle(locks)

    asyncio.run(main())


# A fork


def test_a_child_that_was_forked_in_a_loop_uses_blocking_locks(path: Path) -> None:
    async def main() -> int:
        async with lockfast.aio.connect(f"sqlite:///{path}") as parents, parents.lock("parents"):
            pid = os.fork()
            if pid == 0:
                try:
                    with lockfast.connect(f"sqlite:///{path}") as locks, locks.lock("childs", wait=0):
                        os._exit(0)
                finally:
                    os._exit(1)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            return os.waitstatus_to_exitcode(status)

    assert asyncio.run(main()) == 0
