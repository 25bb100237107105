"""The user's own connection: psycopg's, SQLAlchemy's over any client of PostgreSQL, or Django's.

Decides: how a statement is run there, and how the client's errors are read.
Leaves to the backend: the statements. They have no parameters, so that no client can misread them.

The user's settings of a connection are left alone and do not matter: row factory, pipeline, streaming.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from lockfast.errors import Unsupported

_NOT_AVAILABLE = "55P03"  # lock_timeout
_NO_TRANSACTION = "25P01"  # SAVEPOINT outside of one
_NOT_STREAMED = {"stream_results": False, "yield_per": None}  # of the statement: overrides those of the connection
_OF_SQLALCHEMY = {  # what executes statements in one transaction; an engine, or a maker of sessions, has none
    "Connection",
    "Session",
    "scoped_session",
    "AsyncConnection",
    "AsyncSession",
    "async_scoped_session",
}
_NOT_ONE = ", which has many connections: give it one of them, as in `with engine.begin() as connection:`"
Row = tuple[Any, ...]


class UserTransaction:
    """Statements run here are part of the transaction that the user has open, or begin one."""

    awaited = False
    unsure = False  # only the server knows whether a transaction is open

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def must_last(self) -> None:
        """Raises Unsupported where each statement is a transaction of its own: a lock would be gone at once."""

    async def fetch(self, sql: str) -> list[Row]:
        """All rows. Raises what the client raises."""
        return [tuple(map(_plain, row)) for row in await self._run(sql)]

    async def _run(self, sql: str) -> list[Row]:
        raise NotImplementedError


def transaction_on(connection: object, *, blocking: bool) -> UserTransaction:
    """Raises ValueError if it is no such connection, or one of the other world."""
    connection = getattr(connection, "driver_connection", connection)  # of what SQLAlchemy's raw_connection() gives
    kind = type(connection)
    modules = [base.__module__ for base in kind.__mro__]
    libraries = {module.partition(".")[0] for module in modules}
    found: UserTransaction
    if isinstance(connection, psycopg.AsyncConnection):
        found = _AwaitedPsycopg(connection)
    elif isinstance(connection, psycopg.Connection):
        found = _Psycopg(connection)
    elif "sqlalchemy" in libraries and _OF_SQLALCHEMY & {base.__name__ for base in kind.__mro__}:
        awaited = any(module.startswith("sqlalchemy.ext.asyncio") for module in modules)
        found = _AwaitedSqlalchemy(connection) if awaited else _Sqlalchemy(connection)
    elif "django" in libraries and hasattr(connection, "get_autocommit"):
        found = _Django(connection)
    else:
        raise ValueError(
            "in_transaction() takes a connection of psycopg or Django, or a connection or session of SQLAlchemy, not "
            f"{kind.__module__}.{kind.__qualname__}{'' if not hasattr(connection, 'connect') else _NOT_ONE}"
        )
    if found.awaited is blocking:
        ours, theirs = ("Locks", "an awaited") if blocking else ("AsyncLocks", "a blocking")
        raise ValueError(f"{ours}.in_transaction() was given {theirs} connection; use the other kind of one of them")
    return found


class _Psycopg(UserTransaction):
    async def must_last(self) -> None:
        connection = self._connection
        if connection.autocommit:
            if _in_pipeline(connection):
                with connection.pipeline():
                    pass  # the end of an inner one waits for everything in flight, which may be a BEGIN
            _must_be_open(connection)

    async def _run(self, sql: str) -> list[Row]:
        connection = self._connection
        if _in_pipeline(connection):
            with connection.pipeline():  # an error ends with an inner one, and the next statement is run
                return self._run_now(sql)
        return self._run_now(sql)

    def _run_now(self, sql: str) -> list[Row]:
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(sql.encode(), prepare=False)
            return cursor.fetchall() if _has_rows(sql) else []


class _AwaitedPsycopg(UserTransaction):
    awaited = True

    async def must_last(self) -> None:
        connection = self._connection
        if connection.autocommit:
            if _in_pipeline(connection):
                async with connection.pipeline():
                    pass
            _must_be_open(connection)

    async def _run(self, sql: str) -> list[Row]:
        connection = self._connection
        async with AsyncExitStack() as stack:
            if _in_pipeline(connection):
                await stack.enter_async_context(connection.pipeline())
            cursor = await stack.enter_async_context(psycopg.AsyncCursor(connection, row_factory=tuple_row))
            await cursor.execute(sql.encode(), prepare=False)
            return await cursor.fetchall() if _has_rows(sql) else []


def _in_pipeline(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF


def _must_be_open(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        raise no_transaction()


class _Sqlalchemy(UserTransaction):
    unsure = True

    async def _run(self, sql: str) -> list[Row]:
        return _rows(self._connection.execute(_text(sql), execution_options=_NOT_STREAMED))


class _AwaitedSqlalchemy(UserTransaction):
    awaited = unsure = True

    async def _run(self, sql: str) -> list[Row]:
        return _rows(await self._connection.execute(_text(sql), execution_options=_NOT_STREAMED))


def _text(sql: str) -> Any:
    from sqlalchemy import text  # a caller with such a connection has it

    return text(sql)


def _rows(result: Any) -> list[Row]:
    return list(result.fetchall()) if result.returns_rows else []


class _Django(UserTransaction):
    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        if connection.vendor != "postgresql":
            raise ValueError(
                f"in_transaction() was given Django's connection to {connection.vendor}, not to PostgreSQL"
            )

    async def must_last(self) -> None:
        if self._connection.get_autocommit():  # which is off in atomic()
            raise no_transaction()

    async def _run(self, sql: str) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if _has_rows(sql) else []


def _plain(value: Any) -> Any:
    """Where the encoding of the server is unknown, psycopg leaves text as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _has_rows(sql: str) -> bool:
    """A client in a pipeline knows it only after it has fetched them."""
    return sql.startswith("SELECT")


def no_transaction() -> Unsupported:
    return Unsupported(
        "in_transaction() was called with no transaction open, on a connection that commits each statement: the lock "
        "would be gone at once. Begin one, as in `with connection.transaction():`"
    )


def is_timeout(error: BaseException) -> bool:
    """Whether the lock was not granted within `lock_timeout`."""
    return _state(error) == _NOT_AVAILABLE


def has_no_transaction(error: BaseException) -> bool:
    return _state(error) == _NO_TRANSACTION


def _state(error: BaseException) -> str:
    """SQLSTATE, as the client calls it. SQLAlchemy keeps the client's error as `orig`, Django as the cause."""
    inner = getattr(error, "orig", None) or error
    for one in (inner, inner.__cause__):
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if state:
            return str(state)
    return ""
