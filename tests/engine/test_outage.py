"""A backend that cannot be reached: one warning after a second, one notice when it answers, an error that helps."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from lockfast import BackendUnavailable, Unsupported
from lockfast._model import Busy, Claim, Grant
from lockfast._worlds import World
from lockfast.engine.core import PATIENCE_S
from lockfast.engine.outage import FORGET_AFTER_S, REPORT_AFTER_S
from lockfast.engine.retrying import HASTY_S
from lockfast.observe.events import Event
from lockfast.primitives.locks import LocksLogic
from lockfast.testing import FakeClock
from lockfast.testing.faults import ALWAYS, FaultyBackend, Verb
from tests.engine.asking import TTL_S, acquire, extend, read_cell, release, take_permit
from tests.engine.hurried import on_url, run_hurried
from tests.engine.stub import StubBackend
from tests.renewals import renewal_state

WORLDS = ("threads", "asyncio")


def faulty(world: World) -> FaultyBackend:
    return FaultyBackend(on_url(f"memory://{uuid4().hex}")(world), world)


def broken(locks: LocksLogic) -> Any:
    return locks.engine.backend


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=WORLDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "lock_kind", "") == "unreachable"]


# Each verb that is repeated


REPEATED: dict[Verb, Callable[[LocksLogic], Awaitable[Awaitable[object]]]] = {
    "acquire": acquire,
    "release": release,
    "renew": extend,
    "read": read_cell,
    "throttle": take_permit,
}


@pytest.mark.parametrize("verb", REPEATED)
def test_whatever_is_repeated_reports_an_outage_once_and_within_a_second(
    verb: Verb, kind: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[float] = []

    async def work(locks: LocksLogic) -> None:
        asked = await REPEATED[verb](locks)
        broken(locks).lose_request(verb, ALWAYS)
        started = clock.now()
        locks.engine.events.listen(lambda event: received.extend(_moment(event, clock.now() - started)))
        with pytest.raises(BackendUnavailable, match=r"was lost; locks\.doctor\(\) shows more$"):
            await asked
        broken(locks).heal()

    run_hurried(kind, faulty, work, clock)
    [warning] = outages(caplog)
    assert "; trying again until " in warning
    assert received[0] <= REPORT_AFTER_S


def _moment(event: Event, at: float) -> list[float]:
    return [at] if event.kind == "unreachable" else []


def test_a_renewal_that_fails_reports_it_too(kind: str, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    async def work(locks: LocksLogic) -> None:
        lease = await locks.lock("a", ttl=TTL_S).acquire()
        assert lease is not None
        broken(locks).lose_request("renew", ALWAYS)
        for _ in range(3):
            await locks.engine.keeper.renewals.renew([renewal_state(lease)])
            clock.advance(REPORT_AFTER_S)
        broken(locks).heal()

    run_hurried(kind, faulty, work, clock)
    assert len(outages(caplog)) == 1


def test_what_passes_within_a_second_is_not_reported(
    kind: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lockfast")

    async def work(locks: LocksLogic) -> None:
        broken(locks).lose_request("acquire", 3)  # 20, 80 and 160 ms of pause at most
        lease = await locks.lock("a", ttl=TTL_S).acquire()
        assert lease is not None

    run_hurried(kind, faulty, work, clock)
    assert caplog.records == []


def test_the_end_of_a_reported_outage_is_reported_too(
    kind: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lockfast")

    async def work(locks: LocksLogic) -> None:
        for _ in range(2):
            broken(locks).lose_request("acquire", ALWAYS)
            locks.engine.events.listen(lambda event: broken(locks).heal() if event.kind == "unreachable" else None)
            lease = await locks.lock("a", ttl=TTL_S).acquire()
            assert lease is not None
            await lease._release()

    run_hurried(kind, faulty, work, clock)
    kinds = [getattr(record, "lock_kind", "") for record in caplog.records]
    assert kinds == ["unreachable", "reachable"] * 2
    assert "can be used again, after " in caplog.records[1].getMessage()


def test_an_outage_whose_end_no_request_saw_is_not_confused_with_the_next(
    kind: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(locks: LocksLogic) -> None:
        for _ in range(2):
            broken(locks).lose_request("read", ALWAYS)
            for _ in range(2):
                with pytest.raises(BackendUnavailable):
                    await locks.cell("a").read()
            broken(locks).heal()
            clock.advance(FORGET_AFTER_S + 1)

    run_hurried(kind, faulty, work, clock)
    assert len(outages(caplog)) == 2


# A server that answered a moment ago


class HeldThenSilent(StubBackend):
    """The lock is held. The second request, `after` that many seconds, is not answered."""

    def __init__(self, clock: FakeClock, after: float) -> None:
        super().__init__()
        self._clock = clock
        self._after = after
        self._asked = 0
        self.abandoned: list[str] = []

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Any:
        self._asked += 1
        if self._asked == 1:
            return Busy(1, self._after, holder="another")
        self._clock.advance(within)
        raise BackendUnavailable("the server did not answer in time")

    async def wait(self, claim: Claim, seconds: float) -> bool:
        self._clock.advance(seconds)
        return False

    async def abandon(self, claim: Claim, *, within: float) -> None:
        self.abandoned.append(claim.terms.name)


def test_too_little_time_for_a_last_answer_is_a_timeout_and_no_outage(kind: str, clock: FakeClock) -> None:
    backend = HeldThenSilent(clock, after=10 - HASTY_S / 2)

    async def work(locks: LocksLogic) -> object:
        return await locks.lock("a", ttl=TTL_S, wait=10).acquire()

    assert run_hurried(kind, lambda _: backend, work, clock) is None
    assert backend.abandoned == ["a"]


def test_a_server_that_had_time_to_answer_and_did_not_is_an_outage(kind: str, clock: FakeClock) -> None:
    backend = HeldThenSilent(clock, after=10 - 2 * HASTY_S)

    async def work(locks: LocksLogic) -> None:
        with pytest.raises(BackendUnavailable, match="did not answer in time"):
            await locks.lock("a", ttl=TTL_S, wait=10).acquire()

    run_hurried(kind, lambda _: backend, work, clock)
    assert backend.abandoned == ["a"]


def test_a_short_patience_is_an_outage_too_where_there_is_time_to_wait(kind: str, clock: FakeClock) -> None:
    """Else a `with` that waits for ever would give up, and say that the lock is held."""
    backend = HeldThenSilent(clock, after=1)

    async def work(locks: LocksLogic) -> None:
        locks.engine.patience = HASTY_S / 2
        with pytest.raises(BackendUnavailable, match="did not answer in time"):
            await locks.lock("a", ttl=TTL_S).acquire()

    run_hurried(kind, lambda _: backend, work, clock)
    assert backend.abandoned == ["a"]


# A server that refuses, and at last has no time to


class Refuses(StubBackend):
    """Where no server listens. To find that out takes a while; a request with less time learns nothing."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.hasty = 0

    def _fail(self, within: float) -> BackendUnavailable:
        self._clock.advance(min(within, HASTY_S / 2))
        if within >= HASTY_S / 2:
            return BackendUnavailable("connection refused", sent=False)
        self.hasty += 1
        return BackendUnavailable("no answer in time", sent=False)

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Any:
        raise self._fail(within)

    async def read(self, key: str, *, within: float) -> Any:
        raise self._fail(within)


