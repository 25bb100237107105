"""A server that takes a request and does not answer: it is reported after a second, while the request goes on."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import lockfast
from lockfast._facades.lock import AsyncLease
from lockfast._model import Claim, Grant, LockInfo, Renewal
from lockfast._values import Booked, Rate, Stored
from lockfast.engine.acquire import acquire as acquire_lease
from lockfast.engine.core import Engine
from lockfast.engine.keeper_loop import IDLE_S
from lockfast.engine.lease import Lease
from lockfast.engine.outage import MAX_OVER, POLL_AGAIN_S, REPORT_AFTER_S
from lockfast.errors import BackendUnavailable, LockError
from lockfast.observe.events import Event
from lockfast.primitives.lock import LockLogic
from lockfast.primitives.locks import LocksLogic
from lockfast.testing.simulated import SimulatedWorld, Simulation
from tests.engine.asking import TTL_S, acquire, extend, read_cell, release, take_permit
from tests.engine.stub import StubBackend
from tests.renewals import renewal_state
from tests.servers.waiting import LIMIT_S, join, until, until_async

approx = partial(pytest.approx, abs=0.01)  # tasks of the simulation take a little while to begin


class Slow(StubBackend):
    """Answers after `delay` seconds, or fails then."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__()
        self._world = world
        self.delay = 0.0
        self.fails = False

    async def _take_time(self, within: float = TTL_S) -> None:
        if self.delay:
            await self._world.pause(min(self.delay, within))
        if self.fails or self.delay > within:
            raise BackendUnavailable("the server did not answer in time")

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant:
        await self._take_time(within)
        return await super().acquire(claim, enqueue=enqueue, within=within)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        await self._take_time(within)
        return await super().renew(batch, within=within)

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        await self._take_time(within)
        return await super().release(claim, linger=linger, within=within)

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        await self._take_time(within)
        return LockInfo(key)

    async def list(self, prefix: str, *, within: float) -> list[LockInfo]:
        await self._take_time(within)
        return []

    async def break_(self, key: str, *, within: float) -> LockInfo:
        await self._take_time(within)
        return LockInfo(key)

    async def read(self, key: str, *, within: float) -> Stored:
        await self._take_time(within)
        return Stored()

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        await self._take_time()
        return await super().throttle(key, rate, cost=cost, patience=patience, within=within)


class Stage:
    """Locks in virtual time over the slow backend, and what is reported when."""

    def __init__(self) -> None:
        self.simulation = Simulation(0)
        self.world = SimulatedWorld(self.simulation, "machine")
        self.backend = Slow(self.world)
        self.engine = Engine(self.backend, self.world, lease_type=AsyncLease, holder="us")
        self.engine.outage.watches = True
        self.locks = LocksLogic(self.engine, "lockfast")
        self.reported: list[tuple[str, float, str]] = []
        self.engine.events.listen(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.kind in ("unreachable", "reachable"):
            self.reported.append((event.kind, self.simulation.time, event.detail))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.reported]

    def start(self, work: Any) -> Any:
        return self.world.task(work, "job")

    def do(self, work: Any) -> Any:
        return self.simulation.run_until_done(self.start(work))

    def pass_time(self, seconds: float) -> None:
        self.simulation.run(self.simulation.time + seconds)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    assert stage.engine.outage.unanswered == {}
    stage.engine.closed = True
    stage.simulation.close()
    assert stage.simulation.broken_tasks == []


async def renew(locks: LocksLogic) -> Awaitable[object]:
    lease = await locks.lock("a", ttl=TTL_S).acquire()
    assert lease is not None
    return locks.engine.keeper.renewals.renew([renewal_state(lease)])


async def inspect(locks: LocksLogic) -> Awaitable[object]:
    return locks.inspect("a")


async def list_all(locks: LocksLogic) -> Awaitable[object]:
    return locks.list("")


async def break_lock(locks: LocksLogic) -> Awaitable[object]:
    return locks.break_lock("a")


