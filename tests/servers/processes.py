"""What the system says of a process: from /proc where there is one, else from `ps`, which takes far longer."""

from __future__ import annotations

import subprocess
from pathlib import Path

_PROC = Path("/proc")


def process_state(pid: int) -> str:
    """As `ps` shows it: T is stopped, Z has ended, and so has a process that is no longer there."""
    if not (_PROC / "self").exists():
        return _ps("-o", "stat=", "-p", str(pid)).strip()[:1] or "Z"
    try:
        return (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def has_ended(pid: int) -> bool:
    return process_state(pid) in "ZX"


def children(pid: int) -> list[int]:
    listed = _PROC / f"{pid}/task/{pid}/children"
    return [
        int(word) for word in (listed.read_text() if listed.exists() else _ps("-o", "pid=", "--ppid", str(pid))).split()
    ]


def _ps(*words: str) -> str:
    return subprocess.run(["ps", *words], capture_output=True, text=True, check=False).stdout
