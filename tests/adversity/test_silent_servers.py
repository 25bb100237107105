"""A server that does not even refuse, as behind a firewall: it is reported as early as one that does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import holdfast
import holdfast.aio
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_tables import empty_table
from tests.servers.server import Server
from tests.servers.waiting import until

pytestmark = pytest.mark.slow


def take(url: str) -> None:
    with holdfast.connect(url) as locks, locks.lock("a", wait=3600):
        pass


def take_awaited(url: str) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(url) as locks, locks.lock("a", wait=3600):
            pass

    asyncio.run(main())


@pytest.fixture(params=[take, take_awaited], ids=["threads", "asyncio"])
def acquire(request: pytest.FixtureRequest) -> Callable[[str], None]:
    chosen: Callable[[str], None] = request.param
    return chosen


@contextmanager
def in_background(work: Callable[[str], None], url: str) -> Iterator[None]:
    thread = threading.Thread(target=work, args=(url,))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def is_reported(caplog: pytest.LogCaptureFixture, kind: str) -> bool:
    return any(getattr(record, "lock_kind", "") == kind for record in caplog.records)


def test_a_redis_that_does_not_answer_the_first_request_is_reported(
    acquire: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast")
    with Server() as server:
        server.pause()
        with in_background(acquire, server.url):
            try:
                until(lambda: is_reported(caplog, "unreachable"))
                assert not is_reported(caplog, "reachable")
            finally:
                server.go_on()
    assert is_reported(caplog, "reachable")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+advisory"])
def test_a_postgresql_that_does_not_answer_the_first_request_is_reported(
    scheme: str, acquire: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast")
    with PostgresServer() as server:
        empty_table(server.url)
        server.pause()
        with in_background(acquire, server.url.replace("postgresql", scheme, 1)):
            try:
                until(lambda: is_reported(caplog, "unreachable"))
                assert not is_reported(caplog, "reachable")
            finally:
                server.go_on()
    assert is_reported(caplog, "reachable")
