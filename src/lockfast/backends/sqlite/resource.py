"""A name in SQLite as one transaction sees it: its holders, its reservations and its observers.

Decides: what expires, what is recorded for observers, and which rows are damaged.
Leaves to `backend`: the verbs. Leaves to `queue`: the waiters, and how a hand-over serves them.

A column of SQLite takes a value of any type, and every text sorts after all numbers. Beside a damaged hold no claim is
granted. A damaged waiter or observer is ignored: it asks again. Where a name has an index (`hold_index`), a damaged
hold takes its room until its end, and only the steps that read it refuse.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from math import inf
from typing import Any, Final, NamedTuple

from lockfast._model import EXCLUSIVE, GRACE_S, MAX_KEPT_CHANGES, MAX_TTL_S, SHARED, Grant, Mode, Occupancy
from lockfast._records import NO_HOLD, damaged_lock, is_count
from lockfast.backends.sqlite.hold_index import MAX_UNINDEXED, MIN_INDEXED, HoldIndex, drop_index, make_index
from lockfast.backends.sqlite.io.driver import SqliteTransaction, WakeUp
from lockfast.backends.sqlite.queue import MAX_SOUND_PRESENCE_S, SOUND_WAITER, hand_over, pass_over
from lockfast.backends.sqlite.schema import HOLDS, INDEXED, count

OF_HOLDER: Final = "WHERE key = ? AND waiting = 0 AND place = ?"


class ClaimRow(NamedTuple):
    """A holder, a waiter with a reservation, or an observer."""

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
        """When its hold or its reservation expires."""
        return self.ends_at if self.reserved_until is None else self.reserved_until

    def is_sound(self, now: float) -> bool:
        """Whether every value is one that lockfast writes."""
        return (
            self.waiting in (0, 1, 2)
            and is_count(self.place)
            and self.mode in (EXCLUSIVE, SHARED)
            and self.ended in (0, 1)
            and self.claim.__class__ is self.holder.__class__ is self.address.__class__ is str
            and self.acquired_at.__class__ is self.ends_at.__class__ is self.until.__class__ is float
            and self.ends_at <= now + (MAX_SOUND_PRESENCE_S if self.waiting else MAX_TTL_S)
        )


_COLUMNS: Final = "waiting, place, claim, holder, mode, acquired_at, ends_at, ended, reserved_until, address"
_BESIDE_HOLDS: Final = (
    f" UNION ALL SELECT {_COLUMNS} FROM claims WHERE key = ? AND waiting > 1 AND waiting != {INDEXED}"
    # Named, or SQLite takes the primary key, and visits every waiter.
    f" UNION ALL SELECT {_COLUMNS} FROM claims INDEXED BY reservations WHERE key = ? AND reserved_until IS NOT NULL"
)
_ROWS: Final = (  # the first arm has the number of holds as its place, if the name has an index
    f"SELECT {_COLUMNS.replace('place', 'counter')} FROM claims WHERE key = ? AND waiting = {INDEXED}"
    f" UNION ALL SELECT {_COLUMNS} FROM claims WHERE key = ? AND waiting < 1{_BESIDE_HOLDS}"
)
_OWN_ROWS: Final = (
    f"SELECT {_COLUMNS} FROM claims WHERE key = ? AND waiting = 0"
    f" AND place IN (SELECT place FROM shared_holds WHERE key = ? AND claim = ?){_BESIDE_HOLDS}"
)
_HOLD_COLUMNS: Final = ", ".join(f"hold.{column}" for column in _COLUMNS.split(", "))


class SqliteResource:
    """A name as one transaction sees it, read in one statement; waiters without a reservation are not read.

    If it has an index of its holds, only those of the claim that asks are read, in a second statement.
    """

    __slots__ = ("_claim", "_t", "damaged", "index", "inside", "key", "observers")

    def __init__(self, t: SqliteTransaction, key: str, claim: str = "", *, whole: bool = False) -> None:
        """`claim` is the id of that which asks. With `whole` every hold is read."""
        self._t = t
        self._claim = claim
        self.key = key
        if whole:
            drop_index(t, key)
        self._read()
        if not whole and self.index is None and len(self.inside) > MAX_UNINDEXED:
            self._make_index()

    def _read(self) -> None:
        self.inside: list[ClaimRow] = []  # holders and reservations; holders first, in order of their fences
        self.observers: list[ClaimRow] = []
        self.damaged: list[ClaimRow] = []  # holds that cannot be read
        self.index: HoldIndex | None = None
        key = self.key
        number = self._sort(self._t.execute(_ROWS, (key, key, key, key)))
        if number is not None:
            self.index = HoldIndex(self._t, key, number)
            self._sort(self._t.execute(_OWN_ROWS, (key, key, self._claim, key, key)))
            if self.damaged or number < 0:
                self._drop_index()

    def _sort(self, rows: Iterable[Any]) -> int | None:
        """What each row is; or, if the name has an index, the number of its holds, and then no further row is read."""
        now = self._t.now
        for row in map(ClaimRow._make, rows):
            if row.is_sound(now):
                (self.observers if row.waiting == 2 else self.inside).append(row)
            elif row.waiting == INDEXED:
                return row.place if is_count(row.place) else -1
            elif row.waiting not in (1, 2):
                self.damaged.append(row)
        return None

    def _make_index(self) -> None:
        """If it has many holds, all of them shared and readable."""
        holds = [row.mode for row in self.inside if not row.waiting]
        if len(holds) > MAX_UNINDEXED and EXCLUSIVE not in holds and not self.damaged:
            self.index = make_index(self._t, self.key)

    def _drop_index(self) -> None:
        drop_index(self._t, self.key)
        self._read()

    def settle(self, asking: str = "") -> None:
        """End what has expired, and hand over the room that it took. The claim `asking` asks at this moment."""
        if self.expire():
            self.hand_over(asking=asking)

    def expire(self) -> bool:
        """End what has expired; True if that may have made room.

        A step that is to end a claim itself does so before it hands over: else it might end what it has just granted.
        """
        made_room = self.index is not None and self._expire_indexed(self.index)
        over = [row for row in self._read_rows() if row.until <= self._t.now]
        for row in over:
            if row.waiting:
                self.inside.remove(row)
                pass_over(self._t, self.key, row.place)
            else:
                self.end(row)
        lapsed = [row for row in self.damaged if row.ends_at.__class__ is float and row.ends_at <= self._t.now]
        if lapsed:  # a damaged hold expires too, if its end can be read
            self.damaged = [row for row in self.damaged if row not in lapsed]
            ended = f"DELETE FROM claims WHERE key = ? AND {HOLDS} AND typeof(ends_at) = 'real' AND ends_at <= ?"
            self._t.execute(ended, (self.key, self._t.now))
            self.record_change(0, None)
        return bool(made_room or over or lapsed)

    def _expire_indexed(self, index: HoldIndex) -> bool:
        """The same for holds that only the index has."""
        due = index.due(_HOLD_COLUMNS)
        for claim, place, there, *columns in due:
            if self.index is None:  # it has just been dropped: the others have been read by that
                break
            row = ClaimRow._make(columns)
            if not there:
                self._forget(claim, place)
            elif row.claim != claim or not row.is_sound(self._t.now):
                self._drop_index()
            elif row.ends_at > self._t.now:
                index.end_at(claim, place, row.ends_at)
            else:
                self.end(row)
        return bool(due)

    def _forget(self, claim: str, place: int) -> None:
        """That hold has ended: remove it from the index, if there is one."""
        if self.index is not None:
            self.index.remove(claim, place)
            if self.index.number < MIN_INDEXED:
                self._drop_index()

    def _read_rows(self) -> list[ClaimRow]:
        """What is `inside` and not in the index."""
        return self.inside if self.index is None else [row for row in self.inside if row.waiting]

    def must_be_readable(self, name: str) -> None:
        """Raises BackendUnavailable if a hold cannot be read."""
        if self.damaged:
            raise damaged_lock(name, "the lock store", NO_HOLD)

    def find(self, claim: str) -> ClaimRow | None:
        """The claim's hold or reservation."""
        return next((row for row in self.inside if row.claim == claim and not row.ended), None)

    def hold(self, claim: str) -> ClaimRow | None:
        row = self.find(claim)
        return None if row is None or row.waiting else row

    def occupancy(self) -> Occupancy:
        taken, now = Occupancy(), self._t.now
        for row in self._read_rows():
            if row.until > now and row.ends_at > now:
                taken.add(row.mode)
        for _ in self.damaged:
            taken.add(EXCLUSIVE)
        if self.index is not None:
            taken.shared += self.index.number
        return taken

    def any_holder(self) -> str | None:
        """A holder id, for the error message."""
        found = next((row.holder for row in self.inside if not row.waiting), None)
        return found if found is not None or self.index is None else self.index.any_holder()

    def room_at(self, mode: Mode) -> float:
        """When time may make room for a claim of that mode, unless holders renew."""
        ends = [row.until for row in self._read_rows()]
        if self.index is not None:
            ends += self.index.ends()
        return max(ends, default=inf) if mode == EXCLUSIVE else min(ends, default=inf)

    def next_end(self) -> float:
        """When the first hold expires, unless its holder renews it."""
        if self.index is not None:
            return self.index.ends()[0]
        return min((row.ends_at for row in self.inside if not row.waiting), default=inf)

    def began(self, claim: str, grant: Grant, holder: str, ends_at: float) -> None:
        """The claim holds by that grant."""
        if self.index is not None:
            self.index.add(claim, grant.fence, ends_at)
        self.record_change(grant.fence, holder)

    def prolonged(self, row: ClaimRow, ends_at: float) -> None:
        """A hold expires at another time."""
        if self.index is not None:
            self.index.end_at(row.claim, row.place, ends_at)

    def end(self, row: ClaimRow) -> None:
        """End a hold."""
        if row in self.inside:
            self.inside.remove(row)
        self._t.execute(f"DELETE FROM claims {OF_HOLDER}", (self.key, row.place))
        self.record_change(row.place, None)
        self._forget(row.claim, row.place)

    def hand_over(self, successor: str = "", asking: str = "") -> None:
        """As the function; those that were served take room in this transaction, too."""
        now = self._t.now
        for waiter, grant in hand_over(self._t, self.key, self.occupancy(), successor, asking):
            who = (waiter.claim, waiter.holder, waiter.mode)
            if grant is None:
                row = ClaimRow(1, waiter.place, *who, 0.0, waiter.ends_at, 0, now + GRACE_S, waiter.address)
            else:
                row = ClaimRow(0, grant.fence, *who, grant.acquired_at, now + waiter.ttl, 0, None, "")
                self.began(waiter.claim, grant, waiter.holder, row.ends_at)
            self.inside.append(row)

    def clear(self) -> None:
        """End every hold, and delete every damaged row."""
        t, key = self._t, self.key
        fences = [row.place for row in self.inside if not row.waiting] + [0] * bool(self.damaged)
        self.inside, self.damaged = [row for row in self.inside if row.waiting], []
        t.execute(f"DELETE FROM claims WHERE key = ? AND {HOLDS}", (key,))
        facts = {"key": key, "now": t.now}
        t.execute(f"DELETE FROM claims WHERE key = :key AND waiting IN (1, 2) AND NOT ({SOUND_WAITER})", facts)
        for fence in fences:
            self.record_change(fence, None)

    def record_change(self, fence: int, holder: str | None) -> None:
        """Keep a change for the observers, and wake them."""
        if self.observers:
            t, key = self._t, self.key
            t.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (key, count(t, time.time()), fence, holder))
            oldest = "SELECT number FROM changes WHERE key = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
            t.execute(f"DELETE FROM changes WHERE key = ? AND number <= ({oldest})", (key, key, MAX_KEPT_CHANGES))
            alive = [row for row in self.observers if row.ends_at > t.now]
            t.wakeups += [WakeUp(row.address, key, row.claim, row.ends_at) for row in alive]
