"""Callbacks of users hold up nothing but themselves: no renewal, no other callback, no release."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

import lockfast
from lockfast import Lease, Locks, SelfDeadlock, aio
from lockfast._connect import open_backend
from lockfast._reentry import Mutex
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.engine import callbacks
from lockfast.engine.closing import REPORT_WITHIN_S
from lockfast.observe.events import Event
from lockfast.testing import ALWAYS, FakeClock, FaultyBackend
from tests.servers.waiting import LIMIT_S, until, until_async

LONGEST_PAUSE_S = 3.1  # seconds after a renewal that failed, with a ttl of 30


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4().hex}"


@pytest.fixture
def locks(url: str, clock: FakeClock) -> Iterator[Locks]:
    with lockfast.connect(url, clock=clock) as locks:
        yield locks


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Closed until the test is over, whatever becomes of it."""
    gate = threading.Event()
    yield gate
    gate.set()


def lose(locks: Locks, *names: str) -> None:
    for name in names:
        locks.break_lock(name)


# on_lost


def test_one_that_waits_keeps_no_other_from_being_called(locks: Locks, clock: FakeClock, gate: threading.Event) -> None:
    reported: list[str] = []

    def hang(lease: Lease) -> None:
        reported.append(lease.name)
        gate.wait(LIMIT_S)

    for name in "abc":
        locks.lock(name, ttl=3, on_lost=hang).acquire()
    locks.lock("d", ttl=3, on_lost=lambda lease: reported.append(lease.name)).acquire()
    lose(locks, *"abcd")
    clock.advance(1)
    for number in range(1, 5):
        until(lambda least=number: len(reported) >= least, f"{number} of them to be called")  # type: ignore[misc]
        clock.advance(callbacks.HANGING_S)
    assert sorted(reported) == list("abcd")


def test_one_that_waits_keeps_no_set_of_names_from_being_released(
    locks: Locks, clock: FakeClock, gate: threading.Event
) -> None:
    reported: list[str] = []

    def hang(lease: Lease) -> None:
        reported.append(lease.name)
        gate.wait(LIMIT_S)

    locks.lock("a", ttl=3, on_lost=hang).acquire()
    locks.all("b", "c", ttl=30).acquire()
    lose(locks, "a")
    clock.advance(1)
    until(lambda: reported, "the first to hang")
    lose(locks, "b")
    clock.advance(9)
    until(lambda: not locks.inspect("c").locked, "the other name to be free")


def test_one_that_waits_keeps_no_close_from_calling_the_others(
    url: str, clock: FakeClock, gate: threading.Event
) -> None:
    reported: list[str] = []

    def hang(lease: Lease) -> None:
        reported.append(lease.name)
        gate.wait(LIMIT_S)

    locks = lockfast.connect(url, clock=clock)

    def close_in_the_body() -> None:
        with suppress(lockfast.LeaseLost), locks.lock("a", ttl=600, on_lost=hang):
            with suppress(lockfast.LeaseLost), locks.lock("b", ttl=600, on_lost=hang):
                locks.close()

    closing = threading.Thread(target=close_in_the_body)
    closing.start()
    until(lambda: len(reported) == 1, "one to be called")
    clock.advance(callbacks.HANGING_S)
    until(lambda: sorted(reported) == ["a", "b"], "the other to be called")

    def closed() -> bool:
        clock.advance(REPORT_WITHIN_S)  # from when it begins to wait
        return not closing.is_alive()

    until(closed, "close to give up on them")


def test_a_task_that_waits_keeps_no_other_from_being_called(url: str, clock: FakeClock) -> None:
    async def story() -> None:
        reported: list[str] = []
        gate = asyncio.Event()

        async def hang(lease: aio.AsyncLease) -> None:
            reported.append(lease.name)
            await gate.wait()

        async with aio.connect(url, clock=clock) as locks:
            for name in "ab":
                await locks.lock(name, ttl=3, on_lost=hang).acquire()
                await locks.break_lock(name)

            clock.advance(1)
            await until_async(lambda: len(reported) == 1, "one to be called")
            clock.advance(callbacks.HANGING_S)
            await until_async(lambda: sorted(reported) == ["a", "b"], "the other to be called")
            gate.set()

    asyncio.run(story())


# Listeners and log handlers


class Blocks(logging.Handler):
    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self._gate = gate
        self.began = False

    def emit(self, _: logging.LogRecord) -> None:
        self.on_event()

    def on_event(self, event: Event | None = None) -> None:
        if event is None or event.kind in ("renewed", "lost", "renewal_failed"):
            self.began = True
            self._gate.wait(LIMIT_S)


@pytest.fixture(params=["a listener", "a log handler"])
def blocking(request: pytest.FixtureRequest, locks: Locks, gate: threading.Event) -> Iterator[Blocks]:
    handler = Blocks(gate)
    if request.param == "a listener":
        locks.events.listen(handler.on_event)
        yield handler
        return
    logger = logging.getLogger("lockfast")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_one_that_blocks_costs_no_other_lease(locks: Locks, clock: FakeClock, blocking: Blocks) -> None:
    kept = locks.lock("kept", ttl=30).acquire()
    locks.lock("lost", ttl=30).acquire()
    lose(locks, "lost")
    clock.advance(10)
    until(lambda: blocking.began, "it to block")
    assert kept is not None
    for _ in range(5):
        until(lambda: kept.remaining > 20, "the renewal")  # it may come before the clock has come to its end
        clock.advance(10)
    assert kept.held


