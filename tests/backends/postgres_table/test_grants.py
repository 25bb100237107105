"""The lock table makes the next waiter the holder in the transaction that makes room, and its notification carries the
grant. Every role can send notifications, so only one that the table has sent is believed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast._ids import new_claim_id
from lockfast._model import Busy, Claim, Grant, Terms
from lockfast._reentry import drive
from lockfast.backends.postgres_table import backend as table_backend
from lockfast.backends.postgres_table.io.channel import NotifyChannel
from lockfast.backends.postgres_table.schema import script
from lockfast.backends.wakeups import read_wake_up
from tests.polling import HOUR, never_poll
from tests.servers.postgres_shared import own_name
from tests.servers.postgres_tables import table
from tests.servers.waiting import LIMIT_S, join, until, until_async

pytestmark = pytest.mark.slow

WAITING = "SELECT count(*) FROM lockfast_queue WHERE kind = 'w'"
RESERVED = "SELECT count(*) FROM lockfast_queue WHERE reserved_until IS NOT NULL"
HOLDERS = "SELECT array_agg(holder_id) FROM distributed_locks"
ASK = "SELECT lockfast_acquire('', 'x', %s, %s, 30, 'exclusive', NULL, NULL, %s)"


class Database:
    """The lock table, and a client with nothing but SQL."""

    def __init__(self, folder: Path) -> None:
        self.url = table().url(folder)
        self.connection = psycopg.connect(self.url, autocommit=True)
        self._listener = psycopg.connect(self.url, autocommit=True)

    def ask(self, sql: str, *values: object) -> Any:
        row = self.connection.execute(sql.encode(), values).fetchone()
        return row[0] if row else None

    def listen(self, channel: str) -> None:
        """And be known to listen there, as a client of lockfast is."""
        self._listener.execute(f"LISTEN {channel}".encode())
        self._listener.execute("SELECT lockfast_register_listener(%s)", (channel,))

    def notice(self) -> str:
        """The next notification."""
        (found,) = self._listener.notifies(timeout=LIMIT_S, stop_after=1)
        return found.payload

    def close(self) -> None:
        self.connection.close()
        self._listener.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _never_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    never_poll(monkeypatch)


class Waiter:
    """A thread that waits for the lock, which another client holds."""

    def __init__(self, database: Database) -> None:
        self.locks = lockfast.connect(database.url, holder="us")
        self.backend = cast(Any, self.locks._logic.engine.backend)
        self.requests: list[str] = []
        self._leases: list[lockfast.Lease | None] = []
        self._thread = threading.Thread(
            target=lambda: self._leases.append(self.locks.lock("x", ttl=HOUR, metadata={"job": 7}).acquire())
        )
        self._thread.start()
        until(lambda: database.ask(WAITING), "one to wait")
        acquire = self.backend._acquire

        async def noted(*args: Any) -> Any:
            self.requests.append("acquire")
            return await acquire(*args)

        self.backend._acquire = noted

    def granted(self) -> lockfast.Lease:
        join(self._thread)
        (lease,) = self._leases
        assert lease is not None
        return lease


@pytest.fixture
def waiter(database: Database) -> Iterator[Waiter]:
    database.ask("SELECT acquire_lock('x', 'sql', 600)")
    made = Waiter(database)
    yield made
    made.locks.close()


# The transaction that makes room


def test_a_release_in_sql_makes_the_waiter_the_holder_which_need_not_ask(database: Database, waiter: Waiter) -> None:
    assert database.ask("SELECT release_lock('x', 'sql')")
    assert database.ask("SELECT metadata FROM distributed_locks WHERE holder_id = 'us'") == {"job": 7}
    assert database.ask(WAITING) == 0
    lease = waiter.granted()
    assert waiter.requests == []
    assert lease.fence == database.ask("SELECT fence FROM distributed_locks")
    assert lease.release()


@pytest.mark.parametrize("step", ["lockfast_break('', 'x')", "lockfast_abandon('', 'x', 'sql:sql')"])
def test_each_step_that_makes_room_grants_to_the_waiter(database: Database, waiter: Waiter, step: str) -> None:
    database.ask(f"SELECT {step}")
    assert waiter.granted().fence == database.ask("SELECT fence FROM distributed_locks")
    assert waiter.requests == []


def test_a_rollback_takes_the_grant_back_and_a_commit_makes_it(database: Database, waiter: Waiter) -> None:
    database.connection.autocommit = False
    database.ask("SELECT release_lock('x', 'sql')")
    assert database.ask(HOLDERS) == ["us"]
    database.connection.rollback()
    assert database.ask(HOLDERS) == ["sql"]
    assert database.ask(WAITING) == 1
    database.ask("SELECT release_lock('x', 'sql')")
    database.connection.commit()
    assert waiter.granted().fence == database.ask("SELECT fence FROM distributed_locks")
    database.connection.rollback()


def test_nothing_is_remembered_of_a_released_claim_that_was_granted_without_asking(
    database: Database, waiter: Waiter
) -> None:
    database.ask("SELECT release_lock('x', 'sql')")
    waiter.granted().release()
    assert not waiter.backend._queued
    assert not waiter.backend._driver.wakeups._waiters


@pytest.mark.parametrize("address", ["", "lockfast_here"])
def test_a_waiter_that_cannot_listen_or_knows_no_grants_confirms(database: Database, address: str) -> None:
    """Behind a pooler it has no address; an older lockfast leaves no secret there."""
    database.listen("lockfast_here")
    database.ask("SELECT acquire_lock('x', 'sql', 600)")
    database.ask(ASK, "waits", "us", address)
    database.ask("SELECT release_lock('x', 'sql')")
    assert (database.ask(HOLDERS), database.ask(RESERVED)) == (None, 1)
    if address:
        assert database.notice() == "waits"
    assert "fence" in database.ask(ASK, "waits", "us", address)


# Which grants are believed


def test_a_notification_shows_its_proof_to_the_waiter_and_the_secret_to_none(database: Database) -> None:
    channel = NotifyChannel()
    database.listen(channel.name)
    database.ask("SELECT acquire_lock('x', 'sql', 600)")
    database.ask(ASK, "waits", "us", channel.address)
    database.ask("SELECT release_lock('x', 'sql')")
    notice = database.notice()
    assert not set(channel.address.split()) & set(notice.split())
    claim, grant = read_wake_up(channel.read(notice))
    assert claim == "waits"
    assert grant is not None
    assert grant.fence == database.ask("SELECT fence FROM distributed_locks")
    assert grant.acquired_at == float(database.ask("SELECT extract(epoch FROM acquired_at) FROM distributed_locks"))


def test_a_proof_is_good_for_its_grant_and_its_channel_only() -> None:
    ours = NotifyChannel()
    wake_up = "waits 8 5000000"
    sent = f"{wake_up} {ours._proof_of(wake_up).decode()}"
    assert ours.read(sent) == wake_up
    assert ours.read(sent.replace("8", "9", 1)) == "waits"
    assert ours.read(sent.replace("waits", "other")) == "other"
    assert NotifyChannel().read(sent) == "waits"
    for forged in (wake_up, f"{wake_up} ", f"{wake_up} x", f"{wake_up} \N{SNOWMAN}", "waits"):
        assert ours.read(forged) == "waits"
    assert ours.read("") == ""


def forgeries(database: Database, waiter_channel: NotifyChannel) -> list[str]:
    """What a role can send that has no rights on the table, and has seen a grant on that channel."""
    claim = database.ask("SELECT claim FROM lockfast_queue")
    fence = database.ask("SELECT nextval('lockfast_fence')")
    seen = NotifyChannel()._proof_of("before").decode()
    assert waiter_channel.address == database.ask("SELECT address FROM lockfast_queue")
    return [f"{claim} {fence} 5000000", f"{claim} {fence} 5000000 {seen}"]


@pytest.fixture
def stranger(database: Database) -> Iterator[psycopg.Connection]:
    role = own_name("stranger")
    database.connection.execute(f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN".encode())
    with psycopg.connect(database.url.replace("//lockfast@", f"//{role}@"), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT address FROM lockfast_queue")
        yield connection
    database.connection.execute(f"DROP ROLE {role}".encode())


def test_a_thread_that_is_sent_a_forged_grant_asks(
    database: Database, waiter: Waiter, stranger: psycopg.Connection
) -> None:
    channel = waiter.backend._driver._channel
    for number, forged in enumerate(forgeries(database, channel), 1):
        stranger.execute("SELECT pg_notify(%s, %s)", (channel.name, forged))
        until(lambda number=number: len(waiter.requests) >= number, "the waiter to ask")  # type: ignore[misc]
    assert database.ask(WAITING) == 1
    database.ask("SELECT release_lock('x', 'sql')")
    assert waiter.granted().fence == database.ask("SELECT fence FROM distributed_locks")


def test_a_task_that_is_sent_a_forged_grant_asks(database: Database, stranger: psycopg.Connection) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(database.url, holder="us") as locks:
            waiting = asyncio.create_task(locks.lock("x", ttl=HOUR).acquire())
            await until_async(_waits, "one to wait")
            driver = locks._logic.engine.backend._driver  # type: ignore[attr-defined]
            requests: list[str] = []
            ask = driver.ask

            async def noted(request: Any, within: float) -> Any:
                requests.append(request.kind)
                return await ask(request, within)

            driver.ask = noted
            channel = driver.wakeups.channel
            for number, forged in enumerate(forgeries(database, channel), 1):
                stranger.execute("SELECT pg_notify(%s, %s)", (channel.name, forged))
                await until_async(lambda number=number: _has(requests, number), "the task to ask")  # type: ignore[misc]
            asked = len(requests)
            database.ask("SELECT release_lock('x', 'sql')")
            lease = await waiting
            assert lease is not None
            assert lease.fence == database.ask("SELECT fence FROM distributed_locks")
            assert requests[asked:] == []

    async def _waits() -> bool:
        return bool(database.ask(WAITING))

    async def _has(requests: list[str], number: int) -> bool:
        return len(requests) >= number

    database.ask("SELECT acquire_lock('x', 'sql', 600)")
    asyncio.run(story())


def test_a_grant_that_is_sent_again_is_older_than_each_later_answer(database: Database) -> None:
    """So the engine does not believe it, should the same claim wait once more."""
    with lockfast.connect(database.url) as locks:
        backend = cast(Any, locks._logic.engine.backend)
        claim = Claim(new_claim_id(), Terms("x", "x", "us", 30.0))

        def busy() -> Busy:
            answer = drive(backend.acquire(claim, enqueue=True, within=LIMIT_S))
            assert isinstance(answer, Busy)
            return answer

        database.ask("SELECT acquire_lock('x', 'sql', 600)")
        first = busy()
        assert first.last_fence is not None
        database.ask("SELECT release_lock('x', 'sql')")
        grant = drive(backend.wait(claim, LIMIT_S))
        assert isinstance(grant, Grant)
        assert grant.fence > first.last_fence
        database.ask("SELECT lockfast_break('', 'x')")
        database.ask("SELECT acquire_lock('x', 'sql', 600)")
        again = busy()
        assert again.last_fence is not None
        assert again.last_fence > grant.fence
        assert busy().last_fence == again.last_fence
        drive(backend.abandon(claim, within=LIMIT_S))


def test_a_claim_that_does_not_believe_its_grant_and_finds_the_name_locked_ends_its_hold(database: Database) -> None:
    with lockfast.connect(database.url) as locks:
        backend = cast(Any, locks._logic.engine.backend)
        claim = Claim(new_claim_id(), Terms("x", "x", "us", 30.0))
        database.ask("SELECT acquire_lock('x', 'sql', 600)")
        assert isinstance(drive(backend.acquire(claim, enqueue=True, within=LIMIT_S)), Busy)
        database.ask("SELECT release_lock('x', 'sql')")
        assert isinstance(drive(backend.wait(claim, LIMIT_S)), Grant)
        with database.connection.transaction():
            database.ask("SELECT lockfast_lock_name('', 'x', NULL)::text")
            assert drive(backend.acquire(claim, enqueue=True, within=LIMIT_S)).unsettled
        drive(backend.abandon(claim, within=LIMIT_S))
        assert database.ask(HOLDERS) is None


@pytest.mark.parametrize("before", [False, True], ids=["only later", "before, too"])
def test_more_waiters_than_a_process_remembers_leave_no_place_behind(
    database: Database, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """They find their name locked when they ask again, so some of them were taken for claims that have no place."""
    most = 2
    monkeypatch.setattr(table_backend, "MAX_IN_DOUBT", most)
    with lockfast.connect(database.url) as locks:
        backend = cast(Any, locks._logic.engine.backend)
        claims = [Claim(new_claim_id(), Terms("x", "x", "us", 30.0)) for _ in range(3 * most)]

        def ask(claim: Claim) -> Any:
            return drive(backend.acquire(claim, enqueue=True, within=LIMIT_S))

        database.ask("SELECT acquire_lock('x', 'sql', 600)")
        if before:
            with database.connection.transaction():
                database.ask("SELECT lockfast_lock_name('', 'x', NULL)::text")
                assert all(ask(claim).unsettled for claim in claims)
        assert not any(ask(claim).unsettled for claim in claims)
        with database.connection.transaction():
            database.ask("SELECT lockfast_lock_name('', 'x', NULL)::text")
            assert all(ask(claim).unsettled for claim in claims)
        assert database.ask(WAITING) == len(claims)
        for claim in claims:
            drive(backend.abandon(claim, within=LIMIT_S))
        assert database.ask(WAITING) == 0
        assert len(backend._queued) <= most


# A schema of version 3

_RAISES = "LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $m$a function of version 3 was called$m$; END'"
FORMER = f"""
CREATE FUNCTION former.lockfast_refresh(p_ns text, p_name text, p_now timestamptz) RETURNS void {_RAISES};
CREATE FUNCTION former.lockfast_hand_over(text, text, timestamptz, text DEFAULT '', text DEFAULT '') RETURNS text[]
    {_RAISES};
