"""What ends when nobody needs it any more: keepers, waiters of a closed `Locks`."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest

import holdfast
from holdfast._model import Busy, Claim, Grant
from holdfast._reentry import outside
from holdfast.engine import core
from holdfast.errors import LockError
from holdfast.testing import FakeClock
from tests.servers.waiting import join, until


def test_a_keeper_without_leases_ends_though_the_last_one_was_not_due_for_long(tmp_path: Path) -> None:
    clock = FakeClock()
    with holdfast.connect(f"sqlite:///{tmp_path}/locks.db", clock=clock) as locks:
        with locks.lock("job", ttl=86400):
            pass
        keeper = locks._logic.engine.keeper
        until(lambda: clock.sleepers == 1)
        clock.advance(10)
        until(lambda: keeper._signal is None)
        with locks.lock("job", ttl=0.3) as lease:  # and another one begins
            until(lambda: clock.sleepers == 1)
            clock.advance(0.25)
            until(lambda: lease.remaining > 0.2)


@pytest.mark.parametrize("url", ["memory://ending", "sqlite:///{folder}/locks.db"])
def test_whoever_waits_leaves_the_queue_at_once_when_its_locks_are_closed(tmp_path: Path, url: str) -> None:
    url, clock = url.format(folder=tmp_path), FakeClock()  # which never moves
    with holdfast.connect(url, clock=clock) as others, others.lock("job"):
        locks = holdfast.connect(url, clock=clock)
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
def test_it_leaves_the_queue_too_when_the_answer_has_not_reached_it_yet(tmp_path: Path, url: str) -> None:
    url = url.format(folder=tmp_path)
    with holdfast.connect(url) as others, others.lock("job"):
        locks = holdfast.connect(url)
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
    with holdfast.connect("memory://flags") as locks, pytest.raises(ValueError, match=f"{flag} must be True or False"):
        locks.lock("job", **{flag: "no"})  # type: ignore[arg-type]


@pytest.mark.parametrize("close", [True, False])
def test_locks_that_are_closed_or_dropped_are_forgotten(close: bool) -> None:
    """Whoever waits, and every fork, looks through all engines of the process: those that are over cost nothing."""
    locks = holdfast.connect("memory://")
    engine = locks._logic.engine
    engine.finish = lambda _, engine=engine: None  # what is called at the end may refer to it
    if close:
        locks.close()
        assert engine not in core.all_living()
    else:
        assert engine in core.all_living()
        gone = weakref.ref(engine)
        del locks, engine
        gc.collect()
        assert gone() is None