ASKED: list[Callable[[LocksLogic], Awaitable[Awaitable[object]]]] = [
    acquire, release, extend, renew, inspect, list_all, break_lock, read_cell, take_permit
]  # fmt: skip


@pytest.mark.parametrize("ask", ASKED)
def test_silence_is_reported_after_a_second_and_so_is_its_end(stage: Stage, ask: Any) -> None:
    asked = stage.do(ask(stage.locks))
    started, stage.backend.delay = stage.simulation.time, 5.0
    stage.do(asked)
    [(first, at, silence), (second, ended_at, end)] = stage.reported
    assert (first, second) == ("unreachable", "reachable")
    assert (at, ended_at) == approx((started + REPORT_AFTER_S + POLL_AGAIN_S, started + 5))
    assert silence.startswith(f"no answer from {stage.backend!r} for 1.1s")
    assert "; waiting until " in silence
    assert end == f"{stage.backend!r} can be used again, after 5s"


@pytest.mark.parametrize("ask", ASKED)
def test_an_answer_within_a_second_is_no_silence(stage: Stage, ask: Any) -> None:
    asked = stage.do(ask(stage.locks))
    stage.backend.delay = REPORT_AFTER_S - 0.01
    stage.do(asked)
    stage.pass_time(REPORT_AFTER_S)
    assert stage.reported == []


def test_what_is_answered_when_a_process_that_stood_still_goes_on_is_no_silence(stage: Stage) -> None:
    stage.backend.delay = REPORT_AFTER_S + POLL_AGAIN_S / 2  # the keeper has looked once
    stage.do(stage.locks.inspect("a"))
    stage.pass_time(REPORT_AFTER_S)
    assert stage.reported == []


def test_many_silent_requests_are_one_outage(stage: Stage) -> None:
    stage.backend.delay = 5.0
    jobs = [stage.start(stage.locks.lock(str(number), ttl=TTL_S).acquire()) for number in range(5)]
    for job in jobs:
        stage.simulation.run_until_done(job)
    assert stage.kinds == ["unreachable", "reachable"]


def test_a_request_that_is_sent_while_the_keeper_sleeps_long_is_watched_too(stage: Stage) -> None:
    stage.do(stage.locks.lock("a", ttl=TTL_S).acquire())
    stage.pass_time(60)
    started, stage.backend.delay = stage.simulation.time, 5.0
    stage.do(stage.locks.inspect("a"))
    assert [at for _, at, _ in stage.reported] == approx([started + REPORT_AFTER_S + POLL_AGAIN_S, started + 5])


def test_silence_that_becomes_a_failure_is_reported_once(stage: Stage) -> None:
    stage.backend.delay, stage.backend.fails = 3.0, True
    with pytest.raises(BackendUnavailable, match=r"did not answer in time; locks\.doctor\(\) shows more$"):
        stage.do(stage.locks.lock("a", ttl=TTL_S, wait=20).acquire())
    assert stage.kinds == ["unreachable"]


def test_the_next_outage_is_reported_too_if_the_last_one_ended_in_an_error(stage: Stage) -> None:
    for _ in range(2):
        stage.backend.delay = TTL_S
        with pytest.raises(BackendUnavailable):
            stage.do(stage.locks.lock("a", ttl=TTL_S, wait=3).acquire())
        stage.backend.delay = 0.0
        stage.pass_time(1)
        stage.do(stage.locks.inspect("a"))
    assert stage.kinds == ["unreachable", "reachable"] * 2


def test_a_server_that_stays_silent_is_reported_once_however_often_it_is_asked(stage: Stage) -> None:
    stage.backend.delay, stage.backend.fails = 10.0, True
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            stage.do(stage.locks.inspect("a"))
        stage.pass_time(9)
    assert stage.kinds == ["unreachable"]


