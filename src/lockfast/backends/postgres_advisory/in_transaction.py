"""Advisory locks that end with a transaction of the user's own.

Decides: the statements; that a wait which fails leaves the transaction as it was; what is refused. Locks that were
taken after a savepoint end when it is rolled back to, also one that was granted in the last moment.

Refused at REPEATABLE READ and SERIALIZABLE: a transaction there reads from one snapshot, which its first query takes.
A statement that waits for a lock takes it before the wait, and no statement takes an advisory lock without one.

A statement takes a lock only in the server and database of this `Locks`: it compares them as one number, see
`DatabaseIdentity`. It takes none if the transaction holds the number under another name: the transaction remembers what
it took in a setting that ends with it, and that is rolled back with its savepoints, as the locks are.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import ceil
from typing import Any, Final, NamedTuple

from lockfast._time import boot_now
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.one_query import ask_once
from lockfast.backends.postgres.io.refusals import unavailable
from lockfast.backends.postgres_advisory.holds import refuse_hash_collision
from lockfast.backends.postgres_advisory.io.user_connection import (
    UserTransaction,
    has_no_transaction,
    is_timeout,
    no_transaction,
)
from lockfast.backends.postgres_advisory.keys import Key, integer_in, key_of, whole
from lockfast.backends.postgres_advisory.statements import CALLED, OWNED_LOCKS
from lockfast.errors import Unsupported

_OLD_SNAPSHOT, _OTHER_DATABASE, _COLLISION, _TAKEN = -3, -2, -1, 0  # answers in place of a fence
# These run with the user's search_path. So functions are qualified, and each operator exists in pg_catalog with exactly
# these types: another role's that fits better would be called instead.
_IDENTITY: Final = (
    "pg_catalog.hashtextextended(pg_catalog.current_database(), "
    "CAST(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000.0 AS bigint))"
)
_CLOCK: Final = "CAST(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000.0 AS bigint)"
_REMEMBERED: Final = "coalesce(pg_catalog.current_setting('lockfast.has', true), '')"
_SECOND: Final = "CAST(pg_catalog.mod(CASE WHEN f > 0 THEN f END / 1000000, 2147483648) AS int)"
_TAG: Final = f"pg_catalog.pg_advisory_xact_lock_shared({{tag}}, {_SECOND})"
_TAKE: Final = f"""SELECT f, pg_catalog.now(), pg_catalog.current_setting('lock_timeout'), {_TAG},
CASE WHEN f > 0 AND pg_catalog.strpos({_REMEMBERED}, '/{{number}}={{tag}}/') = 0
     THEN pg_catalog.set_config('lockfast.has', {_REMEMBERED} || '/{{number}}={{tag}}/', true) END
