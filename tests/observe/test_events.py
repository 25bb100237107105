"""What each event says. That they add up is in test_sums."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

import lockfast
from lockfast import Event, Locks
from lockfast._reentry import drive
from lockfast.engine.keeper import LOOP_CLOSED
from lockfast.observe import events, log
from lockfast.testing import ALWAYS, FakeClock, FaultyBackend
from tests.servers.waiting import join, until
from tests.waiters import in_queue

Received = list[Event]


def story(received: Received, name: str = "") -> list[str]:
    """Kind, outcome and reason of each event, of that name alone if there is one."""
    parts = ((event.kind, event.outcome, event.reason) for event in received if not name or event.name == name)
    return [" ".join(filter(None, each)) for each in parts]


# Acquires


def test_every_event_says_what_it_is_about(locks: Locks, received: Received) -> None:
    with locks.lock("order:42") as lease:
        pass
    for event in received:
        assert event[1:4] == ("order:42", "worker-7", lease.claim_id)
        assert (event.primitive, event.mode, event.pattern) == ("lock", "exclusive", "order:{n}")
        assert (event.backend, event.namespace) == ("memory", "shop")
    asked, granted, released = received
    assert (asked.fence, granted.fence, released.fence) == (None, lease.fence, lease.fence)
    assert (asked.attempts, granted.attempts, granted.position, granted.held_by) == (None, 1, None, None)
    assert granted.remaining == 30
    assert story(received) == ["asked", "granted granted", "released released by_holder"]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///x.db"])
def test_the_backend_is_named_after_its_package(url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with lockfast.connect(url) as locks:
        assert locks._logic.engine.backend_name == url.partition(":")[0]


PRIMITIVES: dict[str, Callable[[Locks], Any]] = {
    "lock exclusive": lambda locks: locks.lock("a"),
    "semaphore shared": lambda locks: locks.semaphore("a", 2),
    "rwlock shared": lambda locks: locks.rwlock("a").read(),
    "rwlock exclusive": lambda locks: locks.rwlock("a").write(),
    "all exclusive": lambda locks: locks.all("a"),
    "election exclusive": lambda locks: locks.election("a"),
}


@pytest.mark.parametrize("what", PRIMITIVES)
def test_each_primitive_is_named(locks: Locks, received: Received, what: str) -> None:
    with PRIMITIVES[what](locks):
        pass
    assert {f"{event.primitive} {event.mode}" for event in received} == {what}
    assert story(received) == ["asked", "granted granted", "released released by_holder"]


def test_what_a_manager_acquires_is_its_own_kind(url: str) -> None:
    received: Received = []
    with lockfast.DistributedLock(url) as manager:
        manager._logic.locks.engine.events.listen(received.append)
        assert manager.acquire("a")
        assert manager.release("a")
        with manager.lock("a"):
            pass
    assert {event.primitive for event in received} == {"manager"}


def test_a_try_in_vain_is_busy_and_says_who_was_in_the_way(locks: Locks, received: Received, url: str) -> None:
    with lockfast.connect(url, holder="other", namespace="shop") as other:
        other.lock("a").acquire()
        assert locks.lock("a", wait=0).acquire() is None
    assert story(received) == ["asked", "not_granted busy"]
    assert (received[1].held_by, received[1].position, received[1].attempts) == ("other", 0, 1)
    assert received[1].detail == "held by 'other'"


def test_a_time_out_says_how_many_went_first(locks: Locks, received: Received, clock: FakeClock) -> None:
    holder = locks.lock("a", ttl=600).acquire()
    assert holder is not None
    first = in_queue(locks.lock("a"), locks)
    second = threading.Thread(target=locks.lock("a", wait=5).acquire)
    second.start()
    until(lambda: locks.inspect("a").waiters == 2)
    clock.advance(5)
    join(second)
    [event] = [event for event in received if event.kind == "not_granted"]
    assert (event.outcome, event.position) == ("timeout", 1)
    assert event.waited == pytest.approx(5)
    holder.release()
    join(first)
    granted = received[-2]
    assert (granted.kind, granted.position, granted.held_by) == ("granted", 0, "worker-7")
    assert granted.waited == pytest.approx(5)


def test_waiting_for_oneself_is_a_deadlock(locks: Locks, received: Received) -> None:
    with locks.lock("a"):
        received.clear()
        with pytest.raises(lockfast.SelfDeadlock):
            locks.lock("a").acquire()
        assert story(received) == ["asked", "not_granted deadlock"]


def test_an_unreachable_store_is_unavailable_and_the_attempts_are_counted(
    locks: Locks, received: Received, backends: list[FaultyBackend]
) -> None:
    backends[0].lose_request("acquire", 1, lockfast.BackendUnavailable("no", transient=False))
    with pytest.raises(lockfast.BackendUnavailable):
        locks.lock("a").acquire()
    assert story(received) == ["asked", "not_granted unavailable"]
    assert (received[1].attempts, received[1].detail[:2]) == (1, "no")


def test_another_error_has_its_name_as_reason(locks: Locks, received: Received) -> None:
    with locks.semaphore("a", 2):
        received.clear()
        with pytest.raises(lockfast.LimitMismatch):
            locks.semaphore("a", 3, wait=0).acquire()
    assert story(received)[:2] == ["asked", "not_granted error LimitMismatch"]


def test_a_cancelled_acquire_is_cancelled(url: str) -> None:
    received: Received = []

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            async with locks.lock("a"):
                locks.events.listen(received.append)
                waiter = asyncio.create_task(locks.lock("a", wait=600).acquire())
                await asyncio.sleep(0)
                waiter.cancel()
                with suppress(asyncio.CancelledError):
                    await waiter

    asyncio.run(main())
    assert story(received)[:2] == ["asked", "not_granted cancelled"]


def test_a_coroutine_that_is_closed_while_it_waits_is_cancelled(url: str) -> None:
    received: Received = []

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            await locks.lock("a").acquire()
            locks.events.listen(received.append)
            waiting = locks.lock("a", wait=600).acquire()
            waiting.send(None)
            waiting.close()

    asyncio.run(main())
    assert "not_granted cancelled" in story(received)


def test_closing_ends_what_waits_and_what_is_held(locks: Locks, received: Received, url: str) -> None:
    """The waiter is not granted what closing has just released."""
    with lockfast.connect(url, namespace="shop") as other:
        holder = other.lock("a", ttl=600).acquire()
        assert holder is not None

        def wait() -> None:
            with suppress(lockfast.LockError):
                locks.lock("a").acquire()

        waiter = threading.Thread(target=wait)
        locks.lock("b").acquire()
        waiter.start()
        until(lambda: other.inspect("a").waiters == 1)
        locks.close()
        holder.release()
        join(waiter)
    assert story(received, "a") == ["asked", "not_granted closed"]
    assert story(received, "b") == ["asked", "granted granted", "released released closed"]


# The ends of grants


def end(received: Received) -> Event:
    [event] = [event for event in received if event.kind in ("released", "lost")]
    return event


def test_a_lease_that_time_ended_by_design_expired(locks: Locks, received: Received, clock: FakeClock) -> None:
    locks.lock("a", ttl=10, renew=False).acquire()
    clock.advance(11)
    until(lambda: "lost expired not_renewed" in story(received))
    assert end(received).held_for == pytest.approx(11)


def test_a_lease_that_reached_its_age_expired(locks: Locks, received: Received, clock: FakeClock) -> None:
    locks.lock("a", ttl=10, max_hold=1).acquire()
    clock.advance(11)
    until(lambda: "lost expired max_hold" in story(received))


def test_a_lease_of_which_renewals_fail_is_lost_and_each_failure_has_the_time_left(
    locks: Locks, received: Received, clock: FakeClock, backends: list[FaultyBackend]
) -> None:
    lease = locks.lock("a", ttl=30).acquire()
    backends[0].lose_request("renew", ALWAYS)
    clock.advance(10)
    until(lambda: [event for event in received if event.kind == "renewal_failed"])
    clock.advance(30)
    until(lambda: "lost lost renewals_failed" in story(received))
    failed = next(event for event in received if event.kind == "renewal_failed")
    assert failed.reason == "unavailable"
    assert failed.remaining == pytest.approx(20, abs=1)
    assert lease is not None
    assert failed.claim_id == end(received).claim_id == lease.claim_id


def test_a_break_through_the_same_locks_is_known_as_the_end(locks: Locks, received: Received) -> None:
    with suppress(lockfast.LeaseLost), locks.lock("a"):
        locks.break_lock("a")
    until(lambda: story(received)[2:] == ["broken", "lost broken broken"])
    broken = received[2]
    assert (broken.primitive, broken.mode, broken.pattern, broken.backend) == ("lock", "exclusive", "a", "memory")


def test_a_break_by_another_process_is_gone(locks: Locks, received: Received, url: str) -> None:
    with suppress(lockfast.LeaseLost), locks.lock("a"):
        with lockfast.connect(url, namespace="shop") as other:
            other.break_lock("a")
    until(lambda: story(received)[2:] == ["lost lost gone"])


def test_a_body_that_runs_when_its_locks_is_closed_loses(locks: Locks, received: Received) -> None:
    with suppress(lockfast.LeaseLost), locks.lock("a"):
        locks.close()
    assert story(received)[2:] == ["lost lost closed"]


def test_what_closing_releases_says_so(locks: Locks, received: Received) -> None:
    locks.lock("a").acquire()
    locks.close()
    assert story(received)[2:] == ["released released closed"]


def test_a_release_that_is_never_answered_ends_with_the_ttl(
    locks: Locks, received: Received, clock: FakeClock, backends: list[FaultyBackend]
) -> None:
    lease = locks.lock("a", ttl=30).acquire()
    assert lease is not None
    backends[0].lose_request("release", ALWAYS, lockfast.BackendUnavailable("no", transient=False))
    with pytest.raises(lockfast.BackendUnavailable):
        lease.release()
    assert story(received)[2:] == ["release_failed unavailable"]
    clock.advance(31)
    until(lambda: "released expired unanswered" in story(received))


def test_a_release_that_is_answered_at_the_second_try_is_one_end(
    locks: Locks, received: Received, backends: list[FaultyBackend]
) -> None:
    lease = locks.lock("a", ttl=30).acquire()
    assert lease is not None
    backends[0].lose_request("release", 1, lockfast.BackendUnavailable("no", transient=False))
    with pytest.raises(lockfast.BackendUnavailable):
        lease.release()
    assert lease.release()
    assert story(received)[2:] == ["release_failed unavailable", "released released by_holder"]


def test_closing_ends_a_lease_whose_release_was_not_answered(
    locks: Locks, received: Received, backends: list[FaultyBackend]
) -> None:
    locks.lock("a", ttl=30).acquire()
    backends[0].lose_request("release", ALWAYS, lockfast.BackendUnavailable("no", transient=False))
    locks.close()
    assert story(received)[2:] == ["release_failed unavailable", "released expired unanswered"]


def test_a_lease_that_is_lost_before_its_grant_is_reported_is_reported_in_order(
    locks: Locks, received: Received
) -> None:
    engine = locks._logic.engine
    keep = engine.keeper.keep

    def keep_and_lose(lease: Any) -> None:
        keep(lease)
        engine.keeper.lose(lease, "denied", LOOP_CLOSED)

    engine.keeper.keep = keep_and_lose  # type: ignore[method-assign]
    locks.lock("a").acquire()
    assert story(received) == ["asked", "granted granted", "lost lost loop_closed"]


def test_a_reentry_is_no_grant(locks: Locks, received: Received) -> None:
    lock = locks.lock("a", reentrant=True)
    with lock, lock:
        pass
    assert story(received) == ["asked", "granted granted", "released released by_holder"]


# Renewals


def test_a_renewal_says_how_much_of_the_ttl_was_left(locks: Locks, received: Received, clock: FakeClock) -> None:
    lease = locks.lock("a", ttl=60).acquire()
    assert lease is not None
    for passed, slack in ((20, 2 / 3), (45, 1 / 4)):
        received.clear()
        engine = lease._engine
        engine.keeper.loop.closed = True  # only as this test asks
        clock.advance(passed)
        drive(engine.keeper.renewals.renew([engine.keeper.state_of(lease)]))
        until(lambda: "renewed" in story(received))
        assert received[0].slack == pytest.approx(slack)
        assert received[0].remaining == pytest.approx(60)


# Limiters and cells


def test_a_limiter_reports_each_call(locks: Locks, received: Received) -> None:
    limiter = locks.limiter("api:7", rate=1, burst=3)
    assert limiter.try_acquire(2)
    assert not limiter.try_acquire(2)
    assert story(received) == ["limited allowed", "limited refused"]
    allowed, refused = received
    assert (allowed.name, allowed.pattern, allowed.primitive) == ("api:7", "api:{n}", "limiter")
    assert (allowed.cost, allowed.retry_after, allowed.backend, allowed.namespace) == (2, 0.0, "memory", "shop")
    assert refused.cost == 2
    assert refused.retry_after == pytest.approx(1)


def test_a_call_of_a_limiter_that_waits_is_one_event_beside_those_of_its_turn(
    locks: Locks, received: Received, clock: FakeClock
) -> None:
    limiter = locks.limiter("api", rate=1)
    assert limiter.acquire()
    assert not limiter.acquire(timeout=0.5)
    assert story(received, "api") == ["limited allowed", "limited refused"]
    assert {event.primitive for event in received} == {"limiter"}


def test_a_limiter_whose_store_is_away_is_unavailable(
    locks: Locks, received: Received, backends: list[FaultyBackend]
) -> None:
    backends[0].lose_request("throttle", 1, lockfast.BackendUnavailable("no", transient=False))
    with pytest.raises(lockfast.BackendUnavailable):
        locks.limiter("api", rate=1).try_acquire()
    locks.close()
    with pytest.raises(lockfast.LockError):
        locks.limiter("api", rate=1).try_acquire()
    assert story(received, "api") == ["limited unavailable", "limited closed"]


def test_a_cell_reports_each_request(locks: Locks, received: Received, backends: list[FaultyBackend]) -> None:
    cell = locks.cell("config:7")
    first = cell.write("a", if_version=0)
    assert (cell.read().value, first) == ("a", cell.read().version)
    with pytest.raises(lockfast.Conflict):
        cell.write("b", if_version=0)
    cell.write("c", if_version=first, fence=7)
    with pytest.raises(lockfast.StaleFence):
        cell.write("d", if_version=first + 1, fence=6)
    backends[0].lose_request("read", 1, lockfast.BackendUnavailable("no", transient=False))
    with pytest.raises(lockfast.BackendUnavailable):
        cell.read()
    assert story(received) == [
        "cell_write done",
        "cell_read done",
        "cell_read done",
        "cell_write conflict",
        "cell_write done",
        "cell_write stale",
        "cell_read unavailable",
    ]
    assert {(event.name, event.pattern, event.primitive) for event in received} == {("config:7", "config:{n}", "cell")}
    assert [(event.version, event.fence, event.attempts) for event in received[3:5]] == [(1, None, 1), (2, 7, 1)]


def test_an_outage_names_its_backend(locks: Locks, received: Received, backends: list[FaultyBackend]) -> None:
    locks._logic.engine.outage._report(locks._logic.engine.outage._event("unreachable", "why"), behind=False)
    assert (received[0].name, received[0].backend, received[0].namespace) == ("", "memory", "shop")


# Listeners


def test_without_listeners_no_event_is_made(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Event:
        raise AssertionError("an event was made")

    monkeypatch.setattr("lockfast.engine.reporting.Event", refuse)
    with locks.lock("a"):
        assert locks.lock("a", wait=0).acquire() is None
    locks.limiter("api", rate=1).try_acquire()
    locks.cell("c").write(1)


def test_the_page_has_every_kind_outcome_field_and_reason() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "events.md").read_text()
    for name in (*get_args(events.Kind), *get_args(events.Outcome), *get_args(events.Primitive), *Event._fields):
        assert f"`{name}`" in page, name


def test_every_kind_has_a_level() -> None:
    assert log.level_of(Event("lost", "a", "me")) > log.level_of(Event("waiting", "a", "me")) > log.DEBUG
