"""`lockfast migrate`: make the tables and functions that `postgresql://` needs, or bring them up to date.

Decides: where the URL comes from, and what is said afterwards.
Leaves to `_connect`: the script, and to run it.
"""

from __future__ import annotations

import os
from functools import partial

from lockfast._connect import migration
from lockfast.cli import exits
from lockfast.cli.options import Parser
from lockfast.cli.store import reports_silence
from lockfast.engine.outage import with_hint
from lockfast.errors import BackendUnavailable

_MORE = """It can be run again at any time, by several at once too: what is there stays,
functions are put in place of older ones, all of them or none. A lock table of
your own that is called distributed_locks is adopted, with what it holds; calls
of its functions go on. The user who runs it must be allowed to create
tables in that schema. Users of the locks need no more than USAGE on the schema
and the rights to read and write its tables and sequences, and to execute its
functions where PUBLIC may not.

The SQL of --print has no BEGIN and no COMMIT: run it in one transaction, as
Alembic, Django's RunSQL and psql --single-transaction do.

  lockfast migrate postgresql://admin@db/app
  lockfast migrate --schema locks --print postgresql:// > locks.sql"""


def migrate(words: list[str]) -> int:
    """Run the script, or print it."""
    parser = Parser("migrate", description="Make the schema of the lock table at URL, or update it.", epilog=_MORE)
    parser.add_argument("url", metavar="URL", nargs="?", help="postgresql://…; default: $LOCKFAST_URL")
    parser.add_argument("--schema", help="where in the database (default: what the URL says, else public)")
    parser.add_argument("--print", action="store_true", dest="prints", help="print the SQL and connect to nothing")
    parser.add_argument("--adopt", action="store_true", help="with --print: in two transactions, as an adoption needs")
    args = parser.parse_args(words)
    url = os.environ.get("LOCKFAST_URL") if args.url is None else args.url
    if not url:
        parser.error("which database? give a postgresql:// URL, or set LOCKFAST_URL")
    if args.adopt and not args.prints:
        parser.error("--adopt is for --print; without that, a lock table of your own is adopted anyway")
    made = migration(url, args.schema)
    if args.prints:
        print(made.adopting if args.adopt else made.script, end="")
    else:
        try:
            with reports_silence():
                made.run(partial(print, flush=True))
        except BackendUnavailable as error:
            raise with_hint(error, made.url) from error.__cause__
        print("the lock table is there, and up to date")
    return exits.OK
