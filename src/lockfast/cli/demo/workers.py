"""The demo's worker processes: started, read from, killed or stopped, and gone at the end.

Decides: how they are started and that none is left behind.
Leaves to the demo: what they are to do and when.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import lockfast
from lockfast._time import boot_now
from lockfast.cli.demo.judge import Report


class Workers:
    def __init__(self, names: Iterable[str], url: str, lock: str, ttl: float, ledger: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._unread: dict[str, bytes] = {}
        for name in names:
            self._start(name, [url, lock, str(ttl), str(ledger)])

    def _start(self, name: str, about: list[str]) -> None:
        ours = str(Path(lockfast.__file__).parent.parent)
        path = os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lockfast.cli.demo.worker", name, *about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C is ours to handle
        )
        self._running[name] = process
        self._unread[name] = b""
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, name)

    def receive(self, seconds: float) -> list[Report]:
        """What was reported within that time, in the order of arrival."""
        reports: list[Report] = []
        for key, _ in self._selector.select(max(0.0, seconds)):
            text = os.read(key.fd, 65536)
            if not text:
                self._selector.unregister(key.fileobj)
                continue
            *lines, self._unread[key.data] = (self._unread[key.data] + text).split(b"\n")
            reports += [_parsed(key.data, line) for line in lines]
        return reports

    def order_to_stay(self, name: str) -> None:
        stdin = self._stdin(name)
        stdin.write(b"stay\n")
        stdin.flush()

    def send_signal(self, name: str, signum: signal.Signals) -> Report:
        self._running[name].send_signal(signum)
        done = {signal.SIGKILL: "killed", signal.SIGSTOP: "stopped", signal.SIGCONT: "continued"}[signum]
        return Report(boot_now(), name, done)

    def finish(self) -> None:
        """Let each worker finish its turn and exit."""
        for name, process in self._running.items():
            if process.poll() is None:
                self._stdin(name).close()

    def exit_codes(self) -> dict[str, int | None]:
        return {name: process.poll() for name, process in self._running.items()}

    def close(self) -> None:
        """Whatever happened: afterwards there is none."""
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None and not pipe.closed:
                    pipe.close()
        self._selector.close()

    def _stdin(self, name: str) -> IO[bytes]:
        stdin = self._running[name].stdin
        assert stdin is not None
        return stdin


def _parsed(name: str, line: bytes) -> Report:
    facts = json.loads(line)
    return Report(facts.pop("at"), name, facts.pop("kind"), facts)
