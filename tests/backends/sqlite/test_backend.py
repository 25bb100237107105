"""What is true of SQLite alone: broken files, wake-ups, contention for the file itself."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._time import boot_now
from lockfast.backends.sqlite import schema as sqlite_store
from lockfast.backends.sqlite.io import blocking as driver
from lockfast.sync import Lease, Locks
from tests.backends.sqlite.stage import hold
from tests.patience import impatient
from tests.servers.waiting import LIMIT_S, join, until

# Files that are not what they should be


def test_a_file_that_is_not_sqlite_is_named_as_such(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database " * 200)
    with lockfast.connect(f"sqlite:///{path}") as locks, pytest.raises(BackendUnavailable, match="not an SQLite file"):
        hold(locks)


def test_a_corrupt_file_is_named_as_such(path: Path) -> None:
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks).release()
    damaged = bytearray(path.read_bytes())
    damaged[100:] = os.urandom(len(damaged) - 100)  # the header alone is left
    path.write_bytes(damaged)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        with pytest.raises(BackendUnavailable, match="corrupt") as refused:
            hold(locks)
    assert str(path) in str(refused.value)
    assert refused.value.transient is False
    assert isinstance(refused.value.__cause__, sqlite3.Error)


VERBS: dict[str, Callable[[Locks, Lease], object]] = {
    "acquire": lambda locks, lease: hold(locks, "y"),
    "renew": lambda locks, lease: lease.extend(),
    "release": lambda locks, lease: lease.release(),
    "inspect": lambda locks, lease: locks.inspect("x"),
    "list": lambda locks, lease: locks.list(),
    "break": lambda locks, lease: locks.break_lock("x"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_store_that_lost_its_own_row_is_named_as_corrupt(locks: Locks, path: Path, verb: str) -> None:
    lease = hold(locks)
    with sqlite3.connect(path) as db:
        db.execute(f"DELETE FROM claims WHERE {sqlite_store.STORE}")
    db.close()
    with pytest.raises(BackendUnavailable, match=r"corrupt.*move it away") as refused:
        VERBS[verb](locks, lease)
    assert refused.value.transient is False


def test_a_newer_format_is_refused(locks: Locks, path: Path) -> None:
    hold(locks).release()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with lockfast.connect(f"sqlite:///{path}") as newer, pytest.raises(BackendUnavailable, match=r"format 99.*upgrade"):
        hold(newer)


def test_a_folder_in_place_of_the_file_is_a_clear_error(tmp_path: Path) -> None:
    with (
        lockfast.connect(f"sqlite:///{tmp_path}") as locks,
        pytest.raises(BackendUnavailable, match="cannot be opened"),
    ):
        hold(locks)


def test_a_file_in_place_of_the_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    url = f"sqlite:///{tmp_path / 'file' / 'locks.db'}"
    with lockfast.connect(url) as locks, pytest.raises(BackendUnavailable, match="cannot be used"):
        hold(locks)


def test_missing_folders_are_made(tmp_path: Path) -> None:
    with lockfast.connect(f"sqlite:///{tmp_path / 'not' / 'there' / 'locks.db'}") as locks:
        assert hold(locks).release()


def test_a_deleted_file_means_a_loss_and_a_higher_fence(
    locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "CHECK_FILE_EVERY_S", 0.0)
    lease = hold(locks)
    for file in path.parent.iterdir():
        file.unlink()
    with lockfast.connect(f"sqlite:///{path}") as others:
        second = hold(others)
        assert second.fence > lease.fence
        with pytest.raises(lockfast.LeaseLost):
            lease.extend()
        assert second.held


def test_a_file_with_two_names_is_refused(locks: Locks, path: Path) -> None:
    hold(locks).release()
    path.with_name("another.db").hardlink_to(path)
    with lockfast.connect(f"sqlite:///{path.with_name('another.db')}") as others:
        with pytest.raises(BackendUnavailable, match="hard links"):
            hold(others)


def test_a_relative_path_means_the_same_file_after_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with lockfast.connect("sqlite:///locks.db") as early, lockfast.connect("sqlite:///locks.db") as late:
        hold(early)
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert late.lock("x", wait=0).acquire() is None


def test_where_there_are_no_sockets_waiters_poll(locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockfast.backends.sqlite.io.driver.open_inbox", lambda store: None)
    holder = hold(locks)
    with lockfast.connect(f"sqlite:///{path}") as others:
        waiter = threading.Thread(target=lambda: others.lock("x").acquire())
        waiter.start()
        until(lambda: locks.inspect("x").waiters, "one to wait")
        holder.release()
        join(waiter)
        assert others.inspect("x").locked


def test_dead_names_leave_no_rows(locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "SWEEP_EVERY", 4)
    for number in range(8):
        name = f"job:{number}"
        locks.lock(name, ttl=0.01, renew=False).acquire()
    ended = boot_now() + 0.02
    until(lambda: boot_now() > ended, "all to be over")
    for _ in range(4):
        hold(locks, "other").release()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM claims").fetchone() == (1,)  # the store's own
    db.close()


# Threads and forks


def test_a_task_does_not_wait_for_a_disk_that_hangs(path: Path) -> None:
    """The thread that works for the loop is stuck: the loop itself must see that the time is over."""
    moves_on = threading.Event()

    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{path}") as locks:
            driver: Any = locks._logic.engine.backend
            driver._driver._stalls.took(LIMIT_S, boot_now())  # the disk has stopped the loop, so the thread is used
            request = (lambda t: moves_on.wait(LIMIT_S), (), None, False)
            stuck = asyncio.ensure_future(driver._driver.transact(request, 2 * LIMIT_S))
            await asyncio.sleep(0)  # it is in the thread's queue
            with impatient(locks), pytest.raises(BackendUnavailable, match="did not answer for"):
                await locks.lock("x", wait=0).acquire()
            assert not moves_on.is_set()
            assert not stuck.done(), "it hung all the time"
            moves_on.set()
            await stuck
            assert not (await locks.inspect("x")).locked, "what was asked for meanwhile was cleaned up after"

    asyncio.run(main())


def test_a_request_after_the_close_starts_no_thread_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        locks = lockfast.aio.connect(f"sqlite:///{path}")
        async with locks, locks.lock("x"):
            pass
        driver: Any = locks._logic.engine.backend
        started: list[object] = []
        monkeypatch.setattr("lockfast.backends.sqlite.io.thread.start_thread", lambda *args: started.append(args))
        with pytest.raises(BackendUnavailable, match="is closed"):
            async with asyncio.timeout(LIMIT_S):
                await driver._driver.transact((lambda transaction: None, (), None, False), 2 * LIMIT_S)
        assert started == []

    asyncio.run(main())


def open_files(path: Path) -> int:
    """How many open files of this process are the store's."""
    ours, found = {file.stat().st_ino for file in path.parent.iterdir()}, 0
    for number in os.listdir("/dev/fd"):
        with suppress(OSError):  # the folder itself, which is closed by now
            found += os.fstat(int(number)).st_ino in ours
    return found


