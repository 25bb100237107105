"""`lockfast ls`, `show` and `break`: what an operator sees and may end.

Decides: how locks are shown to people, and the shape of `--json`, which scripts may rely on.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Sequence
from math import inf
from typing import Any

from lockfast._model import HolderInfo, LockInfo
from lockfast.cli import exits
from lockfast.cli.options import Parser, complain, print_table, report_warnings, unmistakable, visible
from lockfast.cli.store import add_store_options, report_outages, url_to_inspect
from lockfast.primitives.names import flaw_in
from lockfast.sync import Locks, connect

_JSON = """--json prints one document. A lock is an object with
  name       string
  locked     true or false
  waiters    how many wait for it
  queue      list of their holder ids, in the order of the queue
  damage     null, or what of its record cannot be read: `break` frees it
  holders    list of objects, oldest first:
             holder, claim_id, fence (null if the store does not know it),
             mode ("exclusive" or "shared"), acquired_at and expires_at
             (seconds since the epoch; expires_at is null if only the end of
             its connection ends it), metadata (any JSON, or null),
             session (null, or an object about that connection: pid,
             application_name, client, connected_at, state; null for what is
             not shown to you, or does not exist: a prepared transaction has
             no pid). A hold that cannot be read has the holder "(damaged)"
             and an empty claim_id: no time ends it"""


def list_locks(words: list[str]) -> int:
    """Everything that is held or waited for, one row for each holder."""
    parser = _parser(
        "ls", "List the locks that are held or waited for.", f"{_JSON}\n`ls --json` prints a list of them."
    )
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names with this prefix")
    args = parser.parse_args(words)
    with _connect(args) as locks:
        found = locks.list(args.prefix)
    if args.json:
        _print_json([_as_json(info) for info in found])
    elif found:
        now = time.time()
        rows = [_HEAD, *(row for info in found for row in _rows(_for_people(info), now))]
        print_table(rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows])
    else:
        complain(f"no lock{f' that begins with {args.prefix!r}' if args.prefix else ''} is held or waited for")
    return exits.OK


def show(words: list[str]) -> int:
    """One lock in full."""
    parser = _parser("show", "Show who holds the lock NAME and how many wait for it.", _JSON)
    parser.add_argument("name", metavar="NAME", help="the lock's name; write it after -- if it begins with -")
    parser.add_argument("--check", action="store_true", help="exit 1 if it is free (default: 0 either way)")
    args = parser.parse_args(words)
    with _connect(args) as locks:
        info = locks.inspect(args.name)
    if args.json:
        _print_json(_as_json(info))
    else:
        print(_in_full(_for_people(info), time.time()))
    return exits.NO if args.check and not info.locked else exits.OK


def break_(words: list[str]) -> int:
    """End every hold of one lock, and show what there was."""
    parser = _parser(
        "break",
        "End every hold of the lock NAME, and hand it over to the next waiter.\n\n"
        "The former holder is not asked. It learns of it when it next renews, within a\n"
        "third of its ttl, and until then it may go on working. The next holder's fence\n"
        "is higher: whatever checks fences refuses the former holder's writes from that\n"
        "moment.\n\n"
        "An advisory lock of PostgreSQL is broken by ending the connection of its\n"
        "holder, with everything else that it holds. The holder learns of it at once.",
        f"exits 1 if it was not held.\n\n{_JSON}\n`break --json` prints the lock as it was before, and `broken`.",
    )
    parser.add_argument("name", metavar="NAME", help="the lock's name; write it after -- if it begins with -")
    args = parser.parse_args(words)
    with _connect(args) as locks:
        if flaw_in(args.name):
            locks.list()  # which may show a damaged record under it: then it can be broken
        before = locks.break_lock(args.name)
    if args.json:
        _print_json({"broken": before.locked, **_as_json(before)})
    elif before.locked:
        print(_broken_in_words(_for_people(before), time.time()))
    else:
        complain(f"lock {args.name!r} was not held; nothing was broken")
    return exits.OK if before.locked else exits.NO


def _parser(command: str, about: str, more: str) -> Parser:
    parser = Parser(command, description=about, epilog=more)
    parser.add_argument("--json", action="store_true", help="for programs; see below")
    add_store_options(parser)
    return parser


def _connect(args: Namespace) -> Locks:
    report_warnings()
    locks = connect(url_to_inspect(args), namespace=args.namespace)
    report_outages(locks)
    return locks


def _as_json(info: LockInfo) -> dict[str, Any]:
    return {**info.as_dict(), "locked": info.locked}


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))


# For people

_HEAD = ("NAME", "HOLDER", "FENCE", "HELD", "EXPIRES", "WAITERS", "METADATA", "CONNECTION")  # the last if there is one
_WIDEST = 120  # letters of a holder or of metadata in a row of `ls`


def _for_people(info: LockInfo) -> LockInfo:
    """With everything that others chose made harmless to print."""
    holders = (
        who._replace(holder=unmistakable(who.holder), claim_id=unmistakable(who.claim_id)) for who in info.holders
    )
    queue = tuple(map(unmistakable, info.queue))
    return info._replace(name=unmistakable(info.name), holders=tuple(holders), queue=queue, damage=visible(info.damage))


def _rows(info: LockInfo, now: float) -> list[Sequence[str]]:
    if not info.holders:
        return [(info.name, "-", "-", "-", "-", str(info.waiters), _cut(_damage(info)), "")]
    return [
        (
            info.name,
            _cut(who.holder) + (" (shared)" if who.mode == "shared" else ""),
            _fence(who),
            span(now - who.acquired_at) if who.claim_id else "-",
            _end(who, now),
            str(info.waiters),
            _cut(_damage(info) or _metadata(who)),
            _connection(who),
        )
        for who in info.holders
    ]


def _damage(info: LockInfo) -> str:
    return f"damaged: {info.damage}" if info.damage else ""


def _end(who: HolderInfo, now: float) -> str:
    if _expires(who):
        return f"in {span(who.expires_at - now)}"
    if _is_prepared(who):
        return "with its transaction"
    return "with its connection" if who.claim_id else "when it is broken"


def _cut(text: str) -> str:
    """So much of it that a row can still be read, however long others made it; `show` and `--json` print all."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _in_full(info: LockInfo, now: float) -> str:
    lines = [f"{info.name}: {'held' if info.locked else 'free'}"]
    if info.damage:
        lines.append(f"  damaged   {info.damage}; `lockfast break` frees it")
    for who in info.holders:
        if not who.claim_id:
            lines.append(f"  holder    {who.holder}")
            continue
        lines += [
            f"  holder    {who.holder}",
            f"            held {span(now - who.acquired_at)}, {_until(who, now)}",
            f"  fence     {_fence(who)}",
            f"  mode      {who.mode}",
            f"  claim     {who.claim_id}",
            *([f"  metadata  {_metadata(who)}"] if who.metadata is not None else []),
            *([f"  session   {_connection(who)}{_since(who, now)}"] if who.session is not None else []),
        ]
    lines.append(f"  waiters   {info.waiters}")
    lines += [f"            {place}. {who}" for place, who in enumerate(info.queue, 1)]
    return "\n".join(lines)


