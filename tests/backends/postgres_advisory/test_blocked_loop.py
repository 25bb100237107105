"""Advisory locks of an event loop that is blocked: another thread uses the very sessions that hold, and only those."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

import lockfast.aio
from lockfast import LeaseLost
from lockfast._model import Renewal
from lockfast._worlds import drive
from lockfast.aio import AsyncLease
from lockfast.backends.postgres_advisory.io.session import AdvisorySession, PendingStatement
from tests.servers.waiting import LIMIT_S, happens, join, until, until_async

pytestmark = pytest.mark.slow
HOUR = 3600
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


async def take(locks: Any, name: str) -> AsyncLease:
    lease: AsyncLease | None = await locks.lock(name, ttl=HOUR).acquire()
    assert lease is not None
    return lease


def session_of(lease: AsyncLease) -> Any:
    backend: Any = lease._engine.backend
    return backend._holds.by_id[lease.claim_id].session


def renew_from_outside(*leases: AsyncLease) -> list[bool | None]:
    """In another thread, while this one blocks the loop."""
    answers: list[bool | None] = []
    backend: Any = leases[0]._engine.backend
    batch = [Renewal(lease._claim, lease.ttl, lease.fence) for lease in leases]
    thread = threading.Thread(target=lambda: answers.extend(drive(backend.renew_from_outside(batch, within=LIMIT_S))))
    thread.start()
    join(thread)
    return answers


def test_what_is_held_is_renewed_on_its_own_session(url: str, psql: psycopg.Connection) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await take(locks, "x")
            session = session_of(lease)
            proven = session.proven_at
            assert renew_from_outside(lease) == [True]
            assert session.proven_at > proven
            before = psql.execute(SESSIONS).fetchone()
            assert renew_from_outside(lease) == [True]
            assert psql.execute(SESSIONS).fetchone() == before
            assert await lease.release()

    asyncio.run(main())


def test_an_answer_for_a_caller_in_the_loop_is_delivered_there(url: str) -> None:
    """A statement of the loop is in flight on the same session when the loop is blocked."""
    delivered: list[int] = []

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await take(locks, "x")
            session = session_of(lease)
            own = PendingStatement(b"lf_ping", (), lambda statement: delivered.append(threading.get_ident()))
            next_in_line = PendingStatement(b"lf_ping")
            session.submit(own)
            session.submit(next_in_line)
            assert session.in_flight is own
            assert renew_from_outside(lease) == [True]
            assert not own.finished
            await until_async(lambda: own.finished and next_in_line.finished, "the answers in the loop")
            assert await lease.release()

    asyncio.run(main())
    assert delivered == [threading.get_ident()]


def test_the_loop_may_go_on_in_the_middle(url: str) -> None:
    """Both use the session for a while: each request is answered, and no answer goes astray."""
    over = threading.Event()
    renewals: list[bool | None] = []

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await take(locks, "x")
            backend: Any = lease._engine.backend

            def renew() -> None:
                batch = [Renewal(lease._claim, lease.ttl, lease.fence)]
                while not over.is_set():
                    renewals.extend(drive(backend.renew_from_outside(batch, within=LIMIT_S)))

            thread = threading.Thread(target=renew)
            thread.start()
            try:
                for number in range(50):
                    others = await asyncio.gather(*(take(locks, f"{number}-{other}") for other in range(5)))
                    assert [await other.release() for other in others] == [True] * 5
                await until_async(lambda: len(renewals) > 20)
            finally:
                over.set()
                join(thread)
            assert await lease.release()

    asyncio.run(main())
    assert set(renewals) == {True}


def test_a_session_that_was_ended_meanwhile_is_a_loss(url: str, psql: psycopg.Connection) -> None:
    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await take(locks, "x")
            pid = session_of(lease).pid
            psql.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
            until(lambda: session_of(lease).end_arrived(), "the end to arrive")
            assert renew_from_outside(lease) == [False]
            assert lease.held, "the loop has not noticed yet"
            await until_async(lambda: lease.lost)
            with pytest.raises(LeaseLost):
                lease.check()
            again = await take(locks, "x")
            assert again.fence > lease.fence

    asyncio.run(main())


def test_a_session_that_does_not_answer_says_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            lease = await take(locks, "x")
            usual = AdvisorySession.read_ready

            def read_nothing(self: AdvisorySession) -> bool:
                return self.in_flight is None

            monkeypatch.setattr(AdvisorySession, "read_ready", read_nothing)
            batch = [Renewal(lease._claim, lease.ttl, lease.fence)]
            done = threading.Event()

            def renew() -> None:
                try:
                    answers.append(drive(lease._engine.backend.renew_from_outside(batch, within=0.2)))  # type: ignore[attr-defined]
                except lockfast.BackendUnavailable as error:
                    answers.append(error)
                done.set()

            threading.Thread(target=renew).start()
            happens(done)
            monkeypatch.setattr(AdvisorySession, "read_ready", usual)
            assert lease.held
            assert await lease.release()

    asyncio.run(main())
    assert "did not answer in time" in str(answers[0])
