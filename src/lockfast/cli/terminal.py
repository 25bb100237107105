"""The terminal: whose keys are whose while a command runs in a process group of its own.

Decides: when the command gets the foreground, and what of the terminal is put back afterwards.
Leaves to the supervisor: stopping and continuing.

Alone on a terminal the command gets the foreground at once, so Ctrl-C, Ctrl-Z and reading work as if we were not
there. In a pipeline (`lockfast run … | less`) our neighbours need it too, so it stays with our group, we pass the
signals on, and the command gets the foreground when it tries to read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from typing import Any


class Terminal:
    """Our controlling terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.lent = False  # a command's group has the foreground from us
        self._modes: list[Any] | None = None

    @property
    def ours(self) -> bool:
        """Whether our group has the foreground, and so may give it away."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    @property
    def alone(self) -> bool:
        """Whether we seem to be the only process of our group that uses it."""
        return os.isatty(0) and os.isatty(1)

    def lend(self, group: int) -> None:
        """Give the foreground away."""
        with contextlib.suppress(OSError, termios.error):
            self._modes = self._modes or termios.tcgetattr(self._fd)
            _give_foreground(self._fd, group)
            self.lent = True

    def take_back(self, *, repair: bool = False) -> None:
        """Our group has the foreground again; with `repair` also the modes that it had, for a command that died."""
        if not self.lent:
            return
        self.lent = False
        with contextlib.suppress(OSError, termios.error):
            _give_foreground(self._fd, os.getpgrp())
            if repair and self._modes is not None:
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)


def open_terminal() -> Terminal | None:
    """None if there is no controlling terminal: then there are no keys, no foreground and no job control."""
    try:
        return Terminal(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return None


def _give_foreground(fd: int, group: int) -> None:
    """Also from the background, where the kernel would stop us for it."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(fd, group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
