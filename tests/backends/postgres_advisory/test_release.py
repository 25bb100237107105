"""A release on a session that has ended: a loss that its holder learns of, and never a release that "was done".

The server's end of a session takes a while to be read here. Each story puts the release into that while: before the
end was read, after the unlock was sent, and after the server carried it out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import lockfast
import lockfast.aio
from lockfast import LeaseLost
from lockfast._model import Claim, Grant, Renewal, Terms
from lockfast.backends.postgres_advisory.io.watch import SessionWatch
from tests.servers.postgres import USER
from tests.servers.postgres_shared import advisory
from tests.servers.proxy import Proxy
from tests.servers.server import HOST
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow
Meanwhile = Callable[[], object]
_END_OURS = """SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
    WHERE application_name = 'me' AND datname = current_database()"""
_HELD = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class InThreads:
    def release(self, url: str, meanwhile: Meanwhile, on_lost: Callable[[Any], object]) -> tuple[bool, Any]:
        """What `release` returned, and the lease."""
        with lockfast.connect(url) as locks:
            lease = locks.lock("a", ttl=600, on_lost=on_lost).acquire()
            assert lease is not None
            meanwhile()
            return lease.release(), lease

    def leave(self, url: str, meanwhile: Meanwhile) -> None:
        with lockfast.connect(url) as locks, locks.lock("a", ttl=600):
            meanwhile()


class InAsyncio:
    """The loop does not run during `meanwhile`, so that it reads nothing before the release."""

    def release(self, url: str, meanwhile: Meanwhile, on_lost: Callable[[Any], object]) -> tuple[bool, Any]:
        async def story() -> tuple[bool, Any]:
            async with lockfast.aio.connect(url) as locks:
                lease = await locks.lock("a", ttl=600, on_lost=on_lost).acquire()
                assert lease is not None
                meanwhile()
                return await lease.release(), lease

        return asyncio.run(story())

    def leave(self, url: str, meanwhile: Meanwhile) -> None:
        async def story() -> None:
            async with lockfast.aio.connect(url) as locks, locks.lock("a", ttl=600):
                meanwhile()

        asyncio.run(story())


@pytest.fixture(params=[InThreads, InAsyncio])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> InThreads | InAsyncio:
    monkeypatch.setattr(SessionWatch, "_read_ended", lambda self, ended: None)  # the thread that watches is late
    made: InThreads | InAsyncio = request.param()
    return made


@pytest.fixture
def url(plain: str) -> str:
    return plain.replace("postgresql:", "postgresql+advisory:") + "?application_name=me"


@pytest.fixture
def psql(plain: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(advisory().server) as proxy:  # type: ignore[arg-type]
        yield proxy


@pytest.fixture
def through(proxy: Proxy, plain: str) -> str:
    return f"postgresql+advisory://{USER}@{HOST}:{proxy.port}/{plain.rpartition('/')[2]}?application_name=me"


def _once(fired: threading.Event, then: Callable[[], None]) -> None:
    """In a thread of its own: this one goes on to the release."""

    def wait() -> None:
        assert fired.wait(LIMIT_S)
        then()

    threading.Thread(target=wait).start()


def _is_lost(answer: tuple[bool, Any], reported: list[Any], reason: str) -> None:
    released, lease = answer
    assert released is False
    assert lease.lost
    until(lambda: reported == [lease])
    with pytest.raises(LeaseLost, match=reason):
        lease.check()


def test_a_release_on_a_session_that_the_server_has_just_ended_is_a_loss(
    world: InThreads | InAsyncio, url: str, psql: psycopg.Connection
) -> None:
    reported: list[Any] = []
    answer = world.release(url, lambda: psql.execute(_END_OURS), reported.append)
    _is_lost(answer, reported, "the session that held it has ended")


def test_a_body_whose_session_the_server_has_just_ended_learns_on_exit(
    world: InThreads | InAsyncio, url: str, psql: psycopg.Connection
) -> None:
    with pytest.raises(LeaseLost):
        world.leave(url, lambda: psql.execute(_END_OURS))


def test_a_session_that_ends_before_the_server_has_read_the_release_is_a_loss(
    world: InThreads | InAsyncio, through: str, proxy: Proxy
) -> None:
    reported: list[Any] = []
    answer = world.release(through, lambda: _once(proxy.lose(b"lf_free"), proxy.cut), reported.append)
    _is_lost(answer, reported, "its session ended before the release was answered")


def test_a_release_that_was_done_and_not_answered_before_its_session_ended_is_not_called_certain(
    world: InThreads | InAsyncio, through: str, proxy: Proxy, psql: psycopg.Connection
) -> None:
    reported: list[Any] = []
    answer = world.release(through, lambda: proxy.cut_instead_of_reply(b"lf_free"), reported.append)
    _is_lost(answer, reported, "its session ended before the release was answered")
    until(lambda: psql.execute(_HELD).fetchone() == (0,))


def test_a_release_that_is_answered_late_is_a_release(world: InThreads | InAsyncio, through: str, proxy: Proxy) -> None:
    reported: list[Any] = []
    released, lease = world.release(
        through, lambda: _once(proxy.keep_back(b"lf_free"), proxy.let_pass), reported.append
    )
    assert released is True
    assert not lease.lost
    assert not reported


def test_a_claim_that_is_asked_for_again_after_its_session_ended_is_granted_anew(
    url: str, psql: psycopg.Connection
) -> None:
    """Also if the client has not read that end yet: the loop does not run while the server ends the session."""
    claim = Claim("c" * 32, Terms("lockfast\x1fa", "a", "me", 60.0))

    async def story() -> None:
        async with lockfast.aio.connect(url) as locks:
            backend = locks._logic.engine.backend
            before = await backend.acquire(claim, enqueue=False, within=LIMIT_S)
            psql.execute(_END_OURS)
            after = await backend.acquire(claim, enqueue=False, within=LIMIT_S)
            assert isinstance(before, Grant)
            assert isinstance(after, Grant)
            assert after.fence > before.fence
            assert await backend.renew([Renewal(claim, 60.0, after.fence)], within=LIMIT_S) == [True]

    asyncio.run(story())
