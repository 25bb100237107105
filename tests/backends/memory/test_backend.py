"""What is true of `memory://` alone: one store for all threads and tasks of a process, and for no other process."""

from __future__ import annotations

import asyncio
import os

import pytest

import lockfast
import lockfast.aio
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import MemoryStore, shared_store
from lockfast.testing import FakeClock
from tests.forks import child_may_take

WORLD = ThreadWorld()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A store that no other test has."""
    return f"{request.node.name}-{os.getpid()}"


def test_threads_and_tasks_of_a_process_exclude_each_other(name: str) -> None:
    async def is_refused() -> bool:
        async with lockfast.aio.connect(f"memory://{name}") as locks:
            return await locks.lock("a").acquire(blocking=False) is None

    with lockfast.connect(f"memory://{name}") as locks:
        with locks.lock("a"):
            assert asyncio.run(is_refused())
        assert not asyncio.run(is_refused())


def test_without_a_name_there_is_one_store_and_each_name_is_another() -> None:
    assert shared_store("default") is not shared_store("another")
    with lockfast.connect("memory://") as one, lockfast.connect("memory://default") as same:
        with one.lock("test_backend:a"):
            assert same.lock("test_backend:a").locked()
        with lockfast.connect("memory://another") as other, one.lock("test_backend:a"):
            assert not other.lock("test_backend:a").locked()


def test_stores_of_one_name_that_are_not_one_store_have_two_ids() -> None:
    store = MemoryStore(name="a")
    ids = [MemoryBackend(each, WORLD).store_id for each in (store, store, MemoryStore(name="a"))]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("url", ["memory:///file", "memory://name/path", "memory://user@name", "memory://name?ttl=3"])
def test_a_url_with_more_than_a_name_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="memory"):
        lockfast.connect(url)


def test_a_clock_that_is_passed_is_the_clock_of_the_store_for_all_who_connect_to_it(name: str) -> None:
    clock = FakeClock()
    with lockfast.connect(f"memory://{name}", clock=clock) as one, lockfast.connect(f"memory://{name}") as other:
        assert one.lock("a", ttl=10, renew=False).acquire()
        clock.advance(11)
        assert other.lock("a").acquire(blocking=False)


def test_a_store_keeps_nothing_of_names_that_are_not_used_any_more(name: str) -> None:
    clock = FakeClock()
    with lockfast.connect(f"memory://{name}", clock=clock) as locks:
        for number in range(1000):
            assert locks.lock(f"job:{number}", ttl=1, renew=False).acquire()
            clock.advance(2)
        assert len(shared_store(name).resources) < 200


@pytest.mark.slow
def test_a_child_of_a_fork_has_an_empty_store_of_its_own(name: str) -> None:
    with lockfast.connect(f"memory://{name}") as locks, locks.lock("a") as lease:
        pid = os.fork()
        if pid == 0:
            granted = locks.lock("a").acquire(blocking=False)
            os._exit(0 if granted is not None and granted.fence > lease.fence else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert lease.held
        lease.check()


@pytest.mark.slow
def test_a_child_does_not_wait_for_a_step_of_a_thread_of_its_parent(name: str) -> None:
    with lockfast.connect(f"memory://{name}") as locks:
        assert child_may_take(lambda: locks._logic.engine.backend._store._mutex)  # type: ignore[attr-defined]
