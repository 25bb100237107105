"""`lockfast run`: a command under a lock.

Decides: the order of things. What can be refused is refused first; the command's process and its guardian are forked
while there is one thread and no connection; then the lock is waited for; then the command is started.
Leaves to the supervisor: the time while the command runs.
"""

from __future__ import annotations

import json
import os
import signal
from argparse import Namespace
from typing import Any

from lockfast._time import format_duration, length
from lockfast.backends.sqlite.open import file_of, url_of_file
from lockfast.cli import child, exits, guardian
from lockfast.cli.options import TIMES, Parser, code, complain, report_warnings, seconds
from lockfast.cli.signals import SignalQueue, interrupt_on_signals
from lockfast.cli.store import add_store_options, report_outages, url_of
from lockfast.cli.supervisor import CommandOutcome, Grace, Supervisor
from lockfast.cli.terminal import open_terminal
from lockfast.errors import AcquireTimeout, BackendUnavailable, LeaseLost
from lockfast.observe.events import Event
from lockfast.primitives.names import valid
from lockfast.sync import Lease, Lock, Locks, connect

_MIN_TTL_S = 0.5  # below, there is no time to end a command before its lease ends

_ABOUT = """Wait for the lock NAME, run COMMAND while holding it, release it, and exit as
COMMAND did.

The lease is renewed while COMMAND runs. If it is lost, or cannot be renewed,
COMMAND and everything that it started in its process group are ended (TERM,
then KILL) before another holder can have the lock. The same happens if lockfast
itself is killed or stopped.

COMMAND begins with the first word after NAME that is not an option, or after
--. Options of COMMAND are its own."""

_MORE = f"""{TIMES}

what COMMAND finds in its environment:
  LOCKFAST_NAME     the lock's name
  LOCKFAST_FENCE    a number that only ever grows for this name; let what you
                    write to refuse a lower one
  LOCKFAST_HOLDER   who holds it, as others see it
  LOCKFAST_CLAIM    the id of this hold
  LOCKFAST_TTL      seconds that the lease lasts without renewal
  LOCKFAST_EXPIRES  when it ends unless renewed, in seconds since the epoch, as
                    of the start of COMMAND
  LOCKFAST_URL      where the lock is

exit codes:
  COMMAND's own; 128+n if signal n ended it
  64  wrong usage
  69  the store cannot be asked
  74  the lease was lost and COMMAND was ended
  75  the lock was not acquired in time (see --wait, -E)
  126, 127  COMMAND cannot be executed, is not found

examples:
  lockfast run nightly ./report.sh                wait for ever, as flock does
  lockfast run --wait 0 nightly ./report.sh       exit 75 at once if it is held
  lockfast run --wait 1h30m nightly ./report.sh   exit 75 after that time
  lockfast run --min-hold 60 cron:mail ./mail.sh  once a minute at most
  lockfast run --system nightly ./report.sh       one lock for several users
  lockfast run -- -x -- ./report.sh               a name that begins with -"""


def _parser() -> Parser:
    usage = "lockfast run [OPTION…] NAME [--] COMMAND [ARGUMENT…]"
    parser = Parser("run", usage=usage, description=_ABOUT, epilog=_MORE)
    time: dict[str, Any] = {"type": seconds, "metavar": "TIME"}
    parser.add_argument("name", metavar="NAME", help="the lock's name; one that begins with - after a -- of its own")
    parser.add_argument("--ttl", **time, default=30.0, help="how long the lease outlives us (default: 30)")
    wait = parser.add_mutually_exclusive_group()
    wait.add_argument("-w", "--wait", **time, help="wait at most this long; 0 tries once (default: for ever)")
    wait.add_argument("-n", "--no-wait", dest="wait", action="store_const", const=0.0, help="the same as --wait 0")
    parser.add_argument(
        "-E",
        "--busy-code",
        metavar="CODE",
        type=code,
        default=exits.BUSY,
        help="exit code if it was not acquired in time (default: 75)",
    )
    parser.add_argument("--min-hold", **time, default=0.0, help="keep the name taken for at least this long")
    parser.add_argument(
        "--kill-after", **time, help="from TERM to KILL when the lease is lost (default: ttl/6, at most 5)"
    )
    parser.add_argument("--holder", help="the holder's name, as others see it (default: host:pid:random)")
    parser.add_argument("--metadata", metavar="JSON", type=_json, help="kept with the lock, for `lockfast show`")
    how_loud = parser.add_mutually_exclusive_group()
    how_loud.add_argument("-q", "--quiet", action="store_true", help="say nothing if the lock was not acquired in time")
    how_loud.add_argument("-v", "--verbose", action="store_true", help="say when it was acquired and released")
    add_store_options(parser)
    return parser


