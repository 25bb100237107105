"""The statements for advisory locks, and how their rows are read.

Each statement is prepared once in each session, by itself: the server shows its text in `pg_stat_activity` and in the
log of errors. None needs a table, a function or a privilege of its own.

A grant takes its fence from the server's clock after the lock was granted, in microseconds. Two exclusive holders
cannot have read the same microsecond: between them lies an unlock. Shared holders might, so they read the clock one at
a time. Positions in the log and transaction ids are no fences: after a crash they come again, as
`tests/backends/postgres_advisory/test_server_facts.py` shows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lockfast.backends.postgres_advisory.io.session import Rows, Statements
from lockfast.backends.postgres_advisory.keys import whole

_INT4, _INT8, _TEXT = 23, 20, 25  # the server's numbers for these types
_MINT: Final = 1818652006  # "lfmf" as a number: one lock for each tag, held while a shared holder reads the clock
TERMINATED_WITHIN_S: Final = 5  # for which the server waits for the end of a session that it terminates
_CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_ONE_AT_A_TIME: Final = f"CASE WHEN pg_advisory_xact_lock({_MINT}, $2) IS NULL THEN 0 ELSE {_CLOCK} END"
_SECOND: Final = "(f / 1000000 % 2147483648)::int4"


def _granted(condition: str, clock: str, otherwise: str = "NULL") -> str:
    """The fence, or NULL. The tag is locked only with a fence: a strict function is not called with NULL."""
    asked = f"SELECT CASE WHEN {condition} THEN {clock} ELSE {otherwise} END AS f OFFSET 0"
    return f"SELECT f, pg_advisory_lock_shared($2, {_SECOND}) FROM ({asked}) AS granted"


_UNTAG: Final = """
(SELECT count(pg_advisory_unlock_shared($2, objid::int8::int4)) FROM pg_locks
 WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 2 AND classid::int8 = $2::int8 & 4294967295)
