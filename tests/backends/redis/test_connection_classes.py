"""The connection class of a ready client decides whether its locks go over TLS, whatever the class is called."""

from __future__ import annotations

import asyncio
import functools
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedSSLConnection

import lockfast
import lockfast.aio
from lockfast.backends.redis.io.urls import endpoint_of_client

LIBRARIES: dict[str, Any] = {
    "redis": redis,
    "redis.asyncio": redis.asyncio,
    "valkey": valkey,
    "valkey.asyncio": valkey.asyncio,
}
CLIENT = {"redis": "Redis", "valkey": "Valkey"}


def client_of(library: str, connection_class: type, **settings: Any) -> Any:
    module = LIBRARIES[library]
    pool = module.ConnectionPool(connection_class=connection_class, **{"host": "h", **settings})
    return getattr(module, CLIENT[library.partition(".")[0]])(connection_pool=pool)


def url_of(client: Any) -> str:
    endpoint = endpoint_of_client(client)
    assert endpoint is not None
    return endpoint.url


def subclass(library: str, base: str, name: str = "Renamed", **members: Any) -> type:
    return type(name, (getattr(LIBRARIES[library], base),), members)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("Connection", "redis://h:6379/0"),
        ("SSLConnection", "rediss://h:6379/0"),
        ("UnixDomainSocketConnection", "unix:///tmp/x"),
    ],
)
def test_a_subclass_with_another_name_connects_as_its_base_does(library: str, base: str, url: str) -> None:
    settings = {"path": "/tmp/x", "host": "unused"} if url.startswith("unix") else {"ssl_check_hostname": True}
    client = client_of(library, subclass(library, base), **settings)
    assert url_of(client).partition("?")[0] == url


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_plain_subclass_with_ssl_in_its_name_is_plain(library: str) -> None:
    assert url_of(client_of(library, subclass(library, "Connection", "NoSSLConnection"))).startswith("redis://")


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("changed", ["__init__", "_connect", "connect", "on_connect", "send_packed_command"])
def test_a_class_that_changes_how_connections_are_made_is_refused(connect: Any, library: str, changed: str) -> None:
    tunnel = subclass(library, "SSLConnection", "Tunnel", **{changed: lambda self, *args, **options: None})
    with pytest.raises(ValueError, match=f"connection class Tunnel changes {changed}, which"):
        connect(client_of(library, tunnel))


def test_what_a_mixin_changes_is_found_too() -> None:
    class Token:
        def on_connect(self) -> None: ...

    class Tunnel(Token, redis.SSLConnection):
        pass

    with pytest.raises(ValueError, match="Tunnel changes on_connect"):
        lockfast.connect(client_of("redis", Tunnel))


def test_a_class_that_only_shows_itself_otherwise_is_taken() -> None:
    shown: dict[str, Any] = {"repr_pieces": lambda self: [], "__repr__": lambda self: "<>", "__doc__": "A connection."}
    assert url_of(client_of("redis", subclass("redis", "SSLConnection", **shown))).startswith("rediss://")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_function_that_is_called_with_each_connection_is_refused(library: str) -> None:
    function = {f"{library.partition('.')[0]}_connect_func": print}
    with pytest.raises(ValueError, match="would not call the redis_connect_func"):
        lockfast.connect(client_of(library, LIBRARIES[library].Connection, **function))


def test_a_class_that_is_not_of_the_library_is_refused() -> None:
    class Fake:
        pass

    with pytest.raises(ValueError, match="connection class Fake is no class of redis-py"):
        lockfast.connect(client_of("redis", Fake))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_connection_class_that_is_no_class_is_refused_without_what_it_holds(library: str) -> None:
    made: Any = functools.partial(LIBRARIES[library].SSLConnection, password="s3cret")
    with pytest.raises(ValueError, match="connection class is a partial and no class of redis-py") as refused:
        lockfast.connect(client_of(library, made))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("changed", ["username", "password", "credential_provider", "host", "port", "ssl_context"])
def test_a_class_with_a_property_in_place_of_a_setting_is_refused(connect: Any, library: str, changed: str) -> None:
    members = {changed: property(lambda self: "another", lambda self, value: None)}
    with pytest.raises(ValueError, match=f"connection class Iam changes {changed}, which"):
        connect(client_of(library, subclass(library, "SSLConnection", "Iam", **members)))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("changed", ["__getattribute__", "__setattr__"])
