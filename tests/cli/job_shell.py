"""A shell with job control, as small as can be: one job on the terminal that is its stdin, continued when it stops.

Run as a program by the terminal tests: `job_shell.py LOG alone|piped|unwatched COMMAND…`. Writes to LOG what becomes of
the job. `piped` gives the job `cat` as a neighbour behind its stdout; `unwatched` becomes the job itself, so that
no process is there to continue it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
from pathlib import Path


def start(command: list[str], group: int, stdin: int, stdout: int, close: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, group)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        for fd in close:
            os.close(fd)
        os.execvp(command[0], command)
    try:
        os.setpgid(pid, group or pid)
    except PermissionError:
        return pid  # it was first
    return pid


def start_job(kind: str, command: list[str]) -> int:
    if kind == "alone":
        return start(command, 0, 0, 1, [])
    read, write = os.pipe()
    job = start(command, 0, 0, write, [read, write])
    start(["cat"], job, read, 1, [read, write])
    os.close(read)
    os.close(write)
    return job


def main(log: Path, kind: str, command: list[str]) -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if kind == "unwatched":
        os.execvp(command[0], command)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = start_job(kind, command)
    with log.open("w", buffering=1) as lines:
        while True:
            _, status = os.waitpid(job, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            lines.write("stopped\n")
            os.tcsetpgrp(0, os.getpgrp())
            os.tcsetpgrp(0, job)
            os.killpg(job, signal.SIGCONT)
        lines.write(f"foreground given back: {os.tcgetpgrp(0) == job}\n")
        lines.write(f"ended: {os.waitstatus_to_exitcode(status)}\n")
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
