"""A Redis server that refuses: no memory, no password, no permission, no primary. Each is an error at once."""

from __future__ import annotations

import asyncio
import re
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import lockfast
import lockfast.aio
from lockfast import BackendUnavailable
from tests.patience import impatient
from tests.renewals import renew_soon
from tests.servers import binaries
from tests.servers.server import HOST, Server
from tests.servers.waiting import happens, until

pytestmark = pytest.mark.slow

LONG_S = 3600.0  # seconds of patience for a transient error: an error that is raised at all is raised at once


@pytest.fixture(params=["valkey", *(["redis6"] if binaries.HAS_REDIS_6 else [])])
def binary(request: pytest.FixtureRequest) -> Path:
    return binaries.valkey() if request.param == "valkey" else binaries.redis_6()


@pytest.fixture
def server(binary: Path) -> Iterator[Server]:
    with Server(binary=binary) as server:
        yield server


def refused(url: str) -> BackendUnavailable:
    """Ask for a lock in both worlds: the error, which is the same in both and comes at once."""
    with lockfast.connect(url, patience=LONG_S) as locks, pytest.raises(BackendUnavailable) as blocking:
        locks.lock("x").acquire()

    async def ask() -> None:
        async with lockfast.aio.connect(url, patience=LONG_S) as locks:
            await locks.lock("x").acquire()

    with pytest.raises(BackendUnavailable) as awaited:
        asyncio.run(ask())
    assert _without_moments(blocking.value) == _without_moments(awaited.value)
    assert not blocking.value.transient
    return blocking.value


def _without_moments(error: Exception) -> str:
    return re.sub(r"\d{5,}", "#", str(error))


def url_of(server: Server, login: str = "") -> str:
    return f"redis://{login}{HOST}:{server.port}/0"


def test_a_wrong_password_is_an_error_at_once(server: Server) -> None:
    server.configure("requirepass", "right")
    error = refused(url_of(server, ":wrong@"))
    assert "password" in str(error).lower()
    assert "wrong" not in str(error).replace("WRONGPASS", ""), "a password is never shown"
    server_works(url_of(server, ":right@"))


def test_a_server_that_repeats_the_password_is_not_quoted(binary: Path) -> None:
    with Server("--rename-command", "AUTH", "", binary=binary) as server:
        error = refused(url_of(server, "ann:s3cret@"))
    assert "unknown command" in str(error)
    assert "s3cret" not in "".join(traceback.format_exception(error))


def test_a_missing_password_is_an_error_at_once(server: Server) -> None:
    server.configure("requirepass", "right")
    assert "authenticat" in str(refused(url_of(server))).lower()


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ("+@all -@scripting ~*", "eval"),
        ("+@all ~other:*", ""),
        ("+@all -set ~*", ""),
    ],
)
def test_a_missing_permission_is_an_error_at_once(server: Server, rules: str, named: str) -> None:
    server.command("ACL", "SETUSER", "ann", "on", ">secret", "&*", *rules.split())
    error = refused(url_of(server, "ann:secret@"))
    assert re.search("permission|not allow|NOPERM|can't", str(error)), str(error)
    assert named in str(error)
    assert "secret" not in str(error)


def test_a_read_only_replica_is_named_in_the_error(server: Server) -> None:
    """It is asked again until then: in a failover it may be the next primary."""
    with Server("--replicaof", HOST, str(server.port)) as replica:
        until(lambda: replica.replicates, "the replica", despite=(redis.RedisError,))
        with lockfast.connect(replica.url) as locks:

            def reason() -> str:
                with pytest.raises(BackendUnavailable) as refused, impatient(locks):
                    locks.lock("x").acquire()
                assert refused.value.transient
                return str(refused.value)

            until(lambda: "is a read-only replica" in reason(), "the reason to be given")
    server_works(server.url)


def fill(server: Server) -> None:
    server.configure("maxmemory", "1")


