"""The check of a fence where it counts: in the store that the lock protects.

A holder that was paused may wake up after its lease has ended and go on writing. Its lock cannot stop it, the store
can: it remembers the highest fence that it has seen with the data, and refuses lower ones in the same step.

Decides: the statement that does that in SQL, the script that does it in Redis, and what is raised when they refuse.
Leaves to the caller: connections, transactions and their end. No client library is imported; `docs/fencing.md` shows
the statements, for code that writes its own.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from inspect import isawaitable, iscoroutine
from typing import Any, Final, NamedTuple, NoReturn

from lockfast._text import encodable, shown
from lockfast._time import Seconds, length
from lockfast.errors import LockError, StaleFence
from lockfast.primitives.names import whole

__all__ = [
    "REDIS_WRITE",
    "UpdateStatement",
    "async_guarded_update",
    "async_redis_write",
    "guarded_update",
    "redis_write",
    "update_statement",
]

_Steps = Generator[Any, Any, None]  # yields what a client answered, awaited if it must be


# SQL: a table with a fence column

_MARKS: Final[dict[str, Callable[[int], str]]] = {  # by PEP 249's `paramstyle`: how parameter n is written
    "qmark": lambda n: "?",
    "format": lambda n: "%s",
    "pyformat": lambda n: "%s",
    "numeric": lambda n: f":{n}",
    "numeric_dollar": lambda n: f"${n}",
    "named": lambda n: f":p{n}",
}


class UpdateStatement(NamedTuple):
    """What to give to `execute`: `cursor.execute(*statement)`."""

    sql: str
    parameters: Any  # a tuple; for "named" a dict


def update_statement(
    table: str,
    values: Mapping[str, Any],
    *,
    key: Mapping[str, Any],
    fence: int,
    fence_column: str = "fence",
    paramstyle: str = "qmark",
) -> UpdateStatement:
    """UPDATE the row of that `key` with these `values` and this fence, unless it has seen a higher fence.

    No row is updated then. Names are quoted; a table may be "schema.table". `paramstyle` is that of the driver:
    "qmark", "format", "pyformat", "numeric" or "named" as in PEP 249, or "numeric_dollar" for $1, $2.
    """
    text = _StatementText(table, paramstyle)
    _must_be_columns(values, "values")
    seen = f"COALESCE({text.column(fence_column)}, 0) <= "
    if fence_column in values:
        raise ValueError(f"{shown(fence_column)} is written by the check itself; leave it out of the values")
    written = {**values, fence_column: whole(fence, "fence", 1)}
    sets = ", ".join(f"{text.name(column)} = {text.mark(value)}" for column, value in written.items())
    sql = f"UPDATE {text.table} SET {sets} WHERE {text.condition(key)} AND {seen}{text.mark(fence)}"
    return UpdateStatement(sql, text.parameters)


def guarded_update(
    connection: Any,
    table: str,
    values: Mapping[str, Any],
    *,
    key: Mapping[str, Any],
    fence: int,
    fence_column: str = "fence",
    paramstyle: str | None = None,
) -> None:
    """Write `values` to the one row of that `key`, unless the row has seen a higher fence.

    Raises StaleFence if it has, and LookupError if there is no such row; nothing is changed then. `connection` is a
    connection or cursor of sqlite3, psycopg or the like; the transaction is yours, and so is its commit. `paramstyle`
    is found out from the driver's module if it is not given.
    """
    _run(_update(connection, table, values, key, fence, fence_column, paramstyle))


async def async_guarded_update(
    connection: Any,
    table: str,
    values: Mapping[str, Any],
    *,
    key: Mapping[str, Any],
    fence: int,
    fence_column: str = "fence",
    paramstyle: str | None = None,
) -> None:
    """As `guarded_update`, for a connection or cursor whose `execute` is awaited: psycopg's async ones, aiosqlite."""
    await _run_awaiting(_update(connection, table, values, key, fence, fence_column, paramstyle))


def _update(
    connection: Any,
    table: str,
    values: Mapping[str, Any],
    key: Mapping[str, Any],
    fence: int,
    fence_column: str,
    paramstyle: str | None,
) -> _Steps:
    _must_have(connection, "execute", "a connection")
    style = paramstyle or _paramstyle_of(connection)
    update = update_statement(table, values, key=key, fence=fence, fence_column=fence_column, paramstyle=style)
    for _ in range(2):  # again if the row was inserted between the UPDATE and the SELECT
        cursor = _cursor((yield connection.execute(*update)), connection)
        if cursor.rowcount > 0:
            return
        select = _StatementText(table, style)
        sql = f"SELECT {select.column(fence_column)} FROM {select.table} WHERE {select.condition(key)}"
        cursor = _cursor((yield connection.execute(sql, select.parameters)), connection)
        row = yield cursor.fetchone()
        if row is None:
            raise LookupError(f"{shown(table)} has no row with {_shown_key(key)}; nothing was written")
        if row[0] is not None and row[0] > fence:
            _refuse(f"{shown(table)} with {_shown_key(key)}", table, fence, row[0])
    raise LockError(
        f"{shown(connection)} does not report how many rows it updated; it is not known whether {shown(table)} was"
    )


