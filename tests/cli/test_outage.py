"""While a server cannot be reached a command says so on stderr, once, and again when it answers."""

from __future__ import annotations

import socket

import pytest

from tests.cli.conftest import GUARD, Shell
from tests.servers.server import HOST, Server, free_port

pytestmark = pytest.mark.slow


def test_run_says_that_it_cannot_reach_the_server_and_goes_on_when_it_can(shell: Shell) -> None:
    url = f"redis://{HOST}:{free_port()}/0"
    process = shell.start("run", "--wait", "1h", "--url", url.replace("//", "//bob:s3cret@"), "x", "echo", "done")
    assert process.stderr is not None
    first = process.stderr.readline()
    assert first.startswith(f"lockfast: cannot reach {url.replace('//', '//bob@')}: connection refused; trying again ")
    with Server("--user", *["bob", "on", ">s3cret", "~*", "&*", "+@all"], port=int(url.split(":")[2].split("/")[0])):
        out, err = process.communicate(timeout=GUARD)
    assert (process.returncode, out) == (0, "done\n")
    assert err.startswith(f"lockfast: {url.replace('//', '//bob@')} can be used again, after ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["ls"], ["show", "x"], ["break", "x"], ["run", "--wait", "0.1", "x", "true"]])
def test_the_last_line_names_the_command_that_shows_more(shell: Shell, words: list[str]) -> None:
    done = shell(words[0], "--url", "redis://bob:s3cret@127.0.0.1:1", *words[1:])
    assert done.returncode == 69
    line = done.stderr.splitlines()[-1]  # on a machine that stood still for a second it is not the only one
    assert line.startswith("lockfast: cannot reach redis://bob@127.0.0.1:1/0: connection refused; ")
    assert line.endswith("run: lockfast doctor redis://bob@127.0.0.1:1/0")


@pytest.mark.parametrize("command", ["doctor", "migrate"])
def test_a_command_that_asks_but_once_says_that_it_waits(shell: Shell, command: str) -> None:
    with socket.create_server((HOST, 0)) as mute:
        process = shell.start(command, f"postgresql://{HOST}:{mute.getsockname()[1]}/app")
        assert process.stderr is not None
        first = process.stderr.readline()
        process.terminate()
        process.communicate(timeout=GUARD)
    assert first == "lockfast: no answer for 1s; waiting for it\n"


def test_a_schema_that_could_not_be_made_names_the_command_that_shows_more(shell: Shell) -> None:
    done = shell("migrate", "postgresql://bob:s3cret@127.0.0.1:1/app")
    assert done.returncode == 69
    assert done.stderr.endswith("; for more, run: lockfast doctor postgresql://bob@127.0.0.1:1/app\n")


@pytest.mark.parametrize("words", [["ls"], ["show", "x"], ["break", "x"], ["run", "x", "true"]])
def test_a_server_that_does_not_answer_is_reported_while_it_is_waited_for(shell: Shell, words: list[str]) -> None:
    with socket.create_server((HOST, 0)) as mute:
        url = f"redis://{HOST}:{mute.getsockname()[1]}/0"
        process = shell.start(words[0], "--url", url, *words[1:])
        assert process.stderr is not None
        first = process.stderr.readline()
        process.terminate()
        process.communicate(timeout=GUARD)
    assert first.startswith(f"lockfast: no answer from {url} for ")


def test_verbose_or_not_an_outage_is_waited_for(shell: Shell) -> None:
    url = f"redis://{HOST}:{free_port()}/0"
    process = shell.start("run", "-v", "--wait", "1h", "--url", url, "x", "true")
    assert process.stderr is not None
    assert "; trying again until " in process.stderr.readline()
    process.terminate()
    process.communicate(timeout=GUARD)