CREATE FUNCTION former.lockfast_enqueue(
    text, text, text, text, double precision, text, integer, jsonb, text, bigint, timestamptz
) RETURNS void {_RAISES};
DELETE FROM former.lockfast_schema WHERE version > 3;
"""
NAMESAKES = """SELECT count(*) FROM (SELECT proname FROM pg_proc WHERE pronamespace = 'former'::regnamespace
    GROUP BY proname HAVING count(*) > 1) AS found"""


def test_a_migration_keeps_functions_for_steps_that_began_before_it_and_no_later_one_calls_them(
    database: Database,
) -> None:
    """A step may have waited for its name since: to it a missing function would be a missing lock table."""
    database.connection.execute("DROP SCHEMA IF EXISTS former CASCADE")
    database.connection.execute(script("former").encode())
    database.connection.execute(FORMER.encode())
    database.connection.execute(script("former").encode())
    assert database.ask(NAMESAKES) == 3
    with lockfast.connect(database.url, schema="former") as locks:
        leases: list[lockfast.Lease | None] = []
        lock = locks.lock("x", ttl=HOUR)
        waiter = threading.Thread(target=lambda: leases.append(lock.acquire()))
        with lock:
            waiter.start()
            until(lambda: database.ask("SELECT count(*) FROM former.lockfast_queue"), "one to wait")
        join(waiter)
        assert [lease is not None for lease in leases] == [True]
        assert database.ask("SELECT former.lockfast_break('', 'x')")
        assert database.ask("SELECT former.release_lock('x', 'us')") is False
