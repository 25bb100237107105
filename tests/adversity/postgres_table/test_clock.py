"""A PostgreSQL server whose clock is set while it runs. Expiry follows it; what holds all the same is said here.

Forwards, leases end early: two may believe at once until the first learns of it, with its next renewal, and the fences
distinguish them. Backwards, nothing lasts longer than its ttl from when it is first asked for again, and no claim is
granted too early. Fences grow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

import lockfast
from lockfast._time import boot_now
from tests.capabilities import SETTABLE_CLOCK
from tests.renewals import renew, renew_soon
from tests.servers.clocks import Clock
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_tables import empty_table
from tests.servers.waiting import LIMIT_S, until

pytestmark = [
    pytest.mark.slow,
    SETTABLE_CLOCK.needed,
]

HOUR = 3600.0
TTL_S = 1.5
QUEUE_UP = "SELECT (lockfast_acquire('', 'x', 'dead', 'h', 30, p_address => '') ->> 'position')::float"
LEFT = "SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM distributed_locks"


class Jumpy:
    """The server, a client that speaks SQL to it, and its clock."""

    def __init__(self, server: PostgresServer, clock: Clock) -> None:
        self.url = server.url
        self._clock = clock
        self._connection = psycopg.connect(server.url, autocommit=True)

    def jump_to(self, seconds: float) -> None:
        self._clock.set(seconds)

    def ask(self, sql: str) -> float:
        (answer,) = self._connection.execute(sql.encode()).fetchone() or (0,)
        return float(answer)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def jumpy() -> Iterator[Jumpy]:
    clock = Clock()
    with PostgresServer(env=clock.settings) as server:
        empty_table(server.url)
        jumpy = Jumpy(server, clock)
        yield jumpy
        jumpy.close()
    clock.close()


@pytest.fixture
def server(jumpy: Jumpy) -> Jumpy:
    jumpy.jump_to(0)
    empty_table(jumpy.url)
    return jumpy


@pytest.fixture
def locks(server: Jumpy) -> Iterator[lockfast.Locks]:
    with lockfast.connect(server.url) as locks:
        yield locks


@pytest.fixture
def others(server: Jumpy) -> Iterator[lockfast.Locks]:
    with lockfast.connect(server.url) as locks:
        yield locks


def take(locks: lockfast.Locks, **options: object) -> lockfast.Lease:
    lease = locks.lock("x", **options).acquire()  # type: ignore[arg-type]
    assert lease is not None
    return lease


def test_the_clock_of_the_server_really_jumps(server: Jumpy) -> None:
    for offset in (HOUR, -HOUR, 0.0):
        server.jump_to(offset)
        before, there = time.time(), float(server.ask("SELECT extract(epoch FROM clock_timestamp())"))
        assert before - 1 <= there - offset <= time.time() + 1


@pytest.mark.parametrize("offset", [HOUR, -HOUR, 2400 * HOUR, -2400 * HOUR])
def test_fences_grow_whatever_the_clock_does(server: Jumpy, locks: lockfast.Locks, offset: float) -> None:
    fences = []
    for jump in (0.0, offset, 0.0, -offset, 0.0):
        server.jump_to(jump)
        with locks.lock("x", wait=LIMIT_S) as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))


def test_after_a_jump_backwards_a_waiter_is_granted_soon_after_the_holder_stops_believing_and_not_before(
    server: Jumpy, locks: lockfast.Locks, others: lockfast.Locks
) -> None:
    lease = take(locks, ttl=TTL_S, renew=False)
    server.jump_to(-HOUR)
    while lease.held:
        assert others.lock("x").acquire(blocking=False) is None or not lease.held
    assert take(others, wait=LIMIT_S).fence > lease.fence, "the jump makes nothing last for an hour"


def test_a_renewed_lease_outlives_a_jump_backwards(
    server: Jumpy, locks: lockfast.Locks, others: lockfast.Locks
) -> None:
    lost: list[object] = []
    lease = take(locks, ttl=60, on_lost=lost.append)
    server.jump_to(-HOUR)
    for _ in range(3):
        renew(lease)
        assert others.lock("x").acquire(blocking=False) is None
    lease.check()
    assert lost == []
    assert lease.release()


def test_a_renewal_after_a_jump_backwards_counts_from_the_new_time(server: Jumpy, locks: lockfast.Locks) -> None:
    """So it lasts no longer, should its holder not renew it any more."""
    lease = take(locks, ttl=600)
    server.jump_to(-HOUR)
    lease.extend(300)
    assert 300 < server.ask(LEFT) <= 600, "it is never shortened"
    lease.extend(900)
    assert 600 < server.ask(LEFT) <= 900
    server.jump_to(-2 * HOUR)
    lease.extend(300)
    assert 600 < server.ask(LEFT) <= 900
    assert lease.release()


def test_a_waiter_waits_through_a_jump_backwards_for_a_ttl_at_most(
    server: Jumpy, locks: lockfast.Locks, others: lockfast.Locks
) -> None:
    """It keeps its place, and is granted the lock though no holder released it."""
    lease = take(locks, ttl=TTL_S, renew=False)
    started = boot_now()
    assert server.ask(QUEUE_UP) == 0
    server.jump_to(-HOUR)
    second = take(others, wait=LIMIT_S)  # the first in the queue is dead, and its place from the future
    assert second.fence > lease.fence
    assert boot_now() >= started + TTL_S


def test_what_was_kept_for_one_that_died_is_not_kept_through_a_jump_backwards(
    server: Jumpy, locks: lockfast.Locks
) -> None:
    assert server.ask("SELECT acquire_lock('x', 'psql')::int")
    assert server.ask(QUEUE_UP) == 0
    server.jump_to(-HOUR)
    assert server.ask("SELECT release_lock('x', 'psql')::int")  # it is the dead one's turn
    server.jump_to(-2 * HOUR)
    assert take(locks, wait=LIMIT_S).held, "before the dead one is forgotten"


def test_an_extension_after_a_jump_backwards_counts_from_the_new_time(server: Jumpy, locks: lockfast.Locks) -> None:
    assert server.ask("SELECT acquire_lock('x', 'psql', 600)::int")
    server.jump_to(-HOUR)
    assert server.ask("SELECT extend_lock('x', 'psql', 300)::int")
    assert 300 < server.ask(LEFT) <= 600, "it is never shortened"
    server.jump_to(-2 * HOUR)
    assert server.ask("SELECT acquire_lock('x', 'psql', 900)::int")
    assert 600 < server.ask(LEFT) <= 900
    assert server.ask("SELECT extract(epoch FROM ttl) FROM distributed_locks") == 900


def test_inspection_shows_no_end_that_will_not_be(server: Jumpy, locks: lockfast.Locks) -> None:
    lease = take(locks, ttl=60, renew=False)
    server.jump_to(-HOUR)
    (holder,) = locks.inspect("x").holders
    assert holder.expires_at - server.ask("SELECT extract(epoch FROM clock_timestamp())") <= 60
    assert lease.release()


def test_a_name_that_stays_taken_for_a_while_stays_so_no_longer_for_a_jump_backwards(
    server: Jumpy, locks: lockfast.Locks
) -> None:
    lease = take(locks, ttl=60, min_hold=TTL_S)
    assert lease.release()
    server.jump_to(-HOUR)
    assert take(locks, wait=LIMIT_S).held


def test_a_jump_forwards_ends_leases_early_and_their_holder_is_notified(
    server: Jumpy, locks: lockfast.Locks, others: lockfast.Locks
) -> None:
    lost: list[object] = []
    lease = take(locks, ttl=60, on_lost=lost.append)
    server.jump_to(HOUR)
    second = take(others, wait=LIMIT_S)
    assert second.fence > lease.fence, "a store that looks at fences refuses the first"
    renew_soon(lease)
    until(lambda: lost, "the loss to be reported")
    assert not lease.release()
    assert second.held
