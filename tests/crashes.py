"""A worker of pytest-xdist that ends in the middle of a test is reported at the end of the run: how and where.

Decides: where the stacks of a process go that crashes or is ended by the hard limit. Those of a worker go into a file
that the run's summary prints, since what it wrote to stderr is far up by then, or out of sight.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.servers import run

_crashed: list[str] = []  # of the process that has workers


def stacks(config: pytest.Config) -> int:
    """A file descriptor for them, to be opened while no output is captured."""
    if not hasattr(config, "workerinput"):
        return os.dup(2)
    return os.open(_file(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _file(worker: int) -> Path:
    return run.begin() / f"{worker}.stacks"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # otherwise pytest's own plugin has seen to it
        faulthandler.enable(stacks(config))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    if error:
        worker = node.gateway._io.popen
        _crashed.append(f"{node.gateway.id} {_end_of(worker)}\n{_file(worker.pid).read_text()}")


def _end_of(worker: subprocess.Popen[bytes]) -> str:
    try:
        code = worker.wait(60)
    except subprocess.TimeoutExpired:
        return "still runs, and does not answer"
    return f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for crash in _crashed:
        terminalreporter.section("a worker that crashed")
        terminalreporter.write_line(crash)
