"""From a URL or a client to a backend: the only registry.

Decides: which package answers to a URL scheme or to a client, and where the embedded default lives.
Leaves to each package's `open`: what its URLs and clients mean. A package, and the client library behind it, is
imported when it is first used. A scheme that is not in the table may belong to an installed third-party package: its
entry point in the group `lockfast.backends` has the name of the scheme and leads to an `open_url`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult

from lockfast._suggest import suggestion
from lockfast._text import shown
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.backends.opening import DEFAULT_OPTIONS, BackendFactory, ConnectOptions, UrlOpener, split_url
from lockfast.errors import Unsupported

if TYPE_CHECKING:
    from lockfast.backends.postgres_table.open import Migration

ENTRY_POINTS: Final = "lockfast.backends"
_SQLALCHEMY_DRIVERS: Final = ("psycopg", "psycopg2", "psycopg2cffi", "asyncpg", "pg8000")
SCHEMES: Final[dict[str, str]] = {  # and the package of each
    "memory": "memory",
    "sqlite": "sqlite",
    "postgresql": "postgres_table",
    "postgres": "postgres_table",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "redlock": "redlock",
    "redlocks": "redlock",
    **{
        f"{scheme}+{kind}": "redis"
        for scheme in ("redis", "rediss", "valkey", "valkeys")
        for kind in ("sentinel", "cluster")
    },
    **{f"postgresql+{driver}": "postgres_table" for driver in _SQLALCHEMY_DRIVERS},
    "postgresql+advisory": "postgres_advisory",
    "postgres+advisory": "postgres_advisory",
}
_EXTRAS: Final = {"redis": "redis", "redlock": "redis", "postgres_table": "postgres", "postgres_advisory": "postgres"}
_EVERY_BACKEND: Final = ("capabilities", "store_id", "acquire", "wait", "renew", "release", "abandon", "close")
_TAKES: Final = "connect() takes a URL, a client, or what makes a lockfast.backend.Backend"
_OF_REDIS: Final = {"redis", "valkey"}  # client libraries
_OF_POSTGRES: Final = {"psycopg", "psycopg_pool", "django", "sqlalchemy"}
_POSTGRES_ENGINES: Final = ("postgres", "postgis", "psqlextra")  # in the name of a Django engine


def open_backend(
    url: object, world: World, clock: Clock | None = None, options: ConnectOptions = DEFAULT_OPTIONS
) -> Backend:
    """Raises ValueError for a URL that no backend answers to. Nothing is connected yet."""
    return factory_of(url, options)(world, clock)


def factory_of(url: object, options: ConnectOptions) -> BackendFactory:
    """What makes the backend, in either world. All facts of a client are read from it now."""
    if type(options.replicas) is not int or options.replicas < 0:
        raise ValueError(f"replicas must be a whole number of at least 0, not {shown(options.replicas)}")
    if type(options.advisory) is not bool:
        raise ValueError(f"advisory must be True or False, not {shown(options.advisory)}")
    if url is None:
        url = default_url()
    if isinstance(url, str):
        return _of_url(url, options)
    if isinstance(url, type) and _libraries_of(url) & (_OF_REDIS | _OF_POSTGRES):
        raise ValueError(f"connect() takes a client, not its class {url.__name__}: write {url.__name__}(…)")
    if callable(url):  # a backend of the caller's own
        options.refuse_all_but(where="a backend of your own")
        return _checked(url, shown(url))
    if isinstance(url, Sequence) and not isinstance(url, bytes) and not hasattr(url, "drivername"):  # SQLAlchemy's URL
        return _package("redlock", "a quorum of Redis servers").open_clients(url, options)  # type: ignore[no-any-return]
    return _of_client(url, options)


def _of_url(url: str, options: ConnectOptions) -> BackendFactory:
    parts = split_url(url)
    if "://" not in url:
        raise _unknown(url, parts.scheme)
    package = SCHEMES.get(parts.scheme)
    if package is None:
        return _checked(_third_party(url, parts)(parts, options), f"{parts.scheme}://")
    if package == "postgres_table" and options.advisory:
        package = "postgres_advisory"
    return _package(package, f"{parts.scheme}://").open_url(parts, options)  # type: ignore[no-any-return]


def _checked(factory: Any, what: str) -> BackendFactory:
    """The factory, whose result is checked: any function or class of the caller's may have been passed by mistake."""

    def make(world: World, clock: Clock | None) -> Backend:
        if not _can_be_called(factory, world, clock):
            raise ValueError(f"{what} cannot be called with a world and a clock to make a backend; {_TAKES}")
        backend: Backend = factory(world, clock)
        missing = [verb for verb in _EVERY_BACKEND if not hasattr(backend, verb)]
        if missing:
            raise ValueError(f"{what} made {shown(backend)}, which is no backend: it has no {missing[0]}; {_TAKES}")
        return backend

    return make


