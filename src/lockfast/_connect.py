"""From a URL or a client to a backend: the only registry.

Decides: which backend is meant, whether it can be what was wished for, and where the embedded default lives.
A backend is one row of `_OPENERS`; its module, and the client library behind it, are imported when first asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from lockfast._secrets import shown_url, without_secrets
from lockfast._suggest import suggestion
from lockfast._text import encodable, shown
from lockfast._time import Seconds, length
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.errors import Unsupported

if TYPE_CHECKING:
    from lockfast.backends.postgres.io.endpoint import Place

NODE_TIMEOUT = 0.25  # seconds that one server of a quorum may take, where nothing else is said: there are others


class Wishes(NamedTuple):
    """What connect() is told besides the place. Whoever cannot do it refuses it, and nothing is sent."""

    replicas: int = 0
    schema: str | None = None
    advisory: bool = False
    rejoin: Seconds | None = None


Make = Callable[[World, Clock | None], Backend]
Opener = Callable[[SplitResult, Wishes], Make]


def open_backend(
    url: object,
    world: World,
    clock: Clock | None,
    replicas: int = 0,
    schema: str | None = None,
    advisory: bool = False,
) -> Backend:
    """Raises ValueError for a URL that no backend answers to. Nothing is connected yet."""
    return opener(url, Wishes(replicas, schema, advisory))(world, clock)


def opener(url: object, wishes: Wishes) -> Make:
    """What makes the backend, in whichever world. All that there is to know of a client is asked of it now."""
    if type(wishes.replicas) is not int or wishes.replicas < 0:
        raise ValueError(f"replicas must be a whole number of at least 0, not {shown(wishes.replicas)}")
    if type(wishes.advisory) is not bool:
        raise ValueError(f"advisory must be True or False, not {shown(wishes.advisory)}")
    if url is None:
        url = default_url()
    if isinstance(url, type) and _is_of_redis(url):
        raise ValueError(f"connect() takes a client, not its class {url.__name__}: write {url.__name__}(…)")
    if callable(url):  # a backend of the caller's own: a function from world and clock to a Backend
        _refuse_postgres_only(wishes, "a backend of your own")
        _refuse_rejoin(wishes, "a backend of your own")
        make: Make = url
        return make
    if isinstance(url, Sequence) and not isinstance(url, str | bytes):
        return _of_clients(url, wishes)
    if not isinstance(url, str):
        _refuse_rejoin(wishes, "one client")
        of_client = _of_client(url, wishes)
        if of_client is None:
            raise ValueError(f"connect() takes a URL or a client, not {type(url).__name__}; known are {_known()}")
        return of_client
    parts = _split(url)
    if parts.scheme not in _OPENERS or "://" not in url:
        raise _unknown(url, parts.scheme)
    if parts.scheme not in _OF_POSTGRES:
        _refuse_postgres_only(wishes, f"{parts.scheme}://")
    if parts.scheme not in _OF_QUORUM:
        _refuse_rejoin(wishes, f"{parts.scheme}://")
    return _OPENERS[parts.scheme](parts, wishes)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:  # which would show all of it
        raise ValueError("this is no URL; is something in its password not percent-encoded?") from None
    if parts.scheme != "sqlite" and not encodable(url):  # the name of a file may be any bytes
        raise ValueError("a URL must be encodable as UTF-8; is something in it not percent-encoded?")
    return parts


def _refuse_postgres_only(wishes: Wishes, where: str) -> None:
    if wishes.schema is not None:
        raise Unsupported(f"{where} has no schema to choose; nothing was sent")
    if wishes.advisory:
        raise Unsupported(f"{where} has no advisory locks: only PostgreSQL has; nothing was sent")


def _refuse_rejoin(wishes: Wishes, where: str) -> None:
    if wishes.rejoin is not None:
        raise Unsupported(f"{where} is no quorum, so no server is kept out and rejoin has no meaning; nothing was sent")


def default_url() -> str:
    """`$LOCKFAST_URL`, else SQLite in the user's state folder: the embedded default, shared by all processes of a user.

    Raises Unsupported if this user has no such folder.
    """
    return os.environ.get("LOCKFAST_URL") or url_of_file(_state_folder() / "lockfast" / "locks.db")


def _state_folder() -> Path:
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support"
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError as error:  # there is no HOME, and the user database does not have this user
        raise Unsupported(
            f"user {os.getuid()} has no home folder, where the default store would be; give a URL, or set LOCKFAST_URL "
            "or HOME"
        ) from error


def file_of(url: str) -> Path | None:
    """The file that a URL of SQLite names; None for any other URL. Raises ValueError if it names none."""
    parts = _split(url)
    return _file(parts) if parts.scheme == "sqlite" else None


def url_of_file(file: Path) -> str:
    """The URL of its store. The name of a file may be any bytes."""
    return f"sqlite:///{quote(os.fsencode(file))}"


def _file(parts: SplitResult) -> Path:
    path = unquote(parts.path, errors="surrogateescape")[
        1:
    ]  # sqlite:///relative.db and sqlite:////absolute.db, as SQLAlchemy has them
    if ":memory:" in (parts.netloc, path):
        raise ValueError("SQLite's :memory: is a store of one connection alone; for locks of one process use memory://")
    if parts.netloc or not path:
        raise ValueError(
            f"a SQLite URL is sqlite:///relative.db or sqlite:////absolute.db, not {shown(shown_url(parts))}"
        )
    return Path(path).absolute()


def _unknown(url: str, scheme: str) -> ValueError:
    """Not all of the URL is shown: it may have a password in it."""
    what = f"unknown scheme {shown(scheme)}" if "://" in url else "this is no URL"
    return ValueError(f"{what}; {suggestion(url, _OPENERS) or f'known are {_known()}'}")


def _known() -> str:
    """One for each backend; the pages name the others."""
    return (
        "memory://, sqlite:///file.db, redis://, redis+sentinel://, redis+cluster://, redlock://, postgresql:// and "
        "postgresql+advisory://"
    )


def _memory(parts: SplitResult, wishes: Wishes) -> Make:
    from lockfast.backends.memory.backend import MemoryBackend
    from lockfast.backends.memory.store import shared_store

    _refuse_extras(parts, wishes.replicas)
    if parts.path not in ("", "/") or "@" in parts.netloc:
        raise ValueError(f"a memory URL is memory:// or memory://name, not {shown(shown_url(parts))}")
    return lambda world, clock: MemoryBackend(shared_store(parts.netloc or "default", clock), world)


def _sqlite(parts: SplitResult, wishes: Wishes) -> Make:
    from lockfast.backends.sqlite.backend import SqliteBackend
    from lockfast.backends.sqlite.io.blocking import open_driver
    from lockfast.backends.sqlite.schema import SCHEMA

    _refuse_extras(parts, wishes.replicas)
    file = _file(parts)
    return lambda world, clock: SqliteBackend(open_driver(file, SCHEMA, world, clock))


def _refuse_extras(parts: SplitResult, replicas: int) -> None:
    if replicas:
        raise Unsupported(f"{parts.scheme}:// has no replicas to wait for; nothing was sent")
    if parts.query or parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no options, but {shown(shown_url(parts))} has some")


def _redis(parts: SplitResult, wishes: Wishes) -> Make:
    try:
        from lockfast.backends.redis.backend import RedisBackend
        from lockfast.backends.redis.io.blocking import open_driver
        from lockfast.backends.redis.io.endpoints import place_of_url
    except ImportError as error:
        raise Unsupported(f"{parts.scheme}:// needs an extra: pip install 'lockfast[redis]' ({error})") from error
    _refuse_fragment(parts)
    place = place_of_url(parts)
    return lambda world, clock: RedisBackend(open_driver(place, world, clock, wishes.replicas))


def _refuse_fragment(parts: SplitResult) -> None:
    if parts.fragment:
        raise ValueError(f"{parts.scheme}:// takes no fragment; is a `#` in its password not percent-encoded?")


def _is_of_redis(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] in ("redis", "valkey") for base in kind.__mro__)


def _postgres(parts: SplitResult, wishes: Wishes) -> Make:
    try:
        from lockfast.backends.postgres.io.endpoint import place_of_url
    except ImportError as error:
        raise _needs_postgres(f"{parts.scheme}://", error) from error
    _refuse_fragment(parts)
    advisory = wishes.advisory or parts.scheme.endswith("+advisory")
    return _at_postgres(place_of_url(parts, advisory=advisory), wishes)


def _at_postgres(place: Place, wishes: Wishes) -> Make:
    if place.advisory:
        return _advisory_at(place, wishes)
    if wishes.replicas:
        raise Unsupported("PostgreSQL waits for replicas if its synchronous_standby_names say so; nothing was sent")
    from lockfast.backends.postgres_table.backend import PostgresTableBackend
    from lockfast.backends.postgres_table.io.blocking import open_driver
    from lockfast.backends.postgres_table.requests import Catalogue
    from lockfast.backends.postgres_table.schema import VERSION, valid_schema

    place = _in_schema(place, wishes.schema)
    catalogue = Catalogue(valid_schema(place.schema))
    return lambda world, clock: PostgresTableBackend(
        open_driver(place, world, clock, catalogue.many, VERSION), catalogue
    )


def _advisory_at(place: Place, wishes: Wishes) -> Make:
    if wishes.replicas:
        raise Unsupported("advisory locks are in the memory of one server, and on no replica; nothing was sent")
    if wishes.schema is not None:
        raise Unsupported("advisory locks have no schema to choose; nothing was sent")
    from lockfast.backends.postgres_advisory.backend import PostgresAdvisoryBackend

    return partial(PostgresAdvisoryBackend, place)


def _in_schema(place: Place, schema: str | None) -> Place:
    """As if the URL had said so."""
    return place if schema is None else replace(place, schema=schema)


def _needs_postgres(what: str, error: ImportError) -> Unsupported:
    return Unsupported(f"{what} needs an extra: pip install 'lockfast[postgres]' ({error})")


class Migration(NamedTuple):
    script: str
    run: Callable[[Callable[[str], None]], None]  # reports the messages of the script
    url: str  # where, without a password


def migration(url: str, schema: str | None = None) -> Migration:
    """The script that makes the tables and functions of a `postgresql://` URL, and what runs it there.

    Raises ValueError for another URL. Running it raises BackendUnavailable, and then nothing was changed.
    """
    parts = _split(url)
    if parts.scheme not in _WITH_TABLE:
        raise ValueError(f"only postgresql:// has a schema to make, not {shown(parts.scheme)}")
    try:
        from lockfast.backends.postgres.io.endpoint import place_of_url
        from lockfast.backends.postgres_table.io.migrate import run_script
    except ImportError as error:
        raise _needs_postgres(f"{parts.scheme}://", error) from error
    from lockfast.backends.postgres_table.schema import script, valid_schema

    place = _in_schema(place_of_url(parts), schema)
    text = script(valid_schema(place.schema))
    return Migration(text, partial(run_script, place, text), place.url)


def _of_client(client: object, wishes: Wishes) -> Make | None:
    """What a ready client's settings lead to, or None if we know no such client."""
    modules = {kind.__module__.partition(".")[0] for kind in type(client).__mro__}
    if modules & {"psycopg", "psycopg_pool", "django"} or isinstance(client, Mapping):
        _refuse_other_databases(client)
        return _of_postgres_client(client, wishes)
    if not _is_of_redis(type(client)):
        return None
    try:
        from lockfast.backends.redis.backend import RedisBackend
        from lockfast.backends.redis.io.blocking import open_driver
        from lockfast.backends.redis.io.endpoints import place_of_client
    except ImportError as error:
        raise Unsupported(f"a client of Redis needs an extra: pip install 'lockfast[redis]' ({error})") from error

    _refuse_postgres_only(wishes, "Redis")
    place = place_of_client(client)
    if place is None:
        return None
    return lambda world, clock: RedisBackend(open_driver(place, world, clock, wishes.replicas))


