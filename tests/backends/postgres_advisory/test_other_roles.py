"""A role that may create objects in a schema of the caller's search_path runs no code for users of advisory locks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import AcquireTimeout, Locks, Unsupported
from lockfast.backends.postgres.io.wire import connect
from tests.servers.postgres_shared import advisory, own_name
from tests.servers.postgres_wire import Pooler
from tests.servers.server import HOST
from tests.servers.waiting import join, until
from tests.waiters import in_queue

pytestmark = pytest.mark.slow

_BODY = """LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.trapped VALUES (current_user, '{what}');
    RETURN {value};
END $$"""
# Each fits better than the server's own, whose parameters have other types.
_OPERATORS = (
    ("*", "numeric", "integer", "numeric", "$1 OPERATOR(pg_catalog.*) $2::numeric"),
    ("&", "bigint", "integer", "bigint", "$1 OPERATOR(pg_catalog.&) $2::bigint"),
)
_FUNCTIONS = (
    ("hashtextextended(name, bigint)", "bigint", "pg_catalog.hashtextextended($1::text, $2)"),
    ("pg_try_advisory_xact_lock(integer)", "boolean", "pg_catalog.pg_try_advisory_xact_lock($1::bigint)"),
    # As the server's own, so it is called if the search_path names its schema before pg_catalog.
    ("clock_timestamp()", "timestamptz", "pg_catalog.clock_timestamp()"),
)
_SHADOWS = "options=-csearch_path%3Dpublic,pg_catalog"
_WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


class Trapped:
    """A database in which another role waits for one with more rights."""

    def __init__(self, folder: Path) -> None:
        self.url, self.name = advisory().url(folder), advisory().database(folder)
        self.locks_url = self.url.replace("postgresql:", "postgresql+advisory:")
        self.role = own_name("mallory")
        self.admin = psycopg.connect(self.url, autocommit=True)
        self.admin.execute(f"DROP ROLE IF EXISTS {self.role}".encode())
        self.admin.execute(f"CREATE ROLE {self.role} LOGIN; GRANT CREATE ON SCHEMA public TO {self.role}".encode())
        with psycopg.connect(self.url.replace("//lockfast@", f"//{self.role}@"), autocommit=True) as mallory:
            mallory.execute("CREATE TABLE public.trapped (who text, what text)")
            for sign, left, right, gives, value in _OPERATORS:
                body = _BODY.format(what=sign, value=value)
                mallory.execute(f"CREATE FUNCTION public.trap({left}, {right}) RETURNS {gives} {body}".encode())
                ends = f"LEFTARG = {left}, RIGHTARG = {right}"
                mallory.execute(f"CREATE OPERATOR public.{sign} ({ends}, FUNCTION = public.trap)".encode())
            for head, gives, value in _FUNCTIONS:
                body = _BODY.format(what=head, value=value)
                mallory.execute(f"CREATE FUNCTION public.{head} RETURNS {gives} {body}".encode())

    def caught(self) -> list[Any]:
        return self.admin.execute("SELECT DISTINCT * FROM public.trapped").fetchall()

    def close(self) -> None:
        self.admin.execute(f"DROP OWNED BY {self.role} CASCADE; DROP ROLE {self.role}".encode())
        self.admin.close()


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[Trapped]:
    made = Trapped(tmp_path)
    try:
        yield made
    finally:
        made.close()


def _use(locks: Locks, others: Locks) -> None:
    with locks.lock("a") as lease:
        assert lease.fence is not None
        assert others.lock("a", wait=0).acquire() is None
        waiter = in_queue(others.lock("a"), others)
        assert others.inspect("a").locked
        assert [info.name for info in others.list()] == ["a"]
    join(waiter)
    with locks.rwlock("b").read(), others.rwlock("b").read():
        pass


def test_the_trap_catches_a_caller_that_does_not_take_care(trapped: Trapped) -> None:
    trapped.admin.execute("SELECT 1.5 * 2, 3::bigint & 1, hashtextextended(current_database(), 0)")
    assert {what for _, what in trapped.caught()} == {"*", "&", "hashtextextended(name, bigint)"}


@pytest.mark.parametrize("options", ["", _SHADOWS])
def test_no_operator_or_function_of_another_role_is_called_for_a_user_of_locks(trapped: Trapped, options: str) -> None:
    url = f"{trapped.locks_url}?{options}"
    with lockfast.connect(url) as locks, lockfast.connect(url) as others:
        _use(locks, others)

    async def story() -> None:
        async with lockfast.aio.connect(url) as locks, locks.lock("a"):
            assert [info.name for info in await locks.list()] == ["a"]

    asyncio.run(story())
    assert trapped.caught() == []


def test_no_operator_of_another_role_runs_for_a_client_behind_a_pooler_of_sessions(trapped: Trapped) -> None:
    with Pooler(advisory().server) as pooler:
        url = f"postgresql+advisory://lockfast@{HOST}:{pooler.port}/{trapped.name}?pooler=session"
        with lockfast.connect(url) as locks, lockfast.connect(url) as others:
            _use(locks, others)
    assert trapped.caught() == []


@pytest.mark.parametrize("options", ["", _SHADOWS])
def test_no_operator_of_another_role_runs_in_a_transaction_of_the_users_own(trapped: Trapped, options: str) -> None:
    """Whose search_path stays as it is."""
    theirs = f"{trapped.url}?{options}"
    with lockfast.connect(trapped.locks_url) as locks, psycopg.connect(theirs) as connection:
        before = connection.execute("SHOW search_path").fetchone()
        assert locks.in_transaction(connection, "a", 7) > 0
        with psycopg.connect(theirs) as other, pytest.raises(AcquireTimeout):
            locks.in_transaction(other, "a", wait=0)
        with psycopg.connect(theirs) as waiter:
            thread = threading.Thread(target=lambda: locks.in_transaction(waiter, "a"))
            thread.start()
            until(lambda: trapped.admin.execute(_WAITS).fetchone() == (1,))
            assert connection.execute("SHOW search_path").fetchone() == before
            connection.commit()
            join(thread)
            waiter.commit()

    async def story() -> None:
        async with lockfast.aio.connect(trapped.locks_url) as locks:
            async with await psycopg.AsyncConnection.connect(theirs) as connection:
                assert await locks.in_transaction(connection, "a") > 0

    asyncio.run(story())
    assert trapped.caught() == []


def test_a_pooler_that_is_refused_keeps_no_setting_for_its_next_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = b"SELECT current_setting('search_path'), current_setting('lock_timeout')"
    left: list[Any] = []

    class Observed:
        def __init__(self, pgconn: Any) -> None:
            self._pgconn = pgconn

        def __getattr__(self, name: str) -> Any:
            return getattr(self._pgconn, name)

        def finish(self) -> None:
            result = self._pgconn.exec_(asked)
            left.append((result.get_value(0, 0), result.get_value(0, 1)))
            self._pgconn.finish()

    def observed(params: bytes) -> Any:
        return Observed((yield from connect(params)))

    monkeypatch.setattr("lockfast.backends.postgres_advisory.io.session.connect", observed)
    with Pooler(advisory().server) as pooler:
        database = f"{HOST}:{pooler.port}/{advisory().database(tmp_path)}"
        url = f"postgresql+advisory://lockfast@{database}?options=-clock_timeout%3D7s"
        with lockfast.connect(url) as locks, pytest.raises(Unsupported, match="pooler"):
            locks.lock("a").acquire()
    assert left == [(b'"$user", public', b"7s")]
