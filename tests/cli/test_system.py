"""`--system`: one store for the users of a group on a host; one that cannot be shared is refused, never used alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockfast.cli import main
from lockfast.cli.store import system_url
from tests.capabilities import SEVERAL_USERS
from tests.cli.conftest import GUARD, eventually

User = tuple[int, int, list[int]]  # uid, gid, more groups

GROUP = 47_110  # numbers that no user on this host has
ROOT_AND_GROUP = (0, 0, [GROUP])
DEPLOY = (47_111, 47_111, [GROUP])
STRANGER: User = (47_112, 47_112, [])


# Everything is imported first: the interpreter may be where other users cannot read it.
AS_USER = """
import contextlib, grp, io, os, pwd, shlex, sys, tempfile
import lockfast.cli.inspection, lockfast.cli.run
with contextlib.redirect_stdout(io.StringIO()):
    lockfast.cli.main(["run", "--help"]), lockfast.cli.main(["ls", "--help"])
with tempfile.TemporaryDirectory() as folder, lockfast.connect(f"sqlite:///{folder}/locks.db") as locks:
    locks.list()
uid, gid, umask, *groups = map(int, sys.argv[1].split(","))
os.umask(umask); os.setgroups(groups); os.setgid(gid); os.setuid(uid)
sys.exit(lockfast.cli.main(sys.argv[2:]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where every user can go, which is not so below the folders of pytest."""
    with tempfile.TemporaryDirectory(prefix="lockfast-system-") as made:
        Path(made).chmod(0o755)
        yield Path(made) / "lockfast"


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKFAST_SYSTEM_URL", f"sqlite:///{folder}/locks.db")
    return folder


def as_user(user: User, *words: str, umask: int = 0o022) -> subprocess.Popen[str]:
    uid, gid, groups = user
    who = ",".join(map(str, (uid, gid, umask, *groups)))
    return subprocess.Popen(
        [sys.executable, "-c", AS_USER, who, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd="/",
    )


def run(user: User, *words: str, umask: int = 0o022) -> tuple[int, str, str]:
    process = as_user(user, *words, umask=umask)
    out, err = process.communicate(timeout=GUARD * 3)
    return process.returncode, out, err


def make_for_group(folder: Path) -> None:
    """As the message says."""
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)


@SEVERAL_USERS.needed
@pytest.mark.slow
@pytest.mark.parametrize("first", [ROOT_AND_GROUP, DEPLOY], ids=["root first", "deploy first"])
def test_the_jobs_of_two_users_exclude_each_other(store: Path, first: User) -> None:
    make_for_group(store)
    second = DEPLOY if first is ROOT_AND_GROUP else ROOT_AND_GROUP
    holder = as_user(first, "run", "--system", "nightly", "sh", "-c", "echo in; sleep 600")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        code, _, err = run(second, "run", "--system", "--wait", "0", "nightly", "true")
        assert code == 75, err
        assert "held by" in err
    finally:
        holder.terminate()
        holder.communicate(timeout=GUARD)
    assert run(second, "run", "--system", "--wait", "1m", "nightly", "echo", "now")[:2] == (0, "now\n")


@SEVERAL_USERS.needed
@pytest.mark.slow
def test_a_waiter_of_another_user_is_handed_the_lock(store: Path) -> None:
    make_for_group(store)
    holder = as_user(ROOT_AND_GROUP, "run", "--system", "nightly", "sh", "-c", "echo in; sleep 600")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    waiter = as_user(DEPLOY, "run", "--system", "nightly", "echo", "mine")
    try:
        listed = ["ls", "--system", "--json"]
        eventually(lambda: '"waiters": 1' in run(ROOT_AND_GROUP, *listed)[1], "the waiter in the queue")
    finally:
        holder.terminate()
        holder.communicate(timeout=GUARD)
    out, err = waiter.communicate(timeout=GUARD)
    assert (waiter.returncode, out) == (0, "mine\n"), err


@SEVERAL_USERS.needed
@pytest.mark.slow
@pytest.mark.parametrize("user", [ROOT_AND_GROUP, DEPLOY], ids=["root", "deploy"])
def test_the_files_are_for_the_group_alone_whatever_the_umask(store: Path, user: User) -> None:
    make_for_group(store)
    holder = as_user(user, "run", "--system", "x", "sh", "-c", "echo in; sleep 600", umask=0o077)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        found = {file.name: file.stat() for file in store.iterdir()}
    finally:
        holder.terminate()
        holder.communicate(timeout=GUARD)
    assert found.keys() == {"locks.db", "locks.db-wal", "locks.db-shm"}
    assert {stat.S_IMODE(one.st_mode) for one in found.values()} == {0o660}
    assert {one.st_gid for one in found.values()} == {GROUP}


@SEVERAL_USERS.needed
@pytest.mark.slow
def test_a_user_who_is_not_in_the_group_learns_what_root_can_do(store: Path) -> None:
    make_for_group(store)
    code, out, err = run(STRANGER, "run", "--system", "nightly", "echo", "ran")
    assert (code, out) == (69, "")
    [line] = err.splitlines()
    assert f"user {STRANGER[0]} may not write {store}: it belongs to root:{GROUP} with mode 2770" in line
    assert line.endswith(f"; root can add a user: usermod -aG {GROUP} {STRANGER[0]}")


@SEVERAL_USERS.needed
@pytest.mark.slow
def test_a_folder_that_root_has_for_itself_is_not_used_alone_by_others(store: Path) -> None:
    store.mkdir(mode=0o755)
    code, out, err = run(DEPLOY, "run", "--system", "nightly", "echo", "ran")
    assert (code, out) == (69, "")
    assert err.rstrip().endswith(f": install -d -m 2770 -g GROUP {store}")


@SEVERAL_USERS.needed
@pytest.mark.slow
def test_a_file_that_was_there_before_the_group_is_named_with_what_mends_it(store: Path) -> None:
    store.mkdir(mode=0o755)
    assert run(ROOT_AND_GROUP, "run", "--system", "nightly", "true")[0] == 0
    os.chown(store, 0, GROUP)
    store.chmod(0o2770)
    code, _, err = run(DEPLOY, "run", "--system", "nightly", "true")
    assert code == 69
    command = err.rstrip().partition("its owner can share it: ")[2]
    assert command
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
    assert run(DEPLOY, "run", "--system", "nightly", "true")[0] == 0


def test_without_a_folder_nothing_is_made_and_the_command_that_makes_it_is_named(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--system", "nightly", "true"]) == 69
    line = capsys.readouterr().err
    assert line.startswith("lockfast: this host has no store for all users yet; root can make it ")
    assert line.endswith(f": install -d -m 2770 -g GROUP {store}\n")
    assert not store.exists()


def test_a_folder_that_everybody_can_write_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any user could put a link there that leads to a file of root's."""
    store.mkdir()
    store.chmod(0o1777)
    assert main(["ls", "--system"]) == 69
    assert "any user could put another file into " in capsys.readouterr().err


def test_the_store_of_the_host_is_in_one_place_for_all_users_and_can_be_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCKFAST_SYSTEM_URL", raising=False)
    monkeypatch.setenv("LOCKFAST_URL", "redis://elsewhere")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/state")
    monkeypatch.setattr(sys, "platform", "linux")
    assert system_url() == "sqlite:////var/lib/lockfast/locks.db"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert system_url() == "sqlite:////Library/Application%20Support/lockfast/locks.db"
    monkeypatch.setenv("LOCKFAST_SYSTEM_URL", "redis://ours")
    assert system_url() == "redis://ours"


def test_a_url_and_the_store_of_the_host_are_two_places(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--system", "--url", "memory://"]) == 64
    assert "not allowed with argument" in capsys.readouterr().err