def _refuse_other_databases(client: object) -> None:
    """Settings and connections of Django say which database theirs is; others are PostgreSQL's."""
    if isinstance(client, Mapping):
        database = client.get("ENGINE", "postgresql")
    else:
        database = getattr(client, "vendor", "postgresql")
    if not isinstance(database, str) or not any(word in database for word in _POSTGRES_ENGINES):
        raise ValueError(
            "of Django's databases only PostgreSQL can keep locks (django.db.backends.postgresql), "
            f"not {shown(database)}; known are {_known()}"
        )


def _of_postgres_client(client: object, wishes: Wishes) -> Make | None:
    try:
        from lockfast.backends.postgres.io.endpoint import place_of_client
    except ImportError as error:
        raise _needs_postgres("a client of PostgreSQL", error) from error
    place = place_of_client(client, advisory=wishes.advisory)
    return None if place is None else _at_postgres(place, wishes)


def _redlock(parts: SplitResult, wishes: Wishes) -> Make:
    try:
        from lockfast.backends.redis.io.endpoints import place_of_url
        from lockfast.backends.redlock.node import open_quorum
    except ImportError as error:
        raise Unsupported(f"{parts.scheme}:// needs an extra: pip install 'lockfast[redis]' ({error})") from error
    _refuse_fragment(parts)
    options, query = _of_the_quorum(parts)
    options["rejoin"] = options["rejoin"] if wishes.rejoin is None else _rejoin(wishes)
    _refuse_replicas(wishes)
    login, at, hosts = parts.netloc.rpartition("@")
    if "@" in login or ("," in login and "," not in hosts):
        raise ValueError(
            f"a login in a {parts.scheme}:// URL is for all servers and stands before the first of them; "
            "where they differ give connect() a list of URLs"
        )
    one = parts._replace(scheme="rediss" if parts.scheme == "redlocks" else "redis", query=query)
    places = [
        place_of_url(one._replace(netloc=f"{login}{at}{host}")) for host in map(str.strip, hosts.split(",")) if host
    ]
    user = f"{login.partition(':')[0]}{at}".lstrip("@")
    url = parts._replace(netloc=f"{user}{hosts}", query=without_secrets(parts.query)).geturl()
    return lambda world, clock: open_quorum(places, world, clock, url=url, **options)


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
            raise ValueError(f"{name} of a {parts.scheme}:// URL is a number of seconds, not {shown(value)}") from None
    return own, urlencode(rest)


