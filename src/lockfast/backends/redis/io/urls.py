"""From a URL or a ready client of redis-py to the endpoint that it means.

Decides: which URLs and clients make sense. Leaves to redis-py: to parse a URL and a password.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote

import redis

from lockfast._secrets import shown_option
from lockfast.backends.redis.io.connections import check_pool, check_sentinels, kind_of_class, unsupported_client
from lockfast.backends.redis.io.endpoints import LOGIN, PORT, URL_OPTIONS, Address, ClusterEndpoint, RedisEndpoint
from lockfast.backends.redis.io.sentinels import SENTINEL_PORT, SERVICE_ERRORS, SentinelEndpoint
from lockfast.backends.redis.io.tls import OPTIONS, checks_host_names, is_tls

_SWITCHES = ("socket_keepalive", "ssl_check_hostname", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled")
_YES, _NO = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")  # redis-py takes every other value for true


# From a URL


def endpoint_of_url(parts: SplitResult) -> RedisEndpoint:
    """Raises ValueError for a URL that makes no sense."""
    scheme = parts.scheme.replace("valkey", "redis", 1)
    base, _, variant = scheme.partition("+")
    tls = base == "rediss"
    kind = "unix" if base == "unix" else "tls" if tls else "tcp"
    settings = dict(_parse(parts, base))
    if tls:
        settings["ssl_check_hostname"] = checks_host_names(settings)
    if "," in parts.netloc and not variant:
        raise ValueError(f"{parts.scheme}:// names one server; for more there are +sentinel and +cluster")
    if not variant:
        if kind != "unix":
            _number(parts.path.strip("/"), parts)
        host, port = settings.get("host", "localhost"), settings.get("port", PORT)
        return RedisEndpoint(kind, settings, Address(settings["path"]) if kind == "unix" else Address(host, port))
    hosts = _hosts(parts, SENTINEL_PORT if variant == "sentinel" else PORT)
    if variant == "cluster":
        if parts.path.strip("/0"):
            raise ValueError(f"{parts.scheme}:// has no database to choose: a cluster has but one, 0")
        return ClusterEndpoint(kind, settings, hosts)
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError(f"a Sentinel URL names the service: {parts.scheme}://host1,host2/service")
    settings |= {"db": _number(db, parts)} if db else {}
    return SentinelEndpoint(kind, settings, unquote(service, errors=SERVICE_ERRORS), hosts)


def _number(db: str, parts: SplitResult) -> int:
    if not db or db.isdecimal():
        return int(db or 0)
    raise ValueError(f"the database of a {parts.scheme}:// URL is a number")


def _parse(parts: SplitResult, base: str) -> dict[str, Any]:
    """redis-py parses it, with one host instead of several."""
    user, at, hosts = parts.netloc.rpartition("@")
    path = "" if "+" in parts.scheme else parts.path
    first = "" if base == "unix" else hosts.partition(",")[0]
    if any(re.search(r":0+$", host) for host in hosts.split(",")):
        raise ValueError(f"no server can have port 0, as this {parts.scheme}:// URL says")
    if base == "unix" and (not path or hosts):
        raise ValueError("a unix URL names the socket: unix:///path/to/the.sock")
    _hosts(parts, PORT)
    url = f"{base}://{user}{at}{first}{path}?{parts.query}"  # not by geturl(), which leaves out an empty host
    try:
        settings = dict(redis.ConnectionPool.from_url(url).connection_kwargs)
    except ValueError as error:  # which may show a part of the password
        bad = re.search(r"value for ['`](\w+)", str(error))
        what = f"whose option {shown_option(bad[1], parts.query)} has no sensible value" if bad else "without sense"
        raise ValueError(f"a {parts.scheme}:// URL {what}{_about_password(parts)}") from None
    known = {*URL_OPTIONS, "host", "port", "path", *(f"sentinel_{name}" for name in LOGIN)}
    if base == "rediss":
        known |= OPTIONS
    for option, values in parse_qs(parts.query).items():
        if option not in known:
            name = shown_option(option, parts.query)
            others = f"with rediss:// {', '.join(sorted(OPTIONS)) if is_tls(option) else 'ssl_…'}"
            raise ValueError(
                f"{parts.scheme}:// has no option {name}; known are {', '.join(URL_OPTIONS)}, and {others}"
            )
        if option in _SWITCHES:
            settings[option] = _is_on(option, values[0], parts.query)
    return settings


def _is_on(option: str, value: str, query: str) -> bool:
    if value.lower() not in (*_YES, *_NO):
        raise ValueError(f"{option} cannot be {shown_option(value, query)}; known are true, false")
    return value.lower() in _YES


def _about_password(parts: SplitResult) -> str:
    """A `/`, `?` or `#` in a password ends the host and port too early, and leaves an `@` in the rest."""
    behind = f"{parts.path}{parts.query}{parts.fragment}"
    return "; is something in its password not percent-encoded?" if "@" in behind else ""


def _hosts(parts: SplitResult, port: int) -> list[Address]:
    hosts = [SplitResult("", host, "", "", "") for host in parts.netloc.rpartition("@")[2].split(",") if host]
    try:
        found = [Address(host.hostname or "localhost", host.port or port) for host in hosts]
    except ValueError:  # which may show a part of the password
        what = f"the port of a {parts.scheme}:// URL is a number from 1 to 65535"
        raise ValueError(f"{what}{_about_password(parts)}") from None
    return found or [Address("localhost", port)]


# From a client


def endpoint_of_client(client: Any) -> RedisEndpoint | None:
    """The endpoint that it would connect to, or None if it is no client of redis-py. Its connections are not used.

    Raises ValueError if they are made in a way that ours cannot follow.
    """
    nodes = getattr(client, "nodes_manager", None)
    if nodes is not None:
        settings = dict(getattr(client, "connection_kwargs", None) or nodes.connection_kwargs)
        seeds = [Address(node.host, int(node.port)) for node in nodes.startup_nodes.values()]
        _refuse_function(getattr(client, "user_on_connect_func", None))
        if getattr(nodes, "address_remap", None) is not None:
            raise unsupported_client("address_remap says where its nodes are")
        check_pool(getattr(nodes, "connection_pool_class", redis.ConnectionPool))
        kind = kind_of_class(settings.get("connection_class", redis.Connection))
        return ClusterEndpoint("tls" if settings.get("ssl") else kind, settings, seeds)
    pool = getattr(client, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_kwargs"):
        return None
    check_pool(pool)
    settings, kind = dict(pool.connection_kwargs), kind_of_class(pool.connection_class)
    _refuse_function(settings.get("redis_connect_func") or settings.get("valkey_connect_func"))
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        check_sentinels(manager)
        pools = [sentinel.connection_pool for sentinel in manager.sentinels]
        for one in pools:
            check_pool(one)
        addresses = [Address(one.connection_kwargs["host"], int(one.connection_kwargs["port"])) for one in pools]
        encrypted = "tls" in [kind_of_class(one.connection_class) for one in pools]
        to_sentinels = {**manager.sentinel_kwargs, "ssl": encrypted}
        return SentinelEndpoint(kind, settings, pool.service_name, addresses, to_sentinels)
    if kind == "unix":
        return RedisEndpoint(kind, settings, Address(settings["path"]))
    return RedisEndpoint(kind, settings, Address(settings.get("host", "localhost"), int(settings.get("port", PORT))))


def _refuse_function(on_connect: object) -> None:
    if on_connect is not None:
        raise ValueError(
            "connect() makes its own connections, and would not call the redis_connect_func of this client; pass a "
            "client without it, or a URL (a credential_provider is used)"
        )
