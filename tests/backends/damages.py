"""Records that a peer, a program or a disk has spoilt: how they are damaged by hand, for each store.

Decides: the tables of damages. Leaves to `test_damages`: what must still be true then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

Damage = Callable[[Any, str], object]  # of a store's record of that name
Table = dict[str, dict[str, Damage]]  # by backend and by what is done

DEEP = "[" * 3000 + "]" * 3000
METADATA = {
    "deep": DEEP,
    "a little too deep": "[" * 60 + "]" * 60,
    "huge": f'"{"x" * 1_000_000}"',
    "no JSON": "{zeros",
    "no number": "[NaN, 1e999]",
    "too many digits": "9" * 5000,
}


class SqliteStore:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "locks.db"
        self.url = f"sqlite:///{self._file}"

    def execute(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self._file)) as db, db:
            assert db.execute(statement, values).rowcount, "nothing was damaged"

    def metadata(self, name: str, text: str) -> None:
        self.execute("UPDATE claims SET metadata = ? WHERE key = ? AND waiting = 0", text, name)

    def close(self) -> None:
        """It is open only while it damages."""


def _row(table: str, column: str, value: str, waiting: int | None = None) -> Damage:
    kind = "" if waiting is None else f" AND waiting = {waiting}"
    return lambda store, name: store.execute(f"UPDATE {table} SET {column} = {value} WHERE key = ?{kind}", name)


def _metadata(text: str) -> Damage:
    return lambda store, name: store.metadata(name, text)


def _hold(column: str, value: str) -> Damage:
    return _row("claims", column, value, waiting=0)


# What hides who holds.
HOLDS: Table = {
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
        "a kind in words": _hold("waiting", "'holds'"),
        "a fence in words": _hold("place", "'first'"),
        "a begin in words": _hold("acquired_at", "'yesterday'"),
    },
}

# Where it can still be read who holds.
SHOWN: Table = {backend: {what: _metadata(text) for what, text in METADATA.items()} for backend in ("sqlite",)}
SHOWN["sqlite"]["zeros"] = _hold("metadata", "zeroblob(40)")
SHOWN["sqlite"]["a holder that is huge"] = _hold("holder", "printf('%.*c', 8000000, 'h')")

# What is kept of those who wait, and of those who watch.
WAITERS: Table = {
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
    "sqlite": {
        f"{column} {value}": _row("changes", column, value)
        for column, value in (("number", "'next'"), ("fence", "zeroblob(9)"), ("holder", "zeroblob(9)"))
    },
}
LIMITERS: Table = {
    "sqlite": {
        value: _row("limiters", "until", value)
        for value in ("'later'", "zeroblob(8)", "9e300", "9223372036854775807", "1.5")
    },
}
CELLS: Table = {
    "sqlite": {
        f"{column} {value}": _row("cells", column, value)
        for column, value in (
            ("version", "'two'"),
            ("version", "zeroblob(8)"),
            ("version", "9e300"),
            ("fence", "'two'"),
            ("writer", "zeroblob(8)"),
        )
    },
}
VALUES: Table = {
    "sqlite": {
        "deep": lambda store, name: store.execute("UPDATE cells SET value = ? WHERE key = ?", DEEP, name),
        "no JSON": lambda store, name: store.execute("UPDATE cells SET value = '{zeros' WHERE key = ?", name),
        "no text": lambda store, name: store.execute("UPDATE cells SET value = x'fffe' WHERE key = ?", name),
        "text that is none": lambda store, name: store.execute(
            "UPDATE cells SET value = CAST(x'fffe' AS TEXT) WHERE key = ?", name
        ),
    },
}

STORES: dict[str, Callable[[Path], Any]] = {"sqlite": SqliteStore}
