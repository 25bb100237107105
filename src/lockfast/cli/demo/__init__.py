"""`lockfast demo`: processes compete for a lock, one is killed, one is stopped, and the lock holds.

Decides: what must have been seen for the demo to have succeeded, and how that is printed.
Leaves to `story`: what happens. Leaves to `judge`: what the workers' reports amount to. Leaves to `view`: the output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from lockfast._time import format_duration
from lockfast.cli import exits
from lockfast.cli.demo import judge
from lockfast.cli.demo.story import LIMIT_S, NAMES, TTL_S, Story
from lockfast.cli.demo.view import choose
from lockfast.cli.options import Parser, keep_logs_quiet
from lockfast.cli.signals import interrupt_on_signals
from lockfast.cli.store import report_outages
from lockfast.sync import connect

_ABOUT = """Four processes compete for one lock. One is killed (SIGKILL) while it holds the
lock; one is stopped (SIGSTOP) until its lease has run out, and then continued.
The others take over, the stopped one learns that it lost, and its late write is
refused because its fence is old. Takes about 6 seconds and leaves nothing
behind."""


def demo(words: list[str]) -> int:
    """0 only if everything that should be seen was seen."""
    parser = Parser("demo", description=_ABOUT, epilog="exits 1 if something expected was not seen, and says what.")
    parser.add_argument("--url", help="default: SQLite in a temporary folder")
    parser.add_argument("--plain", action="store_true", help="plain lines, also on a terminal")
    args = parser.parse_args(words)
    if args.url and args.url.startswith("memory:"):
        raise ValueError("a memory:// store is seen by one process alone; the demo needs one that several can share")
    keep_logs_quiet()
    interrupt_on_signals()
    with tempfile.TemporaryDirectory(prefix="lockfast-demo-") as folder:
        url = f"sqlite:///{folder}/locks.db" if args.url is None else args.url
        with connect(url) as locks, Story(locks, url, Path(folder), choose(args.plain)) as story:
            report_outages(locks)
            story.play()
    print("\n".join(seen(story)))
    lacking = list(missing(story))
    print("\n".join(f"MISSING: {what}" for what in lacking) or "everything that should be seen was seen")
    return exits.NO if lacking else exits.OK


def seen(story: Story) -> Iterator[str]:
    """What happened, as far as it happened."""
    holds = judge.holds(story.reports)
    yield f"\nwhat was seen in {format_duration(story.took)}:"
    if holds:
        workers = len({hold.who for hold in holds})
        yield f"  {len(holds)} grants to {workers} workers; fences from {holds[0].fence} to {holds[-1].fence}"
        yield f"  from one holder to the next: {format_duration(judge.median_hand_over(holds))} in the middle case"
    if not judge.overlaps(holds):
        yield "  never two holders at once"
    if judge.fences_only_grow(holds):
        yield "  fences only grew"
    for fault in filter(None, (story.killed, story.stopped)):
        successor = judge.next_after(holds, fault.fence)
        if successor is not None:
            after, ttl = format_duration(successor.start - fault.at), format_duration(TTL_S)
            yield f"  {fault.who} was {fault.kind} while holding; {successor.who} took over {after} later (ttl {ttl})"
    if story.stopped is not None and story.has_seen(story.stopped.who, "learned"):
        yield f"  {story.stopped.who} learned that it had lost as soon as it was continued"
    if story.stopped is not None and story.has_seen(story.stopped.who, "refused"):
        yield f"  {story.stopped.who}'s late write was refused: its fence {story.stopped.fence} was old"


def missing(story: Story) -> Iterator[str]:
    """What should have been seen and was not."""
    holds = judge.holds(story.reports)
    if not story.ended:
        yield f"an end within {format_duration(LIMIT_S)}"
    for who in NAMES:
        if not any(hold.who == who for hold in holds):
            yield f"a grant to {who}"
    for one, two in judge.overlaps(holds):
        yield f"one holder at a time: {two.who} (fence {two.fence}) began before {one.who} (fence {one.fence}) ended"
    if not judge.fences_only_grow(holds):
        yield f"growing fences: {[hold.fence for hold in holds]}"
    if story.written != sorted(story.written):
        yield f"writes in the order of their fences: {story.written}"
    for fault, what in ((story.killed, "killed"), (story.stopped, "stopped")):
        if fault is None or judge.next_after(holds, fault.fence) is None:
            yield f"a takeover from a {what} holder"
    for kind, what in (("learned", "noticed"), ("refused", "had its late write refused"), ("raised", "got LeaseLost")):
        if story.stopped is None or not story.has_seen(story.stopped.who, kind):
            yield f"that the stopped holder {what}"
    for who, code in story.exit_codes.items():
        if code != (-9 if story.killed is not None and who == story.killed.who else 0):
            yield f"a good end of {who} (exit code {code})"