def _json(text: str) -> Any:
    from argparse import ArgumentTypeError

    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"must be JSON: {error}") from None


def run(words: list[str]) -> int:
    """The command's exit code, or one of ours."""
    parser = _parser()
    ours, command = _split(parser, words)
    args = parser.parse_args(ours)
    if not command:
        parser.error("what is to run? Write it after the name, as in: lockfast run NAME COMMAND")
    valid(args.name)
    grace = _grace(args)
    args.url = url_of(args)
    path = child.find(command[0])
    report_warnings()
    return _run(args, path, command, grace)


def _split(parser: Parser, words: list[str]) -> tuple[list[str], list[str]]:
    """Our words, and the command: all after `--`, or from the first word after the name that is no option.

    In `run -- -x -- COMMAND` the first `--` is ours: it ends the options. Any other `--` before a name is refused,
    or a command whose lock was forgotten would be taken for the name, and its first argument for the command.
    """
    at, named = 0, False
    while at < len(words):
        word = words[at]
        if word == "--" and named:
            return words[:at], words[at + 1 :]
        if word == "--":
            if words[at + 2 : at + 3] != ["--"] or not words[at + 1].startswith("-"):
                parser.error("which lock? Write its name before --, as in: lockfast run NAME -- COMMAND")
            return words[: at + 2], words[at + 3 :]
        if word.startswith("-") and word != "-":
            at += 1 + parser.takes_next(word)
        elif named:
            return words[:at], words[at:]
        else:
            at, named = at + 1, True
    return words, []


def _grace(args: Namespace) -> Grace:
    ttl = length(args.ttl, "--ttl", least=_MIN_TTL_S)
    margin = min(0.5, ttl / 10)
    if args.kill_after is None:
        return Grace(min(5.0, ttl / 6), margin)
    kill_after = length(args.kill_after, "--kill-after", zero=True)
    if kill_after > ttl / 2:
        most = format_duration(ttl / 2)
        raise ValueError(f"--kill-after must be at most half of --ttl ({most}), not {format_duration(kill_after)}")
    return Grace(kill_after, margin)


def _run(args: Namespace, path: str, command: list[str], grace: Grace) -> int:
    process = child.fork(path, command)
    guard = guardian.fork(process.pid, grace.kill_after)
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the kernel keeps no exit codes for us
        interrupt_on_signals()
        return _under_lock(args, process, guard, grace)
    finally:
        process.dismiss()
        guard.dismiss()


