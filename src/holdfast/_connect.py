"""From a URL to a backend: the only registry.

Decides: which backend a URL means, and where the embedded default lives.
A backend is one row of `_OPENERS`; its module, and the client library behind it, are imported when first asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from holdfast._worlds import Clock, World
from holdfast.backends.base import Backend
from holdfast.errors import Unsupported

if TYPE_CHECKING:
    from holdfast.drivers.postgres_places import Place

Opener = Callable[[SplitResult, World, Clock | None, int], Backend]


def open_backend(
    url: object, world: World, clock: Clock | None, replicas: int = 0, schema: str | None = None
) -> Backend:
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
    if not isinstance(url, str):
        backend_of_client = _of_client(url, world, clock, replicas, schema)
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
    if schema is not None:
        parts = _with_schema(parts, schema)
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


def _with_schema(parts: SplitResult, schema: str) -> SplitResult:
    """As if the URL had said so."""
    if _OPENERS[parts.scheme] is not _postgres_table:
        raise Unsupported(f"{parts.scheme}:// has no schema to choose; nothing was sent")
    others = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "schema"]
    return parts._replace(query=urlencode([*others, ("schema", schema)], quote_via=quote))


def _postgres_table(parts: SplitResult, world: World, clock: Clock | None, replicas: int) -> Backend:
    try:
        from holdfast.drivers.postgres_places import place_of_url
    except ImportError as error:
        raise _needs_postgres(f"{parts.scheme}://", error) from error
    if parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no fragment; is a `#` in its password not percent-encoded?")
    if replicas:
        raise Unsupported(
            f"{parts.scheme}:// waits for replicas if its synchronous_standby_names say so; nothing was sent"
        )
    return _table_at(place_of_url(parts), world, clock)


def _table_at(place: Place, world: World, clock: Clock | None) -> Backend:
    from holdfast.backends.postgres_table import PostgresTableBackend
    from holdfast.backends.postgres_table_requests import Catalogue
    from holdfast.backends.postgres_table_schema import VERSION, valid_schema
    from holdfast.drivers.postgres import open_driver

    catalogue = Catalogue(valid_schema(place.schema))
    return PostgresTableBackend(open_driver(place, world, clock, catalogue.many, VERSION), catalogue)


def _needs_postgres(what: str, error: ImportError) -> Unsupported:
    return Unsupported(f"{what} needs an extra: pip install 'holdfast[postgres]' ({error})")


def migration(url: str, schema: str | None = None) -> tuple[str, Callable[[], None]]:
    """The script that makes the tables and functions of a `postgresql://` URL, and what runs it there.

    Raises ValueError for another URL. Running it raises BackendUnavailable, and then nothing was changed.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # which would show all of it
        raise ValueError("this is no URL; is something in its password not percent-encoded?") from None
    if _OPENERS.get(parts.scheme) is not _postgres_table:
        raise ValueError(f"only postgresql:// has a schema to make, not {parts.scheme!r}")
    if schema is not None:
        parts = _with_schema(parts, schema)
    try:
        from holdfast.drivers.postgres_places import place_of_url
        from holdfast.drivers.postgres_scripts import run_script
    except ImportError as error:
        raise _needs_postgres(f"{parts.scheme}://", error) from error
    from holdfast.backends.postgres_table_schema import script, valid_schema

    place = place_of_url(parts)
    text = script(valid_schema(place.schema))
    return text, lambda: run_script(place, text)


def _postgres_advisory(parts: SplitResult, world: World, clock: Clock | None, replicas: int) -> Backend:
    try:
        from holdfast.backends.postgres_advisory import PostgresAdvisoryBackend
        from holdfast.drivers.postgres_advisory_line import place_of_url
    except ImportError as error:
        raise _needs_postgres(f"{parts.scheme}://", error) from error
    if replicas:
        raise Unsupported(f"{parts.scheme}:// has no replicas to wait for; nothing was sent")
    if parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no fragment; is a `#` in its password not percent-encoded?")
    return PostgresAdvisoryBackend(place_of_url(parts), world, clock)


def _of_client(client: object, world: World, clock: Clock | None, replicas: int, schema: str | None) -> Backend | None:
    """The backend that a ready client's settings lead to, or None if we know no such client."""
    modules = {kind.__module__.partition(".")[0] for kind in type(client).__mro__}
    if modules & {"psycopg", "psycopg_pool", "django"} or isinstance(client, Mapping):
        return _of_postgres_client(client, world, clock, replicas, schema)
    if not _is_of_redis(type(client)):
        return None
    try:
        from holdfast.backends.redis import RedisBackend
        from holdfast.drivers.redis import open_driver
        from holdfast.drivers.redis_places import place_of_client
    except ImportError as error:
        raise Unsupported(f"a client of Redis needs an extra: pip install 'holdfast[redis]' ({error})") from error

    if schema is not None:
        raise Unsupported("Redis has no schema to choose; nothing was sent")
    place = place_of_client(client)
    return None if place is None else RedisBackend(open_driver(place, world, clock, replicas))


def _of_postgres_client(
    client: object, world: World, clock: Clock | None, replicas: int, schema: str | None
) -> Backend | None:
    try:
        from holdfast.drivers.postgres_places import place_of_client
    except ImportError as error:
        raise _needs_postgres("a client of PostgreSQL", error) from error
    if replicas:
        raise Unsupported("PostgreSQL waits for replicas if its synchronous_standby_names say so; nothing was sent")
    place = place_of_client(client)
    if place is None:
        return None
    return _table_at(place if schema is None else replace(place, schema=schema), world, clock)


_OF_REDIS = ("redis", "rediss", "unix", "valkey", "valkeys")
_OPENERS: dict[str, Opener] = {
    "memory": _memory,
    "sqlite": _sqlite,
    **dict.fromkeys(("postgresql", "postgres"), _postgres_table),
    **dict.fromkeys(_OF_REDIS, _redis),
    **dict.fromkeys(
        [f"{scheme}+{kind}" for scheme in ("redis", "rediss", "valkey", "valkeys") for kind in ("sentinel", "cluster")],
        _redis,
    ),
    **dict.fromkeys(("postgresql+advisory", "postgres+advisory"), _postgres_advisory),
}
