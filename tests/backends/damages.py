"""Records that a peer, a program or a disk has spoilt: how they are damaged by hand, for each store.

Decides: the tables of damages, and how a claim is asked for without checks.
Leaves to `test_damages`: what must still be true then.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

import lockfast
from lockfast._model import Claim, Terms
from lockfast._reentry import drive
from tests.scale import by_scale
from tests.servers import shared
from tests.servers.quorum import quorum
from tests.servers.server import HOST

Damage = Callable[[Any, str], object]  # of a store's record of that name
Table = dict[str, dict[str, Damage]]  # by backend and by what is done

RANDOM = random.Random(7).randbytes(64)
HUGE = by_scale(300_000, soak=8_000_000)  # characters
DEEP = "[" * 3000 + "]" * 3000
FAR_VERSIONS = (2**53 - 1, 2**53 - 2, 2**52 + 1)  # that can be read, though no cell was counted on to there
METADATA = {
    "deep": DEEP,
    "a little too deep": "[" * 60 + "]" * 60,
    "huge": f'"{"x" * HUGE}"',
    "no JSON": "{zeros",
    "no number": "[NaN, 1e999]",
    "too many digits": "9" * 5000,
}


class RedisStore:
    """The keys of a name on one server."""

    def __init__(self, folder: Path, server: Callable[[], shared.Shared] = shared.valkey) -> None:
        self.url = server().url(folder)
        self.client: Any = redis.Redis(HOST, server().server.port, server().database(folder), protocol=2)

    def change(self, name: str, kind: str, change: Callable[[bytes], bytes]) -> None:
        key = f"lockfast:{{{name}}}:{kind}"
        self.client.set(key, change(self.client.get(key)))

    def retype(self, name: str, kind: str) -> None:
        """Put a list there, which none of our records is."""
        key = f"lockfast:{{{name}}}:{kind}"
        with self.client.pipeline(transaction=True) as both:  # a waiter that asks in between would write it anew
            both.delete(key)
            both.rpush(key, "a", "b")
            both.execute()

    def fields(self, name: str, kind: str, change: Callable[[bytes], bytes]) -> None:
        """Change all fields of a hash."""
        key = f"lockfast:{{{name}}}:{kind}"
        self.client.hset(key, mapping={field: change(value) for field, value in self.client.hgetall(key).items()})

    def cell(self, name: str, field: str, value: Any) -> None:
        self.client.hset(f"lockfast:{{{name}}}:cell", field, value)

    def metadata(self, name: str, text: str) -> None:
        self.change(name, "held", lambda held: held.rpartition(b" ")[0] + b" " + text.encode())

    def content(self) -> object:
        return {key: self.client.dump(key) for key in self.client.keys("lockfast:{*")}

    def close(self) -> None:
        self.client.close()


class SqliteStore:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "locks.db"
        self.url = f"sqlite:///{self._file}"

    def execute(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self._file)) as db, db:
            assert db.execute(statement, values).rowcount, "nothing was damaged"

    def metadata(self, name: str, text: str) -> None:
        self.execute("UPDATE claims SET metadata = ? WHERE key = ? AND waiting = 0", text, name)

    def content(self) -> object:
        with closing(sqlite3.connect(self._file)) as db:
            return db.execute("SELECT * FROM claims ORDER BY key, waiting, place").fetchall()

    def close(self) -> None:
        """It is open only while it damages."""


def ask(locks: lockfast.Locks, id: str, holder: str, metadata: str, *, enqueue: bool) -> object:
    """As a client does that checks nothing."""
    claim = Claim(id, Terms("x", "x", holder, 60.0, metadata=metadata))
    return drive(locks._logic.engine.backend.acquire(claim, enqueue=enqueue, within=30.0))


def count_on(locks: lockfast.Locks, before: int) -> None:
    """Cell x, whose last sound version was `before`, and a new one can be used: no version of either comes twice."""
    seen = {"x": {before}, "y": {0}}
    for name in "xyxy":
        cell = locks.cell(name)
        for value in range(3):
            version = cell.write(value)
            assert version not in seen[name]
            seen[name].add(version)
            assert cell.read() == (value, version)
        cell.delete()


def _held(change: Callable[[bytes], bytes]) -> Damage:
    return lambda store, name: store.change(name, "held", change)


def _waiter(change: Callable[[bytes], bytes]) -> Damage:
    return lambda store, name: store.fields(name, "waiters", change)


def _row(table: str, column: str, value: str, waiting: int | None = None) -> Damage:
    kind = "" if waiting is None else f" AND waiting = {waiting}"
    return lambda store, name: store.execute(f"UPDATE {table} SET {column} = {value} WHERE key = ?{kind}", name)


def _hash(field: str, value: Any) -> Damage:
    return lambda store, name: store.cell(name, field, value)


def _metadata(text: str) -> Damage:
    return lambda store, name: store.metadata(name, text)


def _hold(column: str, value: str) -> Damage:
    return _row("claims", column, value, waiting=0)


# What hides who holds.
HOLDS: Table = {
    "redis": {
        "zeros": _held(lambda held: b"\0" * len(held)),
        "noughts": _held(lambda held: b"0" * len(held)),
        "nothing": _held(lambda held: b""),
        "random bytes": _held(lambda held: RANDOM),
        "deep JSON": _held(lambda held: DEEP.encode()),
        "another type": lambda store, name: store.retype(name, "held"),
        "cut short": _held(lambda held: held[:40]),
        "a fence of noughts and nines": _held(lambda held: b"9" * 16 + held[16:]),
        "free, with a fence that is none": _held(lambda held: b"garbage garbage.-"),
        "free, with a fence that is too high": _held(lambda held: b"9" * 16 + b"-"),
        "another mode": _held(lambda held: held.replace(b" x ", b" q ")),
        "a ttl of ages": _held(lambda held: held.replace(b" 60000000 ", b" 9" + b"0" * 15 + b" ")),
        "a ttl of more than that": _held(lambda held: held.replace(b" 60000000 ", b" 9" + b"0" * 400 + b" ")),
        "a line more": _held(lambda held: held + b"\n" + RANDOM.replace(b"\n", b"")),
        "its line twice": _held(lambda held: held + b"\n" + held[17:]),
    },
    "sqlite": {
        "an end of zeros": _hold("ends_at", "zeroblob(8)"),
        "an end in words": _hold("ends_at", "'tomorrow'"),
        "an end of ages": _hold("ends_at", "9e300"),
        "no end": _hold("ends_at", "9e999"),
        "another mode": _hold("mode", "'both'"),
        "a mode of zeros": _hold("mode", "zeroblob(9)"),
        "a holder of zeros": _hold("holder", "zeroblob(40)"),
        "a mode that is no text": _hold("mode", "CAST(x'fffe' AS TEXT)"),
        "another kind": _hold("waiting", "7"),
        "a kind between two": _hold("waiting", "1.5"),
        "a kind in words": _hold("waiting", "'holds'"),
        "a fence in words": _hold("place", "'first'"),
        "a begin in words": _hold("acquired_at", "'yesterday'"),
    },
}

# Where it can still be read who holds.
SHOWN: Table = {backend: {what: _metadata(text) for what, text in METADATA.items()} for backend in ("redis", "sqlite")}
SHOWN["sqlite"]["zeros"] = _hold("metadata", "zeroblob(40)")
SHOWN["sqlite"]["a holder that is huge"] = _hold("holder", f"printf('%.*c', {HUGE}, 'h')")
SHOWN["redis"]["a holder that is huge"] = _held(lambda held: held.replace(b" 0 ", b" 0 " + b"h" * HUGE, 1))

# Records of waiters and observers.
WAITERS: Table = {
    "redis": {
        "queue of another type": lambda store, name: store.retype(name, "queue"),
        "waiters of another type": lambda store, name: store.retype(name, "waiters"),
        "waiters that lapsed of another type": lambda store, name: store.retype(name, "lapsed"),
        "random bytes": _waiter(lambda waiter: RANDOM),
        "a presence of ages": _waiter(lambda waiter: b"9" * 16 + waiter[waiter.index(b" ") :]),
        "a place beyond all numbers": _waiter(lambda waiter: waiter.replace(waiter.split()[1], b"9" * 16)),
        "a place of more digits than numbers have": _waiter(lambda waiter: waiter.replace(b" ", b" " + b"0" * 300, 1)),
    },
    "sqlite": {
        f"{column} {value}": _row("claims", column, value, waiting=1)
        for column, value in (
            ("ends_at", "'tomorrow'"),
            ("mode", "'both'"),
            ("holder", "zeroblob(9)"),
            ("address", "zeroblob(9)"),
            ("reserved_until", "'soon'"),
        )
    },
}
CHANGES: Table = {
    "redis": {
        "another type": lambda store, name: store.retype(name, "changes"),
        "random bytes": lambda store, name: store.client.zadd(f"lockfast:{{{name}}}:changes", {RANDOM: 2**52}),
        "observers of another type": lambda store, name: store.retype(name, "observers"),
    },
    "sqlite": {
        f"{column} {value}": _row("changes", column, value)
        for column, value in (("number", "'next'"), ("fence", "zeroblob(9)"), ("holder", "zeroblob(9)"))
    },
}
LIMITERS: Table = {
    "redis": {
        "zeros": lambda store, name: store.change(name, "limit", lambda it: b"\0" * len(it)),
        "random bytes": lambda store, name: store.change(name, "limit", lambda it: RANDOM),
        "ages": lambda store, name: store.change(name, "limit", lambda it: b"9" * 300 + b" 0"),
        "another type": lambda store, name: store.retype(name, "limit"),
    },
    "sqlite": {
        value: _row("limiters", "until", value)
        for value in ("'later'", "zeroblob(8)", "9e300", "9223372036854775807", "1.5")
    },
}
CELLS: Table = {
    "redis": {
        "another type": lambda store, name: store.retype(name, "cell"),
        "version in words": _hash("n", "two"),
        "version of zeros": _hash("n", b"\0" * 8),
        "version without end": _hash("n", "9" * 400),
        "version beyond what can be counted on": _hash("n", str(2**53)),
        "version below zero": _hash("n", "-5"),
        "fence in words": _hash("f", "two"),
        "no value": lambda store, name: store.client.hdel(f"lockfast:{{{name}}}:cell", "v"),
        "no writer": lambda store, name: store.client.hdel(f"lockfast:{{{name}}}:cell", "w"),
        "deleted, with a version in words": lambda store, name: (
            store.client.delete(f"lockfast:{{{name}}}:cell"),
            store.cell(name, "n", "two"),
        ),
    },
    "sqlite": {
        f"{column} {value}": _row("cells", column, value)
        for column, value in (
            ("version", "'two'"),
            ("version", "zeroblob(8)"),
            ("version", "9e300"),
            ("version", "9223372036854775807"),
            ("version", "1 << 53"),
            ("version", "-5"),
            ("fence", "'two'"),
            ("writer", "zeroblob(8)"),
        )
    },
}
FAR: Table = {
    "redis": {str(version): _hash("n", str(version)) for version in FAR_VERSIONS},
    "sqlite": {str(version): _row("cells", "version", str(version)) for version in FAR_VERSIONS},
}
VALUES: Table = {
    "redis": {
        "deep": _hash("v", DEEP),
        "no JSON": _hash("v", "{zeros"),
        "no text": _hash("v", b"\xff\xfe"),
    },
    "sqlite": {
        "deep": lambda store, name: store.execute("UPDATE cells SET value = ? WHERE key = ?", DEEP, name),
        "no JSON": lambda store, name: store.execute("UPDATE cells SET value = '{zeros' WHERE key = ?", name),
        "no text": lambda store, name: store.execute("UPDATE cells SET value = x'fffe' WHERE key = ?", name),
        "text that is none": lambda store, name: store.execute(
            "UPDATE cells SET value = CAST(x'fffe' AS TEXT) WHERE key = ?", name
        ),
    },
}

STORES: dict[str, Callable[[Path], Any]] = {"redis": RedisStore, "sqlite": SqliteStore}


class QuorumStore(RedisStore):
    """The keys of a name on the first of three servers."""

    def __init__(self, folder: Path) -> None:
        self.url = quorum(3).url(folder)
        server = shared.node(0).server
        database = int(self.url.rpartition("/")[2].partition("?")[0])
        self.client = redis.Redis(HOST, server.port, database, protocol=2)
