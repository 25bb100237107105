"""What happens in the demo, in which order, and what was reported of it.

Decides: who is hit when. Each step waits for what the workers report, and none for a length of time.
Leaves to `workers`: the processes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lockfast._time import boot_now, format_duration
from lockfast.cli.demo.judge import Report
from lockfast.cli.demo.view import View
from lockfast.cli.demo.workers import Workers
from lockfast.sync import Locks

NAMES: Final = ("anna", "bert", "cleo", "dora")
TTL_S: Final = 1.5
LIMIT_S: Final = 18.0  # seconds for everything
_REDRAW_S = 0.1

# What is said of a report, in which state it leaves the worker, and whether it belongs to the story.
_SHOWN: Final[dict[str, tuple[str, str, bool]]] = {
    "granted": ("holds the lock with fence {fence}, {queue} waiting", "holds", False),
    "releasing": ("", "waits", False),
    "killed": ("was killed with SIGKILL while holding", "killed", True),
    "stopped": ("was stopped with SIGSTOP while holding", "stopped", True),
    "continued": ("was continued, past its ttl", "continued", True),
    "learned": ("noticed that it no longer holds the lock", "lost", True),
    "refused": ("was refused a late write: fence {fence} is old", "lost", True),
    "raised": ("got LeaseLost", "waits", True),
    "done": ("", "done", False),
}


class _TimedOut(Exception):
    pass


class Story:
    def __init__(self, locks: Locks, url: str, folder: Path, view: View) -> None:
        self.reports: list[Report] = []
        self.killed: Report | None = None
        self.stopped: Report | None = None
        self.ended = False  # it came to its end in time
        self.took = 0.0
        self.exit_codes: dict[str, int | None] = {}
        self.written: list[int] = []  # the fences in the ledger, in order
        self._locks = locks
        self._lock = f"demo:{os.getpid()}"
        self._view = view
        self._ledger = folder / "ledger"
        self._states = dict.fromkeys(NAMES, "starts")
        self._fault: Report | None = None  # the last one, until another worker takes over
        self._drawn_at = 0.0
        self._began = boot_now()
        self._workers = Workers(NAMES, url, self._lock, TTL_S, self._ledger)

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *exc: object) -> None:
        self.took = boot_now() - self._began
        self._workers.close()
        self._view.close()
        self.exit_codes = self._workers.exit_codes()
        if self._ledger.exists():
            self.written = [int(line.split()[0]) for line in self._ledger.read_text().splitlines()]

    def play(self) -> None:
        try:
            self._play()
            self.ended = True
        except _TimedOut:
            self._view.log(boot_now() - self._began, "", "this takes too long; giving up", loud=True)

    def _play(self) -> None:
        self._until(lambda: all(self._grants(who) >= 2 for who in NAMES))
        self.killed = self._inject("bert", signal.SIGKILL)
        self._until(lambda: self._written_after(self.killed))
        self.stopped = self._inject("dora", signal.SIGSTOP)
        self._until(lambda: self._written_after(self.stopped))  # so that its late write comes too late
        self._record(self._workers.send_signal("dora", signal.SIGCONT))
        self._until(lambda: self.has_seen("dora", "raised"))
        before = {who: self._grants(who) for who in NAMES if who != "bert"}
        self._until(lambda: all(self._grants(who) > count for who, count in before.items()))
        self._workers.finish()
        self._until(lambda: None not in self._workers.exit_codes().values())

    def _inject(self, who: str, signum: signal.Signals) -> Report:
        """Hit a worker that has the lock and keeps it."""
        self._workers.order_to_stay(who)
        self._until(lambda: self.has_seen(who, "staying"))
        fence = next(report.fence for report in self.reports if report.who == who and report.kind == "staying")
        fault = self._workers.send_signal(who, signum)._replace(facts={"fence": fence})
        self._record(fault)
        self._fault = fault
        return fault

    # What was reported

    def has_seen(self, who: str, kind: str) -> bool:
        return any(report.who == who and report.kind == kind for report in self.reports)

    def _grants(self, who: str) -> int:
        return sum(report.who == who and report.kind == "granted" for report in self.reports)

    def _written_after(self, fault: Report | None) -> bool:
        return any(fault and report.kind == "wrote" and report.fence > fault.fence for report in self.reports)

    def _until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            if boot_now() - self._began > LIMIT_S:
                raise _TimedOut
            for report in self._workers.receive(_REDRAW_S / 2):
                self._record(report)
            self._draw()

    def _record(self, report: Report) -> None:
        self.reports.append(report)
        if report.kind not in _SHOWN:
            return
        text, self._states[report.who], loud = _SHOWN[report.kind]
        if text:
            queue = self._locks.inspect(self._lock).waiters if report.kind == "granted" else 0
            message = text.format(fence=report.fence, queue=queue)
            self._view.log(report.at - self._began, report.who, message, loud=loud)
        if report.kind == "granted" and self._fault is not None and report.fence > self._fault.fence:
            fault, after = self._fault, format_duration(report.at - self._fault.at)
            line = f"took over, {after} after {fault.who} was {fault.kind}"
            self._view.log(report.at - self._began, report.who, line, loud=True)
            self._fault = None

    def _draw(self) -> None:
        now = boot_now()
        if now - self._drawn_at >= _REDRAW_S:
            self._drawn_at = now
            self._view.draw(now - self._began, self._locks.inspect(self._lock), self._states)
