"""A name in SQLite as one transaction sees it: who is in, who is in line, and who watches.

Decides: how time ends things, who is next when there is room, and what observers are told.
Leaves to `sqlite`: the verbs. Leaves to `_model`: who fits and who is next in line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast._model import GRACE, KEPT_CHANGES, Mode, Occupancy, next_in_line
from holdfast.backends.sqlite_store import count, count_on
from holdfast.drivers.sqlite import Transaction, Wake

OF_HOLDER: Final = "WHERE key = ? AND waiting = 0 AND place = ?"
OF_WAITER: Final = "WHERE key = ? AND waiting = 1 AND place = ?"


class Row(NamedTuple):
    """Somebody who takes room, a holder or a waiter that the resource is reserved for; or an observer."""

    waiting: int
    place: int
    claim: str
    holder: str
    mode: Mode
    acquired_at: float
    ends_at: float
    ended: int
    reserved_until: float | None
    address: str

    @property
    def until(self) -> float:
        """When time takes its room away."""
        return self.ends_at if self.reserved_until is None else self.reserved_until


_COLUMNS: Final = "waiting, place, claim, holder, mode, acquired_at, ends_at, ended, reserved_until, address"
_ROWS: Final = (
    f"SELECT {_COLUMNS} FROM claims WHERE key = ? AND waiting IN (0, 2)"
    f" UNION ALL SELECT {_COLUMNS} FROM claims WHERE key = ? AND reserved_until IS NOT NULL"
)


class Scene:
    """A name as one transaction sees it, read in one statement; who only waits is not in it."""

    __slots__ = ("_t", "inside", "key", "observers")

    def __init__(self, t: Transaction, key: str) -> None:
        self._t = t
        self.key = key
        rows = [Row._make(row) for row in t.execute(_ROWS, (key, key))]
        self.inside = [row for row in rows if row.waiting != 2]  # holders first, in order of their fences
        self.observers = [row for row in rows if row.waiting == 2]

    def settle(self) -> None:
        """Forget what time has ended, and hand over the room that it took."""
        over = [row for row in self.inside if row.until <= self._t.now]
        for row in over:
            if row.waiting:
                self.inside.remove(row)
                lapse = (
                    "UPDATE claims SET reserved_until = NULL, lapsed = 1 WHERE key = ? AND waiting = 1 AND place = ?"
                )
                self._t.execute(lapse, (self.key, row.place))
            else:
                self.end(row)
        if over:
            self.hand_over()

    def find(self, claim: str) -> Row | None:
        """The claim's hold, or what is reserved for it."""
        return next((row for row in self.inside if row.claim == claim and not row.ended), None)

    def hold(self, claim: str) -> Row | None:
        row = self.find(claim)
        return None if row is None or row.waiting else row

    def occupancy(self) -> Occupancy:
        taken, now = Occupancy(), self._t.now
        for row in self.inside:
            if row.until > now and row.ends_at > now:
                taken.add(row.mode)
        return taken

    def end(self, row: Row) -> None:
        """That one holds no longer."""
        self.inside.remove(row)
        self._t.execute(f"DELETE FROM claims {OF_HOLDER}", (self.key, row.place))
        self.tell(row.place, None)

    def count(self, last: int, wall: float) -> int:
        """The next fence or place; `last` is the counter as read when the transaction began."""
        return count_on(self._t) if self.observers else count(self._t, last, wall)  # telling them has counted too

    def hand_over(self, heir: str = "") -> None:
        """Whoever it is reserved for takes room from now on, also in the eyes of this transaction."""
        until = self._t.now + GRACE
        for waiter in hand_over(self._t, self.key, self.occupancy(), heir):
            facts = (waiter.place, waiter.claim, waiter.holder, waiter.mode)
            self.inside.append(Row(1, *facts, 0.0, waiter.ends_at, 0, until, waiter.address))

    def tell(self, fence: int, holder: str | None) -> None:
        """Keep a change for the observers, and wake them."""
        if self.observers:
            t, key = self._t, self.key
            t.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (key, count_on(t), fence, holder))
            oldest = "SELECT number FROM changes WHERE key = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
            t.execute(f"DELETE FROM changes WHERE key = ? AND number <= ({oldest})", (key, key, KEPT_CHANGES))
            t.wakes += [Wake(row.address, key, row.claim) for row in self.observers if row.ends_at > t.now]


def hand_over(t: Transaction, key: str, inside: Occupancy, heir: str = "") -> list[Waiter]:
    """Reserve for whoever is next beside those inside, and wake them and nobody else; the answer is who that is."""
    chosen = next_in_line(line(t, key), inside, heir)
    for waiter in chosen:
        t.execute(f"UPDATE claims SET reserved_until = ? {OF_WAITER}", (t.now + GRACE, key, waiter.place))
        t.wakes.append(Wake(waiter.address, key, waiter.claim))
    return chosen


class Waiter(NamedTuple):
    place: int
    claim: str
    holder: str
    mode: Mode
    limit: int | None
    reserved_until: float | None
    lapsed: int
    address: str
    ends_at: float

    @property
    def reserved(self) -> bool:
        return self.reserved_until is not None


def line(t: Transaction, key: str) -> Iterator[Waiter]:
    """The live waiters in order, read as far as the caller goes."""
    rows = t.execute(
        "SELECT place, claim, holder, mode, nullif(lim, 0), reserved_until, lapsed, address, ends_at FROM claims"
        " WHERE key = ? AND waiting = 1 AND ends_at > ? ORDER BY place",
        (key, t.now),
    )
    return map(Waiter._make, rows)
