"""What `connect()` and `in_transaction()` take, as a type checker sees it. Nothing here runs.

Decides: by which attributes a ready client or connection is recognised. No client library is imported for that: a
program type-checks the same with and without redis-py, valkey-py, psycopg, Django or SQLAlchemy installed.
Leaves to `_connect` and the drivers: to check the object at run time, and to refuse one without a server.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from lockfast.backends.opening import BackendFactory


class RedisClient(Protocol):
    """A client of redis-py or valkey-py for one server or behind Sentinel, blocking or for asyncio."""

    connection_pool: Any

    @property
    def execute_command(self) -> Callable[..., Any]: ...


class RedisClusterClient(Protocol):
    """A client of redis-py or valkey-py for a cluster, blocking or for asyncio."""

    nodes_manager: Any

    @property
    def execute_command(self) -> Callable[..., Any]: ...


class PsycopgConnection(Protocol):
    """A connection of psycopg 3, blocking or for asyncio."""

    @property
    def pgconn(self) -> Any: ...
    @property
    def info(self) -> Any: ...


class PsycopgPool(Protocol):
    """A pool of psycopg_pool, blocking or for asyncio."""

    @property
    def conninfo(self) -> Any: ...
    @property
    def kwargs(self) -> Any: ...


class DjangoConnection(Protocol):
    """A connection of Django, such as `django.db.connection`."""

    def get_connection_params(self) -> Mapping[str, Any]: ...
    def get_autocommit(self) -> bool: ...


class SqlalchemyUrl(Protocol):
    """A URL of SQLAlchemy, such as `engine.url`."""

    @property
    def drivername(self) -> str: ...
    @property
    def query(self) -> Any: ...


class SqlalchemyEngine(Protocol):
    """An engine of SQLAlchemy, blocking or for asyncio."""

    @property
    def url(self) -> Any: ...
    @property
    def dialect(self) -> Any: ...


UrlOrClient: TypeAlias = (
    str
    | RedisClient
    | RedisClusterClient
    | PsycopgConnection
    | PsycopgPool
    | DjangoConnection
    | SqlalchemyUrl
    | SqlalchemyEngine
    | Mapping[str, Any]  # parameters of PostgreSQL, or an entry of Django's DATABASES
    | Sequence[str | RedisClient]  # the servers of a quorum
    | BackendFactory  # a backend of the caller's own
)


# Connections with a transaction of the caller. The type of `close()` distinguishes the two worlds.


class BlockingPsycopg(PsycopgConnection, Protocol):
    """A blocking connection of psycopg 3."""

    def close(self) -> None: ...


class AsyncPsycopg(PsycopgConnection, Protocol):
    """A connection of psycopg 3 for asyncio."""

    def close(self) -> Coroutine[Any, Any, None]: ...


class BlockingSqlalchemy(Protocol):
    """A connection or session of SQLAlchemy."""

    @property
    def begin_nested(self) -> Callable[..., Any]: ...
    def close(self) -> None: ...


class AsyncSqlalchemy(Protocol):
    """SQLAlchemy's AsyncConnection or AsyncSession."""

    @property
    def begin_nested(self) -> Callable[..., Any]: ...
    def close(self) -> Coroutine[Any, Any, None]: ...


UserConnection: TypeAlias = BlockingPsycopg | BlockingSqlalchemy | DjangoConnection
AsyncUserConnection: TypeAlias = AsyncPsycopg | AsyncSqlalchemy
