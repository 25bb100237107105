"""Where worlds, callbacks and lock objects meet: each of these was once a hole."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._reentry import drive
from lockfast._worlds.asyncio_ import AsyncioGuard, in_executor
from lockfast.aio import AsyncLocks
from lockfast.engine.not_held import Reason
from lockfast.observe.events import Event
from lockfast.sync import Locks
from tests.no_threads import no_thread_left
from tests.patience import impatient
from tests.polling import HOUR, never_poll
from tests.renewals import renew, renew_async, renew_soon
from tests.servers.waiting import happens, join, pause, until, until_async

pytestmark = pytest.mark.slow


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}-{id(request)}" if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"


# Lock objects


def test_two_objects_of_one_reentrant_lock_count_together(url: str) -> None:
    with lockfast.connect(url) as locks:
        first, second = locks.lock("x", reentrant=True), locks.lock("x", reentrant=True)
        with first:
            second.acquire()
            second.release()
            assert first.locked()
        assert not first.locked()
        first.acquire()
        second.acquire()
        first.release()
        assert first.locked()
        second.release()
        assert not first.locked()


def test_acquire_with_and_release_of_a_reentrant_lock_mix(url: str) -> None:
    with lockfast.connect(url) as locks:
        lock = locks.lock("x", reentrant=True)
        lock.acquire()
        with lock:
            pass
        assert lock.locked()
        lock.release()
        assert not lock.locked()
        with lock as outer:
            with lock:
                lock.release()
            assert outer.held
        assert not lock.locked()


def test_a_body_that_released_early_ends_no_other_hold(url: str) -> None:
    with lockfast.connect(url) as locks:
        lock = locks.lock("x")
        inside, leave = threading.Event(), threading.Event()

        def next_one() -> None:
            with lock:
                inside.set()
                happens(leave)

        thread = threading.Thread(target=next_one)
        with lock as lease:
            lease.release()
            thread.start()
            happens(inside)
        assert lock.locked()
        leave.set()
        join(thread)


# Callbacks


@pytest.mark.parametrize("trouble", [lambda lease: sys.exit(1), lambda lease: pause(1.0)])
def test_an_on_lost_that_exits_or_is_slow_costs_no_other_lease(url: str, trouble: Callable[[object], object]) -> None:
    with lockfast.connect(url) as locks:
        good = locks.lock("good", ttl=60).acquire()
        bad = locks.lock("bad", ttl=0.1, renew=False, on_lost=trouble).acquire()
        assert good is not None
        assert bad is not None
        until(lambda: bad.lost)
        for _ in range(3):
            renew(good)
        assert good.held


def test_a_thread_that_finds_the_loss_cancels_the_task(url: str) -> None:
    reported: list[object] = []

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            async with locks.lock("x", ttl=0.2, renew=False, on_lost=reported.append) as lease:
                await asyncio.to_thread(until, lambda: lease.lost)
                await asyncio.to_thread(lease.check)

    with pytest.raises(lockfast.LeaseLost):
        asyncio.run(main())
    assert len(reported) == 1


def test_a_loss_is_reported_before_the_body_is_ended(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In between, a loop that runs for nothing but the body could be over."""
    steps: list[str] = []

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            async with locks.lock("x", ttl=600, on_lost=print) as lease:
                engine = locks._logic.engine
                spawn, interrupt = engine.world.spawn, AsyncioGuard.interrupt

                def spawned(work: Coroutine[Any, Any, None], name: str) -> None:
                    steps.append(name)
                    spawn(work, name)

                def interrupted(guard: AsyncioGuard) -> None:
                    steps.append("interrupt")
                    interrupt(guard)

                monkeypatch.setattr(engine.world, "spawn", spawned)
                monkeypatch.setattr(AsyncioGuard, "interrupt", interrupted)
                engine.keeper.lose(lease, "denied", Reason("gone", "as a test says"))
                await asyncio.sleep(0)

    with pytest.raises(lockfast.LeaseLost):
        asyncio.run(main())
    assert steps == ["lockfast-on-lost", "interrupt"]


# The keeper


def test_a_lock_that_no_thread_can_be_started_to_renew_is_not_held(url: str) -> None:
    with lockfast.connect(url) as locks:
        with no_thread_left(), impatient(locks, 0.0):
            with pytest.raises(BackendUnavailable, match="no thread could be started") as raised:
                locks.lock("x").acquire()
        assert raised.value.transient
        assert not locks.inspect("x").locked
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        renew(lease)


def test_a_thread_that_could_not_be_started_for_a_lease_is_started_by_the_next_try(url: str) -> None:
    with lockfast.connect(url) as locks:
        with no_thread_left(once=True) as refused:
            lease = locks.lock("x", ttl=60).acquire()
        assert "lockfast-keeper" in refused
        assert lease is not None
        renew(lease)