def _can_be_called(factory: Any, *args: object) -> bool:
    from inspect import signature  # here: slow to import, and rarely needed

    try:
        signature(factory).bind(*args)
    except TypeError:
        return False
    except ValueError:  # one that is not written in Python need not have a signature
        return True
    return True


def _of_client(client: object, options: ConnectOptions) -> BackendFactory:
    libraries = _libraries_of(type(client))
    factory: BackendFactory | None = None
    if libraries & _OF_POSTGRES or isinstance(client, Mapping):
        _refuse_other_databases(client)
        package = _package("postgres_advisory" if options.advisory else "postgres_table", "a client of PostgreSQL")
        factory = package.open_client(client, options)
    elif libraries & _OF_REDIS:
        factory = _package("redis", "a client of Redis").open_client(client, options)
    if factory is None:
        raise ValueError(f"connect() takes a URL or a client, not {type(client).__name__}; known are {_known()}")
    return factory


def _package(name: str, what: str) -> Any:
    """Its `open`. Raises Unsupported if the client library that it needs is not installed."""
    try:
        return import_module(f"lockfast.backends.{name}.open")
    except ImportError as error:
        extra = _EXTRAS.get(name)
        if extra is None:
            raise
        raise Unsupported(f"{what} needs an extra: pip install 'lockfast[{extra}]' ({error})") from error


def _third_party(url: str, parts: SplitResult) -> UrlOpener:
    """The opener that an installed package has for this scheme. Raises ValueError if none has."""
    from importlib.metadata import entry_points  # here: slow to import, and not needed for our own schemes

    installed = entry_points(group=ENTRY_POINTS)
    for found in installed.select(name=parts.scheme):
        try:
            open_url: UrlOpener = found.load()
        except Exception as error:
            raise Unsupported(
                f"{parts.scheme}:// belongs to {found.value}, which cannot be imported ({error})"
            ) from error
        return open_url
    raise _unknown(url, parts.scheme, sorted(installed.names - {*SCHEMES}))


def _libraries_of(kind: type) -> set[str]:
    return {base.__module__.partition(".")[0] for base in kind.__mro__}


def _refuse_other_databases(client: object) -> None:
    """Settings and connections of Django name their database; all others are PostgreSQL's."""
    if isinstance(client, Mapping):
        database = client.get("ENGINE", "postgresql")
    else:
        database = getattr(client, "vendor", "postgresql")
    if not isinstance(database, str) or not any(word in database for word in _POSTGRES_ENGINES):
        raise ValueError(
            "of Django's databases only PostgreSQL can keep locks (django.db.backends.postgresql), "
            f"not {shown(database)}; known are {_known()}"
        )


def _unknown(url: str, scheme: str, installed: Sequence[str] = ()) -> ValueError:
    """The error does not show the whole URL: it may contain a password. `installed` are schemes of other packages."""
    what = f"unknown scheme {shown(scheme)}" if "://" in url else "this is no URL"
    return ValueError(f"{what}; {suggestion(url, [*SCHEMES, *installed]) or f'known are {_known(installed)}'}")


def _known(installed: Sequence[str] = ()) -> str:
    """One scheme for each backend; the docs list the others."""
    ours = "memory://, sqlite:///file.db, redis://, redis+sentinel://, redis+cluster://, redlock://, postgresql://"
    return f"{', '.join([ours, *(f'{scheme}://' for scheme in installed)])} and postgresql+advisory://"


def migration(url: str, schema: str | None = None) -> Migration:
    """The script that makes the tables and functions of a `postgresql://` URL, and what runs it there.

    Raises ValueError for another URL. Running it raises BackendUnavailable, and then nothing was changed.
    """
    parts = split_url(url)
    if SCHEMES.get(parts.scheme) != "postgres_table":
        raise ValueError(f"only postgresql:// has a schema to make, not {shown(parts.scheme)}")
    return _package("postgres_table", f"{parts.scheme}://").migration(parts, schema)  # type: ignore[no-any-return]


def default_url() -> str:
    """`$LOCKFAST_URL`, else SQLite in the user's state folder: the embedded default, shared by all processes of a user.

    Raises Unsupported if this user has no such folder.
    """
    from lockfast.backends.sqlite.open import url_of_file

    return os.environ.get("LOCKFAST_URL") or url_of_file(_state_folder() / "lockfast" / "locks.db")


def _state_folder() -> Path:
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support"
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError as error:  # there is no HOME, and the user database does not have this user
        raise Unsupported(
            f"user {os.getuid()} has no home folder for the default store; pass a URL, or set LOCKFAST_URL or HOME"
        ) from error
