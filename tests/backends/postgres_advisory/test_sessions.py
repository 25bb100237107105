"""The sessions of advisory locks: which are ours, how many there are, when they end, and whose fences they give."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import BackendUnavailable, Lease, Locks
from lockfast.backends.postgres_advisory import acquiring
from lockfast.backends.postgres_advisory.holds import Fences, fences_of
from lockfast.backends.postgres_advisory.io import asyncio_ as asyncio_module
from lockfast.backends.postgres_advisory.io import blocking as blocking_module
from lockfast.backends.postgres_advisory.io.watch import SessionWatch
from lockfast.backends.postgres_advisory.keys import key_of
from tests.polling import HOUR, never_poll
from tests.servers.postgres import USER
from tests.servers.postgres_shared import HERE, advisory
from tests.servers.postgres_wire import Pooler
from tests.servers.server import HOST
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = pytest.mark.slow
_IN_LINE = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {HERE}"


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    """A plain connection that inspects from outside."""
    with psycopg.connect(plain, autocommit=True, application_name="psql-user") as connection:
        yield connection


def _count(psql: psycopg.Connection, sql: str) -> int:
    (number,) = psql.execute(sql.encode()).fetchone() or (0,)
    return int(number)


def _wait_for(locks: Locks, other: Locks, name: str) -> Lease:
    """A lock that was waited for."""
    first = other.lock(name).acquire()
    assert first is not None
    taken: list[Lease | None] = []
    thread = threading.Thread(target=lambda: taken.append(locks.lock(name).acquire()))
    thread.start()
    until(lambda: other.inspect(name).waiters)
    first.release()
    join(thread)
    assert taken[0] is not None
    return taken[0]


# By way of a pooler that gives out whole sessions, and numbers of its own for them


@pytest.fixture
def pooled(plain: str) -> Iterator[str]:
    with Pooler(advisory().server) as pooler:
        yield f"postgresql+advisory://{USER}@{HOST}:{pooler.port}/{plain.rpartition('/')[2]}?pooler=session"


def test_a_wait_that_is_given_up_leaves_no_waiter_though_a_pooler_invents_pids(
    pooled: str, url: str, psql: psycopg.Connection
) -> None:
    with lockfast.connect(pooled) as locks, lockfast.connect(url) as other:
        _wait_for(locks, other, "door")  # so that there is a session to wait in
        assert other.lock("gate").acquire() is not None
        with suppress(BackendUnavailable):  # on a busy machine it may not be answered
            assert locks.lock("gate", wait=1).acquire() is None
        until(lambda: _count(psql, _IN_LINE) == 0, "it to leave the queue")


def test_own_locks_are_known_and_broken_alone_though_a_pooler_invents_pids(pooled: str) -> None:
    with lockfast.connect(pooled) as locks:
        mine, bystander = locks.lock("mine").acquire(), locks.lock("bystander").acquire()
        assert mine is not None
        assert bystander is not None
        assert [holder.claim_id for holder in locks.inspect("mine").holders] == [mine.claim_id]
        locks.break_lock("mine")
        assert mine.lost
        assert bystander.held
        assert bystander.release()


# Their end

_MINE = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'me'"
_OURS = f"SELECT count(*) {_MINE}"
_END_OURS = f"SELECT count(pg_terminate_backend(pid, 5000)) {_MINE}"


def test_the_end_of_a_session_does_not_end_the_next_one_that_has_its_number(
    url: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified, go_on, looked = threading.Event(), threading.Event(), threading.Event()
    usual = SessionWatch._read_ended

    def late(self: SessionWatch, ended: Any) -> None:
        if ended:
            notified.set()
            assert go_on.wait(LIMIT_S)
        usual(self, ended)
        if ended:
            looked.set()

    monkeypatch.setattr(SessionWatch, "_read_ended", late)
    with lockfast.connect(f"{url}?application_name=me") as locks:
        sessions: Any = locks._logic.engine.backend._sessions  # type: ignore[attr-defined]
        with locks.lock("warm"):
            number = sessions.ready.socket
        assert _count(psql, _END_OURS) == 1
        assert notified.wait(LIMIT_S)
        lease = locks.lock("a").acquire()
        assert lease is not None
        assert sessions.ready.socket == number
        go_on.set()
        assert looked.wait(LIMIT_S)
        assert lease.held
        assert lease.release()


def test_idle_sessions_are_closed_after_a_while(
    url: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_module, "MAX_IDLE_S", 0.2)
    with lockfast.connect(f"{url}?application_name=me") as locks, lockfast.connect(url) as other:
        lease = _wait_for(locks, other, "gate")
        assert _count(psql, _OURS) == 2
        lease.release()
        until(lambda: _count(psql, _OURS) == 1)
        with locks.lock("gate"):  # that one holds on
            pass


def test_idle_sessions_of_a_loop_are_closed_after_a_while(
    url: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio_module, "MAX_IDLE_S", 0.2)

    async def story() -> None:
        async with lockfast.aio.connect(f"{url}?application_name=me") as locks, lockfast.aio.connect(url) as other:
            async with other.lock("gate"):
                waiter = asyncio.ensure_future(locks.lock("gate").acquire())
                await asyncio.to_thread(until, lambda: _count(psql, _IN_LINE) == 1)
            lease = await waiter
            assert lease is not None
            assert _count(psql, _OURS) == 2
            await lease.release()
            await asyncio.to_thread(until, lambda: _count(psql, _OURS) == 1)

    asyncio.run(story())


# How many there are


def test_locks_that_were_waited_for_keep_no_waiter_out_of_the_queue(url: str, psql: psycopg.Connection) -> None:
    """A waiter outside the queue is passed over by those in it, for as long as the queue is never empty."""
    with lockfast.connect(f"{url}?application_name=me&waiting=1") as locks, lockfast.connect(url) as other:
        held = [_wait_for(locks, other, f"held-{number}") for number in range(3)]
        assert _wait_for(locks, other, "another").held
        assert all(lease.held for lease in held)
        assert _count(psql, _OURS) == 5


def test_there_are_at_most_four_sessions_for_each_that_may_wait_and_a_later_claim_is_served(
    url: str, psql: psycopg.Connection
) -> None:
    with lockfast.connect(f"{url}?application_name=me&waiting=1") as locks, lockfast.connect(url) as other:
        held = [_wait_for(locks, other, f"held-{number}") for number in range(4)]
        taken: list[Lease | None] = []
        with other.lock("another"):
            waiter = threading.Thread(target=lambda: taken.append(locks.lock("another").acquire()))
            waiter.start()
            backend: Any = locks._logic.engine.backend
            until(lambda: any(hold.polls > 1 for hold in backend._holds.of(key_of("another").number)))
            assert _count(psql, _IN_LINE) == 0
            held.pop().release()
            until(lambda: _count(psql, _IN_LINE) == 1)
        join(waiter)
        assert taken[0] is not None
        assert _count(psql, _OURS) == 5


def test_locks_that_tasks_waited_for_keep_no_waiter_out_of_the_queue(url: str, psql: psycopg.Connection) -> None:
    async def story() -> None:
        where = f"{url}?application_name=me&waiting=1"
        async with lockfast.aio.connect(where) as locks, lockfast.aio.connect(url) as other:
            leases = []
            for name in ("a", "b", "c", "d"):
                async with other.lock(name):
                    waiter = asyncio.ensure_future(locks.lock(name).acquire())
                    await asyncio.to_thread(until, lambda: _count(psql, _IN_LINE) == 1)
                leases.append(await waiter)
            assert all(lease is not None and lease.held for lease in leases)
            async with other.lock("e"):
                with suppress(BackendUnavailable):  # on a busy machine it may not be answered
                    assert await locks.lock("e", wait=1).acquire() is None
                assert _count(psql, _OURS) == 5
            for lease in leases:
                assert lease is not None
                await lease.release()

    asyncio.run(story())


# How many readers of one name there may be


def _read(locks: Locks) -> Lease:
    lease = locks.rwlock("page").read().acquire()
    assert lease is not None
    return lease


def test_a_reader_that_finds_no_session_left_waits_for_the_next_and_takes_no_more_than_there_may_be(
    url: str, psql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquiring, "UNQUEUED_POLL_S", 3600.0)  # it is woken, and does not poll
    with lockfast.connect(f"{url}?application_name=me&waiting=1") as locks:
        backend: Any = locks._logic.engine.backend
        for leaves in (0, 3):  # the one in the main session, and one in a session of its own
            held = [_read(locks) for _ in range(5)]
            assert _count(psql, _OURS) == 5
            assert locks.rwlock("page").read().acquire(blocking=False) is None
            taken: list[Lease] = []
            reader = threading.Thread(target=lambda taken=taken: taken.append(_read(locks)))
            reader.start()
            until(lambda: any(hold.polls > 1 for hold in backend._holds.of(key_of("page").number)))
            assert _count(psql, _OURS) == 5
            held.pop(leaves).release()
            join(reader)
            for lease in [*held, *taken]:
                assert lease.release()


def test_readers_that_wait_for_a_session_are_woken_one_after_the_other_and_need_no_timer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_poll(monkeypatch)
    for timer in ("FIRST_POLL_S", "UNQUEUED_POLL_S"):
        monkeypatch.setattr(acquiring, timer, HOUR)
    with lockfast.connect(f"{url}?waiting=1") as locks:
        backend: Any = locks._logic.engine.backend
        held = [_read(locks) for _ in range(5)]
        impatient = threading.Thread(target=lambda: locks.rwlock("page", wait=1).read().acquire())
        impatient.start()
        until(lambda: len(backend._holds.unqueued) == 1)
        readers = [threading.Thread(target=lambda: _read(locks).release()) for _ in range(10)]
        for number, reader in enumerate(readers, 2):
            reader.start()
            until(lambda number=number: len(backend._holds.unqueued) >= number - 1)  # type: ignore[misc]
        join(impatient)  # the first of them gives up
        held.pop(2).release()
        join(*readers)
        for lease in held:
            assert lease.release()


def test_a_writer_that_waits_for_a_session_is_passed_by_no_reader_that_comes_later(
    url: str, psql: psycopg.Connection
) -> None:
    with lockfast.connect(f"{url}?waiting=1") as locks:
        held = [_read(locks) for _ in range(5)]
        taken: list[Lease | None] = []
        writer = threading.Thread(target=lambda: taken.append(locks.rwlock("page").write().acquire()))
        writer.start()
        backend: Any = locks._logic.engine.backend
        until(lambda: len(backend._holds.unqueued) == 1)
        held.pop(0).release()  # now the main session shares it no more
        assert locks.rwlock("page").read().acquire(blocking=False) is None
        held.pop().release()  # now there is a session for the writer to wait in
        until(lambda: _count(psql, _IN_LINE) == 1)
        assert locks.rwlock("page").read().acquire(blocking=False) is None
        for lease in held:
            assert lease.release()
        join(writer)
        assert taken[0] is not None
        assert taken[0].held


def test_tasks_that_read_one_name_have_as_many_sessions_as_there_may_be_and_all_are_served(
    url: str, psql: psycopg.Connection
) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(f"{url}?application_name=me&waiting=2") as locks:
            together = most = 0
            two = asyncio.Event()  # are reading

            async def read() -> None:
                nonlocal together, most
                async with locks.rwlock("page").read():
                    together += 1
                    most = max(most, together)
                    if together == 2:
                        two.set()
                    await two.wait()
                    together -= 1

            await asyncio.gather(*[read() for _ in range(40)])
            assert 2 <= most <= 9
            assert _count(psql, _OURS) <= 9

    asyncio.run(story())


# Fences


def test_a_server_whose_clock_is_ahead_lends_its_time_to_no_other(url: str) -> None:
    ahead = fences_of("postgresql+advisory://another/server")
    ahead.mint(int((time.time() + 3600) * 1e6))
    with lockfast.connect(url) as locks, locks.lock("a") as lease:
        assert lease.fence < (time.time() + 60) * 1e6


def test_a_clock_that_is_set_back_does_not_take_the_fences_of_a_process_back() -> None:
    fences = Fences()
    assert [fences.mint(read) for read in (50, 20, 51, 70)] == [50, 51, 52, 70]
