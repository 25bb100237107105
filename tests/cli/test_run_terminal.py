"""`lockfast run` on a terminal: keys reach the command, and job control works as if we were not there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Shell
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

CTRL_C, CTRL_Z = b"\x03", b"\x1a"
ASKS = "echo ready; read line; echo got $line"
TRAPS = "trap 'echo interrupted >&2; exit 3' INT; echo ready; while :; do :; done"


class Screen:
    """A terminal with a job on it."""

    def __init__(self, shell: Shell, log: Path) -> None:
        self._shell = shell
        self._log = log
        self._seen = b""
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, kind: str, *words: str) -> None:
        helper = Path(__file__).with_name("job_shell.py")
        self._process = subprocess.Popen(
            [sys.executable, str(helper), str(self._log), kind, *PROGRAM, *words],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            env=self._shell.environment,
        )

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: bytes) -> None:
        until(lambda: text in self._read(), f"{text!r} on the screen")

    def _read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            self._seen += os.read(self._master, 4096)
        return self._seen

    def log(self) -> list[str]:
        """What became of the job, once the little shell has ended."""
        assert self._process is not None
        self._process.wait(LIMIT_S)
        return self._log.read_text().splitlines()

    def has_stopped(self) -> bool:
        return "stopped" in self._log.read_text()

    def exit_code(self) -> int:
        assert self._process is not None
        return self._process.wait(LIMIT_S)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def screen(shell: Shell, tmp_path: Path) -> Iterator[Screen]:
    screen = Screen(shell, tmp_path / "log")
    yield screen
    screen.close()


def test_the_command_can_read_the_terminal(screen: Screen) -> None:
    screen.run("alone", "run", "x", "--", "sh", "-c", ASKS)
    screen.wait_for(b"ready")
    screen.press(b"hello\n")
    screen.wait_for(b"got hello")
    assert screen.log() == ["foreground given back: True", "ended: 0"]


@pytest.mark.parametrize(("kind", "whose"), [("alone", b"mine"), ("piped", b"not mine"), ("unwatched", b"mine")])
def test_the_command_has_the_foreground_unless_neighbours_need_it(screen: Screen, kind: str, whose: bytes) -> None:
    script = "import os; print('foreground is', 'mine' if os.tcgetpgrp(2) == os.getpgrp() else 'not mine')"
    screen.run(kind, "run", "x", "--", sys.executable, "-c", script)
    screen.wait_for(b"foreground is " + whose)
    screen.exit_code()


@pytest.mark.parametrize("kind", ["alone", "piped", "unwatched"])
def test_ctrl_c_reaches_the_command_which_decides(screen: Screen, kind: str) -> None:
    screen.run(kind, "run", "x", "--", "sh", "-c", TRAPS)
    screen.wait_for(b"ready")
    screen.press(CTRL_C)
    screen.wait_for(b"interrupted")
    if kind == "unwatched":
        assert screen.exit_code() == 3
    else:
        assert screen.log()[-1] == "ended: 3"


def test_a_command_that_dies_of_ctrl_c_gives_130(screen: Screen) -> None:
    screen.run("alone", "run", "x", "--", "sh", "-c", "echo ready; exec sleep 60")
    screen.wait_for(b"ready")
    screen.press(CTRL_C)
    assert screen.log() == ["foreground given back: True", "ended: 130"]


def test_ctrl_c_also_reaches_a_script_around_us(screen: Screen, tmp_path: Path) -> None:
    """The command's group alone has the foreground, but a loop in a script must end as it would without us."""
    script = tmp_path / "script.py"
    words = [*PROGRAM, "run", "x", "--", "sh", "-c", "echo ready; exec sleep 60"]
    script.write_text(
        f"import subprocess\ntry:\n    subprocess.call({words!r})\n"
        "except KeyboardInterrupt:\n    print('script ended')\n"
    )
    screen.run("alone", "run", "outer", "--", sys.executable, str(script))
    screen.wait_for(b"ready")
    screen.press(CTRL_C)
    screen.wait_for(b"script ended")
    assert screen.log()[-1] == "ended: 0"


def test_ctrl_c_ends_the_wait_for_the_lock(screen: Screen, shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("x"):
        screen.run("alone", "run", "x", "--", "echo", "ran")
        until(lambda: locks.inspect("x").waiters == 1, "a waiter")
        screen.press(CTRL_C)
        assert screen.log()[-1] == "ended: 130"
        assert locks.inspect("x").waiters == 0


def test_ctrl_z_stops_the_job_and_fg_continues_it(screen: Screen) -> None:
    screen.run("alone", "run", "x", "--", "sh", "-c", ASKS)
    screen.wait_for(b"ready")
    screen.press(CTRL_Z)
    screen.wait_for(b"lockfast: stopped; unless continued, the lease ends in ")
    until(screen.has_stopped, "a stopped job")
    screen.press(b"hello\n")
    screen.wait_for(b"got hello")
    assert screen.log() == ["stopped", "foreground given back: True", "ended: 0"]


def test_ctrl_z_stops_a_pipeline_with_all_its_members(screen: Screen, tmp_path: Path) -> None:
    line = f"echo ready; while ! [ -e '{tmp_path}/go' ]; do :; done; echo done"
    screen.run("piped", "run", "x", "--", "sh", "-c", line)
    screen.wait_for(b"ready")
    screen.press(CTRL_Z)
    until(screen.has_stopped, "a stopped job")
    (tmp_path / "go").touch()
    screen.wait_for(b"done")
    assert screen.log() == ["stopped", "foreground given back: True", "ended: 0"]


def test_where_no_shell_could_continue_us_ctrl_z_does_not_hang(screen: Screen) -> None:
    screen.run("unwatched", "run", "x", "--", "sh", "-c", ASKS)
    screen.wait_for(b"ready")
    screen.press(CTRL_Z)
    screen.wait_for(b"stopped")
    screen.press(b"hello\n")
    screen.wait_for(b"got hello")
    assert screen.exit_code() == 0


def test_in_a_pipeline_the_command_gets_the_terminal_when_it_reads(screen: Screen) -> None:
    screen.run("piped", "run", "x", "--", "sh", "-c", ASKS)
    screen.wait_for(b"ready")
    screen.press(b"hello\n")
    screen.wait_for(b"got hello")
    assert screen.log()[-1] == "ended: 0"


def test_a_lost_lease_gives_the_terminal_back_as_it_was(screen: Screen, shell: Shell) -> None:
    screen.run("alone", "run", "--ttl", "4", "x", "--", "sh", "-c", "stty -echo raw; echo ready; exec sleep 60")
    screen.wait_for(b"ready")
    shell.locks().break_lock("x")
    screen.wait_for(b"was lost")
    assert screen.log() == ["foreground given back: True", "ended: 74"]
    attributes = subprocess.run(["stty", "-a"], stdin=screen._slave, capture_output=True, text=True, check=True).stdout
    assert " echo " in attributes
    assert " icanon " in attributes
