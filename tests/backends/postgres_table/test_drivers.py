"""How the lock table is reached: few connections, many requests in one statement, and a server that misbehaves."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest

import lockfast
import lockfast.aio
from lockfast._ids import new_claim_id
from lockfast._model import Claim, Grant, Terms
from lockfast.backends.postgres_table import requests
from lockfast.backends.postgres_table.io.batching import MAX_CONNECTIONS, MAX_SPARE
from lockfast.errors import AcquireTimeout, BackendUnavailable
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_shared import HERE
from tests.servers.postgres_tables import empty_table, table
from tests.servers.waiting import LIMIT_S, join, until, until_async

pytestmark = pytest.mark.slow

SECRET = "s3cret"
NOT_ALL_JSON = {"good": "{}", "bad": "this is not JSON", "fine": None}  # metadata by name
OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'lockfast'"


class Database:
    """A database with an empty lock table, and a connection that looks at it from outside."""

    def __init__(self, folder: Path) -> None:
        self.url = table().url(folder)
        self.connection = psycopg.connect(self.url, autocommit=True)

    def ask(self, sql: str, *values: object) -> Any:
        row = self.connection.execute(sql.encode(), values).fetchone()
        return row[0] if row and len(row) == 1 else row

    def connections(self) -> int:
        return int(self.ask(f"SELECT count(*) {OURS}"))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.connection.close()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        empty_table(server.url)
        yield server


@contextmanager
def in_threads(*work: Callable[[], Any]) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        join(*threads)


# Few connections


def test_one_connection_listens_for_all_waiters_and_few_ask(database: Database) -> None:
    taken: list[int] = []

    def work() -> None:
        with locks.lock("a") as lease:
            taken.append(lease.fence)

    with lockfast.connect(database.url) as locks:
        held = locks.lock("a").acquire()
        assert held is not None
        with in_threads(*[work] * 20):
            until(lambda: locks.inspect("a").waiters == 20)
            assert database.connections() <= MAX_CONNECTIONS + MAX_SPARE + 1  # spare ones: a slow machine
            held.release()
    assert taken == sorted(taken)
    assert len(taken) == 20


async def _wait_for(locks: lockfast.aio.AsyncLocks, number: int) -> bool:
    return (await locks.inspect("a")).waiters == number


async def _many_tasks(url: str, count: Callable[[], int]) -> int:
    async with lockfast.aio.connect(url) as locks:
        held = await locks.lock("a").acquire()
        assert held is not None

        async def work() -> None:
            async with locks.lock("a"):
                pass

        tasks = [asyncio.create_task(work()) for _ in range(20)]
        await until_async(lambda: _wait_for(locks, 20), "all to wait")
        found = count()
        await held.release()
        await asyncio.gather(*tasks)
        return found


def test_one_connection_listens_for_all_waiting_tasks_and_few_ask(database: Database) -> None:
    assert asyncio.run(_many_tasks(database.url, database.connections)) <= MAX_CONNECTIONS + MAX_SPARE + 1


def _statements(database: Database) -> int:
    database.ask("SELECT pg_stat_force_next_flush()")
    return int(database.ask("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"))


def test_two_hundred_tasks_on_their_own_locks_cost_few_transactions(database: Database) -> None:
    async def all_at_once() -> None:
        async with lockfast.aio.connect(database.url) as locks:
            leases = await asyncio.gather(*(locks.lock(f"n{number}").acquire() for number in range(200)))
            assert all(lease is not None and lease.held for lease in leases)
            assert len({lease.fence for lease in leases if lease}) == 200
            assert all(await asyncio.gather(*(lease.release() for lease in leases if lease)))

    before = _statements(database)
    asyncio.run(all_at_once())
    until(lambda: not database.connections())  # they report their transactions when they end
    assert _statements(database) - before < 40


def test_threads_that_come_together_are_taken_along(database: Database) -> None:
    with lockfast.connect(database.url) as locks, locks.lock("warm"):
        start = threading.Barrier(16)

        def work(number: int) -> None:
            start.wait()
            for turn in range(10):
                with locks.lock(f"{number}-{turn}"):
                    pass

        with psycopg.connect(database.url) as slow:  # a request has to wait now, so that others come meanwhile
            slow.execute("LOCK TABLE distributed_locks IN EXCLUSIVE MODE")
            before = _statements(database)
            with in_threads(*[lambda number=number: work(number) for number in range(16)]):
                blocked = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {HERE}"
                until(lambda: database.ask(blocked) >= MAX_CONNECTIONS)
                slow.rollback()
    assert _statements(database) - before < 320


def test_one_bad_request_in_a_batch_harms_no_other(database: Database) -> None:
    async def together() -> list[Any]:
        async with lockfast.aio.connect(database.url) as locks:
            backend = locks._logic.engine.backend
            terms = [Terms(name, name, "h", 60.0, metadata=metadata) for name, metadata in NOT_ALL_JSON.items()]
            asked = [backend.acquire(Claim(new_claim_id(), each), enqueue=False, within=LIMIT_S) for each in terms]
            return await asyncio.gather(*asked, return_exceptions=True)

    good, bad, fine = asyncio.run(together())
    assert isinstance(good, Grant)
    assert isinstance(fine, Grant)
    assert isinstance(bad, BackendUnavailable)
    assert not bad.transient


def test_a_wait_too_short_to_be_woken_in_still_names_the_holder(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked, and answered; only the connection for wake-ups could not be made any more."""

    async def too_slow(claim: Claim, within: float) -> str:
        threading.Event().wait(within)
        raise BackendUnavailable("it cannot be connected to in time")

    with (
        lockfast.connect(database.url, holder="me") as locks,
        locks.lock("a"),
        lockfast.connect(database.url) as others,
    ):
        monkeypatch.setattr(others._logic.engine.backend._driver, "expect", too_slow)  # type: ignore[attr-defined]
        with pytest.raises(AcquireTimeout, match="held by 'me'"):
            others.lock("a", wait=2).__enter__()


