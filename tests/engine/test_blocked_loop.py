"""A body that blocks its event loop keeps its lock: another thread renews it. Where none is blocked it does nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

import lockfast
import lockfast.aio
from lockfast import BackendUnavailable, LeaseLost
from lockfast._connect import open_backend
from lockfast._model import Renewal
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast._worlds.threads import ThreadWorld
from lockfast.aio import AsyncLease, AsyncLocks
from lockfast.backends.base import Backend
from lockfast.engine.core import Engine
from lockfast.engine.loop_watch import KEEP_S
from lockfast.engine.schedule import NEVER
from lockfast.engine.standby import Standby
from lockfast.testing import ALWAYS, FakeClock, FaultyBackend
from tests.no_threads import no_thread_left
from tests.servers.waiting import LIMIT_S, happens, join, until, until_async

T = TypeVar("T")
NAME = "lockfast-standby"
TTL_S = 30.0
SHORT_TTL_S = 0.75


class Client:
    """Locks for asyncio on a fake clock, and what renews for them."""

    def __init__(self, clock: FakeClock, url: str, standby: Standby, **of_twin: Any) -> None:
        self.made: list[FaultyBackend] = []  # for the loop, and then for the thread
        self.unanswered = False  # whatever is asked from outside

        def make(world: World, _: Clock | None) -> Backend:
            backend = FaultyBackend(open_backend(url, world, clock), world, **(of_twin if self.made else {}))
            if self.made and self.unanswered:
                backend.lose_request("renew", ALWAYS)
            self.made.append(backend)
            return backend

        self.locks: AsyncLocks = lockfast.aio.connect(make, clock=clock)
        self.engine: Engine = self.locks._logic.engine
        self.engine.stand_by(standby)

    async def take(self, name: str = "x", ttl: float = TTL_S, **options: Any) -> AsyncLease:
        lease = await self.locks.lock(name, ttl=ttl, **options).acquire()
        assert lease is not None
        return lease

    @property
    def asked_outside(self) -> int:
        return sum(backend.calls["renew"] for backend in self.made[1:])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def standby(clock: FakeClock) -> Standby:
    return Standby(ThreadWorld(clock))


@pytest.fixture
def client(clock: FakeClock, url: str, standby: Standby) -> Iterator[Client]:
    """Of the tests that end in a loop."""
    client = Client(clock, url, standby)
    yield client
    if not client.engine.closed:
        asyncio.run(client.locks.close())


def block(clock: FakeClock, seconds: float, *leases: AsyncLease) -> None:
    """As a body that never awaits."""
    end = clock.now() + seconds
    while clock.now() < end:
        clock.advance(0.6 * min(lease.ttl for lease in leases))
        until(lambda: all(lease.lost or lease.remaining > 0.5 * lease.ttl for lease in leases), "renewals")


async def awake(clock: FakeClock, seconds: float, sleepers: int = 2) -> None:
    """As a body that awaits: the keeper and the standby go back to sleep at each alarm."""
    end = clock.now() + seconds
    await until_async(lambda: clock.sleepers >= sleepers and not clock.waking)
    while (at := clock.next_alarm) is not None and at <= end:
        clock.advance_to(at)
        await until_async(
            lambda: clock.sleepers >= sleepers and not clock.waking, "the keeper and the standby to sleep"
        )
    clock.advance_to(end)


# What is kept


def test_a_body_that_blocks_its_loop_for_ten_ttls_keeps_its_lock(client: Client, clock: FakeClock) -> None:
    async def main() -> None:
        async with client.locks, client.locks.lock("x", ttl=TTL_S) as lease:
            block(clock, 10 * TTL_S, lease)
            lease.check()

    asyncio.run(main())
    assert client.asked_outside >= 10


def test_a_request_that_was_under_way_when_the_loop_was_blocked_does_no_harm(client: Client, clock: FakeClock) -> None:
    async def main() -> None:
        async with client.locks:
            lease = await client.take()
            client.made[0].hang_request("renew")
            await awake(clock, TTL_S / 3 + 1)
            await until_async(lambda: client.made[0].hanging == 1)
            block(clock, 10 * TTL_S, lease)
            client.made[0].resume()
            await until_async(lambda: client.engine.keeper.is_idle())
            lease.check()
            assert client.made[0].calls["renew"] == 1, "an answer to an earlier request brings no renewal forward"
            renewed = client.asked_outside
            await awake(clock, 3 * TTL_S)
            lease.check()
            assert client.asked_outside == renewed, "the loop renews it again"

    asyncio.run(main())


def test_leases_taken_in_a_loop_that_is_overdue_are_kept_too(clock: FakeClock, standby: Standby) -> None:
    """A long one first, so that the thread sleeps for longer than the short ones have."""
    client = Client(clock, f"memory://{uuid4().hex}", standby)  # where no acquire suspends

    async def main() -> None:
        async with client.locks:
            long = await client.take("long", ttl=10 * TTL_S)
            for name in ("a", "b"):
                clock.advance(4 * TTL_S)  # from here on the keeper is overdue
                until(lambda: clock.now() < standby.wake_at < NEVER, "the thread to sleep until the long one is due")
                short = await client.take(name, ttl=0.1 * TTL_S)
                block(clock, TTL_S, short)
                long.check()
                short.check()

    asyncio.run(main())


def test_many_locks_of_several_loops_have_one_thread() -> None:
    go_on, holding = threading.Event(), threading.Semaphore(0)

    async def hold() -> None:
        all_locks = [lockfast.aio.connect(f"memory://{uuid4().hex}") for _ in range(5)]
        for locks in all_locks:
            await locks.lock("x", ttl=3600).acquire()
        holding.release()
        happens(go_on)
        for locks in all_locks:
            await locks.close()

    threads = [threading.Thread(target=asyncio.run, args=(hold(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert holding.acquire(timeout=LIMIT_S)
    until(lambda: _standbys() == 1, "the thread to begin")
    go_on.set()
    for thread in threads:
        join(thread)
    until(lambda: not _standbys(), "the thread to end with the last of them")


def _standbys() -> int:
    return [thread.name for thread in threading.enumerate()].count(NAME)


def test_a_blocked_loop_does_not_hide_another(clock: FakeClock, standby: Standby) -> None:
    """Nor does one whose server cannot be reached. For how long one request may hang, the simulation shows."""
    stuck, other = (Client(clock, f"memory://{uuid4().hex}", standby) for _ in range(2))
    stuck.unanswered = True

    async def main() -> None:
        async with stuck.locks, other.locks:
            await stuck.take()
            lease = await other.take()
            block(clock, 10 * TTL_S, lease)
            lease.check()

    asyncio.run(main())


# What is not done


def test_what_is_held_in_a_loop_that_runs_is_never_renewed_from_outside(client: Client, clock: FakeClock) -> None:
    async def main() -> None:
        async with client.locks:
            lease = await client.take()
            await awake(clock, 20 * TTL_S)
            lease.check()

    asyncio.run(main())
    assert len(client.made) == 1, "nothing was opened for it"
    assert client.made[0].calls["renew"] >= 20


def test_a_slow_server_is_no_blocked_loop(client: Client, clock: FakeClock) -> None:
    async def main() -> None:
        async with client.locks:
            lease = await client.take()
            client.made[0].hang_request("renew", ALWAYS)
            await awake(clock, 0.95 * TTL_S)
            assert client.made[0].hanging
            assert lease.held
            client.made[0].heal()

    asyncio.run(main())
    assert len(client.made) == 1


def test_many_short_holds_wake_the_thread_once(
    client: Client, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    wake_by = standby.wake_by

    def counted(at: float) -> None:
        calls.append(at)
        wake_by(at)

    monkeypatch.setattr(standby, "wake_by", counted)

    async def main() -> None:
        async with client.locks:
            for _ in range(300):
                async with client.locks.lock("x", ttl=TTL_S):
                    pass

    asyncio.run(main())
    assert len(calls) <= 2


def test_what_was_released_while_it_was_renewed_is_not_lost(client: Client, clock: FakeClock) -> None:
    """The loop goes on in the middle of the request."""
    lost: list[object] = []
    reached, go_on = threading.Event(), threading.Event()
    open_twin = client.engine.open_twin
    assert open_twin is not None

    def open_slow() -> Backend:
        twin = open_twin()
        renew = twin.renew

        async def slowly(batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
            reached.set()
            happens(go_on)
            return await renew(batch, within=within)

        twin.renew = slowly  # type: ignore[method-assign]
        return twin

    client.engine.open_twin = open_slow

    async def main() -> None:
        async with client.locks:
            lease = await client.take(on_lost=lost.append)
            clock.advance(0.6 * TTL_S)
            happens(reached)
            assert await lease.release()
            again = await client.take()
            go_on.set()
            until(lambda: not client.engine.loop_watch._in_use)  # type: ignore[union-attr]
            assert not lease.held
            assert not lease.lost
            again.check()
            assert again.fence > lease.fence

    asyncio.run(main())
    assert not lost


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_was_held_when_the_loop_was_closed_is_not_renewed(clock: FakeClock, standby: Standby) -> None:
    client = Client(clock, f"memory://{uuid4().hex}", standby)
    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(client.take())
    loop.close()
    clock.advance(0.6 * TTL_S)
    until(lambda: standby.wake_at > clock.now(), "the thread to sleep again")
    clock.advance(0.6 * TTL_S)
    assert not lease.held
    assert len(client.made) == 1
    asyncio.run(client.locks.close())


def test_what_is_held_between_two_runs_of_a_loop_is_renewed(
    clock: FakeClock, standby: Standby, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(clock, f"memory://{uuid4().hex}", standby)
    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(client.take())
    block(clock, 10 * TTL_S, lease)
    assert lease.held
    until(lambda: "the event loop that holds lock 'x' (ttl 30s) has not run for" in caplog.text, "a warning")
    loop.run_until_complete(client.locks.close())
    loop.close()


def test_what_is_held_in_a_loop_whose_thread_is_gone_is_not_renewed(clock: FakeClock, standby: Standby) -> None:
    client = Client(clock, f"memory://{uuid4().hex}", standby)
    loop = asyncio.new_event_loop()
    leases: list[AsyncLease] = []
    thread = threading.Thread(target=lambda: leases.append(loop.run_until_complete(client.take())))
    thread.start()
    join(thread)
    clock.advance(0.6 * TTL_S)
    until(lambda: standby.wake_at > clock.now(), "the thread to sleep again")
    clock.advance(0.6 * TTL_S)
    assert not leases[0].held
    assert len(client.made) == 1
    loop.run_until_complete(client.locks.close())
    loop.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_thread_keeps_no_locks_alive() -> None:
    standby, loop = Standby(ThreadWorld()), asyncio.new_event_loop()
    locks = lockfast.aio.connect(f"memory://{uuid4().hex}")
    locks._logic.engine.stand_by(standby)
    loop.run_until_complete(locks.lock("x", ttl=3600).acquire())
    until(lambda: standby.wake_at < NEVER, "the thread to sleep")
    loop.close()
    engine = weakref.ref(locks._logic.engine)
    del locks, loop

    def is_gone() -> bool:
        gc.collect()
        return engine() is None

    until(is_gone)
    if (signal := standby._signal) is not None:  # else the thread began only now, and ended: there is nothing to watch
        signal.set()
    until(lambda: not _standbys(), "the thread to end")


# Losses


def test_a_loss_is_known_at_once_and_reported_in_the_loop(client: Client, clock: FakeClock) -> None:
    lost: list[str] = []
    client.unanswered = True

    async def body() -> None:
        async with client.locks.lock("x", ttl=TTL_S, on_lost=lambda lease: lost.append(lease.name)) as lease:
            clock.advance(0.6 * TTL_S)
            until(lambda: client.asked_outside)
            assert lease.held
            clock.advance(0.6 * TTL_S)
            assert not lease.held
            assert lease.lost
            assert not lost
            await asyncio.get_running_loop().create_future()  # it is cancelled

    async def main() -> None:
        async with client.locks:
            with pytest.raises(LeaseLost, match="the request to renew was lost"):
                await body()
            await until_async(lambda: lost == ["x"])

    asyncio.run(main())


def test_an_error_in_passing_is_not_a_loss(client: Client, clock: FakeClock) -> None:
    open_twin = client.engine.open_twin
    assert open_twin is not None

    def open_unlucky() -> Any:
        twin: Any = open_twin()
        twin.lose_request("renew", 2, BackendUnavailable("gone for a moment"))
        return twin

    client.engine.open_twin = open_unlucky
    events: list[str] = []
    client.locks.events.listen(lambda event: events.append(event.kind))

    async def main() -> None:
        async with client.locks:
            lease = await client.take()
            clock.advance(0.6 * TTL_S)
            until(lambda: client.asked_outside == 1)

            def renewed() -> bool:
                if (at := clock.next_alarm) is not None and at < lease._deadline:
                    clock.advance_to(at)  # the pause before the next try
                return lease.remaining > 0.5 * TTL_S or lease.lost

            until(renewed)
            assert lease.held
            block(clock, 3 * TTL_S, lease)
            await until_async(lambda: "renewed" in events)
            assert events.count("renewal_failed") == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("capabilities", "why"),
    [({"expires": False}, "only its own connections can renew what they hold"), ({}, "it is another store each time")],
)
def test_a_lease_that_only_its_own_backend_can_renew_is_lost_as_ever(
    capabilities: dict[str, Any], why: str, clock: FakeClock, standby: Standby, caplog: pytest.LogCaptureFixture
) -> None:
    def make(world: World, _: Clock | None) -> Backend:
        return FaultyBackend(open_backend(f"memory://{uuid4().hex}", world, clock), world, **capabilities)

    async def main() -> None:
        locks = lockfast.aio.connect(make, clock=clock)
        locks._logic.engine.stand_by(standby)
        async with locks:
            lease = await locks.lock("x", ttl=TTL_S).acquire()
            assert lease is not None
            for _ in range(3):
                clock.advance(0.3 * TTL_S)
                until(lambda: standby.wake_at > clock.now(), "the thread to sleep again")
            assert lease.held
            until(lambda: f"it cannot be renewed from outside: {why}" in _without_reprs(caplog.text), "a warning")
            clock.advance(0.2 * TTL_S)
            assert lease.lost

    asyncio.run(main())


def _without_reprs(text: str) -> str:
    before, _, after = text.partition("from outside: ")
    return f"{before}from outside: {after.partition('>: ')[2]}"


def test_a_backend_that_suspends_in_threads_costs_the_others_nothing(clock: FakeClock, standby: Standby) -> None:
    bad, good = (Client(clock, f"memory://{uuid4().hex}", standby) for _ in range(2))
    open_twin = bad.engine.open_twin
    assert open_twin is not None

    def open_suspending() -> Backend:
        twin = open_twin()

        async def renew(batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
            await asyncio.sleep(0)
            return [True]

        twin.renew = renew  # type: ignore[method-assign]
        return twin

    bad.engine.open_twin = open_suspending

    async def main() -> None:
        async with bad.locks, good.locks:
            suspends, lease = await bad.take(), await good.take()
            block(clock, 5 * TTL_S, lease)
            lease.check()
            with pytest.raises(LeaseLost, match="tried to suspend"):
                suspends.check()

    asyncio.run(main())


# The log


def the_function_that_blocks(clock: FakeClock, lease: AsyncLease) -> None:
    block(clock, 3 * TTL_S, lease)


def test_each_blockage_is_one_warning_with_the_stack(
    client: Client, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[logging.LogRecord]:
        return [record for record in caplog.records if getattr(record, "lock_kind", "") == "loop_blocked"]

    async def each(lease: AsyncLease, number: int) -> None:
        the_function_that_blocks(clock, lease)
        until(lambda: len(warnings()) == number, "a warning")
        rounds = client.engine.keeper.loop.rounds
        await until_async(lambda: client.engine.keeper.loop.rounds > rounds)

    async def main() -> None:
        async with client.locks:
            lease = await client.take("cpu")
            await each(lease, 1)
            await each(lease, 2)

    asyncio.run(main())
    first = warnings()[0]
    assert first.levelno == logging.WARNING
    assert first.name == "lockfast"
    assert vars(first)["lock_name"] == "cpu"
    text = first.getMessage()
    assert text.startswith("the event loop that holds lock 'cpu' (ttl 30s) has been blocked for ")
    assert "it is renewed by another thread meanwhile" in text
    assert "in the_function_that_blocks\n" in text


def test_a_log_that_blocks_stops_no_renewal(client: Client, clock: FakeClock) -> None:
    called, go_on = threading.Event(), threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            called.set()
            happens(go_on)

    handler = Stuck()
    logging.getLogger("lockfast").addHandler(handler)

    async def main() -> None:
        async with client.locks:
            lease = await client.take()
            block(clock, TTL_S, lease)
            happens(called)
            block(clock, 5 * TTL_S, lease)
            lease.check()

    try:
        asyncio.run(main())
    finally:
        go_on.set()
        logging.getLogger("lockfast").removeHandler(handler)


def test_a_backend_logs_nothing_in_the_thread(
    client: Client, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handlers could block, and the backend of the loop logs the same."""

    async def main() -> None:
        lease = await client.take()
        renew = FaultyBackend.renew

        async def noisy(self: FaultyBackend, *args: Any, **options: Any) -> Any:
            logging.getLogger("lockfast").warning("the store in %s", threading.current_thread().name)
            return await renew(self, *args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FaultyBackend, "renew", noisy)
            block(clock, 2 * TTL_S, lease)
            assert client.asked_outside
            logging.getLogger("lockfast").warning("the store in the loop")
        await lease.release()

    asyncio.run(main())
    assert [record.message for record in caplog.records if "the store" in record.message] == ["the store in the loop"]


