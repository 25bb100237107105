"""Which servers are refused, what is reported of each, and what a quorum cannot do at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

import lockfast
from lockfast import BackendUnavailable, Diagnosis, Unsupported
from lockfast._clients import RedisClient, UrlOrClient
from lockfast._worlds.asyncio_ import background_tasks
from lockfast.backends.redlock.io.asyncio_ import AsyncioNodeConnection
from lockfast.backends.redlock.io.members import Member
from tests.adversity.redlock.servers import Quorum
from tests.servers.server import HOST, Server
from tests.servers.waiting import LIMIT_S, until, until_async

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("hosts", ["h1", "h1:1,h2:2", ""])
def test_fewer_than_three_servers_are_refused(hosts: str) -> None:
    with pytest.raises(ValueError, match="of 3 lock servers at least"):
        lockfast.connect(f"redlock://{hosts}")


def test_the_same_address_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="h1:6379 is named twice"):
        lockfast.connect("redlock://h1,h2,h1:6379")


@pytest.mark.parametrize("option", ["rejoin=soon", "node_timeout=0", "rejoin=-1"])
def test_an_option_that_is_no_number_of_seconds_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match="is a number of seconds"):
        lockfast.connect(f"redlock://h1,h2,h3?{option}")


@pytest.mark.parametrize("hosts", [":secret@h1,:secret@h2,:secret@h3", "h1,h2,:secret@h3"])
def test_a_login_for_each_server_is_refused_with_a_way_out(hosts: str) -> None:
    with pytest.raises(ValueError, match="list of URLs") as refused:
        lockfast.connect(f"redlock://{hosts}")
    assert "secret" not in str(refused.value)


def test_what_cannot_be_done_on_a_quorum_is_refused_at_construction() -> None:
    with lockfast.connect("redlock://h1,h2,h3") as locks:
        for make in (
            lambda: locks.semaphore("x", 2),
            lambda: locks.rwlock("x").read(),
            lambda: locks.limiter("x", rate=1),
            lambda: locks.cell("x"),
        ):
            with pytest.raises(Unsupported, match="redlock of h1:6379, h2:6379, h3:6379 has no"):
                make()
    with pytest.raises(Unsupported, match="no replicas to wait for"):
        lockfast.connect("redlock://h1,h2,h3", replicas=1)


def test_an_object_that_is_no_client_is_refused() -> None:
    with pytest.raises(ValueError, match="clients or URLs of Redis, not of int"):
        lockfast.connect([1, 2, 3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis:6379", "clients or URLs of Redis, not of '…'"),
        ("memory://h1", "clients or URLs of Redis, not of 'memory://h1'"),
        ("redis://h1/0#x", "takes no fragment"),
    ],
)
def test_a_url_in_a_list_is_checked_as_one_alone(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        lockfast.connect([url, "redis://h2", "redis://h3"])


@pytest.fixture
def quorum() -> Iterator[Quorum]:
    with Quorum(3) as quorum:
        yield quorum


def in_both_worlds(url: UrlOrClient, wait: float = LIMIT_S) -> list[BackendUnavailable]:
    """The errors of an acquire there."""

    async def in_a_loop() -> None:
        async with lockfast.aio.connect(url) as locks, locks.lock("x", wait=wait):
            pass

    errors = []
    with lockfast.connect(url) as locks, pytest.raises(BackendUnavailable) as refused, locks.lock("x", wait=wait):
        pass
    errors.append(refused.value)
    with pytest.raises(BackendUnavailable) as refused:
        asyncio.run(in_a_loop())
    return [*errors, refused.value]


def test_two_addresses_of_one_server_are_refused(quorum: Quorum) -> None:
    one, two, _ = (server.port for server in quorum.servers)
    for error in in_both_worlds(f"redlock://{HOST}:{one},localhost:{one},{HOST}:{two}/0?rejoin=0"):
        assert "is the same server as" in str(error)
        assert not error.transient
    assert quorum.held_at("x") == [False] * 3


def test_a_replica_is_refused(quorum: Quorum) -> None:
    first, replica = quorum.servers[0], quorum.servers[2]
    replica.follow(first)
    for error in in_both_worlds(quorum.url()):
        assert f":{quorum.proxies[2].port} is a replica" in str(error)
        assert not error.transient


def test_a_node_of_a_cluster_is_refused(quorum: Quorum) -> None:
    one, two, _ = (server.port for server in quorum.servers)
    with Server("--cluster-enabled", "yes") as node:
        for error in in_both_worlds(f"redlock://{HOST}:{one}, {HOST}:{two}, {HOST}:{node.port}/0?rejoin=0"):
            assert f":{node.port} is a node of a cluster" in str(error)
            assert not error.transient


def test_a_server_that_stays_out_of_reach_is_logged_once(quorum: Quorum, caplog: pytest.LogCaptureFixture) -> None:
    quorum.servers[2].configure("requirepass", "secret")
    with lockfast.connect(quorum.url()) as locks:
        member = locks._logic.engine.backend._fanout.members[2]  # type: ignore[attr-defined]

        def tried() -> bool:
            with locks.lock("x", wait=LIMIT_S):
                return bool(member.failures >= 3)

        until(tried, "three tries")
    warnings = [record.getMessage() for record in caplog.records if "lock_kind" not in vars(record)]
    assert len(warnings) == 1
    assert f":{quorum.proxies[2].port}" in warnings[0]
    assert "counts as unreachable" in warnings[0]


def test_a_server_that_does_not_say_what_it_is_is_refused(quorum: Quorum) -> None:
    for server in quorum.servers:
        server.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
    for error in in_both_worlds(quorum.url().replace("://", "://app:secret@")):
        assert "a quorum needs +info" in str(error)
        assert not error.transient


def test_the_error_says_why_servers_cannot_be_connected_to(quorum: Quorum) -> None:
    for server in quorum.servers[:2]:
        server.configure("requirepass", "secret")
    for error in in_both_worlds(quorum.url()):
        assert str(error).count("Authentication required") == 2
        assert not error.transient, "it stays so, however often it is tried"


def test_a_server_that_restarted_is_excluded_for_one_ttl(quorum: Quorum, monkeypatch: pytest.MonkeyPatch) -> None:
    age, older = Member.age, 0.0
    monkeypatch.setattr(Member, "age", lambda member: age(member) + older)
    with lockfast.connect(quorum.url(f"node_timeout={LIMIT_S}")) as locks:
        with pytest.raises(BackendUnavailable, match="has just started and is excluded"):
            locks.lock("x", ttl=600, wait=LIMIT_S).acquire()
    with lockfast.connect(quorum.url(f"node_timeout={LIMIT_S}")) as locks:
        older = 60.0  # that much time has passed
        for _ in range(6):  # the first time asks otherwise than the last
            with locks.lock("y", ttl=60, wait=LIMIT_S) as lease:
                assert lease.held
        with pytest.raises(BackendUnavailable, match="has just started and is excluded"):
            locks.lock("y", ttl=6000, wait=LIMIT_S).acquire()


def test_servers_that_are_all_new_say_when_they_count_and_what_else_to_do(quorum: Quorum) -> None:
    clients = [redis.Redis(HOST, server.port) for server in quorum.servers]
    for where in (quorum.url(""), clients):
        for error in in_both_worlds(where, wait=5):  # not enough: they are too young for half a minute
            assert 0.0 < (error.retry_after or 0.0) <= 30.0
            assert str(error).startswith("lock 'x' cannot be granted for another ")
            assert str(error).count("has just started and is excluded for another ") == 3
            assert "connect with rejoin=0 (in a URL: ?rejoin=0)" in str(error)
    with lockfast.connect(clients, rejoin=0) as locks, locks.lock("x", ttl=600, wait=LIMIT_S) as lease:
        assert lease.held
    with lockfast.connect(quorum.url(""), rejoin=0) as locks, locks.lock("x", ttl=600, wait=LIMIT_S) as lease:
        assert lease.held
    with lockfast.DistributedLock(clients, rejoin=0) as manager:
        assert manager.acquire("x", 600)


def test_rejoin_is_for_a_quorum_and_a_length_of_time() -> None:
    hosts = [f"redis://{HOST}:{port}" for port in (1, 2, 3)]
    with pytest.raises(ValueError, match="rejoin"):
        lockfast.connect(hosts, rejoin=-1)
    with pytest.raises(ValueError, match="rejoin"):
        lockfast.connect("redlock://h1,h2,h3", rejoin="soon")  # type: ignore[arg-type]
    for one in ("memory://", hosts[0], "postgresql://h/db", redis.Redis()):
        with pytest.raises(Unsupported, match="is no quorum, so no server is excluded"):
            lockfast.connect(one, rejoin=0)


def test_the_doctor_counts_a_new_server_as_a_lock_would_that_is_made_without_options(quorum: Quorum) -> None:
    with lockfast.connect(quorum.url("")) as locks:
        assert all(0.0 < server.excluded_for <= 30.0 for server in locks.doctor().servers)
        assert locks.lock("x", ttl=0.5, wait=60).acquire()
        assert locks.doctor().works, "half a second is the longest ttl that this client asked for"


def test_a_server_that_syncs_every_write_is_not_excluded(quorum: Quorum) -> None:
    for server in quorum.servers:
        server.keep_all()
    with lockfast.connect(quorum.url("")) as locks, locks.lock("x", ttl=600, wait=LIMIT_S) as lease:
        assert lease.held


def test_clients_and_urls_are_taken_in_a_list(quorum: Quorum) -> None:
    one, two, three = quorum.servers
    for server in quorum.servers:
        server.keep_all()  # else it would have to be as old as the ttl
    where: list[str | RedisClient] = [
        redis.Redis(HOST, one.port),
        two.url,
        redis.Redis(unix_socket_path=str(three.socket)),
    ]
    with lockfast.connect(where) as locks, locks.lock("x", wait=LIMIT_S):
        assert quorum.held_at("x").count(True) >= 2


def test_the_doctor_reports_each_server_in_both_worlds(quorum: Quorum) -> None:
    async def in_a_loop(url: str) -> Diagnosis:
        async with lockfast.aio.connect(url) as locks:
            return await locks.doctor()

    def in_a_thread(url: str) -> Diagnosis:
        with lockfast.connect(url) as locks:
            return locks.doctor()

    quorum.proxies[0].refuse()
    quorum.servers[1].follow(quorum.servers[0])
    for diagnosis in (in_a_thread(quorum.url("rejoin=600")), asyncio.run(in_a_loop(quorum.url("rejoin=600")))):
        absent, replica, young = diagnosis.servers
        assert not absent.reachable
        assert "cannot reach" in absent.error
        assert (replica.reachable, replica.role) == (True, "replica")
        assert "is a replica" in replica.error
        assert (young.reachable, young.role, young.error) == (True, "primary", "")
        assert young.version.count(".") == 2
        assert young.latency is not None
        assert 500 < young.excluded_for <= 600
        assert not diagnosis.works
    quorum.proxies[0].heal()
    assert in_a_thread(quorum.url()).works, "two of three"


def test_a_second_request_to_a_silent_server_does_not_disturb_its_timer(quorum: Quorum) -> None:
    async def use() -> list[dict[str, Any]]:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        async with lockfast.aio.connect(quorum.url()) as locks, locks.lock("x"):
            quorum.proxies[1].black_hole()
            assert [info.name for info in await locks.list()] == ["x"]
            quorum.proxies[1].heal()
        return complaints

    assert asyncio.run(use()) == []


def being_connected(backend: Any) -> list[Any]:
    return [each.task for each in backend._fanout._connecting.values() if each.under_way]


def test_close_ends_connections_that_are_being_made(quorum: Quorum) -> None:
    async def use() -> None:
        locks = lockfast.aio.connect(quorum.url())
        async with locks.lock("x", wait=LIMIT_S):
            quorum.proxies[2].black_hole()
            quorum.proxies[2].cut()  # so it is connected to anew, in vain
        async with locks.lock("x", wait=LIMIT_S):
            backend: Any = locks._logic.engine.backend

            async def being_made() -> list[Any]:
                async with locks.lock("y", wait=LIMIT_S):
                    return being_connected(backend)

            making = await until_async(being_made, "a connection that is being made")
        await locks.close()
        assert all(task.done() or task.cancelling() for task in making), "redis-py may take its time to react"
        await asyncio.wait(making, timeout=LIMIT_S)
        assert all(task.done() for task in making)

    asyncio.run(use())


def test_a_connection_that_is_made_in_spite_of_close_is_not_made_again(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Python 3.11 `asyncio.wait_for` may swallow a cancellation, and redis-py uses it."""
    connect = AsyncioNodeConnection.connect

    async def stubborn(line: AsyncioNodeConnection, within: float) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await connect(line, within)

    async def use() -> None:
        locks = lockfast.aio.connect(quorum.url())
        backend: Any = locks._logic.engine.backend
        asking = asyncio.create_task(locks.lock("x", wait=LIMIT_S).acquire())
        making = set(await until_async(lambda: being_connected(backend), "connections under way"))
        await locks.close()
        with pytest.raises(lockfast.LockError):
            await asking
        assert {task for task in background_tasks() if task.get_name() == "lockfast-node"} <= making

    monkeypatch.setattr(AsyncioNodeConnection, "connect", stubborn)
    asyncio.run(use())


def test_close_leaves_no_connection_in_the_loop(quorum: Quorum) -> None:
    async def use() -> None:
        locks = lockfast.aio.connect(quorum.url())
        async with locks.lock("x", wait=LIMIT_S):
            backend: Any = locks._logic.engine.backend
            connections = list(filter(None, backend._fanout._connections))
        await locks.close()
        assert len(connections) > 1
        assert all(connection._gone.is_set() for connection in connections), "the caller may close the loop next"
        assert not any(backend._fanout._connections), "if they are another loop's, they end when they are forgotten"

    asyncio.run(use())
