"""SQLite: the embedded default, safe between the processes of one host.

Decides: each verb, as one short transaction.
Leaves to `_model`: which claim fits and which waiter is next. Leaves to the driver: connection, contention and errors.

Time is the host's boot clock, so a step of the wall clock changes nothing. A boot clock means nothing after a reboot
or on another host, so the store records which boot it counts by: a new boot voids all leases, another host is refused.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, takewhile
from operator import itemgetter
from typing import Any, Final

from lockfast._bounded import BoundedSet
from lockfast._model import (
    EXCLUSIVE,
    MAX_POLL_S,
    MAX_TTL_S,
    PRESENCE_S,
    SHARED,
    Busy,
    Capabilities,
    Change,
    Claim,
    Grant,
    LockInfo,
    Mode,
    Observation,
    Occupancy,
    Renewal,
    poll_after,
)
from lockfast._records import MOST_READ, StoredHold, cut_id, is_count, lock_info
from lockfast._refusals import limit_mismatch
from lockfast._values import Booked, Rate, Stored, Write, Written
from lockfast.backends.sqlite import values
from lockfast.backends.sqlite.hold_index import MAX_UNINDEXED, prolong
from lockfast.backends.sqlite.io.driver import VERSION, SqliteDriver, SqliteTransaction, Step, T, WakeUp
from lockfast.backends.sqlite.queue import (
    SOUND_WAITER,
    behind_one_hold,
    enqueue,
    grant_waiter,
    hand_over,
    insert,
    own_place,
    position_of,
)
from lockfast.backends.sqlite.resource import OF_HOLDER, ClaimRow, SqliteResource
from lockfast.backends.sqlite.schema import HOLDS, STORE, check_boot, count, is_void, no_store

MAX_LISTED_AT_ONCE = 100  # keys, in one transaction of half a millisecond: an event loop stops meanwhile
MAX_CONTENDED: Final = 4096  # names
_FIRST: Final = "\0"  # before every key; appended to a key, it gives the first possible key after that one


_TAKEN: Final = f"SELECT holder, counter, EXISTS (SELECT 1 FROM claims WHERE key = ?) FROM claims WHERE {STORE}"


# The verbs, each a step of one transaction


def _acquire(t: SqliteTransaction, claim: Claim, waits: bool) -> Grant | Busy:
    id, terms = claim
    boot, t.counter, taken = t.execute(_TAKEN, (terms.key,)).fetchone() or no_store()
    if not is_count(t.counter):
        no_store()
    if boot != t.host.boot:
        check_boot(t)
        return _acquire(t, claim, waits)
    if not taken:
        return _grant(t, claim, None)
    behind = behind_one_hold(t, claim) if terms.mode == EXCLUSIVE else None
    if behind is not None:
        if waits:
            enqueue(t, claim, None)
        holder, ends_at, ahead = behind
        return Busy(ahead, poll_after(ahead, ends_at - t.now), cut_id(holder), last_fence=t.counter)
    place, queued = own_place(t, id)
    resource = SqliteResource(t, terms.key, id)
    resource.settle(asking=id)
    mine = resource.find(id)
    if mine is not None and not mine.waiting:  # its reply or its wake-up was lost, or its turn has just come
        return _grant_again(t, resource, mine, claim)
    resource.must_be_readable(terms.name)
    if terms.mode == SHARED and place is None:
        _refuse_other_limits(t, claim)
    if mine is not None and mine.ends_at > t.now:  # reserved, even if an older waiter is back since
        return _grant(t, claim, mine.place, resource)
    if queued and place is None:  # its presence has run out, and its reservation may be another claim's by now
        t.execute("DELETE FROM claims WHERE claim = ? AND waiting = 1", (id,))
    ahead, unserved = position_of(t, terms.key, place)
    if not unserved and resource.occupancy().fits(terms.mode, terms.limit):
        return _grant(t, claim, place, resource)
    if waits:
        enqueue(t, claim, place)
    return _busy(t, ahead, resource, terms.mode)


def _refuse_other_limits(t: SqliteTransaction, claim: Claim) -> None:
    """All claims that share a name, or wait to, have one limit, so it is enough to compare with one of them."""
    terms = claim.terms
    row = t.execute(
        "SELECT nullif(lim, 0) FROM claims WHERE key = ? AND mode = ? AND claim != ? AND ends_at > ?"
        " AND typeof(lim) = 'integer' LIMIT 1",
        (terms.key, SHARED, claim.id, t.now),
    ).fetchone()
    if row is not None and row[0] != terms.limit:
        raise limit_mismatch(terms.name, row[0], terms.limit)


def _grant_again(t: SqliteTransaction, resource: SqliteResource, mine: ClaimRow, claim: Claim) -> Grant:
    terms = claim.terms
    longer = f"UPDATE claims SET ends_at = max(ends_at, ?), mode = ? {OF_HOLDER}"
    shares = terms.mode == SHARED and mine.mode == EXCLUSIVE  # a downgrade, which makes room
    t.execute(longer, (t.now + terms.ttl, SHARED if shares else mine.mode, terms.key, mine.place))
    resource.prolonged(mine, max(mine.ends_at, t.now + terms.ttl))
    if shares:
        resource.inside[resource.inside.index(mine)] = mine._replace(mode=SHARED)
        resource.hand_over()
    return Grant(mine.place, mine.acquired_at)


def _grant(t: SqliteTransaction, claim: Claim, place: int | None, resource: SqliteResource | None = None) -> Grant:
    """The claim holds; `place` was its number in the queue until now."""
    terms = claim.terms
    if place is None:
        wall = time.time()
        grant = Grant(count(t, wall), wall)
        insert(t, claim, 0, grant.fence, wall, t.now + terms.ttl, "")
    else:
        grant = grant_waiter(t, terms.key, place, terms.ttl)
    if resource is not None:
        resource.began(claim.id, grant, terms.holder, t.now + terms.ttl)
    return grant


def _busy(t: SqliteTransaction, ahead: int, resource: SqliteResource, mode: Mode) -> Busy:
    holder = resource.any_holder()
    retry_after = poll_after(ahead, resource.room_at(mode) - t.now)
    return Busy(ahead, retry_after, None if holder is None else cut_id(holder), last_fence=t.counter)


def _renew(t: SqliteTransaction, batch: Sequence[Renewal]) -> list[bool]:
    check_boot(t)
    t.execute(f"UPDATE claims SET acquired_at = ? WHERE {STORE}", (time.time(),))
    now = t.now
    statement = (
        "UPDATE claims SET ends_at = max(ends_at, ?)"
        " WHERE key = ? AND waiting = 0 AND place = ? AND claim = ? AND ended = 0 AND ends_at > ? AND ends_at <= ?"
        f" AND mode IN ('{EXCLUSIVE}', '{SHARED}') AND typeof(holder) = 'text' AND typeof(acquired_at) = 'real'"
    )
    kept = [
        t.execute(statement, (now + ttl, claim.terms.key, fence, claim.id, now, now + MAX_TTL_S)).rowcount == 1
        for claim, ttl, fence in batch
    ]
    for (claim, ttl, fence), holds in zip(batch, kept, strict=True):
        if holds and claim.terms.mode == SHARED:
            prolong(t, claim.terms.key, claim.id, fence, now + ttl)
    return kept


_RELEASE_ALONE: Final = (
    "DELETE FROM claims WHERE key = ? AND waiting = 0 AND claim = ? AND ended = 0 AND ends_at > ?"
    f" AND ? = (SELECT holder FROM claims WHERE {STORE})"
    " AND NOT EXISTS (SELECT 1 FROM claims WHERE key = ? AND waiting > 0)"
)
_FEW: Final = f"SELECT place, claim, ended, ends_at FROM claims WHERE key = ?1 AND waiting = 0 LIMIT {MAX_UNINDEXED}"
_RELEASE_ONE_OF_FEW: Final = (
    "DELETE FROM claims WHERE key = ?1 AND waiting = 0"
    f" AND place = (SELECT place FROM ({_FEW}) WHERE claim = ?2 AND ended = 0 AND ends_at > ?3)"
    f" AND ?4 = (SELECT holder FROM claims WHERE {STORE})"
    " AND NOT EXISTS (SELECT 1 FROM claims WHERE key = ?1 AND waiting > 0)"
)
_RELEASE_EXCLUSIVE: Final = (
    "DELETE FROM claims AS hold WHERE key = ? AND waiting = 0 AND claim = ? AND ended = 0 AND ends_at > ?"
    f" AND ? = (SELECT holder FROM claims WHERE {STORE}) AND mode = '{EXCLUSIVE}'"
    " AND NOT EXISTS (SELECT 1 FROM claims WHERE key = ? AND waiting < 1 AND place != hold.place)"
    " AND NOT EXISTS (SELECT 1 FROM claims WHERE key = ? AND waiting > 1)"
)


def _release_alone(t: SqliteTransaction, claim: Claim, linger: float, successor: str) -> bool | None:
    """Fast path of hand_over: without waiters, observers and index the hold just ends, in one statement."""
    if linger:
        return None
    key = claim.terms.key
    if claim.terms.mode == SHARED:
        return True if t.execute(_RELEASE_ONE_OF_FEW, (key, claim.id, t.now, t.host.boot)).rowcount else None
    return True if t.execute(_RELEASE_ALONE, (key, claim.id, t.now, t.host.boot, key)).rowcount else None


def _release_exclusive(t: SqliteTransaction, claim: Claim) -> bool:
    """Fast path of hand_over: an exclusive hold ends, and nothing but the queue is left."""
    key = claim.terms.key
    return t.execute(_RELEASE_EXCLUSIVE, (key, claim.id, t.now, t.host.boot, key, key)).rowcount == 1


def _release(t: SqliteTransaction, claim: Claim, linger: float, successor: str) -> bool:
    if not linger and claim.terms.mode == EXCLUSIVE and _release_exclusive(t, claim):
        hand_over(t, claim.terms.key, Occupancy(), successor)  # it held alone, so the name is free now
        return True
    check_boot(t)
    resource = SqliteResource(t, claim.terms.key, claim.id)
    mine = resource.hold(claim.id)
    if mine is None:
        resource.must_be_readable(claim.terms.name)
        return False
    alive = mine.ends_at > t.now
    if linger and alive:
        ending = f"UPDATE claims SET ended = 1, ends_at = ? {OF_HOLDER}"
        t.execute(ending, (t.now + linger, resource.key, mine.place))
        resource.prolonged(mine, t.now + linger)
    else:
        resource.end(mine)
        resource.expire()  # an expired hold must not stand in the way of the hand-over
        resource.hand_over(successor if alive else "")
    return alive


def _abandon(t: SqliteTransaction, key: str, id: str) -> None:
    check_boot(t)
    resource = SqliteResource(t, key, id)
    made_room = resource.expire()
    waited = t.execute("DELETE FROM claims WHERE claim = ? AND waiting = 1", (id,)).rowcount
    if waited:
        resource.inside = [row for row in resource.inside if row.claim != id or not row.waiting]
    mine = resource.hold(id)
    if mine is not None:
        resource.end(mine)
    if made_room or waited or mine is not None:
        resource.hand_over()
    if any(row.claim == id for row in resource.observers):
        t.execute("DELETE FROM claims WHERE key = ? AND waiting = 2 AND claim = ?", (key, id))
        if len(resource.observers) == 1:
            t.execute("DELETE FROM changes WHERE key = ?", (key,))


def _drop_unreached(t: SqliteTransaction, wake: WakeUp) -> None:
    """Its process is gone; or only its inbox is, if the claim has asked or was renewed since: then that stands."""
    waiter = "SELECT 1 FROM claims WHERE claim = ? AND waiting = 1 AND ends_at = ?"
    hold = f"SELECT 1 FROM claims {OF_HOLDER} AND claim = ? AND ends_at = ?"
    facts = (wake.claim, wake.ends_at)
    if t.execute(waiter, facts).fetchone() or (
        wake.grant is not None and t.execute(hold, (wake.key, wake.grant.fence, *facts)).fetchone()
    ):
        _abandon(t, wake.key, wake.claim)


def _observe(t: SqliteTransaction, claim: Claim, after: int) -> Observation:
    check_boot(t)
    key = claim.terms.key
    alive_until, address = t.now + PRESENCE_S, t.inbox.expect(claim)
    known = t.execute(
        "UPDATE claims SET ends_at = ?, address = ? WHERE key = ? AND waiting = 2 AND claim = ? AND ends_at > ?",
        (alive_until, address, key, claim.id, t.now),
    ).rowcount
    resource = SqliteResource(t, key, whole=not (known and after))
    resource.settle()
    resource.must_be_readable(claim.terms.name)
    changes: tuple[Change, ...] | None = None
    if known and after:
        rows = t.execute("SELECT number, fence, holder FROM changes WHERE key = ? AND number > ?", (key, after))
        changes = _readable(map(Change._make, rows))
    if changes is None:
        t.execute("DELETE FROM changes WHERE key = ? AND typeof(number) != 'integer'", (key,))
        number = count(t, time.time())
        if not known:
            t.execute("DELETE FROM claims WHERE key = ? AND waiting = 2 AND ends_at <= ?", (key, t.now))
            insert(t, claim, 2, number, 0.0, alive_until, address)
        if resource.index is not None:
            resource = SqliteResource(t, key, whole=True)
        held = [row for row in resource.inside if not row.waiting and not row.ended]
        changes = tuple(Change(number, row.place, row.holder) for row in held) or (Change(number, 0, None),)
    return Observation(changes, max(0.0, min(MAX_POLL_S, resource.next_end() - t.now)))


def _readable(changes: Iterable[Change]) -> tuple[Change, ...] | None:
    """All of them, or None if one cannot be read: then the observer begins again with what is true now."""
    found = tuple(changes)
    sound = all(is_count(one.number) and is_count(one.fence) and isinstance(one.holder, str | None) for one in found)
    return found if sound else None


def _info(t: SqliteTransaction, key: str) -> LockInfo:
    return next(_infos(t, "key = :key", key), LockInfo(key))


def _infos(t: SqliteTransaction, which: str, key: str) -> Iterator[LockInfo]:
    """Each of these keys that has a holder or a waiter, in order, read as far as the caller iterates."""
    rows = t.execute(
        "SELECT CAST(key AS BLOB), waiting, holder, claim, place, mode, acquired_at, ends_at,"
        f" substr(metadata, 1, :most) FROM claims WHERE {which} AND ends_at > :now"
        f" AND ({HOLDS} OR waiting = 1 AND {SOUND_WAITER}) ORDER BY key, waiting, place",
        {"key": key, "now": t.now, "most": MOST_READ},
    )
    wall = time.time()
    for stored, of_key in groupby(rows, itemgetter(0)):
        holds, queue = [], []
        for _, waiting, holder, claim, place, mode, acquired_at, ends_at, metadata in of_key:
            if waiting == 1:
                queue.append(holder)
            else:
                kind = mode if waiting == 0 else None
                holds.append(StoredHold(holder, claim, place, kind, acquired_at, _on(wall, ends_at, t.now), metadata))
        name = _name_of(stored)
        if name is not None:
            yield lock_info(name, holds, queue)


def _on(wall: float, ends_at: Any, now: float) -> float | None:
    """The end of a hold on the wall clock; None for an impossible value."""
    return wall + ends_at - now if ends_at.__class__ is float and ends_at <= now + MAX_TTL_S else None


def _name_of(key: bytes) -> str | None:
    """None for a key that is not text: no caller can name it, or list from there."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _inspect(t: SqliteTransaction, key: str) -> LockInfo:
    return LockInfo(key) if is_void(t) else _info(t, key)