def test_no_connection_is_open_while_the_process_forks(locks: Locks, path: Path) -> None:
    """SQLite must not be carried through a fork."""
    hold(locks).release()
    assert open_files(path)
    backend = locks._logic.engine.backend
    backend.before_fork()
    try:
        assert open_files(path) == 0
    finally:
        backend.after_fork(child=False)
    assert hold(locks).held


# Contention for the file


def test_a_file_that_another_program_has_locked_is_waited_for(locks: Locks, path: Path) -> None:
    hold(locks).release()
    stranger = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    stranger.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, stranger.rollback).start()
    assert hold(locks).held
    stranger.close()


def test_a_file_that_stays_locked_is_not_reported_as_a_held_lock(path: Path) -> None:
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks).release()
        stranger = sqlite3.connect(path, isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        with impatient(locks), pytest.raises(BackendUnavailable, match="stayed locked") as refused:
            locks.lock("x", wait=0).acquire()
        assert refused.value.transient is True
        stranger.rollback()
        stranger.close()
        assert hold(locks).held


def test_a_reader_of_the_file_delays_no_request(locks: Locks, path: Path) -> None:
    hold(locks).release()
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM claims").fetchall()
    assert hold(locks).release()
    reader.close()


def test_threads_of_one_locks_share_the_connection_without_losing_a_hold(locks: Locks) -> None:
    counter = 0

    def work() -> None:
        nonlocal counter
        for _ in range(50):
            with locks.lock("counter"):
                seen = counter
                counter = seen + 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert counter == 300
