"""Signals, in one queue that also takes notifications from other threads.

Decides: which signals are passed on to a command, and that a signal which was ignored when we started stays ignored.
Leaves to the supervisor: what each signal means.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

NOTIFIED = 0  # not a signal: something changed elsewhere, check everything again

PASSED_ON = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGTSTP,
    }
)
_ENDS_A_WAIT = PASSED_ON - {signal.SIGWINCH, signal.SIGTSTP}
_MAX_SLEEP_S = 0.5  # select() does not count a suspended machine's time, so nothing sleeps longer than this


class Interrupted(BaseException):
    """A signal came while nothing was held yet. Not an `Exception`: nothing on the way may swallow it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def _is_ignored(signum: int) -> bool:
    return signal.getsignal(signum) is signal.SIG_IGN  # nohup, or a background job of a plain shell


def interrupt_on_signals() -> None:
    """From now on the first signal that asks us to end raises Interrupted; later ones change nothing."""
    raised = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise Interrupted(signum)

    for signum in _ENDS_A_WAIT:
        if not _is_ignored(signum):
            signal.signal(signum, interrupt)


class SignalQueue:
    """Collects signals, and `NOTIFIED` from any thread, until they are asked for."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def collect_signals(self) -> None:
        """From now on signals go into this queue, and do nothing else."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for signum in (*PASSED_ON, signal.SIGCHLD, signal.SIGCONT):
            if signum in (signal.SIGCHLD, signal.SIGCONT) or not _is_ignored(signum):
                signal.signal(signum, _note)

    def notify(self) -> None:
        """Wake the supervisor. From any thread."""
        try:
            os.write(self._write, bytes((NOTIFIED,)))
        except OSError:
            return  # full: it will wake anyway

    def wait(self, seconds: float) -> bytes:
        """What came, in order; empty after `seconds` or a little earlier."""
        select.select([self._read], [], [], min(max(0.0, seconds), _MAX_SLEEP_S))
        return self.take()

    def take(self) -> bytes:
        """What has come so far."""
        try:
            return os.read(self._read, 4096)
        except BlockingIOError:
            return b""


def _note(signum: int, frame: FrameType | None) -> None:
    """The interpreter has written the number into the queue; this only replaces the default action."""
