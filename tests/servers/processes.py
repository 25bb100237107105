"""What the system says of a process or a thread: from /proc where there is one, else from `ps`, which is far slower."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

_PROC = Path("/proc")


def process_state(pid: int) -> str:
    """As `ps` shows it: T is stopped, Z has ended, and so has a process that is no longer there."""
    if not (_PROC / "self").exists():
        return listed_state(pid)
    try:
        return (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def has_ended(pid: int) -> bool:
    return process_state(pid) in "ZX"


def children_of(pid: int) -> list[int]:
    listed = _PROC / f"{pid}/task/{pid}/children"
    if listed.exists():
        return [int(word) for word in listed.read_text().split()]
    return listed_children(pid)


def open_files(pid: int) -> dict[int, str]:
    """What is behind each descriptor; see `OPEN_FILES` in `tests/capabilities.py`."""
    return {int(fd.name): os.readlink(fd) for fd in (_PROC / f"{pid}/fd").iterdir()}


def count_open_files(pid: int) -> int:
    """How many descriptors it has, while it opens and closes some; 0 where there is no /proc."""
    folder = _PROC / f"{pid}/fd"
    return len(list(folder.iterdir())) if folder.exists() else 0


def thread_switches(thread: threading.Thread) -> list[str]:
    """Whether it runs, and how often it began to wait; nothing where there is no /proc."""
    try:
        status = (_PROC / f"self/task/{thread.native_id}/status").read_text()
    except OSError:
        return []
    return [line for line in status.splitlines() if line.startswith(("State:", "voluntary_ctxt_switches:"))]


def listed_children(pid: int) -> list[int]:
    """By `ps`, with options that every system has."""
    pairs = [line.split() for line in _ps("-A", "-o", "pid=", "-o", "ppid=").splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


def listed_state(pid: int) -> str:
    """By `ps`; a process that is no longer listed has ended."""
    return _ps("-o", "stat=", "-p", str(pid)).strip()[:1] or "Z"


def _ps(*words: str) -> str:
    return subprocess.run(["ps", *words], capture_output=True, text=True, check=False).stdout
