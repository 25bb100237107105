"""The file of the SQLite backend: its tables, its clock and its counter.

Decides: what a new file contains, and that times of another boot or another host are never compared with ours.
Leaves to `backend` and `values`: the verbs.
"""

from __future__ import annotations

import time
from typing import Final, NoReturn

from lockfast._model import MAX_TTL_S
from lockfast._records import is_count
from lockfast._time import first_fence
from lockfast._values import NS_PER_S
from lockfast.backends.sqlite.io.driver import SqliteSchema, SqliteTransaction
from lockfast.backends.sqlite.io.host import fingerprint
from lockfast.errors import BackendUnavailable

MAX_CLOCK_DIFFERENCE_S: Final = 5.0  # between two hosts with one machine-id, such as clones
MAX_LOST_GRANTS: Final = 1_000_000  # in a power cut: all that are in the log
SWEEP_EVERY: Final = 1024  # grants between two sweeps for names that are not used any more

_FORMAT_1: Final = (
    """CREATE TABLE claims (
        key TEXT NOT NULL,         -- empty for the store's own row, see below
        waiting INTEGER NOT NULL,  -- 0 holds, 1 waits, 2 observes, 3 see hold_index.py
        place INTEGER NOT NULL,    -- a holder's fence; a waiter's number in its queue; unique for an observer
        claim TEXT NOT NULL,
        holder TEXT NOT NULL,
        mode TEXT NOT NULL,
        lim INTEGER NOT NULL DEFAULT 0,     -- 0 is no limit: a NULL takes sqlite3 longer to bind
        metadata TEXT NOT NULL DEFAULT '',  -- JSON
        acquired_at REAL NOT NULL DEFAULT 0,  -- wall clock, for people
        ttl REAL NOT NULL,
        ends_at REAL NOT NULL,     -- boot clock: when the hold expires, or the presence of a waiter
        ended INTEGER NOT NULL DEFAULT 0,   -- released, but lingers
        address TEXT NOT NULL DEFAULT '',   -- where a waiter is woken
        reserved_until REAL,       -- of a waiter
        lapsed INTEGER NOT NULL DEFAULT 0,  -- its reservation ran out; passed over until it asks again
        counter INTEGER,           -- the store's own row only
        PRIMARY KEY (key, waiting, place)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX waiting_claims ON claims (claim) WHERE waiting = 1",
    "CREATE INDEX reservations ON claims (key) WHERE reserved_until IS NOT NULL",
)

_FORMAT_2: Final = (
    """CREATE TABLE changes (        -- of names that are observed
        key TEXT NOT NULL,
        number INTEGER NOT NULL,
        fence INTEGER NOT NULL,     -- of the hold that began or ended
        holder TEXT,                -- NULL: it ended
        PRIMARY KEY (key, number)
    ) WITHOUT ROWID""",
    """CREATE TABLE limiters (
        key TEXT PRIMARY KEY,
        until INTEGER NOT NULL      -- boot clock in nanoseconds: up to when it is booked
    ) WITHOUT ROWID""",
    "CREATE INDEX limiters_by_end ON limiters (until)",
    """CREATE TABLE cells (
        key TEXT PRIMARY KEY,       -- empty for the highest version that was ever deleted
        value TEXT,
        version INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        writer TEXT NOT NULL
    ) WITHOUT ROWID""",
)

FORMATS: Final = (_FORMAT_1, _FORMAT_2)  # the tables that each added; a file's user_version is the number of its format

# What an earlier lockfast can do without, so it is no format of its own, and is made before the first write.
_BESIDE: Final = (
    """CREATE TABLE IF NOT EXISTS shared_holds (  -- of names with many, see hold_index.py
        key TEXT NOT NULL,
        claim TEXT NOT NULL,
        place INTEGER NOT NULL,     -- as in claims
        ends_at REAL NOT NULL,      -- the hold does not expire before that
        PRIMARY KEY (key, claim, place)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS shared_holds_by_end ON shared_holds (key, ends_at)",
)

# The store's own row has the empty key, which no lock can have. It stands in the same table because then a grant
# writes one page of the file and not two, which is a fifth of its whole cost. Its fields:
#   counter      the last fence or number of a change that was given out; only grows
#   holder       the boot whose clock all times are read on
#   claim        the fingerprint of that boot's machine
#   acquired_at  wall clock of the last grant or renewal
STORE: Final = "key = '' AND waiting = 0 AND place = 0"
_COUNT: Final = f"UPDATE claims SET counter = ?, acquired_at = ? WHERE {STORE}"
_OWN_ROW: Final = f"SELECT holder, counter, claim, acquired_at FROM claims WHERE {STORE}"

INDEXED: Final = 3  # the kind of a row that says that the name has an index of its holds; it is none itself
HOLDS: Final = f"waiting NOT IN (1, 2, {INDEXED})"  # an unknown kind counts as a hold: it may have been one


def is_current(t: SqliteTransaction) -> bool:
    """Whether the file has all tables. Raises BackendUnavailable for a file of another program or a newer lockfast."""
    version = _version(t)
    made = dict(t.execute("SELECT name, sql FROM sqlite_master").fetchall())
    if (version or made) and "reserved_until" not in (made.get("claims") or ""):
        raise BackendUnavailable("the SQLite file belongs to another program; name another file", transient=False)
    if version > len(FORMATS):
        raise BackendUnavailable(
            f"the lock store has format {version}, this lockfast knows format {len(FORMATS)}; upgrade lockfast",
            transient=False,
        )
    return version == len(FORMATS)


def _version(t: SqliteTransaction) -> int:
    version: int = t.execute("PRAGMA user_version").fetchone()[0]
    return version


def prepare(t: SqliteTransaction) -> None:
    """Make the tables that a file lacks, and count on above all fences that can have been given out.

    The file may be a backup that was restored, without the fences since then.
    """
    if not is_current(t):
        _make_tables(t, _version(t))
    for statement in _BESIDE:
        t.execute(statement)
    t.execute(f"UPDATE claims SET counter = max(counter, ?) WHERE {STORE}", (first_fence(),))
    _hide_machine(t)


SCHEMA: Final = SqliteSchema(is_current, prepare)


def _hide_machine(t: SqliteTransaction) -> None:
    """An older lockfast stored the machine's id itself."""
    machine = t.host.machine
    if t.execute(f"SELECT 1 FROM claims WHERE {STORE} AND claim = ?", (machine,)).fetchone():
        t.execute(f"UPDATE claims SET claim = ? WHERE {STORE}", (fingerprint(machine),))


def _make_tables(t: SqliteTransaction, version: int) -> None:
    for statements in FORMATS[version:]:
        for statement in statements:
            t.execute(statement)
    if version == 0:
        t.execute(
            "INSERT INTO claims (key, waiting, place, claim, holder, mode, acquired_at, ttl, ends_at, counter)"
            " VALUES ('', 0, 0, ?, ?, '', ?, 0, 9e999, ?)",
            (fingerprint(t.host.machine), t.host.boot, time.time(), first_fence()),
        )
    t.execute(f"PRAGMA user_version = {len(FORMATS)}")


# The clock that the store counts by, and its counter


def check_boot(t: SqliteTransaction) -> None:
    """Every verb that writes starts here: if the times in the store are not of our boot clock, they are void.

    From here on the transaction knows the counter.
    """
    if not is_void(t):
        return
    for table in ("claims", "shared_holds", "changes", "limiters"):  # cells have no times
        t.execute(f"DELETE FROM {table} WHERE key > ''")
    # A power cut may have lost the last commits: count on above all fences that can have been given out, even if the
    # clock is behind since then.
    t.counter = max(t.counter + MAX_LOST_GRANTS, first_fence())
    t.execute(
        f"UPDATE claims SET claim = ?, holder = ?, acquired_at = ?, counter = ? WHERE {STORE}",
        (fingerprint(t.host.machine), t.host.boot, time.time(), t.counter),
    )


def is_void(t: SqliteTransaction) -> bool:
    """Whether all leases in the store are of an earlier boot. Raises BackendUnavailable if another host holds them."""
    boot, t.counter, machine, touched_at = t.execute(_OWN_ROW).fetchone() or no_store()
    if not is_count(t.counter):
        no_store()
    if boot == t.host.boot:
        return False
    if not (boot.__class__ is machine.__class__ is str and touched_at.__class__ is float):
        no_store()
    longest, now = _longest_ttl(t), time.time()
    if longest is not None and now < touched_at + longest and not _has_rebooted(t, machine, touched_at, now):
        raise BackendUnavailable(
            "the lock store is in use by another host, which holds leases in it; SQLite locks work between the "
            "processes of one host only, so use a lock server between hosts",
            transient=False,
        )
    return True


def _longest_ttl(t: SqliteTransaction) -> float | None:
    """Of all holds; None without a hold."""
    (longest,) = t.execute(f"SELECT max(ttl) FROM claims WHERE key > '' AND {HOLDS}").fetchone()
    if longest is None:
        return None
    sound = longest.__class__ is float and longest <= MAX_TTL_S
    return longest if sound else MAX_TTL_S  # a damaged hold may have any ttl


def _has_rebooted(t: SqliteTransaction, machine: str, touched_at: float, now: float) -> bool:
    """Whether it was this machine before a reboot; else it is another machine with the same id.

    A clock that went far back belongs to a machine that lost the time while it was off.
    """
    ours = (fingerprint(t.host.machine), t.host.machine)  # the second if an older lockfast wrote it
    return machine in ours and (touched_at < t.host.booted_at or now < touched_at - MAX_CLOCK_DIFFERENCE_S)


def no_store() -> NoReturn:
    raise BackendUnavailable(
        "the lock store is corrupt: its own row, with the counter, is missing or damaged; move it away, and a new "
        "one is made",
        transient=False,
    )


def count(t: SqliteTransaction, wall: float) -> int:
    """The next number: a fence, or the number of a change or of an observer."""
    if not is_count(t.counter):
        no_store()
    t.counter += 1
    t.execute(_COUNT, (t.counter, wall))
    if t.counter % SWEEP_EVERY == 0:
        _sweep(t)
    return t.counter


def _sweep(t: SqliteTransaction) -> None:
    """Delete what has expired without waiters and observers, changes without observers, and unused limiters."""
    t.execute(
        "DELETE FROM claims WHERE waiting = ? AND NOT EXISTS"
        " (SELECT 1 FROM claims AS other WHERE other.key = claims.key AND other.waiting < ? AND other.ends_at > ?)",
        (INDEXED, INDEXED, t.now),
    )
    t.execute("DELETE FROM shared_holds WHERE key NOT IN (SELECT key FROM claims WHERE waiting = ?)", (INDEXED,))
    t.execute(
        "DELETE FROM claims WHERE ends_at <= ? AND NOT EXISTS (SELECT 1 FROM claims AS other WHERE"
        " other.key = claims.key AND other.waiting > 0 AND other.ends_at > ?)",
        (t.now, t.now),
    )
    t.execute("DELETE FROM changes WHERE key NOT IN (SELECT key FROM claims WHERE waiting = 2)")
    t.execute("DELETE FROM limiters WHERE until <= ?", (int(t.now * NS_PER_S),))
