"""What the tests of the command line share: a store of their own, and a way to start and end programs by their pid."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast._time import boot_now
from tests.servers.processes import has_ended
from tests.servers.waiting import LIMIT_S, until

PROGRAM = [sys.executable, "-m", "lockfast"]
GUARD = LIMIT_S  # seconds after which a test has failed; nothing is timed by it
eventually = until

# Writes its pid and then the boot clock's time, again and again; with `ignore-term` as an argument it ignores TERM.
HEARTBEAT = """
import os, signal, sys, time
assert sys.argv[2:] in ([], ["ignore-term"]), sys.argv
if sys.argv[2:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()}\\n")
    while True:
        file.write(f"{time.clock_gettime(clock)}\\n")
        file.flush()
        time.sleep(0.005)
"""


class Heart:
    """A grandchild of `lockfast run` whose heartbeat can be read."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "beats"
        self._script = folder / "heartbeat.py"
        self._script.write_text(HEARTBEAT)

    def command(self, *more: str) -> list[str]:
        """A shell that starts it in the background and waits for it."""
        beat = " ".join([f"'{sys.executable}' -S -E '{self._script}' '{self._file}'", *more])
        return ["sh", "-c", f"{beat} & wait; wait"]

    def pid(self) -> int:
        """As soon as it beats."""
        return int(until(self._lines, "a heartbeat")[0])

    def last_beat(self) -> float:
        return float(self._lines()[-1])

    def _lines(self) -> list[str]:
        text = self._file.read_text() if self._file.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        return lines if len(lines) > 1 else []


class Shell:
    """Runs `lockfast` on a store of its own, and ends what is left when the test is over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/locks.db"
        self.environment = {**os.environ, "LOCKFAST_URL": self.url}
        self._started: list[subprocess.Popen[str]] = []
        self._locks: list[lockfast.Locks] = []

    def __call__(
        self, *words: str, env_extra: dict[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **(env_extra or {})}
        return subprocess.run(
            [*PROGRAM, *words], capture_output=True, text=True, timeout=GUARD, env=environment, **more
        )

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
        process: subprocess.Popen[str] = subprocess.Popen([*PROGRAM, *words], env=self.environment, **options)
        self._started.append(process)
        return process

    def locks(self) -> lockfast.Locks:
        """The store as another process sees it; closed when the test is over."""
        self._locks.append(lockfast.connect(self.url))
        return self._locks[-1]

    def close(self) -> None:
        for locks in self._locks:
            locks.close()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture
def store(shell: Shell) -> None:
    """The shell's store is there: the first lock has made it."""
    with shell.locks() as locks, locks.lock("the first"):
        pass


@pytest.fixture
def heart(tmp_path: Path) -> Iterator[Heart]:
    heart = Heart(tmp_path)
    yield heart
    if heart._lines() and not has_ended(heart.pid()):
        os.kill(heart.pid(), 9)


EXACTLY_S = 0.01  # seconds by which `expiry` may be wrong


def expiry(locks: lockfast.Locks, name: str) -> float:
    """When the one hold of that name ends by the store, on the boot clock."""
    return until(lambda: _expiry(locks, name), "a look that nothing held up between two clocks")


def _expiry(locks: lockfast.Locks, name: str) -> float:
    before = boot_now()
    (holder,) = locks.inspect(name).holders
    found, after = holder.expires_at - time.time() + boot_now(), boot_now()
    return found if after - before < EXACTLY_S else 0.0
