"""The user's own connection: psycopg's, or SQLAlchemy's over any client of PostgreSQL, blocking or awaited.

Decides: how a statement is run there, and how its client says that a lock was not to be had in time.
Leaves to the backend: the statements. They have no parameters, so that no client can misread them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import psycopg

from holdfast.errors import Unsupported

_NOT_AVAILABLE = "55P03"  # lock_timeout
_NO_TRANSACTION = "25P01"  # SAVEPOINT outside of one


class Transaction:
    """Whatever is run here is part of the transaction that the user has open, or begins one."""

    def __init__(self, connection: Any, *, blocking: bool) -> None:
        self._connection = connection
        kind = type(connection)
        libraries = {base.__module__.partition(".")[0] for base in kind.__mro__}
        self._sqlalchemy = "sqlalchemy" in libraries
        if not self._sqlalchemy and not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            raise ValueError(
                "in_transaction() takes a connection of psycopg, or a connection or session of SQLAlchemy, not "
                f"{kind.__module__}.{kind.__qualname__}"
            )
        awaited = isinstance(connection, psycopg.AsyncConnection) or kind.__name__.lower().startswith("async")
        if awaited is blocking:
            ours, theirs = ("Locks", "an awaited") if blocking else ("AsyncLocks", "a blocking")
            raise ValueError(
                f"{ours}.in_transaction() was given {theirs} connection; use the other kind of one of them"
            )

    def must_last(self) -> None:
        """Raises Unsupported where each statement is a transaction of its own: a lock would be gone at once."""
        if self._sqlalchemy or not self._connection.autocommit:
            return
        if self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise no_transaction()

    @property
    def unsure(self) -> bool:
        """Whether only the server can tell if a transaction is open."""
        return self._sqlalchemy

    async def run(self, sql: str) -> list[Any]:
        """All rows. Raises what the client raises."""
        statement: Any = sql
        if self._sqlalchemy:
            from sqlalchemy import text  # who gives us such a connection has it

            statement = text(sql)
        result = self._connection.execute(statement)
        if isinstance(result, Awaitable):
            result = await result
        if self._sqlalchemy:
            return list(result.fetchall()) if result.returns_rows else []
        if result.description is None:
            return []
        rows = result.fetchall()
        return list(await rows if isinstance(rows, Awaitable) else rows)


def no_transaction() -> Unsupported:
    return Unsupported(
        "in_transaction() was called with no transaction open, on a connection that commits each statement: the lock "
        "would be gone at once. Begin one, as in `with connection.transaction():`"
    )


def is_timeout(error: BaseException) -> bool:
    """Whether a client says that the lock was not to be had within `lock_timeout`."""
    return _state(error) == _NOT_AVAILABLE


def has_no_transaction(error: BaseException) -> bool:
    return _state(error) == _NO_TRANSACTION


def _state(error: BaseException) -> str:
    """SQLSTATE, however the client calls it; SQLAlchemy keeps the client's error as `orig`."""
    inner = getattr(error, "orig", None) or error
    return str(getattr(inner, "sqlstate", None) or getattr(inner, "pgcode", None) or "")
