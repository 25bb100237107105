"""Stand between a running command and its lease: pass signals on, and end the command before the lease ends.

Decides: when the command must end, and how long it may take to do so.
Leaves to the keeper: renewing the lease. Leaves to the guardian: the case that we cannot act.

The lease's deadline is the moment after which another holder may have the lock. The group must be dead by then, so it
is asked to end (TERM) a grace and a margin earlier, and what is left is killed (KILL) a margin earlier.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import NamedTuple, Protocol

from lockfast._time import boot_now, format_duration
from lockfast.cli.child import Child, exit_code
from lockfast.cli.group import ask_to_end, lives, signal_group
from lockfast.cli.guardian import NEVER, EndPlan, Guardian
from lockfast.cli.options import complain
from lockfast.cli.signals import PASSED_ON, SignalQueue
from lockfast.cli.terminal import Terminal

_POLL_EVERY_S = 0.03  # while the group is ending
_STUCK_AFTER_S = 5.0  # a killed group that is still there after this is stuck in the kernel; no signal helps


class Grace(NamedTuple):
    """How a command is ended, in seconds before the deadline."""

    kill_after: float  # from TERM to KILL
    margin: float  # from KILL to the deadline

    @property
    def lead(self) -> float:
        """How long before the deadline the ending must begin."""
        return self.kill_after + self.margin

    def plan(self, deadline: float) -> EndPlan:
        """For the guardian, which gives the supervisor the first fifth of the time."""
        return EndPlan(deadline - 0.8 * self.lead, deadline - 0.8 * self.margin)


class SupervisedLease(Protocol):
    """What is asked of a lease."""

    @property
    def lost(self) -> bool: ...
    @property
    def remaining(self) -> float: ...


class CommandOutcome(NamedTuple):
    code: int  # of the command itself
    ended: str | None  # why it had to end, if it did not end by itself
    signal: int | None  # that ended it
    on_terminal: bool  # it had the foreground from us, so that keys reached it and not us


class Supervisor:
    def __init__(
        self,
        child: Child,
        lease: SupervisedLease,
        guardian: Guardian,
        signals: SignalQueue,
        terminal: Terminal | None,
        grace: Grace,
    ) -> None:
        self._child = child
        self._lease = lease
        self._guardian = guardian
        self._signals = signals
        self._terminal = terminal
        self._grace = grace
        self._end_at = NEVER  # when the ending begins; never moved any more once it has come

    def reassure(self) -> None:
        """The lease is longer now: put the end off. From any thread, after each renewal.

        Not if the end is due already: we were stopped meanwhile, the guardian may have begun, and then what it
        has begun must be finished.
        """
        now, remaining = boot_now(), self._lease.remaining
        if remaining and now < self._end_at:
            self._end_at = now + remaining - self._grace.lead
            self._guardian.agree(self._grace.plan(now + remaining))

    def supervise(self) -> CommandOutcome:
        """Until the command has ended, by itself or by us."""
        child = self._child
        while True:
            self._handle(self._signals.wait(self._end_at - boot_now()))
            stopped_by = child.poll()
            why = self._why_end()  # first, even if the command has ended: processes of its group may be left
            if why is not None:
                return self._end(why, min(boot_now(), self._end_at) + self._grace.kill_after)
            if child.status is not None:
                return self._outcome(None)
            if stopped_by is not None:
                self._stop_too(stopped_by)

    def _why_end(self) -> str | None:
        if self._lease.lost:
            return "its lease was lost"
        return "its lease could not be renewed in time" if boot_now() >= self._end_at else None

    def _handle(self, received: bytes) -> None:
        for signum in received:
            if signum in PASSED_ON:
                signal_group(self._child.pid, signum)
            elif signum == signal.SIGCONT:
                self._continue(lend=self._terminal is not None and self._terminal.alone)

    # Job control

    def _stop_too(self, stopped_by: int) -> None:
        """The command was stopped. On a terminal the shell must see us stop too, so that `fg` means us both."""
        terminal = self._terminal
        if terminal is None:
            return  # no shell with job control watches us; the process that stopped it will continue it
        if stopped_by in (signal.SIGTTIN, signal.SIGTTOU) and not terminal.lent and terminal.ours:
            self._continue(lend=True)
            return
        terminal.take_back()
        left = format_duration(self._lease.remaining)
        complain(f"stopped; unless continued, the lease ends in {left} and the command with it")
        received = _stop_ourselves(self._signals)
        self._handle(received)
        if signal.SIGCONT not in received and stopped_by != signal.SIGSTOP:
            self._continue(lend=terminal.alone)  # the kernel does not stop a process that no shell could continue

    def _continue(self, *, lend: bool) -> None:
        terminal = self._terminal
        if lend and terminal is not None and terminal.ours:
            terminal.lend(self._child.pid)
        signal_group(self._child.pid, signal.SIGCONT)

    # The end

    def _end(self, why: str, kill_at: float) -> CommandOutcome:
        child = self._child
        ended_by_itself = child.status is not None and os.WIFEXITED(child.status)
        self._guardian.agree(EndPlan(NEVER, kill_at))  # should we be stopped now, it finishes this
        there = ask_to_end(child.pid)
        while there and boot_now() < kill_at:
            self._handle(self._signals.wait(min(_POLL_EVERY_S, kill_at - boot_now())))
            there = self._is_group_alive()
        if there:
            signal_group(child.pid, signal.SIGKILL)
            give_up_at = boot_now() + _STUCK_AFTER_S
            while self._is_group_alive() and boot_now() < give_up_at:
                self._signals.wait(_POLL_EVERY_S)
        return self._outcome(None if ended_by_itself else why)

    def _is_group_alive(self) -> bool:
        """Whether a process of the group lives. The command itself is reaped, or it would count as a zombie."""
        self._child.poll()
        return lives(self._child.pid)

    def _outcome(self, why: str | None) -> CommandOutcome:
        self._guardian.agree(EndPlan())
        status = self._child.status
        killed_by = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        terminal = self._terminal
        had_terminal = terminal is not None and terminal.lent
        if terminal is not None:
            terminal.take_back(repair=killed_by is not None)
        code = exit_code(signal.SIGKILL if status is None else status)
        return CommandOutcome(code, why, killed_by, had_terminal)


def _stop_ourselves(signals: SignalQueue) -> bytes:
    """As Ctrl-Z would; returns when continued, with what came meanwhile."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # this very thread: it does not run on meanwhile
    signal.signal(signal.SIGTSTP, before)
    return signals.take()
