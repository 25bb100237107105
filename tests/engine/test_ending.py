"""What ends when it is no longer needed: keepers, waiters of a closed `Locks`."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast._model import Busy, Claim, Grant
from lockfast._reentry import outside
from lockfast.engine import living
from lockfast.engine.not_held import Reason
from lockfast.errors import LeaseLost, LockError, NotHeld
from lockfast.sync import Locks
from lockfast.testing import FakeClock
from tests.servers.waiting import join, until


def test_a_keeper_without_leases_ends_though_the_last_one_was_not_due_for_long(tmp_path: Path) -> None:
    clock = FakeClock()
    with lockfast.connect(f"sqlite:///{tmp_path}/locks.db", clock=clock) as locks:
        with locks.lock("job", ttl=86400):
            pass
        keeper = locks._logic.engine.keeper
        until(lambda: clock.sleepers == 1)
        clock.advance(10)
        until(lambda: keeper.loop.signal is None)
        with locks.lock("job", ttl=0.3) as lease:  # and another one begins
            until(lambda: clock.sleepers == 1)
            clock.advance(0.25)
            until(lambda: lease.remaining > 0.2)


@pytest.mark.parametrize("url", ["memory://ending", "sqlite:///{folder}/locks.db"])
def test_a_caller_that_waits_leaves_the_queue_at_once_when_its_locks_are_closed(tmp_path: Path, url: str) -> None:
    url, clock = url.format(folder=tmp_path), FakeClock()  # which never moves
    with lockfast.connect(url, clock=clock) as others, others.lock("job"):
        locks = lockfast.connect(url, clock=clock)
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                locks.lock("job").acquire()
            except LockError as error:
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: others.inspect("job").waiters == 1)
        locks.close()
        assert others.inspect("job").waiters == 0
        join(waiter)
        assert ["closed" in str(error) for error in errors] == [True]


@pytest.mark.parametrize("url", ["memory://ending", "sqlite:///{folder}/locks.db"])
def test_a_closed_waiter_leaves_the_queue_though_the_answer_has_not_reached_it_yet(tmp_path: Path, url: str) -> None:
    url = url.format(folder=tmp_path)
    with lockfast.connect(url) as others, others.lock("job"):
        locks = lockfast.connect(url)
        acquire = locks._logic.engine.backend.acquire

        async def acquire_slowly(claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
            answer = await acquire(claim, enqueue=enqueue, within=within)
            with outside():  # as another thread would
                locks.close()
                assert others.inspect("job").waiters == 0
            return answer

        locks._logic.engine.backend.acquire = acquire_slowly  # type: ignore[method-assign]
        with pytest.raises(LockError, match="closed"):
            locks.lock("job").acquire()
        assert others.inspect("job").waiters == 0


@pytest.mark.parametrize("flag", ["renew", "reentrant"])
def test_a_flag_is_true_or_false_and_nothing_that_looks_like_it(flag: str) -> None:
    with lockfast.connect("memory://flags") as locks, pytest.raises(ValueError, match=f"{flag} must be True or False"):
        locks.lock("job", **{flag: "no"})  # type: ignore[arg-type]


@pytest.mark.parametrize("close", [True, False])
def test_locks_that_are_closed_or_dropped_are_forgotten(close: bool) -> None:
    """Each waiter, and every fork, looks through all engines of the process: those that are over cost nothing."""
    locks = lockfast.connect("memory://")
    engine = locks._logic.engine
    engine.finish = lambda _, engine=engine: None  # what is called at the end may refer to it
    if close:
        locks.close()
        assert engine not in living.all_living()
    else:
        assert engine in living.all_living()
        gone = weakref.ref(engine)
        del locks, engine
        gc.collect()
        assert gone() is None


# Closing in the moment of a grant, while another thread is about to enter


def _closing_at(what: Any, verb: str, locks: Locks, monkeypatch: pytest.MonkeyPatch, *, after: bool = False) -> None:
    """Another thread closes the locks before, or after, this call of the verb."""
    do = getattr(what, verb)

    def close_and_do(*args: Any) -> Any:
        answer = do(*args) if after else None
        thread = threading.Thread(target=locks.close)
        thread.start()
        join(thread)
        return answer if after else do(*args)

    monkeypatch.setattr(what, verb, close_and_do)


@pytest.mark.parametrize("after", [False, True])
def test_what_is_granted_while_its_locks_close_is_given_back_and_no_loss_is_reported(
    url: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    with lockfast.connect(url) as others:
        locks = lockfast.connect(url)
        _closing_at(locks._logic.engine.keeper, "keep", locks, monkeypatch, after=after)
        with pytest.raises(LockError, match="closed"):
            locks.lock("x", ttl=3600, on_lost=lambda lease: reported.append(lease.name)).acquire()
        assert not others.inspect("x").locked
    assert reported == []
    assert not locks._logic.engine.on_lost.calling


def test_what_is_lost_before_its_caller_has_it_is_reported_when_it_does(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    with lockfast.connect(url) as locks:
        keeper = locks._logic.engine.keeper
        keep = keeper.keep

        def keep_and_lose(lease: Any) -> None:
            keep(lease)
            keeper.lose(lease, "denied", Reason("gone", "it was broken"))
            assert not locks._logic.engine.on_lost.calling

        monkeypatch.setattr(keeper, "keep", keep_and_lose)
        lease = locks.lock("x", ttl=3600, on_lost=lambda lease: reported.append(lease.name)).acquire()
        assert lease is not None
        assert lease.lost
        until(lambda: reported)
        keeper.lose(lease, "denied", Reason("gone", "again"))
    assert reported == ["x"]


def test_a_body_that_begins_while_its_locks_close_learns_that_it_has_no_lock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    with lockfast.connect(url) as others:
        locks = lockfast.connect(url)
        _closing_at(locks._logic.engine.world, "guard", locks, monkeypatch)
        with (
            pytest.raises(LeaseLost, match="its Locks was closed"),
            locks.lock("x", ttl=3600, on_lost=lambda lease: reported.append(lease.name)),
        ):
            assert not others.inspect("x").locked
    assert reported == ["x"]


def test_what_is_held_without_a_body_is_released_by_closing_and_no_loss(url: str) -> None:
    reported: list[str] = []
    locks = lockfast.connect(url)
    lease = locks.lock("x", on_lost=lambda lease: reported.append(lease.name)).acquire()
    assert lease is not None
    locks.close()
    assert not lease.lost
    assert reported == []
    with pytest.raises(NotHeld):
        lease.check()


def test_a_body_that_has_entered_twice_learns_of_it_too(url: str) -> None:
    locks = lockfast.connect(url)
    lock = locks.lock("x", reentrant=True)

    def enter_twice_and_close() -> None:
        with lock:
            pass
        close = threading.Thread(target=locks.close)
        close.start()
        join(close)

    with pytest.raises(LeaseLost, match="its Locks was closed"), lock:
        enter_twice_and_close()


def test_what_a_manager_holds_is_released_by_closing_and_no_loss(url: str, caplog: pytest.LogCaptureFixture) -> None:
    manager = lockfast.DistributedLock(url)
    assert manager.acquire("x")
    manager.close()
    assert [record.message for record in caplog.records if "lost" in record.message] == []


class _Fails:
    """The backend's release, which fails the first time."""

    def __init__(self, release: Any) -> None:
        self._release = release
        self.failed = 0

    async def __call__(self, claim: Claim, **options: Any) -> bool:
        self.failed += 1
        if self.failed == 1:
            raise lockfast.BackendUnavailable("a moment's trouble")
        return bool(await self._release(claim, **options))


