"""What the lock table's schema consists of: one script that makes it, or brings it up to date.

Decides: the order of its parts, its version, and what the constants in them mean.
Leaves to the files in `sql/`: the tables, and each step as a function. Leaves to the driver: to run it.

The script can be run again at any time: what is there stays, functions are put in place of older ones. It finds out
itself whether there is a legacy lock table to adopt, so that it is the same text everywhere.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

from lockfast._model import GRACE_S, MAX_KEPT_CHANGES, MAX_POSITION, MAX_TTL_S, PRESENCE_S, RECENT_S
from lockfast._records import (
    DEEPEST,
    LARGEST_METADATA,
    LARGEST_NUMBER,
    LONGEST_KEY,
    LONGEST_NAME,
    MOST_READ,
    NAMESPACE_SEPARATOR,
    PLAIN,
)
from lockfast._text import shown
from lockfast._values import FAR_VERSION, MAX_BOOKED_NS
from lockfast.backends.postgres.io.endpoint import SAFE_PATH
from lockfast.backends.postgres_table.io.session import IN_USE

VERSION: Final = 4  # of the tables and functions; raised with each change that a client depends on
LONGEST_SCHEMA: Final = 63  # bytes of a name in PostgreSQL
CLASS: Final = 0x484F4C44  # classid of the advisory locks that serialize steps: "HOLD"
WRAPPED: Final = "lockfast:json"  # metadata that jsonb cannot keep as it is: a text with that JSON in it
LISTENER: Final = 0x48454152  # classid of the advisory locks of connections that listen: "HEAR"

_TABLES: Final = ("tables",)  # what versions added to them, in order; 2 to 4 changed functions only
_FUNCTIONS: Final = (
    "steps",
    "acquire",
    "end",
    "many",
    "observe",
    "values",
    "legacy_adopted",
    "portable",
    "plans",
    "legacy_callers",
    "search_path",
)
_CONSTANTS: Final = {
    "SAFE_PATH": SAFE_PATH,
    # Whether a row of pg_locks is about a lock table of the user's own, or a lock of ours that stands for it.
    "USES_THE_TABLE": """(database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND (
        relation = to_regclass('@.distributed_locks')
        OR (locktype = 'advisory' AND classid = LOCKFAST AND objid IN (MIGRATION, GATE) AND objsubid = 2)))""",
    # Whether a hold is one that `_records` can show. The types of the other columns see to the rest.
    "SOUND": "(fence BETWEEN 0 AND LARGEST_NUMBER AND isfinite(acquired_at))",
    "LOCKFAST": str(CLASS),
    "MIGRATION": "0",  # of that class: one at a time
    "GATE": "1",  # of that class: shared by the callers of functions that are replaced
    "IN_USE": f"'{IN_USE.decode()}'",
    "TABLE_WAIT": "interval '30 seconds'",  # that a migration tries to lock the tables that it has to change,
    "TABLE_PATIENCE": "200",  # milliseconds at a time, for which every client waits behind it,
    "TABLE_PAUSE": "0.5",  # seconds between two tries
    "RESTART": "2",  # of that class: one client at a time checks whether fences may have been lost
    "JUST_SET": "100000",  # numbers: so far the sequence is behind the clock a tenth of a second after it was set
    "LISTENER": str(LISTENER),
    "GRACE": f"interval '{GRACE_S} seconds'",
    "RECENT": f"interval '{RECENT_S} seconds'",
    "PRESENCE": f"interval '{PRESENCE_S} seconds'",
    "LATE": f"interval '{2 * PRESENCE_S} seconds'",  # for which a tombstone is kept
    "KEPT_CHANGES": str(MAX_KEPT_CHANGES),
    "FURTHEST": str(MAX_BOOKED_NS),
    "FAR_VERSION": str(FAR_VERSION),
    "LARGEST_NUMBER": str(LARGEST_NUMBER),
    "LONGEST_TTL": str(int(MAX_TTL_S)),
    "LONGEST_NAME": str(LONGEST_NAME),
    "LONGEST_KEY": str(LONGEST_KEY),
    "LARGEST_METADATA": str(LARGEST_METADATA),
    "NAMESPACE_SEPARATOR": f"E'\\\\x{ord(NAMESPACE_SEPARATOR):02x}'",
    "MOST_READ": str(MOST_READ),
    "DEEPEST": str(DEEPEST),
    "PLAIN": str(PLAIN),
    "WRAPPED": WRAPPED,
    "FEW": "3",  # requests that are quicker one by one
    "ROW_PATIENCE": "50",  # milliseconds that a batch waits for a row
    # The name of a row that is found by its claim. To a plan that was made while the table was empty, the index by name
    # looks as good, and visits every waiter of that name.
    "NAMED": "lock_name || '' = p_name AND namespace || '' = p_ns",
    "HEAD": str(MAX_POSITION),  # waiters that are read
    "LAST": "9223372036854775807",  # above every place in a queue
    # Whether there is a distributed_locks, and not ours; null if there is none.
    "IS_LEGACY": """(SELECT count(*) FILTER (WHERE attname IN ('namespace', 'claim', 'fence')) < 3 FROM pg_attribute
        WHERE attrelid = to_regclass('@.distributed_locks') AND NOT attisdropped HAVING count(*) > 0)""",
    "IS_GATE": "(prosrc ~ 'lockfast_legacy_')",
    "IS_OURS": "(prosrc ~ 'lockfast_(?!legacy_)')",
    # Roles that may execute a function, as GRANT names them; its owner if none may.
    "CALLERS": """coalesce((
        SELECT string_agg(GRANTEE, ', ') FROM aclexplode(coalesce(proacl, acldefault('f', proowner)))),
        quote_ident(pg_get_userbyid(proowner)))""",
    "GRANTEE": "CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END",
    # No legacy table may have these: they would mean something else.
    "OUR_COLUMNS": "('namespace', 'slot', 'ttl', 'claim', 'mode', 'max_holders', 'fence', 'ended')",
    "OUR_FUNCTIONS": "('acquire_lock', 'release_lock', 'extend_lock')",  # that others call
    "ENTRY_POINTS": """('lockfast_acquire', 'lockfast_release', 'lockfast_many', 'lockfast_renew', 'lockfast_abandon',
        'lockfast_observe', 'lockfast_inspect', 'lockfast_holders', 'lockfast_list', 'lockfast_break', 'extend_lock',
        'lockfast_throttle', 'lockfast_unthrottle', 'lockfast_read', 'lockfast_write')""",
    "OUR_TYPES": "(ARRAY['text', 'text', 'double precision', 'jsonb'])",  # of their parameters
    "SWEEP_EVERY": "64",  # grants, after which a few names that are no longer asked for are cleaned up
}

_HEADER: Final = "-- The schema of lockfast's lock table, version {version}. It can be run again at any time."
_IN_ONE: Final = """--
-- It has no BEGIN and no COMMIT: run it in one transaction, as Alembic, Django's RunSQL and psql -1 do."""
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED;"  # so that each statement sees what was committed before it
_COMMIT: Final = "COMMIT;\n"
# No operator or function of another role may take the place of the server's own, now or in what is made here.
# These settings are as before afterwards: the transaction, or a pooled connection, is not only ours.
_ENTER: Final = """DO $$
BEGIN
    PERFORM pg_catalog.set_config('lockfast.search_path', pg_catalog.current_setting('search_path'), false);
    PERFORM pg_catalog.set_config('lockfast.messages', pg_catalog.current_setting('client_min_messages'), false);
    PERFORM pg_catalog.set_config('search_path', 'SAFE_PATH', false);
    PERFORM pg_catalog.set_config('client_min_messages', 'warning', false);
END $$;"""
_LEAVE: Final = """DO $$
BEGIN
    PERFORM set_config('client_min_messages', current_setting('lockfast.messages'), false);
    PERFORM set_config('search_path', current_setting('lockfast.search_path'), false);
END $$;"""
_BEFORE: Final = """DO $$
BEGIN
    IF to_regnamespace('@') IS NULL THEN
        CREATE SCHEMA @;
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS @.lockfast_schema (
    version     integer PRIMARY KEY,
    migrated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
DO $$
BEGIN
    IF (SELECT max(version) FROM @.lockfast_schema) > {version} THEN
        RAISE 'a newer lockfast has been here: its schema has version %, this one is version {version}',
            (SELECT max(version) FROM @.lockfast_schema);
    END IF;
END $$;
"""
_AFTER: Final = "INSERT INTO @.lockfast_schema (version) VALUES {versions} ON CONFLICT DO NOTHING;"