def test_events_of_renewals_from_outside_wait_for_the_loop(client: Client, clock: FakeClock) -> None:
    """A listener or a log handler that blocks would hold up all that this thread renews."""
    called: list[tuple[str, threading.Thread]] = []

    async def main() -> None:
        async with client.locks:
            client.locks.events.listen(lambda event: called.append((event.kind, threading.current_thread())))
            lease = await client.take()
            block(clock, 5 * TTL_S, lease)
            lease.check()
            assert [kind for kind, _ in called] == ["asked", "granted"]
            await until_async(lambda: [kind for kind, _ in called].count("renewed") >= 5)

    asyncio.run(main())
    assert {thread for _, thread in called} == {threading.main_thread()}


# Beginning and end


def test_a_lease_is_granted_where_no_thread_is_left_for_the_standby(clock: FakeClock, standby: Standby) -> None:
    client = Client(clock, f"memory://{uuid4().hex}", standby)

    async def main() -> None:
        async with client.locks:
            with no_thread_left() as refused:
                await client.take("early")
            assert refused
            lease = await client.take("later")
            rounds = client.engine.keeper.loop.rounds
            client.engine.keeper.loop.wake()
            await until_async(lambda: client.engine.keeper.loop.rounds > rounds)
            block(clock, 3 * TTL_S, lease)
            lease.check()

    asyncio.run(main())