# A server that misbehaves


def test_a_server_that_hangs_is_not_waited_for_beyond_the_time_given(server: PostgresServer) -> None:
    with lockfast.connect(server.url) as locks:
        with locks.lock("a"):
            pass
        server.pause()
        try:
            for _ in range(3):  # on a connection, and when one has to be made
                with pytest.raises((AcquireTimeout, BackendUnavailable)):
                    locks.lock("a", wait=0.3).acquire(timeout=0.3) or pytest.fail("the lock was not granted")
        finally:
            server.go_on()
        with locks.lock("a", wait=LIMIT_S):
            pass


def test_a_server_that_hangs_holds_up_no_task_beyond_the_time_given(server: PostgresServer) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(server.url) as locks:
            async with locks.lock("a"):
                pass
            server.pause()
            try:
                for _ in range(3):
                    with pytest.raises((AcquireTimeout, BackendUnavailable)):
                        await locks.lock("a", wait=0.3).__aenter__()
            finally:
                server.go_on()
            async with locks.lock("a", wait=LIMIT_S):
                pass

    asyncio.run(story())


def test_a_request_that_was_given_up_does_not_wait_on_at_the_server(database: Database) -> None:
    """Else each try would leave one more process behind, until no more can be started."""
    with psycopg.connect(database.url) as slow, lockfast.connect(database.url) as locks:
        slow.execute("LOCK TABLE distributed_locks IN ACCESS EXCLUSIVE MODE")
        for _ in range(3):
            with pytest.raises((AcquireTimeout, BackendUnavailable)):
                locks.lock("a", wait=0.1).__enter__()
        waits = f"SELECT count(*) {OURS} AND wait_event_type = 'Lock'"
        locks.close()
        until(lambda: not database.ask(waits))
        slow.rollback()
    assert database.ask("SELECT count(*) FROM distributed_locks") == 0


END_ALL = f"SELECT count(pg_terminate_backend(pid)) {OURS}"


def test_terminated_backends_are_replaced_and_nothing_is_lost(database: Database) -> None:
    with lockfast.connect(database.url) as locks:
        lease = locks.lock("a").acquire()
        assert lease is not None
        for _ in range(5):
            assert database.ask(END_ALL) >= 1
            lease.extend()
            assert locks.inspect("a").holders[0].fence == lease.fence
        assert lease.release()


def test_a_waiter_whose_connections_were_terminated_is_woken_all_the_same(database: Database) -> None:
    with lockfast.connect(database.url) as locks, lockfast.connect(database.url) as others:
        held = others.lock("a").acquire()
        assert held is not None
        got: list[Any] = []
        with in_threads(lambda: got.append(locks.lock("a").acquire(timeout=LIMIT_S))):
            until(lambda: others.inspect("a").waiters == 1)
            assert database.ask(END_ALL) >= 2
            until(lambda: database.ask(f"SELECT count(*) {OURS} AND query LIKE 'LISTEN %%'"))
            held.release()
        assert got[0].held
        got[0].release()