"""
# All advisory locks of this database, and the sessions `a`. A prepared transaction has no pid: its number, below 0, is
# the `owner`. `pg_locks` is read once, because to read it stops all locking for a moment. No ":" (SQLAlchemy), no "%".
# A user's connection runs it too, with a search_path of its own: see `in_transaction`.
OWNED_LOCKS: Final = """(
WITH locks AS MATERIALIZED (SELECT * FROM pg_catalog.pg_locks WHERE locktype IN ('advisory', 'transactionid'))
SELECT l.*, coalesce(l.pid, -CAST(CAST(p.transaction AS text) AS bigint), 0) AS owner, p.gid, p.prepared
FROM locks AS l
LEFT JOIN (locks AS t JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction = t.transactionid)
  ON l.pid IS NULL AND t.pid IS NULL AND t.virtualtransaction = l.virtualtransaction
WHERE l.locktype = 'advisory' AND l.database = (
    SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
) AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid"""
CALLED: Final = "coalesce(a.application_name, 'prepared transaction ' || l.gid)"
_INSPECT: Final = f"""
SELECT l.owner, l.classid, l.objid, l.objsubid, l.mode, l.granted, {CALLED}, host(a.client_addr),
       extract(epoch FROM a.backend_start), CASE WHEN l.pid IS NULL THEN 'prepared' ELSE a.state END,
       extract(epoch FROM coalesce(a.xact_start, l.prepared)), a.client_port
FROM {OWNED_LOCKS} WHERE true
"""
_OF_KEY: Final = """
AND (l.objsubid = 1 AND l.classid::int8 = $1 AND l.objid::int8 = $2
     OR l.objsubid = 2 AND l.classid::int8 >> 24 = $2 & 255)
"""
_IN_ORDER: Final = " ORDER BY l.granted DESC, l.waitstart, l.pid"


def _at_least(setting: str, param: str) -> str:
    """Several statements may raise it at a time, and none lowers it. The server shows the setting as a plain number."""
    return f"set_config('{setting}', greatest({param}, current_setting('{setting}')::int4)::text, false)"


STATEMENTS: Final[Statements] = {
    b"lf_try_exclusive": ((_INT8, _INT4), _granted("pg_try_advisory_lock($1)", _CLOCK)),
    b"lf_try_shared": ((_INT8, _INT4), _granted("pg_try_advisory_lock_shared($1)", _ONE_AT_A_TIME)),
    b"lf_lock_exclusive": ((_INT8, _INT4), _granted("pg_advisory_lock($1) IS NULL", "0", _CLOCK)),
    b"lf_lock_shared": ((_INT8, _INT4), _granted("pg_advisory_lock_shared($1) IS NULL", "0", _ONE_AT_A_TIME)),
    b"lf_free_exclusive": ((_INT8, _INT4, _INT4), "SELECT pg_advisory_unlock($1), pg_advisory_unlock_shared($2, $3)"),
    b"lf_free_shared": (
        (_INT8, _INT4, _INT4),
        "SELECT pg_advisory_unlock_shared($1), pg_advisory_unlock_shared($2, $3)",
    ),
    b"lf_free_all": ((), "SELECT pg_advisory_unlock_all()"),
    b"lf_share": ((_INT8,), "SELECT pg_advisory_lock_shared($1), pg_advisory_unlock($1)"),
    b"lf_tag": ((_INT8, _INT4), _granted(f"{_UNTAG} >= 0", _ONE_AT_A_TIME)),
    b"lf_undo": (
        (_INT8, _INT4),
        f"SELECT CASE WHEN pg_advisory_unlock($1) THEN true ELSE pg_advisory_unlock_shared($1) END, {_UNTAG}",
    ),
    b"lf_ping": ((), "SELECT 1"),
    b"lf_keep": (
        (_INT4, _INT4),
        f"SELECT {_at_least('tcp_user_timeout', '$1')}, {_at_least('tcp_keepalives_interval', '$2')}",
    ),
    b"lf_name": ((_TEXT,), "SELECT set_config('application_name', $1, false)"),
    b"lf_cancel": ((_INT4,), "SELECT pg_cancel_backend($1)"),
    b"lf_terminate": ((_INT4,), f"SELECT pg_terminate_backend($1, {TERMINATED_WITHIN_S * 1000})"),
    b"lf_inspect": ((_INT8, _INT8), _INSPECT + _OF_KEY + _IN_ORDER),
    b"lf_list": ((), _INSPECT + _IN_ORDER),
}


class PgLock(NamedTuple):
    """One session's hold of or wait for one lock, as the server shows it."""

    pid: int  # not above 0 for a prepared transaction, which no session has
    number: int
    shared: bool
    granted: bool
    application: str
    client: str
    connected: float  # seconds since the epoch
    state: str
    began: float  # its transaction; 0 if it has none, or the server does not show it to this role
    tags: tuple[tuple[int, int], ...]  # of all locks that the session holds: tag and second

    @property
    def has_session(self) -> bool:
        return self.pid > 0

    @property
    def called(self) -> str:
        return self.application or (f"pid {self.pid}" if self.has_session else "a prepared transaction")

    @property
    def session(self) -> dict[str, object]:
        """For operators; None for what the server does not show to this role."""
        return {
            "pid": self.pid if self.has_session else None,
            "application_name": self.application,
            "client": self.client or None,
            "connected_at": self.connected or None,
            "state": self.state or None,
        }


def read(rows: Rows) -> list[PgLock]:
    """Holders first, then waiters, in order; each with the tags of its session."""
    tags: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        pid, classid, objid, kind = (int(value or 0) for value in row[:4])
        if kind == 2:
            tags.setdefault(pid, []).append((classid - 2**32 if classid >= 2**31 else classid, objid))
    return [_seen(row, tuple(tags.get(int(row[0] or 0), ()))) for row in rows if row[3] == b"1"]


def _seen(row: list[bytes | None], tags: tuple[tuple[int, int], ...]) -> PgLock:
    text = [(value or b"").decode(errors="replace") for value in row]
    return PgLock(
        pid=int(text[0]),
        number=whole(int(text[1]), int(text[2])),
        shared=text[4] == "ShareLock",
        granted=text[5] == "t",
        application=text[6],
        client=text[7] or ("local" if text[11] == "-1" else ""),
        connected=float(text[8] or 0),
        state=text[9],
        began=float(text[10] or 0),
        tags=tags,
    )
