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

Opener = Callable[[SplitResult, World, Clock | None], Backend]


def open_backend(url: object, world: World, clock: Clock | None) -> Backend:
    """Raises ValueError for a URL that no backend answers to. Nothing is connected yet."""
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or default_url()
    if callable(url):  # a backend of the caller's own: a function from world and clock to a Backend
        backend: Backend = url(world, clock)
        return backend
    if not isinstance(url, str):
        raise ValueError(f"connect() takes a URL, not {type(url).__name__}; known are {_known()}")
    parts = urlsplit(url)
    opener = _OPENERS.get(parts.scheme)
    if opener is None:
        raise ValueError(f"unknown scheme {parts.scheme!r} in {_without_password(parts)!r}; known are {_known()}")
    return opener(parts, world, clock)


def default_url() -> str:
    """SQLite in the user's state folder: the embedded default, shared by all processes of one user."""
    if sys.platform == "darwin":
        state = Path.home() / "Library" / "Application Support"
    else:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return f"sqlite:///{quote(str(state / 'holdfast' / 'locks.db'))}"


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in _OPENERS)


def _without_password(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _memory(parts: SplitResult, world: World, clock: Clock | None) -> Backend:
    from holdfast.backends.memory import MemoryBackend
    from holdfast.backends.memory_store import shared_store

    _refuse_extras(parts)
    if parts.path not in ("", "/"):
        raise ValueError(f"a memory URL is memory:// or memory://name, not {parts.geturl()!r}")
    return MemoryBackend(shared_store(parts.netloc or "default", clock), world)


def _sqlite(parts: SplitResult, world: World, clock: Clock | None) -> Backend:
    from holdfast.backends.sqlite import SqliteBackend
    from holdfast.backends.sqlite_store import prepare
    from holdfast.drivers.sqlite import open_driver

    _refuse_extras(parts)
    path = unquote(parts.path)[1:]  # sqlite:///relative.db and sqlite:////absolute.db, as SQLAlchemy has them
    if parts.netloc or not path:
        raise ValueError(f"a SQLite URL is sqlite:///relative.db or sqlite:////absolute.db, not {parts.geturl()!r}")
    return SqliteBackend(open_driver(Path(path).absolute(), prepare, world, clock))


def _refuse_extras(parts: SplitResult) -> None:
    if parts.query or parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no options, but {parts.geturl()!r} has some")


def _redis(parts: SplitResult, world: World, clock: Clock | None) -> Backend:
    try:
        from holdfast.backends.redis import RedisBackend
        from holdfast.drivers.redis import open_driver
    except ImportError as error:
        raise Unsupported(f"{parts.scheme}:// needs an extra: pip install 'holdfast[redis]' ({error})") from error
    return RedisBackend(open_driver(parts.geturl(), world, clock))


_OPENERS: dict[str, Opener] = {"memory": _memory, "sqlite": _sqlite, "redis": _redis}