def test_a_request_that_is_sent_during_a_long_silence_is_of_the_same_outage(stage: Stage) -> None:
    stage.engine.patience, stage.backend.delay = TTL_S, 40.0
    first = stage.start(stage.locks.inspect("a"))
    stage.pass_time(15)
    stage.do(stage.locks.inspect("b"))
    stage.simulation.run_until_done(first)
    assert stage.kinds == ["unreachable", "reachable"]


def test_a_pause_between_two_tries_is_no_silence(stage: Stage) -> None:
    stage.backend.fails = True
    with pytest.raises(BackendUnavailable):
        stage.do(stage.locks.lock("a", ttl=TTL_S, wait=20).acquire())
    [(_, _, detail)] = stage.reported
    assert "; trying again until " in detail


def test_the_keeper_watches_for_as_long_as_a_request_is_unanswered(stage: Stage) -> None:
    stage.engine.patience, stage.backend.delay = TTL_S, 10 * IDLE_S
    job = stage.start(stage.locks.inspect("a"))
    stage.pass_time(5 * IDLE_S)
    assert stage.engine.keeper.loop.signal is not None
    stage.simulation.run_until_done(job)
    stage.backend.delay = 0.0
    stage.pass_time(2 * IDLE_S)
    assert stage.engine.keeper.loop.signal is None


def test_the_loop_that_watches_ends_when_nothing_was_to_do_for_a_while_and_not_before(stage: Stage) -> None:
    stage.do(stage.locks.inspect("a"))
    watching = stage.engine.keeper.loop.signal
    for _ in range(5):
        stage.pass_time(0.9 * IDLE_S)
        stage.do(stage.locks.inspect("a"))
    assert stage.engine.keeper.loop.signal is watching
    stage.pass_time(1.2 * IDLE_S)
    assert stage.engine.keeper.loop.signal is None


def test_what_was_cancelled_is_not_waited_for_any_more(stage: Stage) -> None:
    stage.backend.delay = 5.0
    for work in (stage.locks.inspect("a"), stage.locks.lock("a", ttl=TTL_S).acquire()):
        job = stage.start(work)
        stage.pass_time(0.5)
        assert len(stage.engine.outage.unanswered) == 1
        job.cancel()
        stage.pass_time(0.01)
        assert stage.engine.outage.unanswered == {}


def test_a_release_that_failed_counts_as_answered_while_it_is_repeated(stage: Stage) -> None:
    lease = stage.do(stage.locks.lock("a", ttl=TTL_S).acquire())
    stage.backend.fails = True  # at once
    job = stage.start(lease._release())
    for _ in range(5):
        stage.pass_time(0.1)
        assert not job.done
        assert stage.engine.outage.unanswered == {}
    stage.backend.fails = False
    assert stage.simulation.run_until_done(job)


def test_each_of_two_releases_of_one_lease_is_watched_until_its_own_answer(stage: Stage) -> None:
    lease = stage.do(stage.locks.lock("a", ttl=TTL_S).acquire())
    stage.backend.delay = 0.5
    answered = stage.start(stage.engine.release(lease))
    stage.pass_time(0.1)
    started, stage.backend.delay = stage.simulation.time, 5.0
    silent = stage.start(stage.engine.release(lease))
    assert stage.simulation.run_until_done(answered)
    assert len(stage.engine.outage.unanswered) == 1
    stage.simulation.run_until_done(silent)
    assert [at for _, at, _ in stage.reported] == approx([started + REPORT_AFTER_S + POLL_AGAIN_S, started + 5])


def test_a_release_before_the_acquire_has_returned_is_watched_until_its_own_answer(stage: Stage) -> None:
    """By another thread, such as one that closes the `Locks`."""
    releases: list[Any] = []

    def release_at_once(lease: Lease) -> None:
        stage.backend.delay = 5.0
        release = stage.engine.release(lease)
        release.send(None)  # as far as another thread may come meanwhile: it is sent
        releases.append(release)

    stage.do(acquire_lease(stage.engine, stage.locks.lock("a", ttl=TTL_S).request, None, release_at_once))
    assert len(stage.engine.outage.unanswered) == 1
    releases[0].close()


