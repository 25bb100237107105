"""The process's one manager, and the loop's: made once, by its first caller, and what a fork leaves of it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lockfast
from lockfast import DistributedLock, get_distributed_lock
from lockfast._facades import manager as facade
from lockfast._worlds import drive


@pytest.fixture(autouse=True)
def no_one_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LOCKFAST_URL", f"sqlite:///{tmp_path}/locks.db")
    monkeypatch.setattr(facade, "_the_one", None)
    yield
    if facade._the_one is not None:
        facade._the_one[1].close()
    if facade._ones:
        facade._ones.clear()
        gc.collect()  # what belongs to loops that are closed ends when it is dropped


def in_a_child(work: str) -> None:
    """Let the child of a fork of a fresh process do it."""
    code = f"import os, sys\nimport lockfast\n{work}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


# In a process


def test_everybody_gets_the_same_one() -> None:
    manager = get_distributed_lock()
    assert isinstance(manager, DistributedLock)
    assert manager.acquire("a")
    assert get_distributed_lock().release("a") is True


def test_threads_that_ask_first_at_once_get_the_same_one() -> None:
    barrier = threading.Barrier(8)

    def ask(_: int) -> DistributedLock:
        barrier.wait()
        return get_distributed_lock()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1


def test_the_one_manager_uses_the_url_of_the_environment(tmp_path: Path) -> None:
    get_distributed_lock().acquire("a")
    with lockfast.connect(f"sqlite:///{tmp_path}/locks.db") as locks:
        assert [info.name for info in locks.list()] == ["a"]


def test_another_url_is_refused_as_long_as_it_is_open() -> None:
    manager = get_distributed_lock("memory://one")
    assert get_distributed_lock("memory://one") is get_distributed_lock() is manager
    with pytest.raises(ValueError, match=r"made for 'memory://one', not for 'redis://host'; close\(\) it first"):
        get_distributed_lock("redis://user:secret@host")
    manager.close()
    other = get_distributed_lock("memory://another")
    assert other is not manager
    assert other.acquire("a")


@pytest.mark.parametrize(
    "url",
    [
        "redis://host/0?password=s3cret",
        "redis://host/0?password=a@s3cret",
        "redis+sentinel://host/name?sentinel_password=s3cret",
        "redis://user:a?s3cret@host",
        "redis://user:s3cret/a@host",
        "user:s3cret@host:6379",
    ],
)
def test_the_refusal_of_another_url_shows_no_password(url: str) -> None:
    get_distributed_lock("memory://one")
    with pytest.raises(ValueError, match=r"made for 'memory://one', not for '.*…'; close\(\) it first") as caught:
        get_distributed_lock(url)
    assert "s3cret" not in str(caught.value)


def test_a_bad_url_is_not_remembered() -> None:
    with pytest.raises(ValueError, match="unknown scheme"):
        get_distributed_lock("gopher://host")
    assert get_distributed_lock().acquire("a")


@pytest.mark.slow
def test_a_child_has_it_too_and_holds_nothing_of_what_its_parent_does() -> None:
    in_a_child("""
manager = lockfast.get_distributed_lock()
assert manager.acquire("a")
mine = manager.holder_id
import threading
from lockfast._facades import manager as facade
other = threading.Thread(target=facade._mutex.acquire)  # as if it were about to make it
other.start()
other.join()
manager._logic._turns._queues["b"] = ["a caller"]  # or to ask for a name
child = os.fork()
if not child:
    same = lockfast.get_distributed_lock()
    answers = [
        same is manager, same.holder_id != mine, not same.release("a"), not same.extend("a", 5),
        same.release_all() == 0, same.acquire("a").error == f"lock 'a' is held by {mine!r}", same.acquire("b").acquired,
    ]
    same.close()
    os._exit(0 if all(answers) else 1 + answers.index(False))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "an answer was wrong"
assert manager.release("a")
""")


@pytest.mark.slow
def test_what_is_left_at_exit_is_released(tmp_path: Path) -> None:
    in_a_child("lockfast.get_distributed_lock().acquire('a', 3600)")
    in_a_child("""
import asyncio
async def main(): await lockfast.aio.get_distributed_lock().acquire('b', 3600)
asyncio.run(main())
""")
    with lockfast.connect(f"sqlite:///{tmp_path}/locks.db") as locks:
        assert locks.list() == []


@pytest.mark.slow
def test_one_that_is_dropped_while_it_holds_something_says_so() -> None:
    manager = DistributedLock("memory://dropped")
    manager.acquire("a")
    engine = manager._logic.locks.engine
    with pytest.warns(ResourceWarning, match="while holding"):
        del manager
    drive(engine.close())


def test_a_manager_that_could_not_be_made_is_dropped_in_silence() -> None:
    with pytest.raises(ValueError, match="holder"):
        DistributedLock("memory://", holder_id="")


def test_a_manager_is_a_context_manager() -> None:
    with DistributedLock("memory://context", holder_id="me", namespace="shop") as manager:
        assert manager.acquire("a")
        assert "'a'" in repr(manager)
    with lockfast.connect("memory://context", namespace="shop") as locks:
        assert locks.list() == []


def test_with_lock_refuses_work_that_would_go_on_without_the_lock() -> None:
    async def work() -> int:
        return 1

    with DistributedLock("memory://context") as manager:
        with pytest.raises(TypeError, match=r"lockfast\.aio"):
            _ = manager.with_lock("a", work)
        with pytest.raises(TypeError, match="returned a coroutine"):
            _ = manager.with_lock("a", lambda: work())


# In an event loop


def test_each_event_loop_has_one() -> None:
    async def ask() -> tuple[facade.AsyncDistributedLock, facade.AsyncDistributedLock]:
        manager = lockfast.aio.get_distributed_lock()
        assert isinstance(manager, lockfast.aio.DistributedLock)
        async with manager:
            assert await manager.acquire("a")
            return manager, lockfast.aio.get_distributed_lock()

    first, again = asyncio.run(ask())
    other, _ = asyncio.run(ask())
    assert first is again
    assert first is not other


@pytest.mark.slow
def test_the_one_of_a_closed_loop_is_forgotten() -> None:
    async def ask() -> None:
        assert await lockfast.aio.get_distributed_lock().acquire("a")
        assert await lockfast.aio.get_distributed_lock().release("a")

    for _ in range(3):
        asyncio.run(ask())
    assert len(facade._ones) == 1


def test_a_loop_too_refuses_another_url() -> None:
    async def ask() -> None:
        async with lockfast.aio.get_distributed_lock("memory://one"):
            with pytest.raises(ValueError, match="made for 'memory://one'"):
                lockfast.aio.get_distributed_lock("memory://another")

    asyncio.run(ask())


def test_without_a_loop_there_is_none() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        lockfast.aio.get_distributed_lock()