def _rejoin(wishes: Wishes) -> float | None:
    return None if wishes.rejoin is None else length(wishes.rejoin, "rejoin", zero=True)


def _refuse_replicas(wishes: Wishes) -> None:
    if wishes.replicas:
        raise Unsupported("a quorum has no replicas to wait for; nothing was sent")


def _of_clients(clients: Sequence[object], wishes: Wishes) -> Make:
    """A quorum of the servers that these clients, or URLs, lead to."""
    try:
        from lockfast.backends.redis.io.endpoints import place_of_client, place_of_url
        from lockfast.backends.redlock.node import open_quorum
    except ImportError as error:
        raise Unsupported(
            f"a quorum of Redis servers needs an extra: pip install 'lockfast[redis]' ({error})"
        ) from error
    _refuse_replicas(wishes)
    _refuse_postgres_only(wishes, "a quorum")
    rejoin = _rejoin(wishes)
    places = []
    for client in clients:
        place = place_of_url(_of_one_server(client)) if isinstance(client, str) else place_of_client(client)
        if place is None:
            raise ValueError(f"a quorum is of clients or URLs of Redis, not of {type(client).__name__}")
        places.append(place)
    return lambda world, clock: open_quorum(places, world, clock, node_timeout=NODE_TIMEOUT, rejoin=rejoin)


