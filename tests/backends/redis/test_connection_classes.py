"""The connection class of a ready client decides whether its locks go over TLS, whatever the class is called."""

from __future__ import annotations

import asyncio
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