def test_a_class_that_changes_all_attributes_is_refused(library: str, changed: str) -> None:
    members = {changed: getattr(object, changed)}
    with pytest.raises(ValueError, match=f"connection class Iam changes {changed}, which"):
        lockfast.connect(client_of(library, subclass(library, "Connection", "Iam", **members)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_class_with_a_property_of_its_own_is_taken(library: str) -> None:
    members: dict[str, Any] = {"seen": property(lambda self: 1)}
    assert url_of(client_of(library, subclass(library, "SSLConnection", **members))).startswith("rediss://")


def client_of_pool(library: str, pool: Any) -> Any:
    return getattr(LIBRARIES[library], CLIENT[library.partition(".")[0]])(connection_pool=pool)


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("changed", ["make_connection", "get_connection"])
def test_a_pool_that_makes_connections_in_its_own_way_is_refused(connect: Any, library: str, changed: str) -> None:
    kind: Any = subclass(library, "ConnectionPool", "Tunnel", **{changed: lambda self, *args, **options: None})
    with pytest.raises(ValueError, match=f"connection pool Tunnel changes {changed}, which"):
        connect(client_of_pool(library, kind(host="h", password="x")))
    changed_pool: Any = LIBRARIES[library].ConnectionPool(host="h", password="x")
    setattr(changed_pool, changed, lambda *args, **options: None)
    with pytest.raises(ValueError, match=f"connection pool ConnectionPool changes {changed}, which"):
        connect(client_of_pool(library, changed_pool))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("base", ["ConnectionPool", "BlockingConnectionPool"])
def test_a_pool_that_makes_connections_as_its_library_does_is_taken(library: str, base: str) -> None:
    members: dict[str, Any] = {"__repr__": lambda self: "<>", "release_all": lambda self: None}
    for kind in (getattr(LIBRARIES[library], base), subclass(library, base, **members)):
        assert url_of(client_of_pool(library, kind(host="h"))) == "redis://h:6379/0"


@pytest.mark.parametrize("world", ["redis.sentinel", "redis.asyncio.sentinel", "valkey.sentinel"])
@pytest.mark.parametrize("changed", ["discover_master", "discover_slaves"])
def test_sentinels_that_find_the_primary_in_their_own_way_are_refused(world: str, changed: str) -> None:
    base = importlib.import_module(world).Sentinel
    found: Any = type("Fixed", (base,), {changed: lambda self, service: ("127.0.0.1", 1)})
    with pytest.raises(ValueError, match=f"Sentinel manager Fixed changes {changed}, which"):
        lockfast.connect(found([("h", 26379)]).master_for("locks"))
    same: Any = type("Same", (base,), {})
    assert url_of(same([("h", 26379)]).master_for("locks")) == "redis+sentinel://h:26379/locks"


def test_the_pools_of_sentinels_are_looked_at_too() -> None:
    manager: Any = Sentinel([("h", 26379)])  # type: ignore[no-untyped-call]
    kind: Any = subclass("redis", "ConnectionPool", "Tunnel", make_connection=lambda self: None)
    manager.sentinels = [client_of_pool("redis", kind(host="h", port=26379))]
    with pytest.raises(ValueError, match="connection pool Tunnel changes make_connection"):
        lockfast.connect(manager.master_for("locks"))


@pytest.mark.parametrize("library", ["redis.asyncio", "valkey.asyncio"])
def test_a_cluster_whose_addresses_are_mapped_is_refused(library: str) -> None:
    async def connect() -> None:
        cluster = getattr(LIBRARIES[library], f"{CLIENT[library.partition('.')[0]]}Cluster")
        lockfast.aio.connect(cluster(host="h", port=7000, address_remap=lambda address: ("127.0.0.1", 1)))

    with pytest.raises(ValueError, match="this client's address_remap says where its nodes are, which"):
        asyncio.run(connect())


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"address_remap": lambda address: address}, "address_remap says where its nodes are"),
        (
            {"connection_pool_class": subclass("redis", "ConnectionPool", "Tunnel", make_connection=None)},
            "connection pool Tunnel changes make_connection",
        ),
    ],
)
def test_a_cluster_of_threads_is_refused_alike(options: dict[str, Any], refusal: str) -> None:
    node = SimpleNamespace(host="h", port=7000)
    nodes = SimpleNamespace(startup_nodes={"h": node}, connection_kwargs={}, **options)  # a real one connects at once
    with pytest.raises(ValueError, match=refusal):
        endpoint_of_client(SimpleNamespace(nodes_manager=nodes))


def test_a_pool_of_sentinels_has_a_class_too() -> None:
    class Renamed(SentinelManagedSSLConnection):
        pass

    class Tunnel(SentinelManagedSSLConnection):
        def connect_to(self, address: Any) -> None: ...

    manager: Any = Sentinel([("h", 26379)])  # type: ignore[no-untyped-call]
    pool: Any = SentinelConnectionPool
    for kind, scheme in ((Renamed, "rediss"), (None, "redis")):
        options = {} if kind is None else {"connection_class": kind}
        client = redis.Redis(connection_pool=pool("locks", manager, **options))
        assert url_of(client).startswith(f"{scheme}+sentinel://h:26379/locks")
    with pytest.raises(ValueError, match="Tunnel changes connect_to"):
        lockfast.connect(redis.Redis(connection_pool=pool("locks", manager, connection_class=Tunnel)))


def test_sentinels_are_asked_as_the_class_of_their_clients_says() -> None:
    manager: Any = Sentinel([("h", 26379)])  # type: ignore[no-untyped-call]
    manager.sentinels = [client_of("redis", subclass("redis", "SSLConnection"), port=26379)]
    endpoint: Any = endpoint_of_client(manager.master_for("locks"))
    assert [sentinel.url.partition("?")[0] for sentinel in endpoint._sentinels] == ["rediss://h:26379/0"]


@pytest.mark.parametrize(("base", "scheme"), [("SSLConnection", "rediss"), ("Connection", "redis")])
def test_a_cluster_has_a_class_too(base: str, scheme: str) -> None:
    async def urls() -> list[str]:
        client = redis.asyncio.RedisCluster(host="h", port=7000)
        client.connection_kwargs["connection_class"] = subclass("redis.asyncio", base)
        return [url_of(client)]

    (url,) = asyncio.run(urls())
    assert url.startswith(f"{scheme}+cluster://h:7000")