def test_what_no_thread_of_a_loop_could_be_started_for_is_not_done_later() -> None:
    """A pool keeps what it was given, and its next thread would do it: a connection that no caller waits for."""
    done: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with no_thread_left(), pytest.raises(BackendUnavailable, match="no thread could be started"):
            in_executor(loop, done.append, "refused")
        await in_executor(loop, done.append, "started")

    asyncio.run(main())
    assert done == ["started"]


def test_what_no_thread_can_be_started_for_is_done_when_there_is_one(url: str) -> None:
    with lockfast.connect(url) as locks:
        lease = locks.lock("x").acquire()
        assert lease is not None
        engine = locks._logic.engine
        with no_thread_left() as refused:
            engine.behind(engine.abandon, lease._claim)
        assert refused
        until(lambda: not locks.inspect("x").locked)


def test_a_claim_that_could_not_be_abandoned_is_abandoned_when_there_is_a_thread(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise BackendUnavailable("no answer")

    with lockfast.connect(url) as locks:
        lease = locks.lock("x").acquire()
        assert lease is not None
        engine = locks._logic.engine
        with monkeypatch.context() as patch, no_thread_left():
            patch.setattr(engine.backend, "abandon", fail)
            drive(engine.abandon(lease._claim))
        assert engine.unfinished
        until(lambda: not locks.inspect("x").locked)
        until(lambda: not engine.unfinished)


async def _waiters(locks: AsyncLocks) -> int:
    return (await locks.inspect("x")).waiters


def test_leases_of_a_second_run_are_kept_and_its_waiters_woken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never_poll(monkeypatch)
    locks = lockfast.aio.connect(url)

    async def main() -> None:
        lease = await locks.lock("x", ttl=HOUR).acquire()
        assert lease is not None
        await renew_async(lease)
        waiter = asyncio.create_task(locks.lock("x").acquire())
        await until_async(lambda: _waiters(locks), "one to wait")
        await lease.release()
        following = await waiter
        assert following is not None
        await following.release()

    asyncio.run(main())
    asyncio.run(main())
    asyncio.run(locks.close())


def test_a_second_loop_beside_the_first_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def main(locks: AsyncLocks) -> None:
        assert await locks.lock("x").acquire()
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, use(locks))
        await locks.close()

    async def use(locks: AsyncLocks) -> None:
        await locks.lock("y").acquire()

    asyncio.run(main(lockfast.aio.connect(f"sqlite:///{tmp_path}/locks.db")))


# Closing


def test_a_waiter_learns_of_the_end_of_its_locks(url: str) -> None:
    with lockfast.connect(url) as others:
        others.lock("x").acquire()
        locks = lockfast.connect(url)
        received: list[Exception] = []

        def wait() -> None:
            try:
                locks.lock("x").acquire()
            except lockfast.LockError as error:
                received.append(error)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: others.inspect("x").waiters == 3)
        locks.close()
        join(*threads)
        assert len(received) == 3
        assert all("closed" in str(error) for error in received)


def test_a_close_that_was_cut_short_can_be_finished(url: str) -> None:
    async def main() -> None:
        locks = lockfast.aio.connect(url)
        for number in range(100):
            await locks.lock(f"x{number}").acquire()
        closing = asyncio.create_task(locks.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await locks.close()

    asyncio.run(main())
    with lockfast.connect(url) as after:
        assert after.list() == []


def test_cancelled_acquires_leave_no_waiter_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(f"sqlite:///{tmp_path}/locks.db") as locks:
            await locks.lock("x").acquire()
            asking = [asyncio.create_task(locks.lock("x").acquire()) for _ in range(100)]
            await asyncio.sleep(0)
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)
            assert (await locks.inspect("x")).waiters == 0
            assert waiters(locks) == 0

    asyncio.run(main())


def waiters(locks: AsyncLocks | Locks) -> int:
    backend: object = locks._logic.engine.backend
    return len(backend._driver.wakeups._waiters)  # type: ignore[attr-defined]


# Listeners


def test_what_cannot_listen_is_refused_at_once(url: str) -> None:
    with lockfast.connect(url) as locks:
        for nothing in (5, None, "print"):
            with pytest.raises(ValueError, match=f"a listener must be a function .* not {nothing!r}"):
                locks.events.listen(nothing)  # type: ignore[arg-type]
        with locks.lock("x"):
            pass


