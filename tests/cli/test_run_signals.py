"""`lockfast run` and signals: passed on while the command runs, obeyed while waiting."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.servers.processes import children_of, has_ended, process_state
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

PASSED_ON = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"]


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_signal_is_passed_on_and_the_command_decides(shell: Shell, name: str) -> None:
    line = f"trap 'echo got {name}; exit 5' {name}; echo ready; while :; do :; done"
    running = shell.start("run", "x", "--", "sh", "-c", line)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(getattr(signal, f"SIG{name}"))
    out, err = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, out, err) == (5, f"got {name}\n", "")


def test_a_command_that_dies_of_a_passed_signal_gives_its_number(shell: Shell) -> None:
    running = shell.start("run", "x", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert running.stdout is not None
    running.stdout.readline()
    running.terminate()
    assert running.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert not shell.locks().inspect("x").locked


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_the_wait_at_once_and_leaves_nothing_in_the_queue(shell: Shell, signum: signal.Signals) -> None:
    with shell.locks() as locks, locks.lock("x"):
        waiting = shell.start("run", "x", "--", "echo", "ran")
        until(lambda: locks.inspect("x").waiters == 1, "a waiter")
        waiting.send_signal(signum)
        out, err = waiting.communicate(timeout=LIMIT_S)
        assert (waiting.returncode, out, err) == (128 + signum, "", "")
        assert locks.inspect("x").waiters == 0


def waiting_command(running: subprocess.Popen[str]) -> int:
    """The process that will become the command: unlike the guardian it stays in the session of its parent."""

    def alone() -> int:
        found = [pid for pid in children_of(running.pid) if os.getsid(pid) == os.getsid(running.pid)]
        return found[0] if len(found) == 1 else 0

    return until(alone, "the guardian to leave the session")


def test_a_command_that_was_killed_before_it_started_is_reported(shell: Shell) -> None:
    with shell.locks() as locks:
        with locks.lock("x"):
            waiting = shell.start("run", "x", "--", "echo", "ran")
            until(lambda: locks.inspect("x").waiters == 1, "a waiter")
            command = waiting_command(waiting)
            os.kill(command, signal.SIGKILL)
            until(lambda: has_ended(command), "the end of the command's process")
        out, err = waiting.communicate(timeout=LIMIT_S)
        assert (waiting.returncode, out) == (128 + signal.SIGKILL, "")
        [line] = err.splitlines()
        assert line.endswith("was killed by signal 9 before the lock was acquired; the command did not run")
        assert not locks.inspect("x").locked


def test_signals_ignored_by_our_parent_process_stay_ignored(shell: Shell, tmp_path: Path) -> None:
    """As under nohup: neither we nor the command end on HUP."""
    signal_was = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = shell.start("run", "x", "--", "sh", "-c", "echo ready; read line; echo $line", stdin=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGHUP, signal_was)
    assert running.stdout is not None
    running.stdout.readline()
    running.send_signal(signal.SIGHUP)
    out, _ = running.communicate("still here\n", timeout=LIMIT_S)
    assert (running.returncode, out) == (0, "still here\n")


def test_exit_codes_arrive_even_if_our_parent_process_ignores_ended_children(shell: Shell) -> None:
    signal_was = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        running = shell.start("run", "x", "--", "sh", "-c", "exit 7")
    finally:
        signal.signal(signal.SIGCHLD, signal_was)
    assert running.wait(LIMIT_S) == 7


def test_the_whole_group_of_the_command_gets_a_signal(shell: Shell, tmp_path: Path) -> None:
    inner = "trap 'echo inner >> received; exit' USR1; echo up >> up; while :; do :; done"
    line = f"trap 'echo outer >> received; wait; exit' USR1; sh -c \"{inner}\" & wait"
    running = shell.start("run", "x", "--", "sh", "-c", line, cwd=tmp_path)
    until((tmp_path / "up").exists, "the inner shell")
    running.send_signal(signal.SIGUSR1)
    running.communicate(timeout=LIMIT_S)
    assert sorted((tmp_path / "received").read_text().split()) == ["inner", "outer"]


def test_a_stopped_command_can_be_continued_through_us(shell: Shell) -> None:
    running = shell.start(
        "run", "x", "--", "sh", "-c", "echo $$; read line; echo $line", stdin=subprocess.PIPE, start_new_session=True
    )
    assert running.stdout is not None
    child = int(running.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    until(lambda: process_state(child) == "T", "a stop")
    running.send_signal(signal.SIGCONT)
    out, err = running.communicate("on\n", timeout=LIMIT_S)
    assert (running.returncode, out, err) == (0, "on\n", "")
