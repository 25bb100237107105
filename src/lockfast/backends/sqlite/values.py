"""Limiters and cells in SQLite, each step one short transaction.

Decides: how they are kept, and that an unused limiter is deleted.
Leaves to `_values`: whether a permit is given, and whether a write goes through.
"""

from __future__ import annotations

from lockfast._time import first_fence
from lockfast._values import (
    EMPTY_CELL,
    NS_PER_S,
    Booked,
    Rate,
    Stored,
    Write,
    Written,
    apply_write,
    as_stored,
    book_permits,
    can_be_booked,
    check_write,
    last_version,
    used_up,
)
from lockfast.backends.sqlite.io.driver import SqliteTransaction
from lockfast.backends.sqlite.schema import check_boot


def throttle(t: SqliteTransaction, key: str, rate: Rate, cost: int, patience: float) -> Booked:
    check_boot(t)
    (until,) = t.execute("SELECT until FROM limiters WHERE key = ?", (key,)).fetchone() or (0,)
    if not can_be_booked(until, t.now):
        until = used_up(t.now, rate)
        t.execute("INSERT OR REPLACE INTO limiters VALUES (?, ?)", (key, until))
    booked = book_permits(until, t.now, rate, cost, patience)
    if booked.allowance.allowed:
        _delete_some_unused(t)
        t.execute("INSERT OR REPLACE INTO limiters VALUES (?, ?)", (key, booked.until))
    return booked


def _delete_some_unused(t: SqliteTransaction) -> None:
    """A limiter that is booked up to a past moment equals a new one. Two are deleted for each that may be added."""
    at_rest = "SELECT key FROM limiters WHERE until <= ? ORDER BY until LIMIT 2"
    t.execute(f"DELETE FROM limiters WHERE key IN ({at_rest})", (int(t.now * NS_PER_S),))


def unthrottle(t: SqliteTransaction, key: str, rate: Rate, cost: int, until: int) -> None:
    check_boot(t)
    back = "UPDATE limiters SET until = ? WHERE key = ? AND until = ?"
    t.execute(back, (until - rate.interval * cost, key, until))


def read(t: SqliteTransaction, key: str) -> Stored:
    row = t.execute("SELECT value, version, fence, writer FROM cells WHERE key = ?", (key,)).fetchone()
    return as_stored(*row) if row else EMPTY_CELL


def write(t: SqliteTransaction, key: str, write: Write) -> Written:
    stored = read(t, key)
    outcome = check_write(stored, write)
    if outcome is not None:
        return outcome
    last = last_version(stored, first_fence())
    written = apply_write(stored, write, last or _last_deleted(t))
    if write.value is None:
        _delete(t, key, last)
    else:
        t.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?)", (key, *written[:4]))
    return Written("written", written.version, written.fence)


def _delete(t: SqliteTransaction, key: str, version: int) -> None:
    """Later versions go on above that one, so that no reader takes them for the version that it has read."""
    t.execute("DELETE FROM cells WHERE key = ?", (key,))
    if version > _last_deleted(t):
        t.execute("INSERT OR REPLACE INTO cells VALUES ('', NULL, ?, 0, '')", (version,))


def _last_deleted(t: SqliteTransaction) -> int:
    """The highest version that was ever deleted."""
    return last_version(read(t, ""), first_fence())