class _StatementText:
    """The pieces of one statement, in a driver's style, and its parameters as they come up."""

    def __init__(self, table: Any, paramstyle: Any) -> None:
        if not isinstance(paramstyle, str) or paramstyle not in _MARKS:
            raise ValueError(f"paramstyle must be one of {', '.join(_MARKS)}, not {shown(paramstyle)}")
        self._style = paramstyle
        self._values: list[Any] = []
        if not isinstance(table, str):
            raise ValueError(f"a table must be a string, not {shown(table)}")
        self.table = ".".join(self.name(part) for part in table.split("."))
        self._of = self.name(table.split(".")[-1])

    def name(self, identifier: str) -> str:
        """Quoted, so that it is a name and nothing else."""
        if not isinstance(identifier, str):
            raise ValueError(f"a name of a table or column must be a string, not {shown(identifier)}")
        if not identifier or "\0" in identifier or not encodable(identifier):
            raise ValueError(
                f"a name of a table or column must have characters, be encodable as UTF-8 and contain no NUL: "
                f"{shown(identifier)}"
            )
        quoted = '"' + identifier.replace('"', '""') + '"'
        return quoted.replace("%", "%%") if _MARKS[self._style](1).startswith("%") else quoted

    def column(self, identifier: str) -> str:
        """With its table: SQLite takes a quoted name that it does not know for a string otherwise."""
        return f"{self._of}.{self.name(identifier)}"

    def mark(self, value: Any) -> str:
        self._values.append(value)
        return _MARKS[self._style](len(self._values))

    def condition(self, key: Mapping[str, Any]) -> str:
        _must_be_columns(key, "key")
        if not key:
            raise ValueError("the key that identifies the row must not be empty")
        return " AND ".join(f"{self.column(column)} = {self.mark(value)}" for column, value in key.items())

    @property
    def parameters(self) -> Any:
        if self._style == "named":
            return {f"p{number}": value for number, value in enumerate(self._values, 1)}
        return tuple(self._values)


def _must_be_columns(columns: object, what: str) -> None:
    if not isinstance(columns, Mapping):
        raise ValueError(f"{what} must be a mapping from columns to values, not {shown(columns)}")


def _must_have(client: object, method: str, what: str) -> None:
    if not callable(getattr(client, method, None)):
        raise ValueError(f"{what} must have a method {method}(), which {shown(client)} has not")


def _paramstyle_of(connection: object) -> str:
    """As the module of its class, or of a base, says."""
    for kind in type(connection).__mro__:
        module = sys.modules.get(kind.__module__.partition(".")[0])
        style = getattr(module, "paramstyle", None)
        if isinstance(style, str):
            return style
    raise ValueError(f"{type(connection).__name__} does not say its paramstyle; pass it: {', '.join(_MARKS)}")


def _cursor(answer: Any, connection: Any) -> Any:
    """Some drivers answer `execute` with a cursor, others with nothing or a number."""
    return answer if hasattr(answer, "rowcount") else connection


def _shown_key(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{column}={shown(value)}" for column, value in key.items())


# Redis: a hash with a value and its fence

REDIS_WRITE: Final = """
local last = redis.call('HGET', KEYS[1], 'fence')
if last and tonumber(last) > tonumber(ARGV[2]) then
    return last
end
redis.call('HSET', KEYS[1], 'value', ARGV[1], 'fence', ARGV[2])
if ARGV[3] == '' then
    redis.call('PERSIST', KEYS[1])
else
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return false
"""
"""KEYS: the key. ARGV: value, fence, milliseconds to live or ''. Answers nothing, or the higher fence it has seen."""

_EXACT: Final = 2**53  # Lua counts in doubles


def redis_write(client: Any, key: str | bytes, value: Any, fence: int, *, ttl: Seconds | None = None) -> None:
    """Write `value` to the hash at `key`, unless that has seen a higher fence; its field `value` is what to read.

    Raises StaleFence if it has; nothing is changed then. Value and fence live in one key, so they expire together:
    `ttl` seconds after the last write, or never. `client` is a `redis.Redis` or anything with its `eval`.
    """
    _run(_write(client, key, value, fence, ttl))


async def async_redis_write(
    client: Any, key: str | bytes, value: Any, fence: int, *, ttl: Seconds | None = None
) -> None:
    """As `redis_write`, for a `redis.asyncio.Redis`."""
    await _run_awaiting(_write(client, key, value, fence, ttl))


def _write(client: Any, key: Any, value: Any, fence: int, ttl: Seconds | None) -> _Steps:
    _must_have(client, "eval", "a client of Redis")
    if not isinstance(key, str | bytes) or (isinstance(key, str) and not encodable(key)):
        raise ValueError(f"a key must be bytes, or a string that is encodable as UTF-8, not {shown(key)}")
    if whole(fence, "fence", 1) >= _EXACT:
        raise ValueError(f"a fence for Redis must be below 2**53, not {fence}")
    lives = "" if ttl is None else max(1, round(length(ttl, "ttl") * 1000))
    last = yield client.eval(REDIS_WRITE, 1, key, value, fence, lives)
    if last is not None:
        _refuse(f"key {shown(key)}", str(key), fence, int(last))


# Both


def _refuse(what: str, name: str, fence: int, last: int) -> NoReturn:
    text = f"{what} was written with fence {last}, so fence {fence} is out of date; nothing was changed"
    raise StaleFence(text, name=name, fence=fence, last=last)


def _run(steps: _Steps) -> None:
    try:
        answer = next(steps)
        while True:
            if isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise TypeError("this client is asynchronous; await the async_… function instead")
            answer = steps.send(answer)
    except StopIteration:
        return


async def _run_awaiting(steps: _Steps) -> None:
    try:
        answer = next(steps)
        while True:
            answer = steps.send(await answer if isinstance(answer, Awaitable) else answer)
    except StopIteration:
        return
