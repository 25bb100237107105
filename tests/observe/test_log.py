"""What an operator reads in the log, without a listener: at warning, at info and at debug level."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import lockfast
from lockfast import Event, Locks
from lockfast.observe import log
from lockfast.testing import ALWAYS, FakeClock, FaultyBackend
from tests.servers.waiting import join, until

Log = pytest.LogCaptureFixture


def records_of(caplog: Log) -> list[logging.LogRecord]:
    """Of lockfast: the libraries that other tests use log in threads of their own, and later."""
    return [record for record in caplog.records if record.name == log.logger.name]


def texts(caplog: Log, level: int) -> list[str]:
    """Of the records of that level."""
    return [record.getMessage() for record in records_of(caplog) if record.levelno == level]


def field(caplog: Log, name: str, kind: str) -> object:
    """Of the first record of that kind."""
    record = next(record for record in caplog.records if getattr(record, "lock_kind", "") == kind)
    return getattr(record, f"lock_{name}", None)


@pytest.fixture
def info(caplog: Log) -> Log:
    """The log of an application at info level."""
    caplog.set_level(logging.INFO, "lockfast")
    return caplog


@contextmanager
def a_waiter(locks: Locks, name: str, wait: float | None = None) -> Iterator[None]:
    """A thread that waits while the body runs, and then takes and releases it."""

    def take_and_release() -> None:
        with suppress(lockfast.AcquireTimeout), locks.lock(name, wait=wait):
            pass

    before = locks.inspect(name).waiters
    thread = threading.Thread(target=take_and_release)
    thread.start()
    until(lambda: locks.inspect(name).waiters == before + 1)
    yield
    join(thread)


# A long wait


def pass_time(clock: FakeClock, caplog: Log, records: int) -> None:
    """Until that many were logged."""

    def logged() -> bool:
        clock.advance(1)
        return len(texts(caplog, logging.INFO)) >= records

    until(logged)


@pytest.mark.parametrize("listens", [False, True])
def test_a_long_wait_is_logged_while_it_lasts_and_again_after_twice_the_time(
    locks: Locks, clock: FakeClock, info: Log, listens: bool
) -> None:
    if listens:
        locks.events.listen(lambda _: None)
    holder = locks.lock("a", ttl=3600).acquire()
    assert holder is not None
    with a_waiter(locks, "a"), a_waiter(locks, "a"):
        pass_time(clock, info, 4)
        holder.release()
    first = texts(info, logging.INFO)
    assert [text.partition(" for ")[0] for text in first] == ["lock still waiting: 'a'"] * len(first)
    assert sum(text.endswith(", held by 'worker-7'") for text in first) >= 1
    assert sum(text.endswith(", held by 'worker-7', 1 waiting before it") for text in first) >= 1
    waits = sorted(record.lock_waited for record in info.records if record.lock_position == 0)  # type: ignore[attr-defined]
    assert waits[0] >= 10
    assert all(later >= 2 * before for before, later in itertools.pairwise(waits))


def test_a_short_wait_costs_no_question_and_is_not_logged(
    locks: Locks, clock: FakeClock, info: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("lockfast.engine.asking_again.still_waiting", lambda *each: asked.append(each))
    holder = locks.lock("a", ttl=3600).acquire()
    assert holder is not None
    with a_waiter(locks, "a"):
        holder.release()
    assert asked == texts(info, logging.INFO) == []


# At info level


def test_a_time_out_is_logged_with_who_holds(locks: Locks, info: Log, clock: FakeClock) -> None:
    locks.lock("a", ttl=600).acquire()
    with a_waiter(locks, "a", wait=5):
        clock.advance(5)
    assert texts(info, logging.INFO) == ["lock timed out: 'a' after 5s, held by 'worker-7'"]
    assert field(info, "outcome", "not_granted") == "timeout"
    assert field(info, "held_by", "not_granted") == "worker-7"


def test_a_try_in_vain_is_an_everyday_event(locks: Locks, info: Log) -> None:
    with locks.lock("a"):
        assert locks.lock("a", wait=0).acquire() is None
    assert not info.records


def test_a_failing_renewal_is_logged_with_the_time_left(
    locks: Locks, info: Log, clock: FakeClock, backends: list[FaultyBackend]
) -> None:
    lease = locks.lock("a", ttl=30).acquire()
    assert lease is not None
    backends[0].lose_request("renew", 1)
    clock.advance(10)
    until(lambda: texts(info, logging.INFO))
    [text, *_] = texts(info, logging.INFO)
    assert text.startswith("lock renewal failed: 'a', held for ")
    assert text.endswith("more: BackendUnavailable: the request to renew was lost")
    assert field(info, "remaining", "renewal_failed") == pytest.approx(20, abs=1)


def test_a_break_is_logged_where_it_is_done(locks: Locks, info: Log) -> None:
    lease = locks.lock("a").acquire()
    assert lease is not None
    locks.break_lock("a")
    text = f"lock broken: 'a', held by 'worker-7' with fence {lease.fence}, was broken by 'worker-7'"
    assert texts(info, logging.INFO) == [text]


def test_an_uncontended_hold_logs_nothing_and_makes_no_event(
    locks: Locks, info: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("lockfast.engine.reporting.Event")
    with locks.lock("a"):
        pass
    assert not info.records


# At warning level, which is the default


def test_a_loss_and_a_release_that_failed_are_warnings(
    locks: Locks, caplog: Log, backends: list[FaultyBackend]
) -> None:
    lease = locks.lock("a").acquire()
    assert lease is not None
    backends[0].lose_request("release", ALWAYS, lockfast.BackendUnavailable("no", transient=False))
    with pytest.raises(lockfast.BackendUnavailable):
        lease.release()
    backends[0].heal()
    with suppress(lockfast.LeaseLost), locks.lock("b"):
        locks.break_lock("b")
    logging.getLogger("another").warning("not of lockfast")
    until(lambda: len(records_of(caplog)) == 2)
    failed, lost = texts(caplog, logging.WARNING)
    assert failed.startswith(f"lock release failed: 'a' with fence {lease.fence}, after ")
    assert lost.startswith("lock lost: 'b' with fence ")
    assert field(caplog, "outcome", "lost") == field(caplog, "reason", "lost") == "broken"


# At debug level


def test_at_debug_level_every_event_is_logged_with_what_is_known(locks: Locks, caplog: Log) -> None:
    caplog.set_level(logging.DEBUG, "lockfast")
    with locks.lock("order:42"):
        pass
    locks.cell("c").write(1)
    assert [record.lock_kind for record in records_of(caplog)] == [  # type: ignore[attr-defined]
        "asked",
        "granted",
        "released",
        "cell_read",
        "cell_write",
    ]
    granted = records_of(caplog)[1]
    assert granted.getMessage().startswith("lock granted: name='order:42' holder='worker-7' claim_id='")
    fields = {name for name in vars(granted) if name.startswith("lock_")}
    assert (
        {"lock_pattern", "lock_fence", "lock_waited", "lock_outcome"} <= fields <= {f"lock_{f}" for f in Event._fields}
    )
    assert not hasattr(granted, "lock_slack"), "what is not known has no field"


def test_everything_has_words_or_all_its_facts() -> None:
    for kind in log._LEVELS:
        event = Event(kind, "a", "me", detail="why")  # type: ignore[arg-type]
        assert "why" in (log.in_words(event) or "why")
    assert log.in_words(Event("unreachable", "", "me", detail="no answer")) == "no answer"
