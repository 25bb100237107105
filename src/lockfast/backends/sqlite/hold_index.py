"""An index of the holds of a name that has many, all of them shared: by claim, by end, and how many there are.

Decides: which names have an index, and what it says. Leaves to `resource`: what a step reads and changes.

A step then reads its own hold and those that have expired, and not all of them. The holds themselves stay in `claims`,
so `inspect`, `list` and renewals are the same for all names. Names with few holds have no index: it would be read and
written for nothing.

A row of the kind `INDEXED` stands beside the holds. An earlier lockfast, which does not keep the index, takes it for
a hold that it cannot read, and grants nothing. It does renew and end its own holds: so an end in the index is the
least that the hold has, and the hold itself is looked at when it has come.
"""

from __future__ import annotations

from typing import Any, Final

from lockfast.backends.sqlite.io.driver import SqliteTransaction
from lockfast.backends.sqlite.schema import INDEXED

MAX_UNINDEXED = 32  # holds, which are read in the time that it takes to keep an index
MIN_INDEXED = 16  # with fewer it is dropped: not at 32, or a name about there would gain and lose it all the time

_OF_NAME: Final = f"WHERE key = ? AND waiting = {INDEXED}"
_OF_HOLD: Final = "WHERE key = ? AND claim = ? AND place = ?"
_DUE: Final = (
    "SELECT due.claim, due.place, hold.claim IS NOT NULL, {columns} FROM shared_holds AS due LEFT JOIN claims AS hold"
    " ON hold.key = due.key AND hold.waiting = 0 AND hold.place = due.place"
    " WHERE due.key = ? AND due.ends_at <= ? ORDER BY due.place"
)
_ENDS: Final = (
    "SELECT (SELECT min(ends_at) FROM shared_holds WHERE key = :key),"
    " (SELECT max(ends_at) FROM shared_holds WHERE key = :key)"
)
_ANY_HOLDER: Final = "SELECT holder FROM claims WHERE key = ? AND waiting = 0 AND typeof(holder) = 'text' LIMIT 1"


class HoldIndex:
    """That of one name, as one transaction sees it."""

    __slots__ = ("_t", "key", "number")

    def __init__(self, t: SqliteTransaction, key: str, number: int) -> None:
        self._t = t
        self.key = key
        self.number = number  # holds

    def add(self, claim: str, place: int, ends_at: float) -> None:
        self._t.execute("INSERT INTO shared_holds VALUES (?, ?, ?, ?)", (self.key, claim, place, ends_at))
        self._count(1)

    def remove(self, claim: str, place: int) -> None:
        if self._t.execute(f"DELETE FROM shared_holds {_OF_HOLD}", (self.key, claim, place)).rowcount:
            self._count(-1)

    def _count(self, more: int) -> None:
        self.number += more
        self._t.execute(f"UPDATE claims SET counter = ? {_OF_NAME}", (self.number, self.key))

    def end_at(self, claim: str, place: int, ends_at: float) -> None:
        self._t.execute(f"UPDATE shared_holds SET ends_at = ? {_OF_HOLD}", (ends_at, self.key, claim, place))

    def due(self, columns: str) -> list[tuple[Any, ...]]:
        """Claim and place of each that may have expired, whether it is there, and the columns of its row."""
        return self._t.execute(_DUE.format(columns=columns), (self.key, self._t.now)).fetchall()

    def ends(self) -> tuple[float, float]:
        """When the first and the last of them expire."""
        first, last = self._t.execute(_ENDS, {"key": self.key}).fetchone()
        return first, last

    def any_holder(self) -> str | None:
        """A holder id, for the error message."""
        found = self._t.execute(_ANY_HOLDER, (self.key,)).fetchone()
        return found[0] if found else None


def make_index(t: SqliteTransaction, key: str) -> HoldIndex:
    """From its holds, all of which were found to be shared and readable."""
    drop_index(t, key)
    made = "INSERT INTO shared_holds SELECT key, claim, place, ends_at FROM claims WHERE key = ? AND waiting = 0"
    index = HoldIndex(t, key, t.execute(made, (key,)).rowcount)
    t.execute(
        "INSERT INTO claims (key, waiting, place, claim, holder, mode, ttl, ends_at, counter)"
        f" VALUES (?, {INDEXED}, 0, '', '', '', 0, 9e999, ?)",
        (key, index.number),
    )
    return index


def drop_index(t: SqliteTransaction, key: str) -> None:
    """Its holds are read one by one from now on."""
    t.execute(f"DELETE FROM claims {_OF_NAME}", (key,))
    t.execute("DELETE FROM shared_holds WHERE key = ?", (key,))


def prolong(t: SqliteTransaction, key: str, claim: str, place: int, ends_at: float) -> None:
    """In the index of that name, if it has one."""
    t.execute(f"UPDATE shared_holds SET ends_at = max(ends_at, ?) {_OF_HOLD}", (ends_at, key, claim, place))
