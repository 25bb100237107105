"""From a URL to a backend: the only registry.

Decides: which backend a URL means, and where the embedded default lives.
A backend is one row of `_OPENERS`; its module, and the client library behind it, are imported when first asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from holdfast._time import length
from holdfast._worlds import Clock, World
from holdfast.backends.base import Backend
from holdfast.errors import Unsupported

NODE_TIMEOUT = 0.25  # seconds that one server of a quorum may take, where nothing else is said: there are others
Opener = Callable[[SplitResult, World, Clock | None, int], Backend]


def open_backend(url: object, world: World, clock: Clock | None, replicas: int = 0) -> Backend:
    """Raises ValueError for a URL that no backend answers to. Nothing is connected yet."""
    if type(replicas) is not int or replicas < 0:
        raise ValueError(f"replicas must be a whole number of at least 0, not {replicas!r}")
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or default_url()
    if isinstance(url, type) and _is_of_redis(url):
        raise ValueError(f"connect() takes a client, not its class {url.__name__}: write {url.__name__}(…)")
    if callable(url):  # a backend of the caller's own: a function from world and clock to a Backend
        backend: Backend = url(world, clock)
        return backend
    if isinstance(url, list | tuple):
        return _of_clients(url, world, clock, replicas)
    if not isinstance(url, str):
        backend_of_client = _of_client(url, world, clock, replicas)
        if backend_of_client is None:
            raise ValueError(f"connect() takes a URL or a client, not {type(url).__name__}; known are {_known()}")
        return backend_of_client
    try:
        parts = urlsplit(url)
    except ValueError:  # which would show all of it
        raise ValueError("this is no URL; is something in its password not percent-encoded?") from None
    opener = _OPENERS.get(parts.scheme)
    if opener is None:
        raise ValueError(f"unknown scheme {parts.scheme!r}; known are {_known()}")
    return opener(parts, world, clock, replicas)


def default_url() -> str:
    """SQLite in the user's state folder: the embedded default, shared by all processes of one user."""
    if sys.platform == "darwin":
        state = Path.home() / "Library" / "Application Support"
    else:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return f"sqlite:///{quote(str(state / 'holdfast' / 'locks.db'))}"


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in _OPENERS)


def _memory(parts: SplitResult, world: World, clock: Clock | None, replicas: int) -> Backend:
    from holdfast.backends.memory import MemoryBackend
    from holdfast.backends.memory_store import shared_store

    _refuse_extras(parts, replicas)
    if parts.path not in ("", "/"):
        raise ValueError(f"a memory URL is memory:// or memory://name, not {parts.geturl()!r}")
    return MemoryBackend(shared_store(parts.netloc or "default", clock), world)


def _sqlite(parts: SplitResult, world: World, clock: Clock | None, replicas: int) -> Backend:
    from holdfast.backends.sqlite import SqliteBackend
    from holdfast.backends.sqlite_store import prepare
    from holdfast.drivers.sqlite import open_driver

    _refuse_extras(parts, replicas)
    path = unquote(parts.path)[1:]  # sqlite:///relative.db and sqlite:////absolute.db, as SQLAlchemy has them
    if parts.netloc or not path:
        raise ValueError(f"a SQLite URL is sqlite:///relative.db or sqlite:////absolute.db, not {parts.geturl()!r}")
    return SqliteBackend(open_driver(Path(path).absolute(), prepare, world, clock))


def _refuse_extras(parts: SplitResult, replicas: int) -> None:
    if replicas:
        raise Unsupported(f"{parts.scheme}:// has no replicas to wait for; nothing was sent")
    if parts.query or parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no options, but {parts.geturl()!r} has some")


def _redis(parts: SplitResult, world: World, clock: Clock | None, replicas: int) -> Backend:
    try:
        from holdfast.backends.redis import RedisBackend
        from holdfast.drivers.redis import open_driver
        from holdfast.drivers.redis_places import place_of_url
    except ImportError as error:
        raise Unsupported(f"{parts.scheme}:// needs an extra: pip install 'holdfast[redis]' ({error})") from error
    if parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no fragment; is a `#` in its password not percent-encoded?")
    return RedisBackend(open_driver(place_of_url(parts), world, clock, replicas))


