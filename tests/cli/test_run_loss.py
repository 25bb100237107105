"""`lockfast run` when the lease ends early, or lockfast itself does: the command never outlives its lease."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from lockfast._time import boot_now
from tests.capabilities import OPEN_FILES
from tests.cli.conftest import EXACTLY_S, Heart, Shell, expiry
from tests.servers.processes import children_of, has_ended, open_files, process_state
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

WAITS = "echo ready; while ! [ -e go ]; do sleep 0.05; done"  # a command that ends when the test makes the file


def test_when_the_lease_is_broken_the_whole_group_is_ended(shell: Shell, heart: Heart) -> None:
    running = shell.start("run", "--ttl", "4", "x", "--", *heart.command())
    grandchild = heart.pid()
    broken = shell("break", "x")
    assert broken.returncode == 0
    _, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 74
    assert err.count("\n") == 1
    assert "was lost" in err
    assert "the command was ended" in err
    assert has_ended(grandchild)


def test_a_command_that_ignores_term_is_killed_after_the_grace(shell: Shell, heart: Heart) -> None:
    running = shell.start("run", "--ttl", "4", "--kill-after", "2", "x", "--", *heart.command("ignore-term"))
    grandchild = heart.pid()
    shell.locks().break_lock("x")
    broken_at = boot_now()
    assert running.wait(LIMIT_S) == 74
    assert has_ended(grandchild)
    assert boot_now() >= broken_at + 2, "it had its grace"


def test_run_ends_as_soon_as_its_command_has_ended_on_term(shell: Shell, heart: Heart) -> None:
    """How long that takes is measured by `python -m bench --only promptness`."""
    running = shell.start("run", "--ttl", "4", "--kill-after", "2", "x", "--", *heart.command())
    grandchild = heart.pid()
    shell.locks().break_lock("x")
    assert running.wait(LIMIT_S) == 74
    assert has_ended(grandchild)


def test_when_the_store_cannot_be_asked_the_group_is_dead_before_the_deadline(shell: Shell, heart: Heart) -> None:
    running = shell.start("run", "--ttl", "5", "x", "--", *heart.command("ignore-term"))
    grandchild = heart.pid()
    with shell.locks() as locks:
        granted = expiry(locks, "x")
        deadline = until(lambda: (now := expiry(locks, "x")) > granted + 0.1 and now, "a renewal")
    blocker = sqlite3.connect(shell.folder / "locks.db", isolation_level=None)
    try:
        blocker.execute("BEGIN IMMEDIATE")  # a third of a ttl before the next renewal
        _, err = running.communicate(timeout=LIMIT_S)
        ended_at = boot_now()
    finally:
        blocker.close()
    assert running.returncode == 74
    assert "stayed locked by another process" in err.splitlines()[-1]  # above it stands what lasted for a second
    assert has_ended(grandchild)
    assert heart.last_beat() < deadline
    assert ended_at >= deadline - 2.5, "renewal was tried until it was time to end"


def test_when_lockfast_is_killed_the_command_is_ended_at_once(shell: Shell, heart: Heart) -> None:
    running = shell.start("run", "--ttl", "30", "x", "--", *heart.command())
    grandchild = heart.pid()
    children = children_of(running.pid)
    assert len(children) == 2, "the command and the guardian"
    running.kill()
    until(lambda: has_ended(grandchild), "the end of the grandchild")
    until(lambda: all(map(has_ended, children)), "the end of the command and the guardian")
    assert shell.locks().inspect("x").locked, "no process could release it: its ttl ends it"


def test_when_lockfast_is_killed_a_command_that_ignores_term_is_killed_too(shell: Shell, heart: Heart) -> None:
    running = shell.start("run", "--ttl", "30", "--kill-after", "0.3", "x", "--", *heart.command("ignore-term"))
    grandchild = heart.pid()
    running.kill()
    until(lambda: has_ended(grandchild), "the end of the grandchild")


def test_when_lockfast_is_stopped_the_group_is_dead_before_the_deadline(shell: Shell, heart: Heart) -> None:
    running = shell.start("run", "--ttl", "5", "x", "--", *heart.command("ignore-term"))
    grandchild = heart.pid()
    os.kill(running.pid, signal.SIGSTOP)
    with shell.locks() as locks:
        deadline = expiry(locks, "x")
        with locks.lock("x", wait=LIMIT_S):
            next_holder_at = boot_now()
            assert has_ended(grandchild)
            assert heart.last_beat() < deadline
            assert next_holder_at >= deadline - EXACTLY_S
    os.kill(running.pid, signal.SIGCONT)
    _, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 74
    assert "was lost" in err
    assert "the command was ended" in err


def test_when_lockfast_goes_on_while_the_guardian_ends_the_group_no_process_is_left(shell: Shell, heart: Heart) -> None:
    """The guardian's TERM has ended the command but not its child, which ignores TERM, and then we are back."""
    running = shell.start("run", "--ttl", "5", "--kill-after", "2.5", "x", "--", *heart.command("ignore-term"))
    grandchild = heart.pid()
    (command,) = [child for child in children_of(running.pid) if grandchild in children_of(child)]
    os.kill(running.pid, signal.SIGSTOP)
    until(lambda: has_ended(command), "the end of the command by the guardian")
    os.kill(running.pid, signal.SIGCONT)
    assert running.wait(LIMIT_S) == 74
    assert has_ended(grandchild)


