"""The queue of a name in SQLite: one row for each waiter.

Decides: which rows are live waiters, what becomes of those whose turn has come, and the position of the others.
Leaves to `_model`: whose turn it is, and what it is offered. Leaves to `resource`: holders and observers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from lockfast._model import (
    EXCLUSIVE,
    GRACE_S,
    MAX_POSITION,
    MAX_TTL_S,
    PRESENCE_S,
    SHARED,
    Claim,
    Grant,
    Mode,
    Occupancy,
    Offer,
    next_offers,
    offer_to,
)
from lockfast._records import LARGEST_NUMBER
from lockfast.backends.sqlite.io.datagrams import is_inbox_address
from lockfast.backends.sqlite.io.driver import SqliteTransaction, WakeUp
from lockfast.backends.sqlite.schema import STORE, count

OF_WAITER: Final = "WHERE key = ? AND waiting = 1 AND place = ?"
MAX_SOUND_PRESENCE_S: Final = 2 * PRESENCE_S  # a row of a waiter or an observer that claims to live longer is damaged
SOUND_WAITER: Final = (
    f"ends_at > :now AND ends_at <= :now + {MAX_SOUND_PRESENCE_S} AND mode IN ('{EXCLUSIVE}', '{SHARED}')"
    " AND typeof(claim) = 'text' AND typeof(holder) = 'text' AND typeof(address) = 'text'"
    f" AND typeof(ttl) = 'real' AND ttl > 0 AND ttl <= {MAX_TTL_S} AND typeof(lim) = 'integer'"
)
_LIVE: Final = (
    "SELECT place, claim, holder, mode, nullif(lim, 0), reserved_until, lapsed, address, ends_at, ttl,"
    f" (SELECT counter FROM claims WHERE {STORE})"
    f" FROM claims WHERE key = :key AND waiting = 1 AND {SOUND_WAITER} ORDER BY place"
)
_RESERVE: Final = f"UPDATE claims SET reserved_until = ? {OF_WAITER}"
_GRANT: Final = (
    "UPDATE claims SET waiting = 0, place = ?, acquired_at = ?, ends_at = ?, reserved_until = NULL, lapsed = 0,"
    f" address = '' {OF_WAITER}"
)
_PASS_OVER: Final = f"UPDATE claims SET reserved_until = NULL, lapsed = 1 {OF_WAITER}"
_STAY: Final = f"UPDATE claims SET ends_at = ?, lapsed = 0, address = ? {OF_WAITER}"
_OWN: Final = f"SELECT place, {SOUND_WAITER} FROM claims WHERE claim = :claim AND waiting = 1"
_IN_QUEUE: Final = f"FROM claims WHERE key = :key AND waiting = 1 AND lapsed = 0 AND {SOUND_WAITER}"
_AHEAD: Final = f"{_IN_QUEUE} AND place < :place"
_POSITION: Final = (
    f"SELECT count(*), count(*) > count(reserved_until) FROM (SELECT reserved_until {_AHEAD} LIMIT {MAX_POSITION})"
)
_IS_ANY_UNSERVED: Final = f"SELECT EXISTS (SELECT 1 {_AHEAD} AND reserved_until IS NULL)"
_BEHIND_ONE_HOLD: Final = (
    f"SELECT holder, ends_at, (SELECT count(*) FROM (SELECT 1 {_IN_QUEUE} LIMIT {MAX_POSITION})) FROM claims AS hold"
    f" WHERE key = :key AND waiting = 0 AND mode = '{EXCLUSIVE}' AND ends_at > :now AND ends_at <= :now + {MAX_TTL_S}"
    " AND place = (SELECT min(place) FROM claims WHERE key = :key AND waiting = 0)"  # of many it reads the first
    " AND claim != :claim AND typeof(claim) = 'text' AND typeof(holder) = 'text' AND typeof(acquired_at) = 'real'"
    f" AND typeof(place) = 'integer' AND place BETWEEN 0 AND {LARGEST_NUMBER} AND ended IN (0, 1)"
    " AND NOT EXISTS (SELECT 1 FROM claims WHERE key = :key AND waiting = 0 AND place != hold.place)"
    " AND NOT EXISTS (SELECT 1 FROM claims WHERE key = :key AND waiting < 0)"  # of an unknown kind, here and below
    " AND NOT EXISTS (SELECT 1 FROM claims WHERE key = :key AND waiting > 1 AND waiting != 2)"
    " AND NOT EXISTS (SELECT 1 FROM claims INDEXED BY reservations WHERE key = :key AND reserved_until IS NOT NULL)"
    " AND NOT EXISTS (SELECT 1 FROM claims WHERE claim = :claim AND waiting = 1)"
)
_LAST: Final = f"SELECT ifnull(max(place), 0) + 1 FROM claims WHERE key = ? AND waiting = 1 AND place <= {1 << 53}"
_INSERT: Final = (
    "INSERT INTO claims"
    " (key, waiting, place, claim, holder, mode, lim, metadata, acquired_at, ttl, ends_at, address)"
    f" VALUES (?, ?, ifnull(?, ({_LAST})), ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class WaiterRow(NamedTuple):
    place: int
    claim: str
    holder: str
    mode: Mode
    limit: int | None
    reserved_until: float | None
    lapsed: int
    address: str
    ends_at: float
    ttl: float
    counter: int  # the store's own, which a hand-over would need another statement for

    @property
    def reserved(self) -> bool:
        return self.reserved_until is not None

    def offer(self, now: float, asking: str) -> Offer:
        """What it is offered in its turn. One that no wake-up reaches from here has to confirm."""
        if not is_inbox_address(self.address):
            return "reservation"
        silent = 0.0 if self.claim == asking else now - self.ends_at + PRESENCE_S
        return offer_to(silent, self.ttl)


def live_queue(t: SqliteTransaction, key: str) -> Iterator[WaiterRow]:
    """The live waiters in order, read as far as the caller iterates."""
    return map(WaiterRow._make, t.execute(_LIVE, {"key": key, "now": t.now}))


def hand_over(
    t: SqliteTransaction, key: str, inside: Occupancy, successor: str = "", asking: str = ""
) -> list[tuple[WaiterRow, Grant | None]]:
    """Grant to the next waiters, or reserve for them, and wake them and no others; these, and their grants.

    The claim `asking` asks at this moment.
    """
    served: list[tuple[WaiterRow, Grant | None]] = []
    for waiter, offer in next_offers(live_queue(t, key), inside, successor, lambda one: one.offer(t.now, asking)):
        grant, ends_at = None, waiter.ends_at
        if offer == "nothing":
            pass_over(t, key, waiter.place)
            continue
        if offer == "grant":
            t.counter = t.counter or waiter.counter
            grant, ends_at = grant_waiter(t, key, waiter.place, waiter.ttl), t.now + waiter.ttl
        else:
            t.execute(_RESERVE, (t.now + GRACE_S, key, waiter.place))
        t.wakeups.append(WakeUp(waiter.address, key, waiter.claim, ends_at, grant))
        served.append((waiter, grant))
    return served


def grant_waiter(t: SqliteTransaction, key: str, place: int, ttl: float) -> Grant:
    """Make the waiter with that number in the queue a holder, by the terms that its row has."""
    wall = time.time()
    fence = count(t, wall)
    t.execute(_GRANT, (fence, wall, t.now + ttl, key, place))
    return Grant(fence, wall)


def pass_over(t: SqliteTransaction, key: str, place: int) -> None:
    """The waiter with that number did not come, or is silent for too long. It has no turn until it asks again."""
    t.execute(_PASS_OVER, (key, place))


def insert(
    t: SqliteTransaction,
    claim: Claim,
    waiting: int,
    place: int | None,
    acquired_at: float,
    ends_at: float,
    address: str,
) -> None:
    """A new row of any kind; without a place it is behind all waiters of its name."""
    id, (key, _, holder, ttl, mode, limit, metadata) = claim
    what = (id, holder, mode, limit or 0, metadata or "", acquired_at, ttl, ends_at, address)
    t.execute(_INSERT, (key, waiting, place, key, *what))


def enqueue(t: SqliteTransaction, claim: Claim, place: int | None) -> None:
    """Put it behind all others, or let it stay where it is. It is woken by this process from now on."""
    alive_until, address = t.now + PRESENCE_S, t.inbox.expect(claim)
    if place is None:
        insert(t, claim, 1, None, 0.0, alive_until, address)
    else:
        t.execute(_STAY, (alive_until, address, claim.terms.key, place))


def behind_one_hold(t: SqliteTransaction, claim: Claim) -> tuple[str, float, int] | None:
    """Fast path of an acquire that has to wait: the holder, when it expires, and the waiters before the claim.

    None unless one exclusive hold is all that there is beside waiters and observers, and the claim is none of them.
    """
    facts = {"key": claim.terms.key, "claim": claim.id, "now": t.now}
    found: tuple[str, float, int] | None = t.execute(_BEHIND_ONE_HOLD, facts).fetchone()
    return found


def own_place(t: SqliteTransaction, id: str) -> tuple[int | None, bool]:
    """The number in the queue of that claim, if its presence has not run out, and whether it has a row there at all."""
    row = t.execute(_OWN, {"claim": id, "now": t.now}).fetchone()
    return (row[0] if row[1] else None, True) if row else (None, False)


def position_of(t: SqliteTransaction, key: str, place: int | None) -> tuple[int, bool]:
    """How many waiters are before that number, or in all, `MAX_POSITION` at most, and whether one has no reservation.

    Those whose reservation lapsed do not count.
    """
    facts = {"key": key, "now": t.now, "place": 1 << 62 if place is None else place}
    ahead, unserved = t.execute(_POSITION, facts).fetchone()
    if ahead == MAX_POSITION and not unserved:  # of a semaphore for many: one behind them may wait
        (unserved,) = t.execute(_IS_ANY_UNSERVED, facts).fetchone()
    return ahead, bool(unserved)
