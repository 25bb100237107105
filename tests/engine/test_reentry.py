"""Finalizers and signal handlers in the middle of our own code: what they end is put off, what they ask is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import _reentry
from lockfast._facades import manager as facade
from lockfast._model import Claim
from lockfast._reentry import drive, outside
from lockfast.backends.memory.store import shared_store
from lockfast.engine.standby import STANDBY
from lockfast.testing import FakeClock
from tests.servers.waiting import happens, join, until, until_async


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"


def in_the_middle_of(locks: lockfast.Locks, act: Callable[[], object]) -> None:
    """Act where a request of this thread is under way."""
    backend = locks._logic.engine.backend
    inspect = backend.inspect

    async def inspect_and_act(key: str, *, within: float) -> Any:
        act()
        return await inspect(key, within=within)

    backend.inspect = inspect_and_act  # type: ignore[method-assign]
    try:
        locks.inspect("anything")
    finally:
        backend.inspect = inspect  # type: ignore[method-assign]


# What is asked is refused


def test_what_is_asked_in_the_middle_of_a_request_is_refused_and_leaves_nothing(url: str) -> None:
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:

        def ask() -> None:
            for asks in (locks, others):
                with pytest.raises(lockfast.BackendUnavailable, match="in the middle of another request"):
                    asks.lock("job").acquire(blocking=False)

        in_the_middle_of(locks, ask)
        assert locks.list() == []
        with locks.lock("job"):
            pass


def test_code_of_the_user_s_may_ask_for_anything(url: str) -> None:
    asked: list[str] = []

    def ask(name: str) -> None:
        with locks.lock(name, wait=0):
            asked.append(name)

    with lockfast.connect(url) as locks:
        listen = locks._logic.engine.events.listen
        stop = listen(lambda event: ask("listener") if (event.name, event.kind) == ("job", "granted") else None)
        with locks.lock("job"):
            stop()
        locks.cell("box").update(lambda _: ask("update"))
        locks.election("lead").run(lambda _: ask("elected"))
        manager = lockfast.DistributedLock(url)
        manager.with_lock("scope", lambda: ask("in scope"))
        manager.close()
    assert asked == ["listener", "update", "elected", "in scope"]


# What ends something is put off


def test_a_release_in_the_middle_of_a_request_is_done_when_nothing_else_is_asked_any_more(tmp_path: Path) -> None:
    store = shared_store(tmp_path.name)
    with lockfast.connect(f"memory://{tmp_path.name}") as locks:
        lease = locks.lock("job", ttl=3600).acquire()
        assert lease is not None
        in_the_middle_of(locks, lambda: lease.release() or pytest.fail("it was held"))
        until(lambda: "job" not in store.resources)
        assert not lease.release()


def test_every_way_to_end_something_may_be_met_in_the_middle_of_a_request(url: str) -> None:
    with lockfast.connect(url) as others, lockfast.connect(url) as locks:
        manager = lockfast.DistributedLock(url)
        lock, multi, election = locks.lock("lock"), locks.all("a", "b"), locks.election("lead")
        lock.acquire()
        multi.acquire()
        election.campaign()
        observing = locks.election("lead").observe()
        next(observing)
        manager.acquire("managed", 3600)
        entered = locks.lock("entered")
        entered.__enter__()

        def end_all() -> None:
            lock.release()
            multi.release()
            assert election.resign()
            observing.close()
            assert manager.release("managed")
            assert manager.release_all() == 1
            entered.__exit__(None, None, None)

        in_the_middle_of(others, end_all)
        until(lambda: not others.list())
        in_the_middle_of(others, locks.close)
        until(lambda: locks._logic.engine.closed)
        manager.close()


def test_what_is_expected_of_something_that_is_put_off_is_what_was_true_before(url: str) -> None:
    with lockfast.connect(url) as others, lockfast.connect(url) as locks:
        engine, lease = locks._logic.engine, locks.lock("x").acquire()
        assert lease is not None
        put_off = engine.put_off

        def done_at_once(work: Any) -> None:
            put_off(work)
            _reentry.start_put_off()
            until(lambda: lease._state == "released")

        engine.put_off = done_at_once  # type: ignore[method-assign]
        in_the_middle_of(others, lambda: lease.release() or pytest.fail("it was held"))
        assert not others.inspect("x").locked


def test_what_is_put_off_is_done_for_the_thread_that_wanted_it(url: str) -> None:
    """Else it would end the permit of another that was taken through the same object."""
    with lockfast.connect(url) as locks:
        permits = locks.semaphore("pool", 5)
        permits.__enter__()
        theirs: list[lockfast.Lease] = []
        thread = threading.Thread(target=lambda: theirs.append(permits.__enter__()))
        thread.start()
        join(thread)
        in_the_middle_of(locks, lambda: permits.__exit__(None, None, None))
        until(lambda: len(locks.inspect("pool").holders) == 1)
        assert theirs[0].held
        theirs[0].release()


def test_what_was_put_off_and_fails_does_not_keep_the_rest(tmp_path: Path) -> None:
    store = shared_store(tmp_path.name)
    with lockfast.connect(f"memory://{tmp_path.name}") as locks:
        lease = locks.lock("job", ttl=3600).acquire()
        assert lease is not None

        def end() -> None:
            locks.lock("never held").release()
            lease.release()

        in_the_middle_of(locks, end)
        until(lambda: "job" not in store.resources)


def test_checking_a_lost_lease_in_the_middle_of_a_request_reports_the_loss(url: str) -> None:
    clock, lost = FakeClock(), threading.Event()
    with lockfast.connect(url, clock=clock) as locks, lockfast.connect(url) as others:
        lease = locks.lock("job", ttl=10, renew=False, on_lost=lambda _: lost.set()).acquire()
        assert lease is not None
        keeper = locks._logic.engine.keeper
        keeper.loop.close()  # so that the keeper does not look at the clock first
        clock.advance(100)

        def check() -> None:
            with pytest.raises(lockfast.LeaseLost, match="ran out"):
                lease.check()

        in_the_middle_of(others, check)
        others.list()
        until(lost.is_set)


def test_checking_a_lost_lease_in_a_step_of_an_event_loop_does_not_hang(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with lockfast.aio.connect(f"memory://{tmp_path.name}", clock=clock) as locks:
            lease = await locks.lock("job", ttl=10, renew=False).acquire()
            assert lease is not None
            clock.advance(100)
            with locks._logic.engine.mutex, pytest.raises(lockfast.LeaseLost):
                lease.check()

    asyncio.run(main())


def test_a_coroutine_that_is_closed_in_another_loop_s_thread_releases(url: str) -> None:
    """The garbage collector runs where it likes."""
    inside, done = threading.Event(), threading.Event()
    bodies: list[Any] = []

    async def hold(locks: Any) -> None:
        async with locks.lock("job", ttl=3600):
            inside.set()
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            body = hold(locks)
            while not inside.is_set():
                waits_for = body.send(None)
                if not inside.is_set():
                    waits_for._asyncio_future_blocking = False
                    await asyncio.wait([waits_for])
            bodies.append(body)
            await until_async(done.is_set)

    async def close() -> None:
        bodies.pop().close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        until(lambda: bodies)
        asyncio.run(close())
        with lockfast.connect(url) as others:
            until(lambda: not others.inspect("job").locked)
    finally:
        done.set()
        join(thread)


def test_a_coroutine_whose_loop_is_gone_releases_what_needs_no_loop(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    locks = lockfast.aio.connect(url)

    async def hold() -> None:
        async with locks.lock("job", ttl=3600):
            await asyncio.get_running_loop().create_future()

    body = hold()

    async def begin() -> None:
        body.send(None)
        await asyncio.sleep(0)

    asyncio.run(begin())
    body.close()
    with lockfast.connect(url) as others:
        until(lambda: not others.inspect("job").locked)
    locks._logic.engine.closed = True
    STANDBY.unwatch(locks._logic.engine)  # as close() does, which needs the loop


# Two threads


class _Watched:
    """A mutex that reports when it is held."""

    def __init__(self, mutex: Any, held: Callable[[], None]) -> None:
        self._mutex, self._held = mutex, held

    def __enter__(self) -> None:
        self._mutex.acquire()
        self._held()

    def __exit__(self, *_: object) -> None:
        self._mutex.release()


def test_two_threads_whose_finalizers_want_each_other_s_mutex_go_on(tmp_path: Path) -> None:
    """One is in a transaction and wants the mutex of the waiters; the other has that, and ends a hold there."""
    with lockfast.connect(f"sqlite:///{tmp_path}/locks.db") as locks:
        driver: Any = locks._logic.engine.backend._driver  # type: ignore[attr-defined]
        wakeups, mutex = driver.wakeups, driver.wakeups._mutex
        holder, doomed = locks.lock("job").acquire(), locks.lock("doomed", ttl=3600).acquire()
        assert holder is not None
        assert doomed is not None
        has_mutex, in_transaction = threading.Event(), threading.Event()
        forget, expect = wakeups.forget, wakeups.expect

        def in_forget() -> None:
            if threading.current_thread() is thread:
                has_mutex.set()
                happens(in_transaction)
                doomed.release()  # as the garbage collector may

        def expect_after(claim: Claim) -> str:
            happens(has_mutex)
            in_transaction.set()
            answer: str = expect(claim)
            return answer

        async def forgets() -> None:
            forget(Claim("of no waiter", holder._claim.terms))

        wakeups._mutex = _Watched(mutex, in_forget)
        wakeups._waiters["of a waiter"] = object()  # else there is nothing to forget
        wakeups.expect = expect_after
        thread = threading.Thread(target=lambda: drive(forgets()), daemon=True)
        thread.start()
        assert locks.lock("job").acquire(timeout=0.01) is None
        join(thread)
        del wakeups._waiters["of a waiter"]
        wakeups._mutex, wakeups.expect = mutex, expect
        until(lambda: not locks.inspect("doomed").locked)
        holder.release()


# Signals


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], None]], None]]:
    before = signal.getsignal(signal.SIGUSR1)

    def install(act: Callable[[], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: act())

    yield install
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_may_use_locks_while_its_thread_waits_for_one(
    url: str, on_signal: Callable[[Callable[[], None]], None]
) -> None:
    with lockfast.connect(url) as locks:
        leases: list[lockfast.Lease | None] = []

        def take_another() -> None:
            with suppress(lockfast.BackendUnavailable):  # it came when the thread was about to sleep
                leases.append(locks.lock("another").acquire(blocking=False))

        on_signal(take_another)
        held = threading.Event()

        def interrupt() -> bool:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            return False

        def hold() -> None:
            with locks.lock("job", ttl=60):
                held.set()
                until(lambda: locks.inspect("job").waiters)
                until(lambda: leases or interrupt())

        thread = threading.Thread(target=hold)
        thread.start()
        happens(held)
        with locks.lock("job"):
            join(thread)
        lease = leases[0]
        assert lease is not None
        assert lease.held


@pytest.mark.soak
def test_a_storm_of_signals_whose_handler_uses_locks_hangs_nothing(
    url: str, on_signal: Callable[[Callable[[], None]], None]
) -> None:
    refused, taken = [0], [0]
    stock: list[lockfast.Lease] = []

    def handle() -> None:
        if stock:
            stock.pop().release()
        try:
            lease = locks.lock("handler").acquire(blocking=False)
        except lockfast.BackendUnavailable:
            refused[0] += 1
        else:
            taken[0] += 1
            if lease is not None:
                lease.release()

    with lockfast.connect(url) as locks:
        on_signal(handle)
        over = threading.Event()

        def storm() -> None:
            while not over.wait(0.0005):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            number = 0
            while number < 500 or refused[0] < 10 or taken[0] < 10:
                number += 1
                lease = locks.lock(f"handled {number}", ttl=3600).acquire()
                assert lease is not None
                stock.append(lease)
                with locks.lock("job"):
                    pass
        finally:
            over.set()
            join(thread)
        while stock:
            stock.pop().release()
        until(lambda: not locks.list())


# The mark itself


def test_a_mark_that_an_interrupt_left_behind_refuses_nothing() -> None:
    async def work() -> int:
        return 1

    for left in (work(), finished := work()):
        if left is finished:
            drive(left)
        _reentry._inside[threading.get_ident()] = left
        assert drive(work()) == 1
        left.close()
    _reentry._inside[threading.get_ident()] = None


def test_a_finalizer_before_the_first_step_of_an_operation_leaves_its_mark_alone() -> None:
    async def work() -> bool:
        return _reentry.is_inside()

    outer = work()
    _reentry._inside[threading.get_ident()] = outer  # as `drive` does before it begins
    assert drive(work())
    assert _reentry._inside[threading.get_ident()] is outer
    outer.close()


def test_a_child_of_a_fork_knows_nothing_of_its_parent_s_threads() -> None:
    inside, go_on = threading.Event(), threading.Event()

    async def work() -> None:
        inside.set()
        happens(go_on)

    thread = threading.Thread(target=lambda: drive(work()))
    thread.start()
    happens(inside)
    pid = os.fork()
    if pid == 0:
        os._exit(len(_reentry._inside))
    go_on.set()
    join(thread)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_outside_ends_with_its_block() -> None:
    async def work() -> list[bool]:
        seen = [_reentry.is_inside()]
        with outside():
            seen.append(_reentry.is_inside())
        return [*seen, _reentry.is_inside()]

    assert drive(work()) == [True, False, True]
    assert not _reentry.is_inside()


# The one manager


def test_a_finalizer_may_ask_for_the_one_manager_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[lockfast.DistributedLock] = []

    class Asks(facade.DistributedLock):
        def __init__(self, url: Any) -> None:
            made.append(self)
            if len(made) == 1:
                assert facade.get_distributed_lock("memory://") is made[1]
            super().__init__(url)

    monkeypatch.setattr(facade, "DistributedLock", Asks)
    monkeypatch.setattr(facade, "_the_one", None)
    assert facade.get_distributed_lock("memory://") is made[1]
    for manager in made:
        manager.close()


def test_a_finalizer_may_ask_for_a_loop_s_one_manager_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[facade.AsyncDistributedLock] = []

    class Asks(facade.AsyncDistributedLock):
        def __init__(self, url: Any) -> None:
            made.append(self)
            if len(made) == 1:
                assert facade.get_async_distributed_lock("memory://") is made[1]
            super().__init__(url)

    async def main() -> None:
        assert facade.get_async_distributed_lock("memory://") is made[1]
        for manager in made:
            await manager.close()

    monkeypatch.setattr(facade, "AsyncDistributedLock", Asks)
    asyncio.run(main())