def test_a_full_memory_is_named_in_the_error(server: Server) -> None:
    with lockfast.connect(server.url) as locks:
        lease = locks.lock("held", ttl=60).acquire()
        assert lease is not None
        fill(server)

        def reason(name: str, wait: float | None) -> str:
            with pytest.raises(BackendUnavailable) as refused, impatient(locks):
                locks.lock(name, wait=wait).acquire()
            return str(refused.value)

        until(lambda: "OOM" in reason("x", None), "the reason to be given")
        until(lambda: "OOM" in reason("y", 0.1), "the reason to be given to one that waits a while")
        server.configure("maxmemory", "0")
        assert not locks.inspect("x").locked
        assert not locks.inspect("y").locked
        assert lease.release()


def test_a_full_memory_is_named_in_the_error_in_asyncio_too(server: Server) -> None:
    async def ask() -> bool:
        async with lockfast.aio.connect(server.url) as locks:
            with impatient(locks), pytest.raises(BackendUnavailable) as refused:
                await locks.lock("x").acquire()
        return "OOM" in str(refused.value)

    fill(server)
    until(lambda: asyncio.run(ask()), "the reason to be given")


def test_a_full_memory_does_not_keep_anybody_from_letting_go(server: Server) -> None:
    with lockfast.connect(server.url) as locks:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        fill(server)
        assert lease.release()
        server.configure("maxmemory", "0")
        assert not locks.inspect("x").locked


@pytest.mark.parametrize("beside", ["a permit", "a reader", "min_hold", "a leader that is watched"])
def test_a_full_memory_does_not_stop_the_release_of_a_shared_or_observed_lock(server: Server, beside: str) -> None:
    with lockfast.connect(server.url) as locks:
        if beside == "a leader that is watched":
            election = locks.election("x")
            seen = election.observe()
            next(seen)
            assert election.campaign()
            fill(server)
            assert election.resign()
            return
        kinds = {
            "a permit": locks.semaphore("x", 3),
            "a reader": locks.rwlock("x").read(),
            "min_hold": locks.lock("x", min_hold=60),
        }
        one, other = kinds[beside].acquire(), kinds[beside].acquire() if beside != "min_hold" else None
        assert one is not None
        fill(server)
        assert one.release()
        server.configure("maxmemory", "0")
        assert other is None or other.held
        assert len(locks.inspect("x").holders) == 1


def test_in_a_full_memory_nothing_is_renewed_and_the_holder_learns_of_it(server: Server) -> None:
    lost = threading.Event()
    with lockfast.connect(server.url) as locks:
        lease = locks.lock("x", ttl=0.5, on_lost=lambda _: lost.set()).acquire()
        assert lease is not None
        fill(server)
        renew_soon(lease)
        happens(lost, "the loss to be reported")
        assert not lease.held


def test_many_first_requests_warn_once_about_a_server_that_evicts(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        async with lockfast.aio.connect(server.url) as locks:
            await asyncio.gather(*(locks.lock(f"x{number}").acquire() for number in range(20)))

    server.configure("maxmemory", 100_000_000)
    server.configure("maxmemory-policy", "allkeys-lru")
    asyncio.run(ask())
    assert len([record for record in caplog.records if "evicts" in record.getMessage()]) == 1


def test_a_server_that_evicts_is_warned_of_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.configure("maxmemory", 100_000_000)
    server.configure("maxmemory-policy", "allkeys-lru")
    with lockfast.connect(server.url) as locks:
        for _ in range(3):
            with locks.lock("x"):
                continue
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "evicts" in record.getMessage()
    assert "allkeys-lru" in record.getMessage()


def server_works(url: str) -> None:
    with lockfast.connect(url) as locks, locks.lock("works") as lease:
        assert lease.held


def test_a_missing_server_is_named_in_the_error_after_patience() -> None:
    with Server() as server:
        url: Any = server.url
    with (
        lockfast.connect(url, patience=0.2) as locks,
        pytest.raises(BackendUnavailable, match=str(server.port)) as refused,
    ):
        locks.lock("x").acquire()
    assert refused.value.transient