def test_when_lockfast_is_stopped_while_it_ends_the_group_the_guardian_finishes(shell: Shell, heart: Heart) -> None:
    running = shell.start("run", "--ttl", "4", "--kill-after", "2", "x", "--", *heart.command("ignore-term"))
    grandchild = heart.pid()
    (command,) = [child for child in children_of(running.pid) if grandchild in children_of(child)]
    shell.locks().break_lock("x")
    until(lambda: has_ended(command), "the end of the command, which got TERM")
    os.kill(running.pid, signal.SIGSTOP)
    until(lambda: has_ended(grandchild), "the end of the grandchild by the guardian")
    os.kill(running.pid, signal.SIGCONT)
    assert running.wait(LIMIT_S) == 74


def test_a_command_may_run_much_longer_than_its_ttl(shell: Shell, tmp_path: Path) -> None:
    running = shell.start("run", "--ttl", "3", "x", "--", "sh", "-c", WAITS, cwd=tmp_path)
    assert running.stdout is not None
    running.stdout.readline()
    with shell.locks() as locks:
        first = expiry(locks, "x")
        until(lambda: expiry(locks, "x") > first + 3, "renewals for one more ttl")
    (tmp_path / "go").touch()
    _, err = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, err) == (0, "")


def test_a_short_stop_does_no_harm(shell: Shell, tmp_path: Path) -> None:
    running = shell.start("run", "--ttl", "30", "x", "--", "sh", "-c", WAITS, cwd=tmp_path)
    assert running.stdout is not None
    running.stdout.readline()
    os.kill(running.pid, signal.SIGSTOP)
    until(lambda: process_state(running.pid) == "T", "a stop")
    os.kill(running.pid, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert running.wait(LIMIT_S) == 0


def test_when_lockfast_is_killed_while_waiting_the_command_never_starts(shell: Shell, tmp_path: Path) -> None:
    with shell.locks() as locks, locks.lock("x"):
        waiting = shell.start("run", "x", "--", "touch", "ran", cwd=tmp_path)
        until(lambda: locks.inspect("x").waiters == 1, "a waiter")
        children = children_of(waiting.pid)
        assert len(children) == 2
        waiting.kill()
        until(lambda: all(map(has_ended, children)), "the end of the forked processes")
    assert not (tmp_path / "ran").exists()


def test_nothing_is_left_running_after_an_ordinary_run(shell: Shell) -> None:
    running = shell.start("run", "x", "--", "sh", "-c", "echo ready; read line", stdin=-1)
    assert running.stdout is not None
    running.stdout.readline()
    children = children_of(running.pid)
    running.communicate("\n", timeout=LIMIT_S)
    assert len(children) == 2
    assert all(map(has_ended, children))


def test_a_command_that_finished_after_its_lease_was_broken_is_reported_as_lost(shell: Shell, tmp_path: Path) -> None:
    """The exit code must not say that all went well under the lock."""
    running = shell.start("run", "--ttl", "60", "x", "--", "sh", "-c", WAITS, cwd=tmp_path)
    assert running.stdout is not None
    running.stdout.readline()
    shell.locks().break_lock("x")
    (tmp_path / "go").touch()
    _, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 74
    assert "ended by itself with exit code 0" in err


def test_a_release_that_fails_is_reported_and_does_not_change_the_exit_code(shell: Shell, tmp_path: Path) -> None:
    running = shell.start("run", "--ttl", "4", "x", "--", "sh", "-c", f"{WAITS}; exit 4", cwd=tmp_path)
    assert running.stdout is not None
    running.stdout.readline()
    blocker = sqlite3.connect(tmp_path / "locks.db", isolation_level=None)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        (tmp_path / "go").touch()
        _, err = running.communicate(timeout=LIMIT_S)
    finally:
        blocker.close()
    assert running.returncode == 4
    *silence, last = err.splitlines()
    assert "ends by itself when its ttl has passed" in last
    assert all("no answer from " in line for line in silence)


@OPEN_FILES.needed
def test_the_guardian_holds_none_of_our_files_and_is_in_no_session_of_ours(shell: Shell, heart: Heart) -> None:
    running = shell.start("run", "x", "--", *heart.command())
    heart.pid()
    (guardian,) = [child for child in children_of(running.pid) if os.getsid(child) == child]
    files = open_files(guardian)
    assert [files.pop(fd) for fd in (0, 1, 2)] == [os.devnull] * 3
    assert [name.partition(":")[0] for name in files.values()] == ["pipe"]
    running.terminate()
    assert running.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert has_ended(guardian)