def _broken_in_words(before: LockInfo, now: float) -> str:
    lines = [
        f"broke {before.name}, held by {who.holder}"
        + (f" for {span(now - who.acquired_at)}" if who.claim_id else "")
        + (f" with fence {who.fence}" if who.fence is not None else "")
        for who in before.holders
    ]
    if any(who.session is not None for who in before.holders):
        lines.append(
            "its connection was ended, with everything else that it held; the former holder learns of it at once"
        )
    else:
        lines.append(
            "the next grant has a higher fence; the former holder learns of this at its next renewal,"
            " and until then only a check of the fence stops it"
        )
    return "\n".join(lines)


def _fence(who: HolderInfo) -> str:
    return "-" if who.fence is None else str(who.fence)


def _expires(who: HolderInfo) -> bool:
    return who.expires_at < inf


def _until(who: HolderInfo, now: float) -> str:
    if _expires(who):
        return f"expires in {span(who.expires_at - now)} unless renewed"
    return "until it is committed or rolled back" if _is_prepared(who) else "until its connection ends"


def _connection(who: HolderInfo) -> str:
    """pid 4242 from 10.0.0.7, idle"""
    if who.session is None:
        return ""
    if _is_prepared(who):
        return "none, prepared"
    found = [f"pid {who.session['pid']}"]
    if (client := who.session["client"]) is not None:
        found[0] += f" from {client}"
    if who.session["state"] is not None:
        found.append(who.session["state"])
    return visible(", ".join(found))


def _is_prepared(who: HolderInfo) -> bool:
    """Whether a prepared transaction holds it, which belongs to no connection."""
    return who.session is not None and who.session["pid"] is None


def _since(who: HolderInfo, now: float) -> str:
    at = who.session and who.session["connected_at"]
    return f", connected {span(now - at)} ago" if at else ""


def _metadata(who: HolderInfo) -> str:
    return "" if who.metadata is None else visible(json.dumps(who.metadata))


def span(seconds: float) -> str:
    """A length of time for people: 0.4s, 12s, 3m05s, 2h10m, 5d03h."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for unit, below, size, part in (("m", "s", 60, 1), ("h", "m", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size:
            break
        text = f"{whole // size}{unit}{whole % size // part:02}{below}"
    return text if whole >= 60 else f"{whole}s"
