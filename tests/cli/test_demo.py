"""`lockfast demo`: sees what it promises, says so last, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Shell
from tests.servers.processes import children_of, has_ended
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow


def test_the_demo_sees_everything_and_says_so_last(shell: Shell, tmp_path: Path) -> None:
    done = shell("demo", env_extra={"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    story, _, ending = done.stdout.partition("what was seen in ")
    assert "bert     was killed with SIGKILL while holding" in story
    assert re.search(r"took over, [\d.]+s after bert was killed", story)
    assert re.search(r"took over, [\d.]+s after dora was stopped", story)
    assert "dora     got LeaseLost" in story
    assert re.search(r"holds the lock with fence \d+, 3 waiting", story)
    *facts, verdict = ending.strip().splitlines()
    assert verdict == "everything that should be seen was seen"
    assert [fact.strip() for fact in facts if "never two" in fact or "only grew" in fact] == [
        "never two holders at once",
        "fences only grew",
    ]
    assert "late write was refused" in ending
    assert list(tmp_path.iterdir()) == [], "no file is left"


def test_an_interrupted_demo_leaves_no_process_and_no_file(shell: Shell, tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*PROGRAM, "demo"],
        stdout=subprocess.PIPE,
        text=True,
        env={**shell.environment, "TMPDIR": str(tmp_path)},
    )
    assert running.stdout is not None
    running.stdout.readline()
    workers = children_of(running.pid)
    assert len(workers) == 4
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=LIMIT_S)
    assert running.returncode == 130
    assert all(map(has_ended, workers))
    assert list(tmp_path.iterdir()) == []


def test_a_killed_demo_leaves_no_worker(shell: Shell, tmp_path: Path) -> None:
    running = subprocess.Popen([*PROGRAM, "demo", "--url", shell.url], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    running.stdout.readline()
    workers = children_of(running.pid)
    running.kill()
    running.communicate()
    until(lambda: all(map(has_ended, workers)), "the end of all workers")


def test_on_a_terminal_with_rich_it_is_a_live_view(shell: Shell) -> None:
    master, slave = os.openpty()
    running = subprocess.Popen(
        [*PROGRAM, "demo"], stdout=slave, stderr=slave, stdin=slave, env={**shell.environment, "TERM": "xterm"}
    )
    os.close(slave)
    seen = b""
    while b"lockfast demo" not in seen:
        seen += os.read(master, 4096)
    running.send_signal(signal.SIGTERM)
    try:
        while chunk := os.read(master, 4096):
            seen += chunk
    except OSError:
        pass  # the other side is closed
    os.close(master)
    assert running.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert b"worker" in seen
    assert b"queue:" in seen
    assert seen.count(b"\x1b[?25h") >= 1, "the cursor is shown again"


def test_the_demo_refuses_a_store_that_cannot_be_shared(shell: Shell) -> None:
    done = shell("demo", "--url", "memory://")
    assert done.returncode == 64
    assert done.stderr.count("\n") == 1
