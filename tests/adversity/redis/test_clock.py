"""A Redis server whose clock is set while it runs. Expiry follows that clock; what holds all the same is said here.

Forwards, leases end early: two may believe at once until the next renewal of the first, and the fences
distinguish them. Backwards, nothing lasts longer than its ttl from the jump, and no claim is granted too early.
Fences grow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import lockfast
from lockfast import LeaseLost
from tests.capabilities import SETTABLE_CLOCK
from tests.renewals import renew, renew_soon
from tests.servers.clocks import JumpyServer
from tests.servers.waiting import LIMIT_S, until

pytestmark = [
    pytest.mark.slow,
    SETTABLE_CLOCK.needed,
]

HOUR = 3600.0
TTL_S = 1.5


@pytest.fixture
def server() -> Iterator[JumpyServer]:
    server = JumpyServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def locks(server: JumpyServer) -> Iterator[lockfast.Locks]:
    with lockfast.connect(server.url) as locks:
        yield locks


@pytest.fixture
def others(server: JumpyServer) -> Iterator[lockfast.Locks]:
    with lockfast.connect(server.url) as locks:
        yield locks


def clock_of(server: JumpyServer) -> float:
    seconds, micros = server.command("TIME")
    return int(seconds) + int(micros) / 1e6


def take(locks: lockfast.Locks, name: str = "x", **options: object) -> lockfast.Lease:
    lease = locks.lock(name, **options).acquire()  # type: ignore[arg-type]
    assert lease is not None
    return lease


def test_the_clock_of_the_server_really_jumps(server: JumpyServer) -> None:
    for offset in (HOUR, -HOUR, 0.0):
        server.jump_to(offset)
        before, there = time.time(), clock_of(server)
        assert before - 1 <= there - offset <= time.time() + 1


@pytest.mark.parametrize("offset", [HOUR, -HOUR, 2400 * HOUR, -2400 * HOUR])
def test_fences_grow_whatever_the_clock_does(server: JumpyServer, locks: lockfast.Locks, offset: float) -> None:
    fences = []
    for jump in (0.0, offset, 0.0, -offset, 0.0):
        server.jump_to(jump)
        with locks.lock("x", wait=LIMIT_S) as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("offset", [-HOUR, -86400.0])
def test_a_renewed_lease_outlives_a_jump_backwards(
    server: JumpyServer, locks: lockfast.Locks, others: lockfast.Locks, offset: float
) -> None:
    lost: list[object] = []
    lease = take(locks, ttl=60, on_lost=lost.append)
    server.jump_to(offset)
    for _ in range(3):
        renew(lease)
        assert others.lock("x").acquire(blocking=False) is None
    lease.check()
    assert lost == []
    assert lease.release()
    assert take(others, wait=LIMIT_S).fence > lease.fence


def test_after_a_clock_jump_backwards_no_claim_is_granted_before_the_holder_stops_believing(
    server: JumpyServer, locks: lockfast.Locks, others: lockfast.Locks
) -> None:
    lease = take(locks, ttl=TTL_S, renew=False)
    server.jump_to(-HOUR)
    following = None
    while lease.held:
        following = others.lock("x").acquire(blocking=False)
        assert following is None or not lease.held
    following = following or take(others, wait=LIMIT_S)
    assert following.fence > lease.fence, "the jump makes nothing last for an hour"


def test_a_clock_jump_forwards_ends_leases_early_and_their_holder_is_notified(
    server: JumpyServer, locks: lockfast.Locks, others: lockfast.Locks
) -> None:
    lost: list[object] = []
    lease = take(locks, ttl=60, on_lost=lost.append)
    server.jump_to(HOUR)
    second = take(others, wait=LIMIT_S)
    assert second.fence > lease.fence, "a store that checks fences refuses the first"
    renew_soon(lease)
    until(lambda: lost, "the loss to be reported")
    with pytest.raises(LeaseLost):
        lease.check()
    assert not lease.release()
    assert second.held
    assert [holder.fence for holder in others.inspect("x").holders] == [second.fence]


def test_a_lease_that_a_clock_jump_forwards_has_ended_is_not_revived_even_if_the_lock_stayed_free(
    server: JumpyServer, locks: lockfast.Locks
) -> None:
    lost: list[object] = []
    lease = take(locks, ttl=TTL_S, on_lost=lost.append)
    server.jump_to(HOUR)
    renew_soon(lease)
    until(lambda: lost, "the loss to be reported")
    server.jump_to(0)
    assert not lease.held
    with pytest.raises(LeaseLost):
        lease.check()
    assert take(locks, wait=LIMIT_S).fence > lease.fence