def test_the_backend_for_it_is_closed_when_it_was_not_used_for_a_while_and_at_the_end(
    client: Client, clock: FakeClock
) -> None:
    closed: list[Backend] = []
    open_twin = client.engine.open_twin
    assert open_twin is not None

    def open_noted() -> Backend:
        twin = open_twin()
        close = twin.close

        async def noted() -> None:
            closed.append(twin)
            await close()

        twin.close = noted  # type: ignore[method-assign]
        return twin

    client.engine.open_twin = open_noted

    async def main() -> None:
        async with client.locks:
            lease = await client.take()
            block(clock, TTL_S, lease)
            assert not closed
            await awake(clock, KEEP_S + TTL_S)
            assert closed == client.made[1:2]
            block(clock, TTL_S, lease)
        assert closed == client.made[1:3]

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_never_renews_what_its_parent_holds(client: Client, clock: FakeClock, standby: Standby) -> None:
    async def main() -> int:
        async with client.locks:
            lease = await client.take()
            block(clock, TTL_S, lease)
            pid = os.fork()
            if pid == 0:
                watch = client.engine.loop_watch
                new = standby._signal is None and watch is not None and watch._twin is None
                os._exit(0 if new and not lease.held and not client.engine.keeper.leases else 1)
            block(clock, TTL_S, lease)
            lease.check()
            return pid

    def status() -> int:
        return os.waitstatus_to_exitcode(os.waitpid(asyncio.run(main()), 0)[1])

    assert status() == 0