FROM (SELECT CASE
    WHEN pg_catalog.current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
    THEN {_OLD_SNAPSHOT}
    WHEN {_IDENTITY} <> {{identity}} THEN {_OTHER_DATABASE}
    WHEN pg_catalog.strpos({_REMEMBERED}, '/{{number}}=') > 0
         AND pg_catalog.strpos({_REMEMBERED}, '/{{number}}={{tag}}/') = 0
    THEN {_COLLISION}
    {{steps}} THEN {_TAKEN}
    ELSE {_CLOCK} END AS f OFFSET 0) AS taken"""
_TRY: Final = "WHEN NOT pg_catalog.pg_try_advisory_xact_lock({number})"
_WAIT: Final = """WHEN pg_catalog.set_config('lock_timeout', '{limit}', true) IS NULL THEN 0
    WHEN pg_catalog.pg_advisory_xact_lock({number}) IS NULL THEN 0
    WHEN pg_catalog.set_config('lock_timeout', '{before}', true) IS NULL"""
_HELD: Final = f"""SELECT l.owner, CAST(l.classid AS bigint), CAST(l.objid AS bigint), l.objsubid, {CALLED}
FROM {OWNED_LOCKS}
WHERE l.granted
AND (l.objsubid = 1 AND CAST(l.objid AS bigint) & CAST(255 AS bigint) = {{byte}}
     OR l.objsubid = 2 AND l.mode = 'ShareLock' AND CAST(l.classid AS bigint) >> 24 = {{byte}})"""
_MAX_LOCK_TIMEOUT_MS = 2**31 - 1
_IDENTIFY_WITHIN_S = 10.0
_MIN_DIAL_S = 1.0


class Taken(NamedTuple):
    fence: int  # from the server's clock
    missing: str | None = None  # the key that was not acquired
    holder: str | None = None  # of that key


class DatabaseIdentity:
    """The server and database of one `Locks`, as a number. A restart of the server changes it."""

    def __init__(self, endpoint: PostgresEndpoint, *, blocking: bool) -> None:
        self._endpoint = endpoint
        self._blocking = blocking
        self.number: int | None = None

    async def fetch(self, within: float) -> int:
        """Raises BackendUnavailable."""
        sql = f"SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN 0 ELSE {_IDENTITY} END"
        self.number = int(await ask_once(self._endpoint, sql, within, blocking=self._blocking)) or None
        if self.number is None:
            raise unavailable(self._endpoint.name, "is a replica: a lock there would exclude no client of the primary")
        return self.number

    def other_database(self) -> ValueError:
        return ValueError(
            f"in_transaction() was given a connection to another server or database than {self._endpoint.name}: a lock "
            "there would exclude no client of this one. Nothing was locked"
        )


async def take(
    transaction: UserTransaction, identity: DatabaseIdentity, names: Mapping[str, str], wait: float | None
) -> Taken:
    """All of the keys, in the order in which they are given, or none; `names` says what each is called."""
    _must_differ(names)
    until = None if wait is None else boot_now() + wait
    await transaction.must_last()
    taking = _Taking(transaction, identity, names, until)
    try:
        if len(names) > 1:
            return await taking.all_of(list(names))
        (key,) = names
        taken = await taking.try_one(key)
        return taken if taken.missing is None or wait == 0 else await taking.all_of([key], taken)
    except Exception as error:
        if has_no_transaction(error):
            raise no_transaction() from error
        raise


def _reads_the_past() -> Unsupported:
    return Unsupported(
        "in_transaction() was called at REPEATABLE READ or SERIALIZABLE: the transaction reads everything as it was "
        "before the lock was granted, so the lock would protect nothing that it reads. Use READ COMMITTED, or acquire "
        "the lock before the transaction begins, as in `with locks.lock(...), connection.transaction():`. Nothing was "
        "locked"
    )


def _must_differ(names: Mapping[str, str]) -> None:
    numbers: dict[int, str] = {}
    for key, name in names.items():
        other = numbers.setdefault(key_of(key).number, name)
        if other != name:
            refuse_hash_collision(name, repr(other))


class _Taking:
    """One call, on one transaction."""

    def __init__(
        self, transaction: UserTransaction, identity: DatabaseIdentity, names: Mapping[str, str], until: float | None
    ) -> None:
        self._fetch = transaction.fetch
        self._unsure = transaction.unsure
        self._identity = identity
        self._names = names
        self._until = until
        self._before = "0"  # the user's own lock_timeout

    async def try_one(self, key: str) -> Taken:
        """Without waiting."""
        fence, began, self._before = await self._take(key, _TRY)
        if fence == _TAKEN:
            return await self._missed(key)
        if self._unsure:
            ((now,),) = await self._fetch("SELECT pg_catalog.now()")
            if now != began:
                raise no_transaction()
        return Taken(fence)

    async def all_of(self, keys: list[str], first: Taken | None = None) -> Taken:
        """`first` is the outcome of a try for the first of them."""
        await self._fetch("SAVEPOINT lockfast")
        key = ""
        try:
            for key in keys:
                taken, first = first or await self.try_one(key), None
                if taken.missing is not None:
                    if self._until is not None and boot_now() >= self._until:
                        await self._go_back()
                        return taken
                    taken = await self._waited(key)
        except BaseException as error:  # the transaction goes on if it can, whatever the error
            with suppress(Exception):
                await self._go_back()
            if not is_timeout(error):
                raise
        else:
            await self._fetch("RELEASE SAVEPOINT lockfast")
            return taken
        return await self._missed(key)

    async def _waited(self, key: str) -> Taken:
        left = 0.0 if self._until is None else self._until - boot_now()
        limit = 0 if self._until is None else max(1, min(_MAX_LOCK_TIMEOUT_MS, ceil(left * 1000)))
        fence, *_ = await self._take(key, _WAIT.format(limit=limit, number="{number}", before=self._before))
        return Taken(fence)

    async def _go_back(self) -> None:
        await self._fetch("ROLLBACK TO SAVEPOINT lockfast")  # settings go back too
        await self._fetch("RELEASE SAVEPOINT lockfast")

    async def _take(self, key: str, steps: str) -> tuple[int, Any, str]:
        """The fence, when the transaction began, and the lock_timeout. Raises if it must not be taken here."""
        number, tag = key_of(key)
        steps = steps.format(number=number)
        known = self._identity.number
        identity = await self._identity.fetch(self._patience()) if known is None else known
        while True:
            ((answer, began, before, *_),) = await self._fetch(
                _TAKE.format(identity=identity, number=number, tag=tag, steps=steps)
            )
            fence = int(answer)
            if fence == _OLD_SNAPSHOT:
                raise _reads_the_past()
            if fence == _COLLISION:
                refuse_hash_collision(self._names[key], "another lock of this transaction")
            if fence != _OTHER_DATABASE:
                return fence, began, before
            if known is None:
                raise self._identity.other_database()
            known, identity = None, await self._identity.fetch(self._patience())  # the server may have been restarted

    def _patience(self) -> float:
        return (
            _IDENTIFY_WITHIN_S
            if self._until is None
            else min(_IDENTIFY_WITHIN_S, max(_MIN_DIAL_S, self._until - boot_now()))
        )

    async def _missed(self, key: str) -> Taken:
        """Who holds it. Raises Unsupported if that is another name with the same number."""
        number = key_of(key).number
        rows = await self._fetch(_HELD.format(byte=number & 255))
        seen = [_HeldLock(int(pid), int(high), int(low), int(kind), name) for pid, high, low, kind, name in rows]
        holders = [one for one in seen if one.kind == 1 and whole(one.high, one.low) == number]
        for one in holders if integer_in(key) is None else ():
            if _is_other_name(key_of(key), [other for other in seen if other.pid == one.pid]):
                refuse_hash_collision(self._names[key], f"another lock, held by {one.name!r}")
        return Taken(0, key, holders[0].name if holders else None)


class _HeldLock(NamedTuple):
    """An advisory lock that a session holds."""

    pid: int  # not above 0 for a prepared transaction
    high: int
    low: int
    kind: int  # 1: a number; 2: a tag
    application: str | None

    @property
    def name(self) -> str:
        return self.application or (f"pid {self.pid}" if self.pid > 0 else "a prepared transaction")


def _is_other_name(key: Key, seen: list[_HeldLock]) -> bool:
    """Whether a session that holds the number has tags for all of that kind, and ours is not among them.

    If it has fewer, it may have been granted one a moment ago and its tag not yet; then nothing can be said.
    """
    tags = {one.high - 2**32 if one.high >= 2**31 else one.high for one in seen if one.kind == 2}
    numbers = {(one.high, one.low) for one in seen if one.kind == 1}
    return key.tag not in tags and len(tags) >= len(numbers)