def _list_some(t: SqliteTransaction, prefix: str, start: str) -> list[LockInfo]:
    """The first keys with that prefix from `start` on; if fewer than `MAX_LISTED_AT_ONCE`, there are no more."""
    if is_void(t):
        return []
    names = _infos(t, "key >= :key AND key < x''", start)  # every blob sorts after all text
    found = takewhile(lambda info: info.name.startswith(prefix), names)
    return list(islice(found, MAX_LISTED_AT_ONCE))


def _break(t: SqliteTransaction, key: str) -> LockInfo:
    check_boot(t)
    resource = SqliteResource(t, key, whole=True)
    resource.expire()
    before = _info(t, key)
    resource.clear()
    resource.hand_over()
    return before


def _nothing(t: SqliteTransaction) -> None:
    """A step that only shows that a transaction can begin."""


class SqliteBackend:
    # An event loop stops for one batch of renewals, see MAX_LISTED_AT_ONCE
    capabilities = Capabilities(renew_batch=200, hands_over=True)

    def __init__(self, driver: SqliteDriver) -> None:
        self._driver = driver
        self._contended = BoundedSet[str](MAX_CONTENDED)  # keys where we had to wait: no quick release there

    async def _run(
        self, step: Step[T], *args: Any, within: float, quick: Step[T | None] | None = None, reads: bool = False
    ) -> T:
        answer: T
        answer, unreached = await self._driver.transact((step, args, quick, reads), within)
        while unreached:  # that waiter's process has ended: the next one need not wait for its grace or its ttl
            wake = unreached.pop()
            _, more = await self._driver.transact((_drop_unreached, (wake,), None, False), within)
            unreached += more
        return answer

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        answer = await self._run(_acquire, claim, enqueue, within=within)
        if isinstance(answer, Grant):
            self._driver.wakeups.forget(claim)
        elif enqueue:
            self._contended.add(claim.terms.key)
        return answer

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        return await self._driver.wakeups.wait(claim, seconds)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool]:
        return await self._run(_renew, batch, within=within)

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        quick = None if claim.terms.key in self._contended else _release_alone
        self._contended.discard(claim.terms.key)
        return await self._run(_release, claim, linger, successor, within=within, quick=quick)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        self._contended.discard(claim.terms.key)
        try:
            await self._run(_abandon, claim.terms.key, claim.id, within=within)
        finally:
            self._driver.wakeups.forget(claim)  # last: a request in flight may have expected it again

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        return await self._run(_observe, claim, after, within=within)

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        return await self._run(_inspect, key, within=within, reads=True)

    async def list(self, prefix: str, *, within: float) -> builtins.list[LockInfo]:
        """Read in pieces, each one atomic: between them this process can renew and release."""
        found: builtins.list[LockInfo] = []
        start = prefix or _FIRST
        while True:
            some = await self._run(_list_some, prefix, start, within=within, reads=True)
            found += some
            if len(some) < MAX_LISTED_AT_ONCE:
                return found
            start = some[-1].name + _FIRST

    async def break_(self, key: str, *, within: float) -> LockInfo:
        return await self._run(_break, key, within=within)

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        return await self._run(values.throttle, key, rate, cost, patience, within=within)

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        await self._run(values.unthrottle, key, rate, cost, until, within=within)

    async def read(self, key: str, *, within: float) -> Stored:
        return await self._run(values.read, key, within=within, reads=True)

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        return await self._run(values.write, key, write, within=within)

    async def close(self) -> None:
        await self._driver.close()

    def before_fork(self) -> None:
        self._driver.before_fork()

    def after_fork(self, *, child: bool) -> None:
        self._driver.after_fork(child=child)

    @property
    def url(self) -> str:
        return self._driver.url

    async def identify(self, within: float) -> tuple[str, str]:
        await self._run(_nothing, within=within)  # a read-only file grants no locks
        return VERSION, ""

    @property
    def store_id(self) -> str:
        return f"sqlite:///{self._driver.path}"

    def __repr__(self) -> str:
        return repr(self._driver)
