"""The processes of the workers: started, stopped, killed and replaced.

Decides: what is recorded of that. Leaves to `supervisor`: when.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from lockfast._time import boot_now
from tests.servers.server import await_stop
from tests.servers.waiting import LIMIT_S, until
from tests.torture.journal import Journal
from tests.torture.worker import Settings

_DUMP_S = 2.0  # for a process that does not end to write down where its threads are
ROOT = Path(__file__).parent.parent.parent


class Slot:
    """A place for a worker. If its process is killed, the next one has a journal of its own."""

    def __init__(self, number: int, settings: Settings, folder: Path, journal: Journal) -> None:
        self._number, self._settings, self._folder, self._journal = number, settings, folder, journal
        self._processes = 0  # that were started
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def file(self) -> str:
        """Of the journal of the current process."""
        return f"worker-{self._number}-{self._settings.world}-{self._processes}.jsonl"

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        self._processes += 1
        seed, journal = self._settings.seed + self._processes * 1000, str(self._folder / self.file)
        settings = self._settings._replace(seed=seed, journal=journal)
        words = [sys.executable, "-m", "tests.torture.worker", json.dumps(settings._asdict())]
        with (self._folder / self.file).with_suffix(".err").open("wb") as errors:
            self._process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stderr=errors)

    def kill(self) -> None:
        """With SIGKILL, wherever it is."""
        assert self._process is not None
        at = boot_now()
        self._process.kill()
        code = self._process.wait()
        self._journal.write("killed", at=at, file=self.file, code=code)
        self._close()

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        await_stop(self._process.pid)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def note_end(self) -> None:
        """It has ended by itself."""
        assert self._process is not None
        self._journal.write("crashed", file=self.file, code=self._process.returncode)
        self._close()

    def ask_to_end(self) -> None:
        """In order: it finishes what it does now."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    def await_end(self) -> None:
        """If it does not end, its stacks are in the file of its errors."""
        process = self._process
        assert process is not None
        try:
            until(lambda: process.poll() is not None, f"{self.file} to end")
        except AssertionError:
            process.send_signal(signal.SIGUSR1)
            try:
                process.wait(_DUMP_S)
            except subprocess.TimeoutExpired:
                self._journal.write("stuck", file=self.file)
                self.kill()
        else:
            if process.returncode:
                self.note_end()

    def close(self) -> None:
        """Whatever became of the run."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(LIMIT_S)
        self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
