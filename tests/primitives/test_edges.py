"""Where primitives meet each other, other namespaces and other instances: each of these was once a hole."""

from __future__ import annotations

import asyncio
import enum
import gc
import inspect
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import pytest

import lockfast
import lockfast.aio
from lockfast._values import NS_PER_S
from lockfast.backends.memory.store import shared_store
from lockfast.backends.sqlite import schema as sqlite_store
from lockfast.engine import living
from lockfast.primitives.limiter import rate_of
from lockfast.testing import FakeClock
from tests.scale import by_scale


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"


def test_a_limiter_s_turn_meets_no_lock_of_a_namespace_of_its_name(url: str) -> None:
    clock = FakeClock()
    with lockfast.connect(url, clock=clock) as plain, lockfast.connect(url, namespace="api", clock=clock) as other:
        limiter = plain.limiter("api", rate=1, per=10)
        assert limiter.try_acquire()
        clock.advance(9.9)
        with other.lock("turn"):
            turn = plain.limiter("api", rate=1, per=10)._logic._turn.terms.key
            assert turn not in {"api\x1fturn", other.lock("turn")._logic.request.terms.key}
            assert [info.name for info in other.list()] == ["turn"]
            assert plain.list() == []


def test_waiting_for_what_this_thread_holds_through_another_instance_is_an_error_at_once(url: str) -> None:
    with lockfast.connect(url) as one, lockfast.connect(url) as two, one.lock("job"):
        with pytest.raises(lockfast.SelfDeadlock):
            two.lock("job").acquire()
        assert two.lock("job").acquire(blocking=False) is None
        assert one.inspect("job").waiters == 0


def test_the_same_name_in_another_store_is_another_lock(tmp_path: Path) -> None:
    with (
        lockfast.connect(f"sqlite:///{tmp_path}/a.db") as one,
        lockfast.connect(f"sqlite:///{tmp_path}/b.db") as two,
        one.lock("job"),
        two.lock("job"),
    ):
        pass


@pytest.mark.parametrize(("rate", "per"), [(3, 1), (7, 60), (0.3, 1), (11, 13)])
def test_the_interval_of_a_rate_is_never_too_short(rate: float, per: float) -> None:
    assert rate_of(rate, per, None).interval * rate >= per * NS_PER_S * (1 - 1e-15)


def test_on_lost_of_run_is_not_called_for_losses_after_it(url: str) -> None:
    clock, called = FakeClock(), []
    with lockfast.connect(url, clock=clock) as locks:
        election = locks.election("lead", on_lost=lambda lease: called.append("own"))
        assert election.run(lambda lease: 7, on_lost=lambda lease: called.append("run")) == 7
        assert election._logic._request.on_lost is not None
        election._logic._request.on_lost(None)
    assert called == ["own"]


def test_a_coroutine_function_is_refused_where_nothing_can_be_awaited(url: str) -> None:
    async def change(value: Any) -> Any:
        return value

    with lockfast.connect(url) as locks:
        with pytest.raises(TypeError, match="coroutine function"):
            locks.cell("box").update(change)
        with pytest.raises(TypeError, match="coroutine function"):
            locks.election("lead").run(change)  # type: ignore[unused-coroutine]
        assert locks.list() == []


def test_limiters_at_rest_are_cleared_away_by_locks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "SWEEP_EVERY", 16)
    for url in (f"memory://{tmp_path.name}-rest", f"sqlite:///{tmp_path}/locks.db"):
        clock = FakeClock()
        with lockfast.connect(url, clock=clock) as locks:
            for number in range(100):
                locks.limiter(f"api:{number}", rate=1).try_acquire()
            clock.advance(60)
            for _ in range(400):
                with locks.lock("job"):
                    pass
    assert shared_store(f"{tmp_path.name}-rest").limiters == {}
    with closing(sqlite3.connect(tmp_path / "locks.db")) as db:
        assert db.execute("SELECT count(*) FROM limiters").fetchone() == (0,)


def test_a_file_of_the_first_format_is_brought_to_the_present_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with monkeypatch.context() as older:
        older.setattr(sqlite_store, "FORMATS", sqlite_store.FORMATS[:1])
        older.setattr(sqlite_store, "SWEEP_EVERY", 2**60)  # what is swept now, the first format did not have
        locks = lockfast.connect(url)
        held = locks.lock("job").acquire()
        assert held is not None
    with lockfast.connect(url) as newer:
        assert [holder.fence for holder in newer.inspect("job").holders] == [held.fence]
        assert newer.limiter("api", rate=1).try_acquire()
        assert newer.cell("box").write(1) == 1
    assert held.release()
    locks.close()


