"""How a server of the tests is started, and ended whatever becomes of the tests."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.servers import run
from tests.servers.processes import has_ended
from tests.servers.waiting import until


class ServerProcess:
    """A server that is a process of its own, with a folder. It ends with this process; a `shared` one with the run."""

    last_signal = signal.SIGKILL  # which ends it for good

    def __init__(self, folder: Path, *, shared: bool) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._shared = shared
        if not shared:
            atexit.register(self.close)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def children(self) -> list[int]:
        """The processes that end with it, after it."""
        return []

    def detach(self) -> None:
        """A shared server ends with the run, not before."""
        for process in (self._process, self._watchdog):
            if process is not None:  # it outlives this process: nothing here waits for it, or warns that it runs
                process.returncode = 0

    def close(self) -> None:
        atexit.unregister(self.close)
        self._end(self.last_signal)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _start(self, words: Sequence[str], where: Path, env: Mapping[str, str] | None, end: str) -> None:
        """`end` is what ends it in a shell, if this process cannot."""
        self._process = launch(words, where, self._log, env)
        self._watchdog = watch_over(self._process, self.folder, end, shared=self._shared)

    def _comes_up(self, answers: Callable[[], bool]) -> bool:
        """Whether it answers; not if it has ended."""
        until(lambda: not self.running or answers(), "the server to answer", despite=(OSError,))
        if self.running:
            return True
        self._end(signal.SIGKILL)
        return False

    def _end(self, how: signal.Signals) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            call_off(watchdog)
        if self._process is None:
            return
        children = self.children()
        process, self._process = self._process, None
        with suppress(ProcessLookupError):
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)  # a stopped process does not handle the first signal
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        process.wait()
        until(lambda: all(map(has_ended, children)), "its processes to end")  # they hold its port and its memory


def launch(words: Sequence[str], where: Path, log: Path, env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            words,
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for the tests, and they end it
            env={**os.environ, **(env or {})},
        )


def watch_over(process: subprocess.Popen[bytes], folder: Path, end: str, *, shared: bool) -> subprocess.Popen[bytes]:
    """Whatever becomes of us, the server ends, by these words of a shell, and its folder is removed.

    It ends with this process, or, if all processes of the run share it, with the run.
    """
    script, words = f'{end}; rm -rf "$2"', (str(process.pid), str(folder))
    if shared:
        return run.at_the_end(script, *words)
    return subprocess.Popen(
        ["sh", "-c", f"read nothing; {script}", "sh", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def call_off(watchdog: subprocess.Popen[bytes]) -> None:
    """Before a server is ended by us: its watchdog must not meet the number again, as another's."""
    watchdog.kill()
    watchdog.wait()
    if watchdog.stdin is not None:
        watchdog.stdin.close()