def test_a_child_of_a_fork_waits_for_no_answer_of_its_parents(stage: Stage) -> None:
    stage.engine.outage.sent("request", stage.simulation.time, None)
    parent = stage.engine.outage
    stage.engine.after_fork()
    assert stage.engine.outage.unanswered == {}
    parent.ended("request")


def test_a_request_is_sent_though_nothing_can_be_started_to_watch_it(stage: Stage) -> None:
    def spawn(work: Any, name: str) -> None:
        work.close()
        raise RuntimeError("can't start new thread")

    stage.world.spawn = spawn  # type: ignore[method-assign]
    stage.do(stage.locks.inspect("a"))


def test_an_answer_that_comes_while_silence_is_reported_ends_the_outage(stage: Stage) -> None:
    outage, now = stage.engine.outage, stage.simulation.time
    outage.sent("request", now, None)
    outage.poll(now + REPORT_AFTER_S)
    background = stage.engine.background
    emit = background.emit

    def answered_meanwhile(event: Event) -> None:
        emit(event)
        background.emit = emit  # type: ignore[method-assign]
        outage.unanswered.pop("request")

    background.emit = answered_meanwhile  # type: ignore[method-assign]
    outage.poll(now + REPORT_AFTER_S + POLL_AGAIN_S)
    stage.pass_time(1)
    assert stage.kinds == ["unreachable", "reachable"]


# How long a server that does not answer is asked

PATIENCE_S = 3.0


@pytest.mark.parametrize("ask", [ask for ask in ASKED if ask is not take_permit])  # which asks for less, and again
def test_whatever_has_no_wait_of_its_own_gives_up_when_patience_is_over(stage: Stage, ask: Any) -> None:
    asked = stage.do(ask(stage.locks))
    stage.engine.patience, stage.backend.delay = PATIENCE_S, TTL_S
    started = stage.simulation.time
    with suppress(BackendUnavailable):  # a renewal does not raise it
        stage.do(asked)
    assert started + PATIENCE_S / 2 <= stage.simulation.time <= started + PATIENCE_S + 0.01
    stage.backend.delay = 0.0  # a renewal would be tried again
    assert stage.kinds == ["unreachable"]


def test_closing_takes_no_longer_than_patience_and_says_what_it_waits_for(stage: Stage) -> None:
    leases = [stage.do(stage.locks.lock(name, ttl=TTL_S).acquire()) for name in "abc"]
    body = stage.start(_body(stage.locks.lock("d", ttl=TTL_S)))
    stage.pass_time(0.1)
    failed: list[str] = []
    stage.engine.events.listen(lambda event: failed.append(event.name) if event.kind == "release_failed" else None)
    stage.engine.patience, stage.backend.delay = PATIENCE_S, TTL_S
    started = stage.simulation.time
    stage.do(stage.locks.close())
    assert stage.simulation.time <= started + PATIENCE_S + 0.01
    [(kind, at, detail)] = stage.reported
    assert at == approx(started + REPORT_AFTER_S + POLL_AGAIN_S)
    assert kind == "unreachable"
    assert "; waiting until " in detail
    assert failed == ["a", "b", "c"]
    assert not any(lease.held or lease.lost for lease in leases)
    with pytest.raises(LockError, match="its Locks was closed"):
        stage.simulation.run_until_done(body)
    stage.pass_time(1)
    assert stage.engine.keeper.loop.signal is None, "what watched for silence has ended"


async def _body(lock: LockLogic) -> None:
    await lock.hold(lambda _: lock.engine.world.pause(TTL_S))


def test_closing_with_little_patience_is_not_silent_either(stage: Stage) -> None:
    stage.do(stage.locks.lock("a", ttl=TTL_S).acquire())
    stage.engine.patience, stage.backend.delay = 2 * REPORT_AFTER_S, TTL_S
    started = stage.simulation.time
    stage.do(stage.locks.close())
    [(kind, at, _)] = stage.reported
    assert kind == "unreachable"
    assert at == approx(started + REPORT_AFTER_S)