def test_every_name_that_aio_promises_is_there() -> None:
    assert [name for name in lockfast.aio.__all__ if not hasattr(lockfast.aio, name)] == []
    assert [name for name in lockfast.__all__ if not hasattr(lockfast, name)] == []
    with pytest.raises(AttributeError):
        _ = lockfast.aio.nothing_of_the_kind


class Job(str, enum.Enum):  # noqa: UP042  (a StrEnum formats itself as what it is)
    DAILY = "cron:daily"


def test_a_name_that_formats_itself_otherwise_is_the_same_lock(url: str) -> None:
    with lockfast.connect(url, namespace="app") as locks, locks.lock(Job.DAILY):
        assert locks.lock("cron:daily").acquire(blocking=False) is None
        assert [info.name for info in locks.list()] == ["cron:daily"]
        locks.cell(Job.DAILY).write(1)
        assert locks.cell("cron:daily").read().value == 1


def test_a_downgrade_cut_short_is_no_writer_beside_readers(url: str) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await locks.rwlock("doc").write().acquire()
            assert lease is not None
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await lease.downgrade()
            (holder,) = (await locks.inspect("doc")).holders
            assert holder.mode == "exclusive" or lease.mode == "shared"
            await lease.downgrade()
            assert lease.mode == "shared"

    asyncio.run(main())


def test_a_limiter_s_try_that_is_cancelled_costs_nothing(url: str) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            limiter = locks.limiter("api", rate=1, per=60)
            for _ in range(5):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0):
                        if await limiter.acquire():
                            return  # it was quicker than the timeout
            assert await limiter.try_acquire()

    asyncio.run(main())


def test_what_the_garbage_collector_ends_in_the_middle_of_a_verb_does_not_hang(url: str) -> None:
    with lockfast.connect(url) as locks:
        before = gc.get_threshold()
        gc.set_threshold(50, 2, 2)
        try:
            for number in range(by_scale(300, soak=300, quick=60)):
                observing = locks.election("lead").observe()
                next(observing)
                circle: list[Any] = [observing]
                circle.append(circle)
                del observing, circle
                lease = locks.lock(f"job:{number % 50}").acquire(blocking=False)
                if lease is not None:
                    lease.release()
        finally:
            gc.set_threshold(*before)


def test_an_observer_that_came_through_a_fork_leaves_its_parent_s_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with lockfast.connect(url) as locks, lockfast.connect(url, holder="other") as other:
        observing = locks.election("lead").observe()
        assert next(observing).leader is None
        pid = os.fork()
        if pid == 0:
            observing.close()
            os._exit(0)
        os.waitpid(pid, 0)
        election = other.election("lead")
        for _ in range(2):
            election.campaign()
            election.resign()
        assert [next(observing).leader for _ in range(4)] == ["other", None, "other", None]
        observing.close()


def test_numbers_and_metadata_that_no_store_can_keep_are_refused_up_front(url: str) -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with lockfast.connect(url) as locks:
        for refused in (
            lambda: locks.semaphore("pool", 2**63),
            lambda: locks.cell("box").write(1, fence=2**70),
            lambda: locks.lock("job", metadata=deep),
            lambda: locks.election("lead").run(print, on_lost=5),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match="must"):
                refused()


def test_waiting_for_oneself_is_noticed_though_another_thread_connects_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Growing:
        """Changes while it is looked through, the first time."""

        def __init__(self, engines: list[Any]) -> None:
            self._engines, self._grows = engines, True

        def __iter__(self) -> Iterator[Any]:
            grows, self._grows = self._grows, False
            if grows:
                raise RuntimeError("Set changed size during iteration")
            return iter(self._engines)

    with lockfast.connect(url) as locks, locks.lock("job"):
        with monkeypatch.context() as patch:
            patch.setattr(living, "LIVING", Growing(list(living.LIVING)))
            with pytest.raises(lockfast.SelfDeadlock):
                locks.lock("job").acquire()


def test_the_methods_of_a_lock_for_asyncio_count_as_coroutine_functions() -> None:
    methods = (lockfast.aio.AsyncLock.acquire, lockfast.aio.AsyncLock.release, lockfast.aio.AsyncLock.locked)
    is_one = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    assert all(map(is_one, methods))
    assert isinstance(create_autospec(lockfast.aio.AsyncLock).acquire, AsyncMock)