def valid_schema(name: Any) -> str:
    """The name itself. Raises ValueError for one that could not stand in a script without care."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\W\d][\w-]*", name) or len(name.encode()) > LONGEST_SCHEMA:
        raise ValueError(
            f"a schema is letters, digits, _ and -, at most {LONGEST_SCHEMA} bytes of them, not {shown(name)}"
        )
    if name.startswith("pg_") or name == "information_schema":
        raise ValueError(f"the schema {shown(name)} is PostgreSQL's own; choose another one")
    return name


@cache
def script(schema: str) -> str:
    """All statements, in one transaction, after another one that prepares for it if the user has a lock table."""
    parts = [_HEADER, "SET lockfast.checked = '';"]
    parts += [_BEGIN, _ENTER, _sql("legacy"), _LEAVE, _COMMIT]
    parts += [_BEGIN, _ENTER, _sql("legacy_aside"), *_main_parts(), _LEAVE, _COMMIT]
    return _filled(parts, schema)


@cache
def script_in_one(schema: str) -> str:
    """The same for a transaction of the caller's. It refuses to adopt a lock table, which takes two."""
    parts = [_HEADER + "\n" + _IN_ONE, _ENTER, _sql("legacy_refused"), _sql("legacy"), *_main_parts(), _LEAVE, ""]
    return _filled(parts, schema)


def _main_parts() -> list[str]:
    return [_BEFORE, *map(_sql, (*_TABLES, *_FUNCTIONS)), _AFTER]


def _sql(name: str) -> str:
    return (files("lockfast.backends.postgres_table") / "sql" / f"{name}.sql").read_text()


def _filled(parts: list[str], schema: str) -> str:
    """The text, with its constants and the name of the schema."""
    text = "\n".join(parts)
    versions = ", ".join(f"({number})" for number in range(1, VERSION + 1))
    text = text.replace("{versions}", versions).replace("{version}", str(VERSION))
    for constant, value in _CONSTANTS.items():
        text = re.sub(rf"\b{constant}\b", value, text)
    return re.sub(r"@(?=[.';])", f'"{schema}"', text)
