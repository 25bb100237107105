"""`lockfast doctor`: a row for each server, and an exit code that says whether locks can be acquired."""

from __future__ import annotations

import json
import re

import pytest

from tests.adversity.redlock.servers import Quorum
from tests.cli.conftest import Shell

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("store")
def test_a_store_that_answers_is_ok(shell: Shell) -> None:
    done = shell("doctor")
    head, row = done.stdout.splitlines()
    assert done.returncode == 0
    assert head.split()[:5] == ["SERVER", "STATE", "LATENCY", "VERSION", "ROLE"]
    assert " ok " in row


@pytest.mark.parametrize("words", [["--url", "memory://"], ["--system"]])
def test_a_store_that_is_said_twice_is_refused(shell: Shell, words: list[str]) -> None:
    done = shell("doctor", "memory://", *words)
    assert done.returncode == 64
    assert "say which store once" in done.stderr


def test_a_quorum_whose_majority_is_unreachable_is_shown_row_by_row(shell: Shell) -> None:
    done = shell("doctor", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    assert done.returncode == 69
    rows = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert rows == [["127.0.0.1:1", "unreachable"], ["127.0.0.1:2", "unreachable"], ["127.0.0.1:3", "unreachable"]]


def test_new_servers_of_a_quorum_are_excluded_and_it_says_for_how_long_and_what_to_do(shell: Shell) -> None:
    with Quorum(3) as quorum:
        done = shell("doctor", quorum.url("rejoin=600"))
        assert done.returncode == 69
        rows = done.stdout.splitlines()[1:4]
        assert [row.split()[1] for row in rows] == ["excluded"] * 3
        assert all(re.search(r"just started; counts in (10|9)m", row) for row in rows)
        assert "servers are new, add ?rejoin=0 to the URL, or rejoin=0 to connect()" in done.stdout.replace("\n", " ")
        assert shell("doctor", quorum.url("")).returncode == 69, "the default ttl, although no lock was asked for"
        works = shell("doctor", quorum.url("rejoin=0"))
        assert works.returncode == 0
        assert len(works.stdout.splitlines()) == 4


@pytest.mark.usefixtures("store")
def test_json_says_whether_it_works(shell: Shell) -> None:
    report = json.loads(shell("doctor", "--json").stdout)
    (server,) = report["servers"]
    assert report["works"] is True
    assert server.keys() == {"where", "reachable", "latency", "version", "role", "excluded_for", "error", "counts"}