def test_a_release_that_fails_once_does_not_leave_what_was_taken_from_a_body(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lockfast.connect(url) as others:
        locks = lockfast.connect(url)
        backend = locks._logic.engine.backend
        monkeypatch.setattr(backend, "release", _Fails(backend.release))
        with pytest.raises(LeaseLost), locks.lock("x", ttl=3600):
            locks.close()
        assert not others.inspect("x").locked


def test_every_body_learns_of_it_before_anything_is_released(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = lockfast.connect(url)
    backend, held_then = locks._logic.engine.backend, []
    release = backend.release

    async def look_and_release(claim: Claim, **options: Any) -> bool:
        held_then.append([lease.held for lease in (first, second)])
        return await release(claim, **options)

    monkeypatch.setattr(backend, "release", look_and_release)
    with pytest.raises(LeaseLost), locks.lock("x") as first, pytest.raises(LeaseLost), locks.lock("y") as second:
        locks.close()
    assert held_then == [[False, False], [False, False]]


def test_a_loss_is_reported_though_no_thread_can_be_started_for_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    locks = lockfast.connect(url)

    def none_left(work: Coroutine[Any, Any, None], _: str) -> None:
        work.close()
        raise RuntimeError("can't start new thread")

    def close_without_threads() -> None:
        monkeypatch.setattr(locks._logic.engine.world, "spawn", none_left)
        locks.close()

    with pytest.raises(LeaseLost), locks.lock("x", on_lost=lambda lease: reported.append(lease.name)):
        close_without_threads()
    assert reported == ["x"]