def _under_lock(args: Namespace, process: child.Child, guard: guardian.Guardian, grace: Grace) -> int:
    signals = SignalQueue()
    troubles: dict[str, str] = {}  # by kind of event: what went wrong last
    outcome = None
    with connect(args.url, holder=args.holder, namespace=args.namespace) as locks:
        report_outages(locks)
        lock = _lock(args, locks, signals)
        _report_holders(args, locks)
        try:
            with lock as lease:
                signals.collect_signals()
                _report(args, f"acquired {args.name!r} with fence {lease.fence}")
                terminal = open_terminal()
                supervisor = Supervisor(process, lease, guard, signals, terminal, grace)
                locks.events.listen(lambda event: _note(event, troubles))
                locks._logic.engine.on_renewed = supervisor.reassure  # no event: its listener may wait for stderr
                supervisor.reassure()
                lease.check()  # we may have been stopped since
                if terminal is not None and terminal.alone and terminal.ours:
                    terminal.lend(process.pid)
                process.start(_facts(lease, args.url))
                outcome = supervisor.supervise()
        except AcquireTimeout as error:
            if not args.quiet:
                complain(str(error))
            return int(args.busy_code)
        except LeaseLost as error:
            return _lost(outcome, str(error), troubles)
    if outcome.ended:
        return _lost(outcome, f"lease on {args.name!r} (fence {lease.fence}) could not be renewed in time", troubles)
    if "release_failed" in troubles:
        complain(troubles["release_failed"])
    if not process.started:
        how = "ended" if outcome.signal is None else f"killed by signal {outcome.signal}"
        complain(f"the process for the command was {how} before the lock was acquired; the command did not run")
    _report(args, f"released {args.name!r}")
    _pass_on_interrupt(outcome)
    return outcome.code


def _lock(args: Namespace, locks: Locks, signals: SignalQueue) -> Lock:
    if args.url.startswith("memory:") and not args.quiet:
        complain("a memory:// store is seen by this process alone, so the lock excludes no other process")
    return locks.lock(
        args.name,
        ttl=args.ttl,
        wait=args.wait,
        min_hold=args.min_hold,
        metadata=args.metadata,
        on_lost=lambda lease: signals.notify(),
    )


def _note(event: Event, troubles: dict[str, str]) -> None:
    if event.kind in ("renewal_failed", "release_failed"):
        troubles[event.kind] = event.detail


def _facts(lease: Lease, url: str) -> dict[str, str]:
    return {
        "LOCKFAST_NAME": lease.name,
        "LOCKFAST_FENCE": str(lease.fence),
        "LOCKFAST_HOLDER": lease.holder,
        "LOCKFAST_CLAIM": lease.claim_id,
        "LOCKFAST_TTL": f"{lease.ttl:.10g}",
        "LOCKFAST_EXPIRES": f"{lease.expires_at:.3f}",
        "LOCKFAST_URL": _from_anywhere(url),
    }


def _from_anywhere(url: str) -> str:
    """The same store if the command changes its folder: a relative path would silently mean another one."""
    file = file_of(url)
    return url if file is None else url_of_file(file)


def _report_holders(args: Namespace, locks: Locks) -> None:
    if not args.verbose or args.wait == 0:
        return
    try:
        info = locks.inspect(args.name)
    except BackendUnavailable:
        return  # to acquire it is tried for longer, and that reports it
    if info.locked or info.waiters:
        holders = ", ".join(repr(holder.holder) for holder in info.holders) or "nobody"
        complain(f"waiting for {args.name!r}, held by {holders}, behind {info.waiters} more")


def _report(args: Namespace, text: str) -> None:
    if args.verbose:
        complain(text)


def _lost(outcome: CommandOutcome | None, what: str, troubles: dict[str, str]) -> int:
    """One line: what became of the lease, and what of the command."""
    if outcome is None:
        became = "the command was not started"
    elif outcome.ended:
        became = f"the command was ended because {outcome.ended}"
    else:
        became = f"the command ended by itself with exit code {outcome.code}"
    failure = troubles.get("renewal_failed", "")
    why = f" (last error: {failure})" if failure and failure not in what else ""
    complain(f"{what}{why}; {became}")
    return exits.LOST


def _pass_on_interrupt(outcome: CommandOutcome) -> None:
    """Ctrl-C reached the command's group and not ours. A script around us must get it as it would without us."""
    if outcome.on_terminal and outcome.signal in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(outcome.signal, signal.SIG_IGN)
        os.killpg(os.getpgrp(), outcome.signal)