def test_tasks_whose_connections_were_terminated_are_woken_all_the_same(database: Database) -> None:
    async def wait(locks: lockfast.aio.AsyncLocks) -> None:
        async with locks.lock("a", wait=LIMIT_S):  # in the order in which they came, which nothing here decides
            pass

    async def story() -> None:
        async with lockfast.aio.connect(database.url) as locks, lockfast.aio.connect(database.url) as others:
            for _ in range(3):
                held = await others.lock("a").acquire()
                assert held is not None
                waiters = [asyncio.create_task(wait(locks)) for _ in range(3)]
                await until_async(lambda: _wait_for(others, 3), "all to wait")
                assert database.ask(END_ALL) >= 2
                await held.release()
                await asyncio.gather(*waiters)

    asyncio.run(story())


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_our_own_requests_are_right_whatever_isolation_is_usual_here(database: Database, level: str) -> None:
    name = database.ask("SELECT current_database()")
    database.connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'".encode())
    try:
        counter, most = [0], [0]

        def work() -> None:
            with lockfast.connect(database.url) as locks:
                for _ in range(10):
                    with locks.lock("a"):
                        counter[0] += 1
                        most[0] = max(most[0], counter[0])
                        counter[0] -= 1

        with in_threads(*[work] * 6):
            pass
        assert most[0] == 1
    finally:
        database.connection.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation".encode())


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_transaction_with_an_old_snapshot_is_granted_nothing_that_is_held(
    database: Database, level: str, mode: str
) -> None:
    """A transaction that sees the table as it was must fail, not be granted what another holds by now."""
    ask = "SELECT lockfast_acquire('', 'a', %s, %s, 60, %s, %s)"
    limit = 1 if mode == "shared" else None
    with psycopg.connect(database.url) as late:
        late.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        late.execute("SELECT count(*) FROM distributed_locks")  # from here on it sees the table as it is now
        assert "fence" in database.ask(ask, "first", "first", mode, limit)
        with pytest.raises(psycopg.errors.SerializationFailure):
            late.execute(ask, ("late", "late", mode, limit))
        late.rollback()
        assert "position" in late.execute(ask, ("late", "late", mode, limit)).fetchone()[0]  # type: ignore[index]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("address", [None, ""])
def test_an_old_snapshot_lets_no_reader_in_beside_a_new_writer(
    database: Database, level: str, address: str | None
) -> None:
    ask = "SELECT lockfast_acquire('', 'a', %s, %s, 60, %s, p_address => %s)"
    assert "fence" in database.ask(ask, "old reader", "r", "shared", None)
    with psycopg.connect(database.url) as late:
        late.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        late.execute("SELECT count(*) FROM distributed_locks")
        database.ask("SELECT lockfast_release('', 'a', 'old reader')")
        assert "fence" in database.ask(ask, "writer", "w", "exclusive", None)
        with pytest.raises(psycopg.errors.SerializationFailure):
            late.execute(ask, ("late reader", "r", "shared", address))


def test_one_holder_of_a_name_always_has_the_first_slot(database: Database) -> None:
    ask = "SELECT lockfast_acquire('', 'a', %s, 'h', 60, 'shared')"
    for number in range(4):
        assert "fence" in database.ask(ask, str(number))
    for number in range(3):
        database.ask("SELECT lockfast_release('', 'a', %s)", str(number))
        assert database.ask("SELECT min(slot) FROM distributed_locks") == 0


