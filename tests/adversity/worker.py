"""A process that works until its time is over or it is killed: `python -m tests.adversity.worker URL JOB [NUMBER…]`.

It says "ready", begins on a command, and reports what it has done, line by line. `Worker` is the test's end of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import lockfast
from lockfast._time import boot_now


class Worker:
    def __init__(self, url: str, job: str, *numbers: float) -> None:
        command = [sys.executable, "-m", "tests.adversity.worker", url, job, *map(str, numbers)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.line() == "ready"

    def line(self) -> Any:
        """What it says next; None when it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def rest(self) -> list[Any]:
        """Everything that it still says, or had said before it was killed."""
        return list(iter(self.line, None))

    def kill(self) -> None:
        """With SIGKILL, wherever it is."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def take_permits(locks: lockfast.Locks, rate: float, burst: float, number: float) -> Iterator[Any]:
    """So many permits, each with the moments before the request and after the answer, and how many were refused.

    Now it waits for one, now it only tries.
    """
    limiter = locks.limiter("api", rate=rate, burst=int(burst))
    granted: list[tuple[float, float]] = []
    asked = 0
    while len(granted) < number:
        asked, before = asked + 1, boot_now()
        answer = limiter.acquire(timeout=0.5) if asked % 8 == 0 else limiter.try_acquire()
        if answer:
            granted.append((before, boot_now()))
    yield {"permits": granted, "refused": asked - len(granted)}


def increment(locks: lockfast.Locks, times: float) -> Iterator[Any]:
    """Add one to a cell; each version that was written."""
    cell = locks.cell("count")
    for _ in range(int(times)):
        yield cell.update(lambda value: (value or 0) + 1).version


JOBS: dict[str, Callable[..., Iterator[Any]]] = {"take_permits": take_permits, "increment": increment}


def work(url: str, job: str, *numbers: str) -> None:
    with lockfast.connect(url) as locks:
        _print_line("ready")
        sys.stdin.readline()
        for done in JOBS[job](locks, *map(float, numbers)):
            _print_line(done)


def _print_line(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    work(*sys.argv[1:])