@pytest.mark.parametrize("verb", ["acquire", "read"])
def test_a_last_request_without_time_to_be_sent_does_not_hide_why_the_others_failed(
    verb: Verb, kind: str, clock: FakeClock
) -> None:
    backend = Refuses(clock)

    async def work(locks: LocksLogic) -> None:
        with pytest.raises(BackendUnavailable, match="connection refused"):
            await (await REPEATED[verb](locks))

    run_hurried(kind, lambda _: backend, work, clock)
    assert backend.hasty


# A store that cannot be used at all


class Unusable(StubBackend):
    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Any:
        raise Unsupported("this platform has no boot id")

    async def abandon(self, claim: Claim, *, within: float) -> None:
        raise Unsupported("this platform has no boot id")


def test_a_store_that_cannot_be_used_leaves_nothing_to_do_in_the_background(kind: str, clock: FakeClock) -> None:
    started: list[str] = []

    def spawn(work: Any, name: str) -> None:
        started.append(name)
        work.close()

    async def work(locks: LocksLogic) -> None:
        locks.engine.world.spawn = spawn  # type: ignore[method-assign]
        with pytest.raises(Unsupported, match="boot id"):
            await locks.lock("a", ttl=TTL_S).acquire()

    run_hurried(kind, lambda _: Unusable(), work, clock)
    assert set(started) <= {"lockfast-keeper"}


# Real backends at which no server listens