def test_closing_asks_a_second_time_if_the_first_connection_leads_nowhere(stage: Stage) -> None:
    stage.do(stage.locks.lock("a", ttl=TTL_S).acquire())
    stage.backend.delay = PATIENCE_S * 0.6  # longer than half of it, where the first request ends
    stage.engine.patience = PATIENCE_S
    job = stage.start(stage.locks.close())
    stage.pass_time(PATIENCE_S * 0.55)
    stage.backend.delay = 0.0
    stage.simulation.run_until_done(job)
    assert stage.backend.released == ["a"]


# Real sockets


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server that takes connections and never says a word. Once it is closed they are refused."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def at(server: socket.socket, url: str) -> str:
    return url.format(server.getsockname()[1])


URLS = [
    "redis://bob:s3cret@127.0.0.1:{}/0",
    "postgresql://bob:s3cret@127.0.0.1:{}/app",
    "postgresql+advisory://bob:s3cret@127.0.0.1:{}/app",
]


def silence(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.slow
@pytest.mark.parametrize("url", URLS)
def test_a_thread_that_waits_for_a_mute_server_learns_of_it(
    url: str, mute: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    url = at(mute, url)
    locks = lockfast.connect(url, patience=LIMIT_S)
    threads_of_events: list[str] = []
    locks.events.listen(lambda event: threads_of_events.append(f"{event.kind} in {threading.current_thread().name}"))

    def work() -> None:
        with suppress(LockError), locks.lock("a"):
            raise AssertionError("it was never granted")

    thread = threading.Thread(target=work)
    thread.start()
    first = until(lambda: silence(caplog))[0]
    mute.close()
    locks.close()
    join(thread)
    _names_the_server(first, url)
    assert "unreachable in lockfast-events" in threads_of_events  # not in the keeper's thread: a listener may block


@pytest.mark.slow
@pytest.mark.parametrize("url", URLS)
def test_a_task_that_waits_for_a_mute_server_learns_of_it(
    url: str, mute: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    url = at(mute, url)

    async def work() -> str:
        async with lockfast.aio.connect(url, patience=LIMIT_S) as locks:
            waiting = asyncio.create_task(locks.lock("a").acquire())
            [first, *_] = await until_async(lambda: silence(caplog))
            mute.close()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return str(first)

    _names_the_server(asyncio.run(work()), url)


def _names_the_server(warning: str, url: str) -> None:
    assert warning.startswith(f"no answer from {url.replace(':s3cret', '')} for ")
    assert "; waiting until " in warning


def test_a_request_is_late_by_its_own_time_and_not_by_that_of_an_earlier_one_of_its_claim(stage: Stage) -> None:
    outage, start = stage.engine.outage, stage.simulation.time
    outage.sent("request", start, None)
    outage.poll(start + REPORT_AFTER_S)
    del outage.unanswered["request"]  # as an interrupt leaves it
    outage.sent("request", start + 10.0, None)
    assert outage.poll(start + 10.0) == start + 10.0 + REPORT_AFTER_S
    late_at = outage.poll(start + 10.0 + REPORT_AFTER_S)
    stage.pass_time(0.01)
    assert stage.kinds == []
    outage.poll(late_at)
    stage.pass_time(0.01)
    assert stage.kinds == ["unreachable"]
    outage.ended("request")


def test_late_requests_that_interrupts_have_ended_do_not_add_up(stage: Stage) -> None:
    outage, start = stage.engine.outage, stage.simulation.time
    for number in range(5 * MAX_OVER):
        outage.sent(number, start, None)
        outage.poll(start + REPORT_AFTER_S)
        del outage.unanswered[number]
    assert len(outage._late) <= MAX_OVER + 2
