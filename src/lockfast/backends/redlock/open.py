"""From a `redlock://` URL, or a list of clients or URLs, to a quorum of their servers.

Decides: what a URL says about all servers together, and what about each connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlencode

from lockfast._secrets import shown_url, without_secrets
from lockfast._text import shown
from lockfast._time import length
from lockfast._worlds import Clock, World
from lockfast.backends.opening import BackendFactory, ConnectOptions, refuse_fragment, split_url
from lockfast.backends.redis.io.endpoints import RedisEndpoint
from lockfast.backends.redis.io.urls import endpoint_of_client, endpoint_of_url
from lockfast.backends.redis.requests import source
from lockfast.backends.redlock.backend import QuorumBackend
from lockfast.backends.redlock.io.fanout import open_fanout
from lockfast.backends.redlock.io.members import members_of
from lockfast.backends.redlock.node import SCRIPTS, NodeDriver, RedisNode

NODE_TIMEOUT_S: Final = 0.25  # that one server may take by default: there are others
_OF_ONE_SERVER: Final = ("redis", "rediss", "unix", "valkey", "valkeys")


def open_url(parts: SplitResult, options: ConnectOptions) -> BackendFactory:
    refuse_fragment(parts)
    ours, query = _of_the_quorum(parts)
    ours["rejoin"] = ours["rejoin"] if options.rejoin is None else _rejoin(options)
    options.refuse_all_but("rejoin", where="a quorum")
    login, at, hosts = parts.netloc.rpartition("@")
    if "@" in login or ("," in login and "," not in hosts):
        raise ValueError(
            f"a login in a {parts.scheme}:// URL is for all servers and stands before the first of them; "
            "where they differ give connect() a list of URLs"
        )
    one = parts._replace(scheme="rediss" if parts.scheme == "redlocks" else "redis", query=query)
    endpoints = [
        endpoint_of_url(one._replace(netloc=f"{login}{at}{host}")) for host in map(str.strip, hosts.split(",")) if host
    ]
    user = f"{login.partition(':')[0]}{at}".lstrip("@")
    url = parts._replace(netloc=f"{user}{hosts}", query=without_secrets(parts.query)).geturl()
    return lambda world, clock: open_quorum(endpoints, world, clock, url=url, **ours)


def open_clients(clients: Sequence[object], options: ConnectOptions) -> BackendFactory:
    """A quorum of the servers that these clients, or URLs, lead to."""
    options.refuse_all_but("rejoin", where="a quorum")
    rejoin = _rejoin(options)
    endpoints = []
    for client in clients:
        endpoint = endpoint_of_url(_of_one_server(client)) if isinstance(client, str) else endpoint_of_client(client)
        if endpoint is None:
            raise ValueError(f"a quorum is of clients or URLs of Redis, not of {type(client).__name__}")
        endpoints.append(endpoint)
    return lambda world, clock: open_quorum(endpoints, world, clock, node_timeout=NODE_TIMEOUT_S, rejoin=rejoin)


def _of_the_quorum(parts: SplitResult) -> tuple[dict[str, Any], str]:
    """What a URL says about all servers together, and the rest, which is about each connection."""
    own: dict[str, Any] = {"node_timeout": NODE_TIMEOUT_S, "rejoin": None}
    rest = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in own:
            rest.append((name, value))
            continue
        try:
            own[name] = length(float(value), name, zero=name == "rejoin")
        except ValueError:
            raise ValueError(f"{name} of a {parts.scheme}:// URL is a number of seconds, not {shown(value)}") from None
    return own, urlencode(rest)


def _rejoin(options: ConnectOptions) -> float | None:
    return None if options.rejoin is None else length(options.rejoin, "rejoin", zero=True)


def _of_one_server(url: str) -> SplitResult:
    parts = split_url(url)
    if parts.scheme not in _OF_ONE_SERVER or "://" not in url:
        raise ValueError(f"a quorum is of clients or URLs of Redis, not of {shown(shown_url(url))}")
    refuse_fragment(parts)
    return parts


def open_quorum(
    endpoints: Sequence[RedisEndpoint],
    world: World,
    clock: Clock | None,
    *,
    node_timeout: float,
    rejoin: float | None,
    url: str = "",
) -> QuorumBackend:
    """The quorum of these servers, for that world. Nothing is connected yet. Raises ValueError for too few of them.

    `url` leads to all of them, without secrets; empty if no URL does.
    """
    members = members_of(endpoints, [source(name) for name in SCRIPTS])
    fanout = open_fanout(members, world, clock, node_timeout)
    now = clock.now if clock is not None else None
    nodes = [
        RedisNode(NodeDriver(member, connections, now), member)
        for member, connections in zip(members, fanout.node_connections, strict=True)
    ]
    quorum = QuorumBackend(nodes, fanout, chance=world.chance, rejoin=rejoin)
    quorum.url = url
    return quorum
