"""A name in SQLite as one transaction sees it: its holders, its reservations and its observers.

Decides: what expires, what is recorded for observers, and which rows are damaged.
Leaves to `backend`: the verbs. Leaves to `queue`: the waiters, and how a hand-over serves them.

A column of SQLite takes a value of any type, and every text sorts after all numbers. Beside a damaged hold no claim is
granted. A damaged waiter or observer is ignored: it asks again.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from lockfast._model import EXCLUSIVE, GRACE_S, MAX_KEPT_CHANGES, MAX_TTL_S, SHARED, Mode, Occupancy
from lockfast._records import NO_HOLD, damaged_lock, is_count
from lockfast.backends.sqlite.io.driver import SqliteTransaction, WakeUp
from lockfast.backends.sqlite.queue import MAX_SOUND_PRESENCE_S, SOUND_WAITER, hand_over, pass_over
from lockfast.backends.sqlite.schema import HOLDS, count

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
_ROWS: Final = (
    f"SELECT {_COLUMNS} FROM claims WHERE key = ? AND waiting < 1"
    f" UNION ALL SELECT {_COLUMNS} FROM claims WHERE key = ? AND waiting > 1"
    # Named, or SQLite takes the primary key, and visits every waiter.
    f" UNION ALL SELECT {_COLUMNS} FROM claims INDEXED BY reservations WHERE key = ? AND reserved_until IS NOT NULL"
)


class SqliteResource:
    """A name as one transaction sees it, read in one statement; waiters without a reservation are not read."""

    __slots__ = ("_t", "damaged", "inside", "key", "observers")

    def __init__(self, t: SqliteTransaction, key: str) -> None:
        self._t = t
        self.key = key
        self.inside: list[ClaimRow] = []  # holders and reservations; holders first, in order of their fences
        self.observers: list[ClaimRow] = []
        self.damaged: list[ClaimRow] = []  # holds that cannot be read
        for row in map(ClaimRow._make, t.execute(_ROWS, (key, key, key))):
            if row.is_sound(t.now):
                (self.observers if row.waiting == 2 else self.inside).append(row)
            elif row.waiting not in (1, 2):
                self.damaged.append(row)

    def settle(self, asking: str = "") -> None:
        """End what has expired, and hand over the room that it took. The claim `asking` asks at this moment."""
        if self.expire():
            self.hand_over(asking=asking)

    def expire(self) -> bool:
        """End what has expired; True if that may have made room.

        A step that is to end a claim itself does so before it hands over: else it might end what it has just granted.
        """
        over = [row for row in self.inside if row.until <= self._t.now]
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
        return bool(over or lapsed)

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
        for row in self.inside:
            if row.until > now and row.ends_at > now:
                taken.add(row.mode)
        for _ in self.damaged:
            taken.add(EXCLUSIVE)
        return taken

    def end(self, row: ClaimRow) -> None:
        """End a hold."""
        self.inside.remove(row)
        self._t.execute(f"DELETE FROM claims {OF_HOLDER}", (self.key, row.place))
        self.record_change(row.place, None)

    def hand_over(self, successor: str = "", asking: str = "") -> None:
        """As the function; those that were served take room in this transaction, too."""
        now = self._t.now
        for waiter, grant in hand_over(self._t, self.key, self.occupancy(), successor, asking):
            who = (waiter.claim, waiter.holder, waiter.mode)
            if grant is None:
                row = ClaimRow(1, waiter.place, *who, 0.0, waiter.ends_at, 0, now + GRACE_S, waiter.address)
            else:
                row = ClaimRow(0, grant.fence, *who, grant.acquired_at, now + waiter.ttl, 0, None, "")
                self.record_change(grant.fence, waiter.holder)
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