# On the machine's own clock

_ENDS_WHILE_IT_HOLDS = """
import asyncio, sys, time
import lockfast.aio

async def main():
    lease = await lockfast.aio.connect(sys.argv[1]).lock("x", ttl=0.75).acquire()
    deadline = lease._deadline
    while lease.held and lease._deadline == deadline:
        time.sleep(0.01)
    return lease

kept = asyncio.run(main())
print("held" if kept.held else "late")
"""


@pytest.mark.slow
def test_a_process_that_ends_releases_what_was_renewed_from_outside(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"

    def ends_well() -> bool:
        command = [sys.executable, "-c", _ENDS_WHILE_IT_HOLDS, url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert ended.returncode == 0, ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stdout == "held\n"

    until(ends_well, "a machine that is quick enough")
    with lockfast.connect(url) as locks:
        assert not locks.inspect("x").holders


def _on_loop(name: str, work: Callable[[], Awaitable[T]]) -> T:
    import uvloop

    factory = uvloop.new_event_loop if name == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work())  # type: ignore[arg-type]


def _hold(loop: str, url: str) -> bool:
    """For ten ttls, in a body that blocks its loop. Whether it was kept all the time."""

    async def main() -> bool:
        async with lockfast.aio.connect(url) as locks:
            lease = await locks.lock(loop, ttl=SHORT_TTL_S).acquire()
            assert lease is not None
            return _block_and_try(lease, url) and await lease.release()

    return bool(_on_loop(loop, main))


def _block_and_try(lease: AsyncLease, url: str) -> bool:
    """Until another client was refused the lock for ten ttls."""
    granted: list[object] = []
    with lockfast.connect(url) as others:
        started = boot_now()

        def over() -> bool:
            if others.lock(lease.name, wait=0).acquire() is not None:
                granted.append(lease)
            return bool(granted) or not lease.held or boot_now() >= started + 10 * SHORT_TTL_S

        until(over)
    return lease.held and not granted


@pytest.mark.slow
def test_a_body_that_sleeps_in_its_loop_keeps_its_lock_on_asyncio_and_on_uvloop(url: str) -> None:
    """Both at once. If the machine stands still for longer than the ttl they are given another chance."""

    def both() -> bool:
        kept: list[bool] = []
        threads = [
            threading.Thread(target=lambda loop=loop: kept.append(_hold(loop, url))) for loop in ("asyncio", "uvloop")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            join(thread)
        return kept == [True, True]

    until(both, "both to keep their locks")