SECRET = "s3cret"
GONE = {
    f"redis://bob:{SECRET}@127.0.0.1:1/2": "redis://bob@127.0.0.1:1/2",
    f"rediss://:{SECRET}@127.0.0.1:1?ssl_cert_reqs=none": "'rediss://127.0.0.1:1/0?ssl_cert_reqs=none'",
    "unix:///nowhere/the%20redis.sock?db=3": "'unix:///nowhere/the%20redis.sock?db=3'",
    f"redis+cluster://bob:{SECRET}@127.0.0.1:1,127.0.0.1:2": "redis+cluster://bob@127.0.0.1:1,127.0.0.1:2",
    f"redis+sentinel://bob:{SECRET}@127.0.0.1:1/main/4?sentinel_username=eve&sentinel_password={SECRET}": (
        "'redis+sentinel://bob@127.0.0.1:1/main/4?sentinel_username=eve'"
    ),
    f"redlock://bob:{SECRET}@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/1": "redlock://bob@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/1",
    f"postgresql://bob:{SECRET}@127.0.0.1:1/app": "postgresql://bob@127.0.0.1:1/app",
    f"postgresql://b%40b:{SECRET}@127.0.0.1:1/app?schema=locks&sslmode=disable": (
        "'postgresql://b%40b@127.0.0.1:1/app?schema=locks&sslmode=disable'"
    ),
    f"postgresql+advisory://bob:{SECRET}@127.0.0.1:1/app?waiting=3": (
        "'postgresql+advisory://bob@127.0.0.1:1/app?waiting=3'"
    ),
}


def refused(url: str, kind: str, clock: FakeClock) -> BackendUnavailable:
    async def work(locks: LocksLogic) -> Exception:
        with pytest.raises(BackendUnavailable) as caught:
            await locks.lock("a", ttl=TTL_S, wait=5).acquire()
        return caught.value

    error = run_hurried(kind, on_url(url), work, clock)
    assert isinstance(error, BackendUnavailable)
    return error


@pytest.mark.slow
@pytest.mark.parametrize("url", GONE)
def test_the_error_ends_with_a_command_that_can_be_pasted_and_shows_no_password(
    url: str, kind: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    error = refused(url, kind, clock)
    assert str(error).endswith(f"; for more, run: lockfast doctor {GONE[url]}")
    [warning] = outages(caplog)
    assert "cannot reach " in warning
    texts = [str(error), repr(error), warning, "".join(traceback.format_exception(error)), caplog.text]
    assert not [text for text in texts if SECRET in text]
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.hint, copied.transient) == (str(error), error.hint, True)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["redis://localhost:1/0", "postgresql://127.0.0.1:1/app"])
def test_the_traceback_shows_the_callers_line_and_one_cause(url: str, kind: str, clock: FakeClock) -> None:
    error = refused(url, kind, clock)
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert not [name for name in frames if "/backends/" in name or "site-packages" in name]
    assert error.__suppress_context__
    if url.startswith("redis"):
        assert isinstance(error.__cause__, ConnectionRefusedError)
        assert "connection refused" in str(error)
    shown = "".join(traceback.format_exception(error)).splitlines()
    assert sum(line.startswith("Traceback") for line in shown) == 1
    assert not [line for line in shown if line.startswith("During handling")]


@pytest.mark.slow
def test_a_question_that_is_not_repeated_ends_with_the_command_too(kind: str, clock: FakeClock) -> None:
    async def work(locks: LocksLogic) -> None:
        for ask in (lambda: locks.inspect("a"), lambda: locks.list(""), lambda: locks.break_lock("a")):
            with pytest.raises(BackendUnavailable, match=r"; for more, run: lockfast doctor redis://127\.0\.0\.1:1/0$"):
                await ask()
        with pytest.raises(BackendUnavailable, match="lockfast doctor"):
            await locks.lock("a", ttl=TTL_S).locked()

    run_hurried(kind, on_url("redis://127.0.0.1:1"), work, clock)


def test_what_will_not_pass_is_raised_at_once_and_needs_no_doctor(
    kind: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(locks: LocksLogic) -> None:
        broken(locks).lose_request("acquire", ALWAYS, BackendUnavailable("the disk is full", transient=False))
        with pytest.raises(BackendUnavailable, match=r"^the disk is full$"):
            await locks.lock("a", ttl=TTL_S).acquire()
        broken(locks).heal()

    run_hurried(kind, faulty, work, clock)
    assert outages(caplog) == []


class Silent(StubBackend):
    """Answers nothing: the first request ends before its time, the next takes all that it is given."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.given: list[float] = []

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant:
        self._clock.advance(within if self.given else 0.6 * within)
        self.given.append(within)
        raise BackendUnavailable("it did not answer in time")


@pytest.mark.parametrize("wait", [None, 0.0])
def test_a_request_that_is_repeated_after_silence_has_only_the_time_that_is_left(
    wait: float | None, kind: str, clock: FakeClock
) -> None:
    silent = Silent(clock)

    async def work(locks: LocksLogic) -> float:
        started = clock.now()
        with pytest.raises(BackendUnavailable):
            await locks.lock("a", ttl=TTL_S, wait=wait).acquire()
        return clock.now() - started

    took = run_hurried(kind, lambda world: silent, work, clock)
    assert silent.given[0] == PATIENCE_S
    assert took <= PATIENCE_S + 0.05