def _of_one_server(url: str) -> SplitResult:
    parts = _split(url)
    if parts.scheme not in _OF_REDIS or "://" not in url:
        raise ValueError(f"a quorum is of clients or URLs of Redis, not of {shown(shown_url(url))}")
    _refuse_fragment(parts)
    return parts


_OF_REDIS = ("redis", "rediss", "unix", "valkey", "valkeys")
_OF_QUORUM = ("redlock", "redlocks")
_POSTGRES_ENGINES = ("postgres", "postgis", "psqlextra")  # one of them is in the name of Django's engine
_WITH_TABLE = ("postgresql", "postgres")
_OF_POSTGRES = (*_WITH_TABLE, "postgresql+advisory", "postgres+advisory")
_OPENERS: dict[str, Opener] = {
    "memory": _memory,
    "sqlite": _sqlite,
    **dict.fromkeys(_WITH_TABLE, _postgres),
    **dict.fromkeys(_OF_REDIS, _redis),
    **dict.fromkeys(_OF_QUORUM, _redlock),
    **dict.fromkeys(
        [f"{scheme}+{kind}" for scheme in ("redis", "rediss", "valkey", "valkeys") for kind in ("sentinel", "cluster")],
        _redis,
    ),
    **dict.fromkeys(_OF_POSTGRES[len(_WITH_TABLE) :], _postgres),
}