def test_one_that_blocks_when_a_renewal_fails_costs_no_lease(url: str, clock: FakeClock, gate: threading.Event) -> None:
    made: list[FaultyBackend] = []

    def open_it(world: World, clock: Clock | None) -> Backend:
        made.append(FaultyBackend(open_backend(url, world, clock), world))
        return made[0]

    handler = Blocks(gate)
    logger = logging.getLogger("lockfast")
    logger.addHandler(handler)
    try:
        with lockfast.connect(open_it, clock=clock) as locks:
            kept = locks.lock("kept", ttl=30).acquire()
            assert kept is not None
            made[0].lose_request("renew", ALWAYS)
            for number in (1, 2):
                clock.advance(10 if number == 1 else LONGEST_PAUSE_S)
                until(lambda least=number: made[0].calls["renew"] >= least, "a renewal to fail")  # type: ignore[misc]
            until(lambda: handler.began, "it to block")
            made[0].heal()
            clock.advance(LONGEST_PAUSE_S)
            until(lambda: kept.remaining > 20, "the renewal")  # it may come before the clock has come to its end
            gate.set()
    finally:
        logger.removeHandler(handler)


def test_one_that_blocks_does_not_keep_the_command_line_from_reporting_renewals(
    locks: Locks, clock: FakeClock, gate: threading.Event
) -> None:
    renewals: list[None] = []
    locks._logic.engine.on_renewed = lambda: renewals.append(None)
    locks.events.listen(Blocks(gate).on_event)
    locks.lock("kept", ttl=30).acquire()
    for number in range(1, 4):
        clock.advance(10)
        until(lambda least=number: len(renewals) >= least, "a renewal")  # type: ignore[misc]


def test_one_that_takes_a_lock_of_the_same_locks_comes_back(locks: Locks, clock: FakeClock) -> None:
    received: list[str] = []

    def note(event: Event) -> None:
        with locks.lock("notes"):
            received.append(f"{event.kind} {event.name}")

    locks.events.listen(note)
    with locks.lock("a", ttl=3):
        pass
    locks.lock("b", ttl=3).acquire()
    lose(locks, "b")
    clock.advance(1)
    until(lambda: "lost b" in received, "the loss to be noted")
    assert [line for line in received if line.endswith(" a")] == ["asked a", "granted a", "released a"]
    assert not any("notes" in line for line in received)


def test_one_that_waits_for_what_was_just_granted_would_wait_for_itself(locks: Locks) -> None:
    refused: list[type[BaseException]] = []

    def take(event: Event) -> None:
        if event.kind == "granted":
            with pytest.raises(SelfDeadlock) as error:
                locks.lock(event.name).acquire()
            refused.append(error.type)

    locks.events.listen(take)
    with locks.lock("a"):
        pass
    lease = locks.lock("a").acquire()
    assert lease is not None
    assert refused == [SelfDeadlock, SelfDeadlock]


def test_one_that_hangs_for_ever_is_given_the_latest_events_and_the_number_that_it_missed(
    locks: Locks, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "MAX_EVENTS", 3)
    received: list[str] = []
    began = threading.Event()

    def hang(event: Event) -> None:
        received.append(event.detail)
        began.set()
        gate.wait(LIMIT_S)

    locks.events.listen(hang)
    background = locks._logic.engine.background
    background.emit(Event("lost", "a", "me", detail="0"))
    assert began.wait(LIMIT_S)
    for number in range(1, 10):
        background.emit(Event("lost", "a", "me", detail=str(number)))
    gate.set()
    until(lambda: received[-1] == "9", "the last one to arrive")
    assert received == ["0", "7", "8", "9"]
    assert "6 events were dropped" in caplog.text


class _Interrupts:
    """The engine's mutex, which is interrupted once as it is left."""

    def __init__(self, mutex: Mutex) -> None:
        self._mutex = mutex
        self._times = 1

    def __enter__(self) -> None:
        self._mutex.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._mutex.__exit__(None, None, None)
        self._times, interrupted = 0, self._times
        if interrupted:
            raise KeyboardInterrupt

    def __getattr__(self, name: str) -> object:
        return getattr(self._mutex, name)


def test_an_interrupt_in_the_middle_of_emitting_does_not_silence_what_follows(locks: Locks) -> None:
    received: list[str] = []
    locks.events.listen(lambda event: received.append(event.detail))
    engine = locks._logic.engine
    mutex = engine.mutex
    engine.mutex = _Interrupts(mutex)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        engine.background.emit(Event("lost", "a", "me", detail="first"))
    engine.mutex = mutex
    engine.background.emit(Event("lost", "a", "me", detail="second"))
    until(lambda: received == ["first", "second"], "both to arrive")


def test_an_interrupt_as_a_listener_is_called_does_not_silence_what_follows(locks: Locks) -> None:
    received: list[str] = []
    locks.events.listen(lambda event: received.append(event.detail))

    class Once(set[int]):
        def add(self, thread: int) -> None:
            super().add(thread)
            locks.events._in_listener = set(self)
            raise KeyboardInterrupt

    locks.events._in_listener = Once()
    with pytest.raises(KeyboardInterrupt):
        locks.events.emit(Event("lost", "a", "me", detail="first"))
    locks.events.emit(Event("lost", "a", "me", detail="second"))
    assert received == ["second"]


ENDS = """
import lockfast
locks = lockfast.connect("memory://")
try:
    with locks.lock("a", ttl=600) as lease:
        locks.break_lock("a")
except lockfast.LeaseLost:
    pass
"""


def test_a_process_that_ends_right_after_a_loss_has_logged_it() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "lock lost" in ended.stderr


def test_what_the_background_did_is_reported_before_close_is_over(url: str, clock: FakeClock) -> None:
    received: list[str] = []
    locks = lockfast.connect(url, clock=clock)
    locks.events.listen(lambda event: received.append(event.kind))
    with suppress(lockfast.LeaseLost), locks.lock("a", ttl=600):
        locks.close()
    assert received[-1] == "lost"
