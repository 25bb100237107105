"""A process group: reached by signals, and polled until it is gone.

Decides: what counts as gone. A process that has ended and only waits to be reaped does not run any more; in a container
whose first process reaps no children it would otherwise count for ever.
"""

from __future__ import annotations

import os
import signal


def signal_group(group: int, signum: int) -> bool:
    """False if no process is left in the group."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process in it has another user's rights now; the others got the signal
        return True
    return True


def ask_to_end(group: int) -> bool:
    """TERM to every process in the group, the stopped ones too. False if none is left."""
    return signal_group(group, signal.SIGTERM) and signal_group(group, signal.SIGCONT)


def lives(group: int) -> bool:
    """Whether a process in the group still runs."""
    if not signal_group(group, 0):
        return False
    try:
        pids = os.listdir("/proc")
    except OSError:
        return True  # no such folder here: trust the kernel's first answer
    return any(_runs_in(group, pid) for pid in pids if pid.isdecimal()) if "self" in pids else True


def _runs_in(group: int, pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False  # it ended meanwhile
    return int(its_group) == group and state not in (b"Z", b"X")