def _is_of_redis(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] in ("redis", "valkey") for base in kind.__mro__)


def _of_client(client: object, world: World, clock: Clock | None, replicas: int) -> Backend | None:
    """The backend that a ready client's settings lead to, or None if we know no such client."""
    if not _is_of_redis(type(client)):
        return None
    try:
        from holdfast.backends.redis import RedisBackend
        from holdfast.drivers.redis import open_driver
        from holdfast.drivers.redis_places import place_of_client
    except ImportError as error:
        raise Unsupported(f"a client of Redis needs an extra: pip install 'holdfast[redis]' ({error})") from error

    place = place_of_client(client)
    return None if place is None else RedisBackend(open_driver(place, world, clock, replicas))


def _redlock(parts: SplitResult, world: World, clock: Clock | None, replicas: int) -> Backend:
    try:
        from holdfast.backends.quorum_redis import open_quorum
        from holdfast.drivers.redis_places import place_of_url
    except ImportError as error:
        raise Unsupported(f"{parts.scheme}:// needs an extra: pip install 'holdfast[redis]' ({error})") from error
    if parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no fragment; is a `#` in its password not percent-encoded?")
    options, query = _of_the_quorum(parts)
    _refuse_replicas(replicas)
    login, at, hosts = parts.netloc.rpartition("@")
    one = parts._replace(scheme="rediss" if parts.scheme == "redlocks" else "redis", query=query)
    places = [place_of_url(one._replace(netloc=f"{login}{at}{host}")) for host in hosts.split(",") if host]
    return open_quorum(places, world, clock, **options)


def _of_the_quorum(parts: SplitResult) -> tuple[dict[str, Any], str]:
    """What a URL says about all servers together, and the rest, which is about each connection."""
    own: dict[str, Any] = {"node_timeout": NODE_TIMEOUT, "rejoin": None}
    rest = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in own:
            rest.append((name, value))
            continue
        try:
            own[name] = length(float(value), name, zero=name == "rejoin")
        except ValueError:
            raise ValueError(f"{name} of a {parts.scheme}:// URL is a number of seconds, not {value!r}") from None
    return own, urlencode(rest)


def _refuse_replicas(replicas: int) -> None:
    if replicas:
        raise Unsupported("a quorum has no replicas to wait for; nothing was sent")


def _of_clients(
    clients: list[object] | tuple[object, ...], world: World, clock: Clock | None, replicas: int
) -> Backend:
    """A quorum of the servers that these clients, or URLs, lead to."""
    try:
        from holdfast.backends.quorum_redis import open_quorum
        from holdfast.drivers.redis_places import place_of_client, place_of_url
    except ImportError as error:
        raise Unsupported(
            f"a quorum of Redis servers needs an extra: pip install 'holdfast[redis]' ({error})"
        ) from error
    _refuse_replicas(replicas)
    places = []
    for client in clients:
        of_url = isinstance(client, str) and urlsplit(client).scheme in _OF_REDIS
        place = place_of_url(urlsplit(str(client))) if of_url else place_of_client(client)
        if place is None:
            raise ValueError(f"a quorum is of clients or URLs of Redis, not of {type(client).__name__}")
        places.append(place)
    return open_quorum(places, world, clock, node_timeout=NODE_TIMEOUT, rejoin=None)


_OF_REDIS = ("redis", "rediss", "unix", "valkey", "valkeys")
_OPENERS: dict[str, Opener] = {
    "memory": _memory,
    "sqlite": _sqlite,
    **dict.fromkeys(_OF_REDIS, _redis),
    "redlock": _redlock,
    "redlocks": _redlock,
    **dict.fromkeys(
        [f"{scheme}+{kind}" for scheme in ("redis", "rediss", "valkey", "valkeys") for kind in ("sentinel", "cluster")],
        _redis,
    ),
}
