"""SQLite: the embedded default, safe between the processes of one host.

Decides: the tables, and each verb as one short transaction on them.
Leaves to `_model`: who fits and who is next in line. Leaves to the driver: the connection, contention and errors.

Time is the host's boot clock, so a step of the wall clock changes nothing. A boot clock means nothing after a reboot
or on another host, so the store knows which boot it counts by: a new boot voids all leases, a foreign host is refused.
"""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from holdfast._model import (
    GRACE,
    PRESENCE,
    Busy,
    Capabilities,
    Claim,
    Grant,
    HolderInfo,
    LockInfo,
    Mode,
    Occupancy,
    Renewal,
    next_in_line,
    patrol,
)
from holdfast._time import first_fence
from holdfast.drivers.sqlite import SqliteDriver, Step, T, Transaction, Wake
from holdfast.errors import BackendUnavailable

FORMAT: Final = 1
SWEEP_EVERY: Final = 1024  # grants and enqueues between two sweeps for names that nobody asks for any more
QUICK: Final = 10.0  # seconds in which a question of an operator is answered, or refused

SCHEMA: Final = (
    """CREATE TABLE claims (
        key TEXT NOT NULL,         -- empty for the store's own row, see below
        waiting INTEGER NOT NULL,  -- 0 holds, 1 waits
        place INTEGER NOT NULL,    -- a holder's fence; a waiter's place in the queue
        claim TEXT NOT NULL,
        holder TEXT NOT NULL,
        mode TEXT NOT NULL,
        lim INTEGER NOT NULL DEFAULT 0,     -- 0 is no limit: a NULL takes sqlite3 longer to bind
        metadata TEXT NOT NULL DEFAULT '',  -- JSON
        acquired_at REAL NOT NULL DEFAULT 0,  -- wall clock, for people
        ttl REAL NOT NULL,
        ends_at REAL NOT NULL,     -- boot clock: when the hold expires, or the waiter counts as gone
        ended INTEGER NOT NULL DEFAULT 0,   -- released, but lingering
        address TEXT NOT NULL DEFAULT '',   -- where a waiter is woken
        reserved_until REAL,       -- a waiter for whom the resource is kept
        lapsed INTEGER NOT NULL DEFAULT 0,  -- was woken and did not come in time; passed over until it asks again
        counter INTEGER,           -- the store's own row only
        PRIMARY KEY (key, waiting, place)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX waiting_claims ON claims (claim) WHERE waiting = 1",
    "CREATE INDEX reservations ON claims (key) WHERE reserved_until IS NOT NULL",
)

# The store's own row has the empty key, which no lock can have. It stands in the same table because then a grant
# writes one page of the file and not two, which is a fifth of its whole cost. Its fields:
#   counter      the last fence or place in a queue that was given out; only grows
#   holder       the boot whose clock all times are read on
#   claim        the machine of that boot
#   acquired_at  wall clock of the last grant or renewal
STORE: Final = "key = '' AND waiting = 0 AND place = 0"


def prepare(t: Transaction) -> None:
    """Make the table in a new file; refuse a file that is not ours to use."""
    version = t.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        if t.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise BackendUnavailable("the SQLite file belongs to another program; name another file", transient=False)
        for statement in SCHEMA:
            t.execute(statement)
        t.execute(
            "INSERT INTO claims (key, waiting, place, claim, holder, mode, acquired_at, ttl, ends_at, counter)"
            " VALUES ('', 0, 0, ?, ?, '', ?, 0, 9e999, ?)",
            (t.host.machine, t.host.boot, time.time(), first_fence()),
        )
        t.execute(f"PRAGMA user_version = {FORMAT}")
    elif version != FORMAT:
        raise BackendUnavailable(
            f"the lock store has format {version}, this holdfast knows format {FORMAT}; upgrade it", transient=False
        )


# The clock that the store counts by, and its counter


def _check_boot(t: Transaction) -> None:
    """Every verb starts here: are the times in the store readings of our clock?"""
    (boot,) = t.execute(f"SELECT holder FROM claims WHERE {STORE}").fetchone() or _no_store()
    if boot != t.host.boot:
        _change_boot(t)


def _no_store() -> NoReturn:
    raise BackendUnavailable(
        "the lock store is corrupt: its own row is gone, and with it its counter; move it away, and a new one is made",
        transient=False,
    )


def _change_boot(t: Transaction) -> None:
    """After a reboot all leases are void. Refuses to do that to a host that still holds some."""
    machine, touched_at = t.execute(f"SELECT claim, acquired_at FROM claims WHERE {STORE}").fetchone()
    (longest,) = t.execute("SELECT max(ttl) FROM claims WHERE key > '' AND waiting = 0").fetchone()
    rebooted = machine == t.host.machine and touched_at < t.host.booted_at
    if longest is not None and not rebooted and time.time() < touched_at + longest:
        raise BackendUnavailable(
            f"the lock store is in use by another host ({machine!r}), which holds leases in it; SQLite locks work "
            "between the processes of one host only, so use a lock server between hosts",
            transient=False,
        )
    t.execute("DELETE FROM claims WHERE key > ''")
    # A machine that lost its power may have lost the last commits too: go on above all fences it can have given out.
    t.execute(
        f"UPDATE claims SET claim = ?, holder = ?, acquired_at = ?, counter = max(counter, ?) WHERE {STORE}",
        (t.host.machine, t.host.boot, time.time(), first_fence()),
    )


def _count(t: Transaction, last: int, wall: float) -> int:
    """The next fence or place after `last`, which is the counter as this transaction has read it."""
    number = last + 1
    t.execute(f"UPDATE claims SET counter = ?, acquired_at = ? WHERE {STORE}", (number, wall))
    if number % SWEEP_EVERY == 0:
        t.execute("DELETE FROM claims WHERE ends_at <= ?", (t.now,))
    return number


# Who is in, and who is in line


class _Inside(NamedTuple):
    """Somebody who takes room: a holder, or a waiter that the resource is reserved for."""

    waiting: int
    place: int
    claim: str
    holder: str
    mode: Mode
    acquired_at: float
    ends_at: float
    ended: int
    reserved_until: float | None

    @property
    def until(self) -> float:
        """When time takes its room away."""
        return self.ends_at if self.reserved_until is None else self.reserved_until


_INSIDE: Final = "SELECT waiting, place, claim, holder, mode, acquired_at, ends_at, ended, reserved_until FROM claims"


def _inside(t: Transaction, key: str) -> list[_Inside]:
    """The holders in order of their fences, then those it is reserved for, wherever they stand in the queue."""
    rows = t.execute(
        f"{_INSIDE} WHERE key = ? AND waiting = 0 UNION ALL {_INSIDE} WHERE key = ? AND reserved_until IS NOT NULL",
        (key, key),
    )
    return [_Inside._make(row) for row in rows]


def _inside_now(t: Transaction, key: str) -> list[_Inside]:
    """As `_inside`, after whatever time has ended is forgotten and its room handed over."""
    inside = _inside(t, key)
    if any(one.until <= t.now for one in inside):
        _expire(t, key)
        return _inside(t, key)
    return inside


def _occupancy(t: Transaction, inside: list[_Inside]) -> Occupancy:
    taken = Occupancy()
    for one in inside:
        if one.until > t.now and one.ends_at > t.now:
            taken.add(one.mode)
    return taken


class _Waiter(NamedTuple):
    place: int
    claim: str
    mode: Mode
    limit: int | None
    reserved_until: float | None
    lapsed: int
    address: str

    @property
    def reserved(self) -> bool:
        return self.reserved_until is not None


def _line(t: Transaction, key: str) -> Iterator[_Waiter]:
    """The live waiters in order, read as far as the caller goes."""
    rows = t.execute(
        "SELECT place, claim, mode, nullif(lim, 0), reserved_until, lapsed, address FROM claims"
        " WHERE key = ? AND waiting = 1 AND ends_at > ? ORDER BY place",
        (key, t.now),
    )
    return map(_Waiter._make, rows)


class _Own(NamedTuple):
    """Where a claim stands in line, and who goes before it."""

    place: int | None  # None if it does not wait, or was silent for so long that its place is void
    ahead: int  # those that did not come when they were woken are not counted
    unserved: int  # of these, the ones that it is not reserved for


def _own(t: Transaction, claim: Claim) -> _Own:
    row = t.execute("SELECT place FROM claims WHERE claim = ? AND waiting = 1 AND ends_at > ?", (claim.id, t.now))
    (place,) = row.fetchone() or (None,)
    ahead, unserved = t.execute(
        "SELECT count(*), count(*) - count(reserved_until) FROM claims"
        " WHERE key = ? AND waiting = 1 AND lapsed = 0 AND ends_at > ? AND place < ?",
        (claim.terms.key, t.now, 1 << 62 if place is None else place),
    ).fetchone()
    return _Own(place, ahead, unserved)


def _expire(t: Transaction, key: str) -> None:
    """Forget what time has ended, and hand over if that made room."""
    of_key = (key, t.now)
    ended = t.execute("DELETE FROM claims WHERE key = ? AND waiting = 0 AND ends_at <= ?", of_key).rowcount
    ended += t.execute(
        "UPDATE claims SET reserved_until = NULL, lapsed = 1"
        " WHERE key = ? AND reserved_until IS NOT NULL AND reserved_until <= ?",
        of_key,
    ).rowcount
    if ended:
        _hand_over(t, key, _inside(t, key))


def _hand_over(t: Transaction, key: str, inside: list[_Inside]) -> None:
    """Reserve for whoever is next beside those inside, and wake them and nobody else."""
    for waiter in next_in_line(_line(t, key), _occupancy(t, inside)):
        t.execute(
            "UPDATE claims SET reserved_until = ? WHERE key = ? AND waiting = 1 AND place = ?",
            (t.now + GRACE, key, waiter.place),
        )
        t.wakes.append(Wake(waiter.address, key, waiter.claim))


# The verbs, each a step of one transaction


def _acquire(t: Transaction, claim: Claim, enqueue: bool) -> Grant | Busy:
    id, terms = claim
    row = t.execute(
        f"SELECT holder, counter, EXISTS (SELECT 1 FROM claims WHERE key = ?) FROM claims WHERE {STORE}", (terms.key,)
    ).fetchone()
    boot, counter, taken = row or _no_store()
    if boot != t.host.boot:
        _change_boot(t)
        return _acquire(t, claim, enqueue)
    if not taken:
        return _grant(t, claim, counter, None)
    inside = _inside_now(t, terms.key)
    mine = next((one for one in inside if one.claim == id and not one.ended), None)
    if mine is not None and not mine.waiting:  # asked before, and the answer was lost
        longer = "UPDATE claims SET ends_at = max(ends_at, ?) WHERE key = ? AND waiting = 0 AND place = ?"
        t.execute(longer, (t.now + terms.ttl, terms.key, mine.place))
        return Grant(mine.place, mine.acquired_at)
    if mine is not None and mine.ends_at > t.now:  # it is reserved for us, even if an older one is back since
        return _grant(t, claim, counter, mine.place)
    own = _own(t, claim)
    if not own.unserved and _occupancy(t, inside).fits(terms.mode, terms.limit):
        return _grant(t, claim, counter, own.place)
    if enqueue:
        _enqueue(t, claim, counter, own.place)
    return _busy(t, own, inside)


def _grant(t: Transaction, claim: Claim, counter: int, place: int | None) -> Grant:
    """The claim holds; `place` is where it stood in line until now."""
    wall = time.time()
    fence = _count(t, counter, wall)
    ends_at = t.now + claim.terms.ttl
    if place is None:
        _insert(t, claim, 0, fence, wall, ends_at, "")
    else:
        t.execute(
            "UPDATE claims SET waiting = 0, place = ?, acquired_at = ?, ends_at = ?, reserved_until = NULL, lapsed = 0,"
            " address = '' WHERE key = ? AND waiting = 1 AND place = ?",
            (fence, wall, ends_at, claim.terms.key, place),
        )
    return Grant(fence, wall)


def _enqueue(t: Transaction, claim: Claim, counter: int, place: int | None) -> None:
    alive_until, address = t.now + PRESENCE, t.expect(claim)
    if place is not None:
        t.execute(
            "UPDATE claims SET ends_at = ?, lapsed = 0, address = ? WHERE key = ? AND waiting = 1 AND place = ?",
            (alive_until, address, claim.terms.key, place),
        )
        return
    # If it was silent for too long its old place is void, and what was reserved for it may be another's by now.
    t.execute("DELETE FROM claims WHERE claim = ? AND waiting = 1", (claim.id,))
    _insert(t, claim, 1, _count(t, counter, time.time()), 0.0, alive_until, address)


def _insert(
    t: Transaction,
    claim: Claim,
    waiting: int,
    place: int,
    acquired_at: float,
    ends_at: float,
    address: str,
) -> None:
    id, (key, _, holder, ttl, mode, limit, metadata) = claim
    t.execute(
        "INSERT INTO claims"
        " (key, waiting, place, claim, holder, mode, lim, metadata, acquired_at, ttl, ends_at, address)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (key, waiting, place, id, holder, mode, limit or 0, metadata or "", acquired_at, ttl, ends_at, address),
    )


def _busy(t: Transaction, own: _Own, inside: list[_Inside]) -> Busy:
    holder = next((one.holder for one in inside if not one.waiting), None)
    retry_after = patrol(own.ahead)
    if inside and (not own.unserved or holder is None):  # only the first in line watches for when time makes room
        retry_after = min(retry_after, max(0.0, min(one.until for one in inside) - t.now))
    return Busy(own.ahead, retry_after, holder)


def _renew(t: Transaction, batch: Sequence[Renewal]) -> list[bool]:
    _check_boot(t)
    t.execute(f"UPDATE claims SET acquired_at = ? WHERE {STORE}", (time.time(),))
    now = t.now
    statement = (
        "UPDATE claims SET ends_at = max(ends_at, ?)"
        " WHERE key = ? AND waiting = 0 AND claim = ? AND ended = 0 AND ends_at > ?"
    )
    return [t.execute(statement, (now + ttl, claim.terms.key, claim.id, now)).rowcount == 1 for claim, ttl in batch]


def _release_alone(t: Transaction, claim: Claim, linger: float) -> bool | None:
    """When nobody waits the hold just ends, and one statement is a transaction by itself."""
    if linger:
        return None
    ended = t.execute(
        "DELETE FROM claims WHERE key = ? AND waiting = 0 AND claim = ? AND ended = 0 AND ends_at > ?"
        f" AND ? = (SELECT holder FROM claims WHERE {STORE})"
        " AND NOT EXISTS (SELECT 1 FROM claims WHERE key = ? AND waiting = 1)",
        (claim.terms.key, claim.id, t.now, t.host.boot, claim.terms.key),
    ).rowcount
    return True if ended else None


def _release(t: Transaction, claim: Claim, linger: float) -> bool:
    _check_boot(t)
    key = claim.terms.key
    inside = _inside(t, key)
    mine = next((one for one in inside if one.claim == claim.id and not one.waiting and not one.ended), None)
    if mine is None:
        return False
    alive = mine.ends_at > t.now
    if linger and alive:
        ending = "UPDATE claims SET ended = 1, ends_at = ? WHERE key = ? AND waiting = 0 AND place = ?"
        t.execute(ending, (t.now + linger, key, mine.place))
    else:
        t.execute("DELETE FROM claims WHERE key = ? AND waiting = 0 AND place = ?", (key, mine.place))
        inside.remove(mine)
        _hand_over(t, key, inside)
    return alive


def _abandon(t: Transaction, key: str, id: str) -> None:
    _check_boot(t)
    _expire(t, key)
    ended = t.execute("DELETE FROM claims WHERE claim = ? AND waiting = 1", (id,)).rowcount
    ended += t.execute(
        "DELETE FROM claims WHERE key = ? AND waiting = 0 AND claim = ? AND ended = 0", (key, id)
    ).rowcount
    if ended:
        _hand_over(t, key, _inside(t, key))


def _look(t: Transaction, key: str) -> LockInfo:
    holders = tuple(
        HolderInfo(holder, claim, fence, mode, acquired_at, time.time() + ends_at - t.now, _parsed(metadata))
        for holder, claim, fence, mode, acquired_at, ends_at, metadata in t.execute(
            "SELECT holder, claim, place, mode, acquired_at, ends_at, metadata FROM claims"
            " WHERE key = ? AND waiting = 0 AND ends_at > ? ORDER BY place",
            (key, t.now),
        )
    )
    (waiters,) = t.execute(
        "SELECT count(*) FROM claims WHERE key = ? AND waiting = 1 AND ends_at > ?", (key, t.now)
    ).fetchone()
    return LockInfo(key, holders, waiters)


def _parsed(metadata: str) -> Any:
    return json.loads(metadata) if metadata else None


def _inspect(t: Transaction, key: str) -> LockInfo:
    _check_boot(t)
    return _look(t, key)


def _list(t: Transaction, prefix: str) -> list[LockInfo]:
    _check_boot(t)
    keys = t.execute(
        "SELECT DISTINCT key FROM claims WHERE key > '' AND substr(key, 1, ?) = ? AND ends_at > ? ORDER BY key",
        (len(prefix), prefix, t.now),
    ).fetchall()
    return [_look(t, key) for (key,) in keys]


def _break(t: Transaction, key: str) -> LockInfo:
    _check_boot(t)
    _expire(t, key)
    before = _look(t, key)
    t.execute("DELETE FROM claims WHERE key = ? AND waiting = 0", (key,))
    _hand_over(t, key, _inside(t, key))
    return before


class SqliteBackend:
    capabilities = Capabilities()

    def __init__(self, driver: SqliteDriver) -> None:
        self._driver = driver
        self._crowded: set[str] = set()  # keys where we had to wait: then others do, and a quick release is in vain

    async def _run(self, step: Step[T], *args: Any, within: float, quick: Step[T | None] | None = None) -> T:
        answer, unreached = await self._driver.transact(step, args, within, quick)
        while unreached:  # the process of a waiter is gone: the next in line need not wait for its grace
            wake = unreached.pop()
            _, more = await self._driver.transact(_abandon, (wake.key, wake.claim), within)
            unreached += more
        return answer

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        answer = await self._run(_acquire, claim, enqueue, within=within)
        if isinstance(answer, Grant):
            self._driver.wakes.forget(claim)
        elif enqueue:
            self._crowded.add(claim.terms.key)
        return answer

    async def wait(self, claim: Claim, seconds: float) -> bool:
        return await self._driver.wakes.wait(claim, seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool]:
        return await self._run(_renew, batch, within=within)

    async def release(self, claim: Claim, *, linger: float, within: float) -> bool:
        quick = None if claim.terms.key in self._crowded else _release_alone
        self._crowded.discard(claim.terms.key)
        return await self._run(_release, claim, linger, within=within, quick=quick)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        self._crowded.discard(claim.terms.key)
        try:
            await self._run(_abandon, claim.terms.key, claim.id, within=within)
        finally:
            self._driver.wakes.forget(claim)  # only now: a request that was under way may have expected it again

    async def inspect(self, key: str) -> LockInfo:
        return await self._run(_inspect, key, within=QUICK)

    async def list(self, prefix: str) -> builtins.list[LockInfo]:
        return await self._run(_list, prefix, within=QUICK)

    async def break_(self, key: str) -> LockInfo:
        return await self._run(_break, key, within=QUICK)

    async def close(self) -> None:
        await self._driver.close()

    def before_fork(self) -> None:
        self._driver.before_fork()

    def after_fork(self, *, child: bool) -> None:
        self._driver.after_fork(child=child)

    def __repr__(self) -> str:
        return repr(self._driver)