def test_a_transaction_that_stays_open_holds_up_its_own_names_only(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PATIENCE_MS", 3_600_000)  # milliseconds that each of them would keep its connection
    with psycopg.connect(database.url) as slow, lockfast.connect(database.url) as locks:
        names = [f"stuck-{number}" for number in range(MAX_CONNECTIONS)]  # enough to keep all usual connections busy
        for name in names:
            slow.execute("SELECT acquire_lock(%s, 'psql')", (name,))
        got: list[Any] = []
        with in_threads(*[lambda name=name: got.append(locks.lock(name).acquire(timeout=LIMIT_S)) for name in names]):
            waits = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {HERE}"
            until(lambda: database.ask(waits) == MAX_CONNECTIONS, "all of them to wait")
            with locks.lock("free"):
                assert not got, "it did not wait for the other names"
            slow.rollback()  # what it had taken is not taken
        assert [lease.release() for lease in got] == [True] * MAX_CONNECTIONS


def test_two_that_take_names_in_opposite_orders_in_one_transaction_are_sorted_out(database: Database) -> None:
    """A deadlock of others' making may fall on us; it is asked again."""
    with psycopg.connect(database.url) as other, lockfast.connect(database.url) as locks:
        database.connection.execute("CREATE TABLE IF NOT EXISTS gate (id int)")
        other.execute("LOCK TABLE distributed_locks IN ACCESS EXCLUSIVE MODE")
        got: list[Any] = []
        with in_threads(lambda: got.append(locks.lock("a").acquire(timeout=LIMIT_S))):
            relation = "relation = 'distributed_locks'::regclass"
            waits = f"SELECT count(*) FROM pg_locks WHERE {relation} AND NOT granted AND {HERE}"
            until(lambda: database.ask(waits))
            other.execute("SET deadlock_timeout = '60s'")  # so that it is the other one that is chosen
            other.execute("SET lock_timeout = '60s'")
            assert other.execute("SELECT acquire_lock('a', 'other')").fetchone() == (True,)
            other.rollback()
        assert got[0].held
        got[0].release()


# Forks, secrets, and what may be given in place of a URL


def test_a_child_has_connections_of_its_own(database: Database) -> None:
    with lockfast.connect(database.url) as locks:
        with locks.lock("a"):
            pid = os.fork()
            if pid == 0:
                try:
                    refused = locks.lock("a").acquire(blocking=False) is None
                    with locks.lock("b"):
                        os._exit(0 if refused else 1)
                except BaseException:
                    os._exit(2)
            assert os.waitpid(pid, 0)[1] == 0
        assert not locks.inspect("a").locked


@pytest.mark.parametrize("world", ["threads", "asyncio"])
def test_no_secret_is_shown(world: str) -> None:
    url = f"postgresql://user:{SECRET}@127.0.0.1:1/db"
    connect = lockfast.connect if world == "threads" else lockfast.aio.connect
    locks: Any = connect(url, patience=0.05)
    assert SECRET not in repr(locks)
    tries = _try if world == "threads" else lambda locks: asyncio.run(_try_async(locks))
    with pytest.raises(BackendUnavailable) as caught:
        tries(locks)
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


def _try(locks: lockfast.Locks) -> None:
    with locks:
        locks.lock("a").acquire(blocking=False)


async def _try_async(locks: lockfast.aio.AsyncLocks) -> None:
    async with locks:
        await locks.lock("a").acquire(blocking=False)


@pytest.mark.parametrize("rest", ["#x@h/db", "@h:port/db", "@h/db?zz=1", "@h:99999/db"])
def test_a_url_that_makes_no_sense_is_not_shown(rest: str) -> None:
    with pytest.raises(ValueError, match="in its password not percent-encoded") as caught:
        lockfast.connect(f"postgresql://u:{SECRET}{rest}")
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"


def _django(url: str) -> dict[str, Any]:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "PASSWORD": "",
        "HOST": parts["host"],
        "PORT": parts["port"],
        "OPTIONS": {"sslmode": "prefer"},
    }


class _DjangoConnection:
    """As much of Django's connection as is looked at."""

    __module__ = "django.db.backends.postgresql.base"
    vendor = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = url

    def get_connection_params(self) -> dict[str, Any]:
        parts = psycopg.conninfo.conninfo_to_dict(self._url)
        return {**parts, "cursor_factory": object, "context": None, "prepare_threshold": None}


@pytest.mark.parametrize("kind", ["pool", "async pool", "connection", "parameters", "django settings", "django"])
def test_a_ready_client_is_taken_in_place_of_a_url(database: Database, kind: str) -> None:
    clients: dict[str, Callable[[], Any]] = {
        "pool": lambda: psycopg_pool.ConnectionPool(database.url, open=False, kwargs={"autocommit": True}),
        "async pool": lambda: psycopg_pool.AsyncConnectionPool(database.url, open=False),
        "connection": lambda: database.connection,
        "parameters": lambda: psycopg.conninfo.conninfo_to_dict(database.url),
        "django settings": lambda: _django(database.url),
        "django": lambda: _DjangoConnection(database.url),
    }
    with lockfast.connect(clients[kind]()) as locks, locks.lock("a"):
        assert database.ask("SELECT acquire_lock('a', 'me')") is False
    assert not database.connection.closed


def test_the_first_host_that_can_grant_locks_is_taken(database: Database) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(database.url)
    url = f"postgresql://{parts['user']}@127.0.0.1:1,{parts['host']}:{parts['port']}/{parts['dbname']}"
    with lockfast.connect(url) as locks, locks.lock("a"):
        assert database.ask("SELECT acquire_lock('a', 'me')") is False
