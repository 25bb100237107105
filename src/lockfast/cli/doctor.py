"""`lockfast doctor`: how the servers are that the locks rest on.

Decides: how they are shown to people, and the exit code: whether locks can be acquired.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from lockfast._model import Health
from lockfast.cli import exits
from lockfast.cli.inspection import span
from lockfast.cli.options import Parser, print_table, report_warnings, visible
from lockfast.cli.store import add_store_options, reports_silence, url_of_existing
from lockfast.sync import connect

_MORE = """STATE is
  ok           it answers, and locks can be acquired
  refused      it answers, but grants no locks: the last column says why
  excluded     it has just started, and does not count in a quorum yet
  unreachable  it does not answer

exits 69 if no locks can be acquired: the store does not answer or refuses, or
fewer than a majority of a quorum count.

--json prints one object: works, and servers, a list of objects with where,
reachable, latency (seconds), version, role, excluded_for (seconds), error and
counts"""

_HEAD = ("SERVER", "STATE", "LATENCY", "VERSION", "ROLE", "WHAT IS WRONG")

_EXCLUDED = """
A server that has just started is excluded for one ttl (30s unless the URL
says ?rejoin=), since it may have forgotten a lease that is still held. If the
servers are new, add ?rejoin=0 to the URL, or rejoin=0 to connect(): they count
at once then, and one that loses its data can let a second holder in."""


def doctor(words: list[str]) -> int:
    """One row for each server; 69 if no locks can be acquired."""
    parser = Parser(
        "doctor",
        description="Check each server that the locks rest on: whether it answers, how fast,\n"
        "its version and its role. Nothing is changed there.",
        epilog=_MORE,
    )
    parser.add_argument("--json", action="store_true", help="for programs; see below")
    parser.add_argument("where", metavar="URL", nargs="?", help="the same as --url")
    add_store_options(parser)
    args = parser.parse_args(words)
    if args.where is not None:
        if args.url is not None or args.system:
            parser.error("say which store once: URL, --url or --system")
        args.url = args.where
    report_warnings()
    with connect(url_of_existing(args), namespace=args.namespace) as locks, reports_silence():
        found = locks.doctor()
    if args.json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        print_table([_HEAD, *map(_row, found.servers)])
        if any(server.excluded_for for server in found.servers):
            print(_EXCLUDED)
    return exits.OK if found.works else exits.UNAVAILABLE


def _row(server: Health) -> Sequence[str]:
    latency = "-" if server.latency is None else f"{server.latency * 1000:.1f}ms"
    wrong = f"just started; counts in {span(server.excluded_for)}" if server.excluded_for else ""
    cells = (server.where, _state(server), latency, server.version or "-", server.role or "-", server.error or wrong)
    return [visible(cell) for cell in cells]


def _state(server: Health) -> str:
    if server.counts:
        return "ok"
    return "refused" if server.reachable and server.error else "excluded" if server.reachable else "unreachable"