# What a listener may raise. The last one is what the result of a cancelled task raises.
TROUBLES = [RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


def loud(trouble: type[BaseException], *kinds: str) -> Callable[[Event], None]:
    """A listener that raises, at these kinds of events or at all."""

    def listen(event: Event) -> None:
        if not kinds or event.kind in kinds:
            raise trouble

    return listen


@pytest.mark.parametrize("trouble", [RuntimeError, SystemExit])
def test_a_listener_that_exits_in_a_thread_of_ours_costs_no_lease(url: str, trouble: type[BaseException]) -> None:
    """Both leases are renewed in one request, and the loss is found by the keeper."""
    reported: list[object] = []
    received: list[str] = []
    with lockfast.connect(url) as locks:
        stop = locks.events.listen(loud(trouble, "renewed", "lost"))
        locks.events.listen(lambda event: received.append(event.kind))
        good = [locks.lock(name, ttl=60).acquire() for name in ("good", "better")]
        bad = locks.lock("bad", ttl=0.1, renew=False, on_lost=reported.append).acquire()
        for _ in range(3):
            renew_soon(*good)
            for lease in good:
                renew(lease)
        until(lambda: reported == [bad], "the loss to be reported")
        until(lambda: {"renewed", "lost"} <= set(received), "others to receive it all the same")
        stop()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_listener_that_exits_in_a_users_thread_changes_nothing_there(url: str, trouble: type[BaseException]) -> None:
    done = threading.Event()

    def work(locks: Locks) -> None:
        with locks.lock("x") as lease:
            lease.extend()
        if locks.break_lock("x").locked is False:
            done.set()

    with lockfast.connect(url) as locks:
        locks.events.listen(loud(trouble))
        thread = threading.Thread(target=work, args=(locks,))
        thread.start()
        join(thread)
        assert done.is_set()


@pytest.mark.parametrize("trouble", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("kind", "story"),
    [
        ("asked", ["asked", "not_granted cancelled"]),
        ("granted", ["asked", "granted granted", "released released"]),
        ("released", ["asked", "granted granted", "released released"]),
    ],
)
def test_an_interrupt_in_a_listener_of_the_main_thread_goes_on_and_leaves_nothing(
    url: str, kind: str, story: list[str], trouble: type[BaseException]
) -> None:
    """It may be a Ctrl-C that fell there: to swallow that would be to hang."""
    received: list[str] = []
    with lockfast.connect(url) as locks:
        stop = locks.events.listen(loud(trouble, kind))
        locks.events.listen(lambda event: received.append(f"{event.kind} {event.outcome}".strip()))
        with pytest.raises(trouble):
            with locks.lock("x"):
                pass
        assert received == story, "the others received it first, and then what the interrupt ended"
        assert not locks.inspect("x").locked
        stop()
        with locks.lock("x", wait=0):
            pass


@pytest.mark.parametrize("trouble", [RuntimeError, GeneratorExit, asyncio.CancelledError])
def test_what_no_signal_raises_does_not_leave_a_listener_of_the_main_thread(
    url: str, trouble: type[BaseException]
) -> None:
    with lockfast.connect(url) as locks:
        locks.events.listen(loud(trouble))
        with locks.lock("x") as lease:
            lease.extend()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [SystemExit, asyncio.CancelledError])
def test_a_listener_that_exits_in_a_loop_never_ends_the_keeper(url: str, trouble: type[BaseException]) -> None:
    """An exit leaves the loop, as asyncio has it; when the loop runs again, every lease is kept."""
    locks = lockfast.aio.connect(url)
    loop = asyncio.new_event_loop()
    try:
        lease = loop.run_until_complete(locks.lock("x", ttl=60).acquire())
        assert lease is not None
        stop = locks.events.listen(loud(trouble, "renewed"))
        loop.call_soon(renew_soon, lease)
        if trouble is SystemExit:
            with pytest.raises(trouble):
                loop.run_forever()
            stop()
        for _ in range(2):
            loop.run_until_complete(renew_async(lease))
        assert loop.run_until_complete(lease.release())
        loop.run_until_complete(locks.close())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_a_log_that_fails_costs_no_lease(url: str) -> None:
    class Failing(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("no room for records")

    failing, log = Failing(), logging.getLogger("lockfast")
    log.addFilter(failing)
    try:
        with lockfast.connect(url) as locks:
            reported: list[object] = []
            good = locks.lock("good", ttl=60).acquire()
            locks.lock("bad", ttl=0.1, renew=False, on_lost=reported.append).acquire()
            renew(good)
            until(lambda: reported, "the loss to be reported")
            renew(good)
    finally:
        log.removeFilter(failing)


@pytest.mark.parametrize(
    "make",
    [
        lambda locks: locks,
        lambda locks: locks.lock("x"),
        lambda locks: locks.rwlock("x").read(),
        lambda locks: locks.all("x", "y"),
        lambda locks: locks.election("x"),
        lambda locks: locks.limiter("x", rate=1),
        lambda locks: locks.cell("x"),
        lambda locks: lockfast.aio.connect("memory://"),
    ],
)
def test_what_belongs_to_a_locks_says_to_a_pickler_what_to_do_instead(make: Callable[[Any], object], url: str) -> None:
    with lockfast.connect(url) as locks:
        for take in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"connect\(\) in the other process"):
                take(make(locks))
