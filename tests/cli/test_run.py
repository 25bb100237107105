"""`lockfast run` as a shell sees it: exit codes, environment, output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Shell
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow


def test_the_commands_exit_code_is_passed_through(shell: Shell) -> None:
    done = shell("run", "x", "--", "sh", "-c", "exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_a_command_ended_by_a_signal_gives_128_and_its_number(shell: Shell) -> None:
    assert shell("run", "x", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9


def test_the_command_finds_the_facts_of_its_lease_in_its_environment(shell: Shell) -> None:
    before = time.time()
    done = shell("run", "--ttl", "60", "--holder", "me", "x y", "--", "env")
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("LOCKFAST_"))
    assert found["LOCKFAST_NAME"] == "x y"
    assert found["LOCKFAST_HOLDER"] == "me"
    assert found["LOCKFAST_TTL"] == "60"
    assert found["LOCKFAST_URL"] == shell.url
    assert re.fullmatch(r"[0-9a-f]{32}", found["LOCKFAST_CLAIM"])
    assert before + 59 < float(found["LOCKFAST_EXPIRES"]) < time.time() + 60
    again = shell("run", "x y", "--", "sh", "-c", "echo $LOCKFAST_FENCE")
    assert int(again.stdout) > int(found["LOCKFAST_FENCE"])


def test_a_relative_store_is_the_same_store_wherever_the_command_goes(shell: Shell, tmp_path: Path) -> None:
    inner = f"cd /; '{sys.executable}' -m lockfast show x --check"
    done = shell("run", "--url", "sqlite:///here.db", "x", "--", "sh", "-c", inner, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "x: held")


def test_a_held_lock_gives_75_and_says_who_holds_it(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("x"):
        for option in (["--wait", "0"], ["--no-wait"], ["-n"]):
            done = shell("run", *option, "x", "--", "echo", "ran")
            assert (done.returncode, done.stdout) == (75, "")
            assert done.stderr == f"lockfast: lock 'x' is held by {locks.holder!r}\n"
        waited = shell("run", "--wait", "200ms", "x", "--", "echo", "ran")
        assert waited.returncode == 75
        assert re.fullmatch(rf"lockfast: lock 'x' is still held by '{locks.holder}' after [\d.]+m?s\n", waited.stderr)
        assert locks.inspect("x").waiters == 0
        quiet = shell("run", "-q", "-n", "-E", "3", "x", "--", "echo", "ran")
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (3, "", "")


def test_run_waits_for_ever_by_default(shell: Shell) -> None:
    with shell.locks() as locks:
        with locks.lock("x"):
            waiting = shell.start("run", "-v", "x", "--", "echo", "ran")
            until(lambda: locks.inspect("x").waiters == 1, "a waiter")
        out, err = waiting.communicate(timeout=LIMIT_S)
        assert (waiting.returncode, out) == (0, "ran\n")
        assert err.splitlines()[0] == f"lockfast: waiting for 'x', held by {locks.holder!r}, behind 0 more"
        assert err.splitlines()[1].startswith("lockfast: acquired 'x' with fence ")
        assert err.splitlines()[2] == "lockfast: released 'x'"


def test_the_lock_is_free_when_the_command_has_ended(shell: Shell) -> None:
    shell("run", "x", "--", "true")
    assert not shell.locks().inspect("x").locked


def test_with_min_hold_the_name_stays_taken_after_the_command(shell: Shell) -> None:
    assert shell("run", "--min-hold", "60", "x", "--", "true").returncode == 0
    assert shell("run", "-n", "x", "--", "true").returncode == 75


def test_metadata_and_holder_are_shown_to_others(shell: Shell) -> None:
    show = f"'{sys.executable}' -m lockfast show x"
    done = shell("run", "--metadata", '{"job": 7}', "--holder", "nightly", "x", "--", "sh", "-c", show)
    assert "holder    nightly\n" in done.stdout
    assert 'metadata  {"job": 7}\n' in done.stdout


def test_two_namespaces_do_not_meet(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("x"):
        assert shell("run", "-n", "--namespace", "other", "x", "--", "true").returncode == 0


@pytest.mark.parametrize(
    ("command", "code", "what"),
    [
        ("no-such-command", 127, "command not found"),
        ("./no/such/file", 127, "command not found"),
        ("/", 126, "'/' is a folder"),
        ("./plain", 126, "'./plain' is not executable"),
    ],
)
def test_what_cannot_run_is_refused_before_the_lock_is_waited_for(
    shell: Shell, tmp_path: Path, command: str, code: int, what: str
) -> None:
    (tmp_path / "plain").write_text("echo hello")
    with shell.locks() as locks, locks.lock("x"):
        done = shell("run", "x", "--", command, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, f"lockfast: cannot run {command!r}: {what}\n")


def test_a_command_that_turns_out_not_to_be_executable_gives_126(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = shell("run", "x", "--", str(script))
    assert done.returncode in (126, 127)
    assert done.stderr == f"lockfast: cannot run {str(script)!r}: No such file or directory\n"


def test_a_script_without_an_interpreter_line_runs_as_in_a_shell(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$1" there\n')
    script.chmod(0o755)
    assert shell("run", "x", "--", str(script), "hello").stdout == "hello there\n"


def test_stdin_and_stdout_are_the_commands_own(shell: Shell) -> None:
    assert shell("run", "x", "--", "cat", input="through\n").stdout == "through\n"


def test_other_open_files_reach_the_command(shell: Shell, tmp_path: Path) -> None:
    with (tmp_path / "nine").open("w+") as file:
        shell("run", "x", "--", "sh", "-c", f"echo hello >> /dev/fd/{file.fileno()}", pass_fds=[file.fileno()])
        assert (tmp_path / "nine").read_text() == "hello\n"


def test_a_pipeline_ends_as_soon_as_the_command_has(shell: Shell) -> None:
    """Nothing that we started keeps the pipe open."""
    line = f"'{sys.executable}' -m lockfast run x -- echo hello | cat"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=shell.environment, timeout=LIMIT_S)
    assert (done.stdout, done.stderr) == ("hello\n", "")


def test_run_works_with_its_standard_files_closed(shell: Shell, tmp_path: Path) -> None:
    line = f"'{sys.executable}' -m lockfast run x -- sh -c 'echo hello > out' <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", line], env=shell.environment, timeout=LIMIT_S, cwd=tmp_path)
    assert (done.returncode, (tmp_path / "out").read_text()) == (0, "hello\n")


def test_the_command_does_not_inherit_pythons_ignored_signals(shell: Shell) -> None:
    """`yes | head` in the command ends by SIGPIPE and does not complain."""
    done = shell("run", "x", "--", "sh", "-c", "yes | head -n 1")
    assert (done.stdout, done.stderr) == ("y\n", "")


def test_what_the_command_leaves_in_the_background_does_not_hold_us_up(shell: Shell, tmp_path: Path) -> None:
    line = "(echo $$ > pid; exec sleep 60) >/dev/null 2>&1 & sleep 0; while ! [ -s pid ]; do sleep 0.05; done"
    done = shell("run", "x", "--", "sh", "-c", line.replace("$$", "$(exec sh -c 'echo $PPID')"), cwd=tmp_path)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 9)  # it lived on: it ended by itself with the command, not by us
    assert done.returncode == 0


def test_nested_runs_on_two_names_work(shell: Shell) -> None:
    inner = [*PROGRAM, "run", "inner", "--", "sh", "-c", "echo $LOCKFAST_NAME"]
    assert shell("run", "outer", "--", *inner).stdout == "inner\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["run", "x"], "what is to run?"),
        (["run", "x", "--"], "what is to run?"),
        (["run", "--", "true"], "NAME"),
        (["run", "", "--", "true"], "must not be empty"),
        (["run", "--ttl", "soon", "x", "--", "true"], "'soon' is not a time"),
        (["run", "--ttl", "0", "x", "--", "true"], "--ttl must be"),
        (["run", "--ttl", "0.1", "x", "--", "true"], "at least 0.5 seconds"),
        (["run", "--wait", "-1", "x", "--", "true"], "wait must be"),
        (["run", "--wait", "1", "-n", "x", "--", "true"], "not allowed with"),
        (["run", "--kill-after", "20", "x", "--", "true"], "at most half of --ttl"),
        (["run", "-E", "300", "x", "--", "true"], "is not an exit code"),
        (["run", "--metadata", "{", "x", "--", "true"], "must be JSON"),
        (["run", "--wa", "1", "x", "--", "true"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_gives_64_and_one_line(shell: Shell, words: list[str], what: str) -> None:
    done = shell(*words)
    assert done.returncode == 64
    assert what in done.stderr
    assert done.stderr.startswith("lockfast: ")
    assert done.stderr.count("\n") == 1


def test_a_warning_says_that_a_memory_store_excludes_no_other_process(shell: Shell) -> None:
    done = shell("run", "--url", "memory://", "x", "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "excludes no other process" in done.stderr
