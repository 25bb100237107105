"""What a test may need that not every system has.

Decides: the only reasons for which a test is skipped; `tests/test_shape_of_tests.py` finds any other skip. Linux has
all of `OF_THE_SYSTEM`, so there only the rights of the user who runs the tests can be missing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Capability:
    is_here: bool
    why_not: str  # what the report of a run says

    @property
    def needed(self) -> pytest.MarkDecorator:
        return pytest.mark.skipif(not self.is_here, reason=self.why_not)


SETTABLE_CLOCK = Capability(_LINUX, "only with LD_PRELOAD can the clock of one process be set")
SOCKET_FILTERS = Capability(_LINUX, "only Linux can drop whatever arrives at a socket")
ABSTRACT_SOCKETS = Capability(_LINUX, "only Linux has abstract names of sockets, and reports who sent a datagram")
OPEN_FILES = Capability(Path("/proc/self/fd").is_dir(), "only /proc lists the open files of another process")
THREAD_STATES = Capability(Path("/proc/self/task").is_dir(), "only /proc shows whether a thread runs")
USER_TIMEOUT = Capability(hasattr(socket, "TCP_USER_TIMEOUT"), "only Linux limits how long sent data may go unanswered")
OF_THE_SYSTEM = (SETTABLE_CLOCK, SOCKET_FILTERS, ABSTRACT_SOCKETS, OPEN_FILES, THREAD_STATES, USER_TIMEOUT)

SEVERAL_USERS = Capability(os.geteuid() == 0, "only root can be several users")


@cache
def _can_mount() -> bool:
    program = shutil.which("unshare")
    return bool(program) and subprocess.run([str(program), "-Urm", "true"], capture_output=True).returncode == 0


def skip_unless_mounts_are_allowed() -> None:
    """To be asked for when it is needed: the answer takes a process."""
    if not _can_mount():
        pytest.skip("only a user who may make namespaces can mount a disk for a test")
