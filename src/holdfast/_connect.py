"""From a URL to a backend: the only registry.

Decides: which backend a URL means, and where the embedded default lives.
A backend is one row of `_OPENERS`; its module, and the client library behind it, are imported when first asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from holdfast._worlds import Clock, World
from holdfast.backends.base import Backend
from holdfast.errors import Unsupported

Opener = Callable[[SplitResult, World, Clock | None, int], Backend]


def open_backend(url: object, world: World, clock: Clock | None, replicas: int = 0) -> Backend:
    """Raises ValueError for a URL that no backend answers to. Nothing is connected yet."""
    if type(replicas) is not int or replicas < 0:
        raise ValueError(f"replicas must be a whole number of at least 0, not {replicas!r}")
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or default_url()
    if callable(url):  # a backend of the caller's own: a function from world and clock to a Backend
        backend: Backend = url(world, clock)
        return backend
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


def _postgres_advisory(parts: SplitResult, world: World, clock: Clock | None, replicas: int) -> Backend:
    try:
        from holdfast.backends.postgres_advisory import PostgresAdvisoryBackend
        from holdfast.drivers.postgres_advisory_line import place_of_url
    except ImportError as error:
        raise Unsupported(f"{parts.scheme}:// needs an extra: pip install 'holdfast[postgres]' ({error})") from error
    if replicas:
        raise Unsupported(f"{parts.scheme}:// has no replicas to wait for; nothing was sent")
    if parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no fragment; is a `#` in its password not percent-encoded?")
    return PostgresAdvisoryBackend(place_of_url(parts), world, clock)


def _of_client(client: object, world: World, clock: Clock | None, replicas: int) -> Backend | None:
    """The backend that a ready client's settings lead to, or None if we know no such client."""
    if not any(kind.__module__.partition(".")[0] in ("redis", "valkey") for kind in type(client).__mro__):
        return None
    try:
        from holdfast.backends.redis import RedisBackend
        from holdfast.drivers.redis import open_driver
        from holdfast.drivers.redis_places import place_of_client
    except ImportError as error:
        raise Unsupported(f"a client of Redis needs an extra: pip install 'holdfast[redis]' ({error})") from error

    place = place_of_client(client)
    return None if place is None else RedisBackend(open_driver(place, world, clock, replicas))


_OF_REDIS = ("redis", "rediss", "unix", "valkey", "valkeys")
_OPENERS: dict[str, Opener] = {
    "memory": _memory,
    "sqlite": _sqlite,
    **dict.fromkeys(_OF_REDIS, _redis),
    **dict.fromkeys(
        [f"{scheme}+{kind}" for scheme in ("redis", "rediss", "valkey", "valkeys") for kind in ("sentinel", "cluster")],
        _redis,
    ),
    **dict.fromkeys(("postgresql+advisory", "postgres+advisory"), _postgres_advisory),
}
