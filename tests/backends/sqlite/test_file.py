"""The file of an SQLite store: which one is used and who may read it, and what becomes of one that is not ours."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast import BackendUnavailable, Unsupported
from lockfast.backends.sqlite.io import blocking, driver
from lockfast.backends.sqlite.open import file_of, url_of_file
from lockfast.cli import main
from tests.backends.sqlite.stage import hold
from tests.capabilities import SEVERAL_USERS

ANOTHER_USER = 47_110  # a number that no user of this host has


# Files of other programs


def of_another_program(path: Path, journal: str, version: int) -> None:
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        db.execute("CREATE TABLE customers (name TEXT)")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("version", [0, 1, 2, 99])
def test_another_programs_database_is_left_alone_to_the_byte(path: Path, journal: str, version: int) -> None:
    of_another_program(path, journal, version)
    before = path.read_bytes()
    with lockfast.connect(f"sqlite:///{path}") as locks:
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="another program"):
                hold(locks)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_another_programs_tables_need_not_be_described_in_text(path: Path) -> None:
    """As by a program that writes Latin-1 into the comments of its schema."""
    of_another_program(path, "delete", 0)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = sql || ' -- ' || CAST(x'fc' AS TEXT)")
    db.close()
    before = path.read_bytes()
    with lockfast.connect(f"sqlite:///{path}") as locks, pytest.raises(BackendUnavailable, match="another program"):
        hold(locks)
    assert path.read_bytes() == before


def test_what_another_program_left_half_done_is_not_rolled_back_by_us(path: Path) -> None:
    of_another_program(path, "delete", 0)
    torn, journal = path.read_bytes() + bytes(4096), path.with_name("locks.db-journal")
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO customers VALUES ('x')")
        unfinished = journal.read_bytes()
        db.execute("ROLLBACK")
    db.close()
    path.write_bytes(torn)
    journal.write_bytes(unfinished)
    with lockfast.connect(f"sqlite:///{path}") as locks, pytest.raises(BackendUnavailable, match="another program"):
        hold(locks)
    assert (path.read_bytes(), journal.read_bytes()) == (torn, unfinished)


# Older copies


def put_back(copy: dict[str, bytes], folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    for name, content in copy.items():
        (folder / name).write_bytes(content)


def test_fences_keep_growing_when_an_older_copy_of_the_file_is_put_back(path: Path) -> None:
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks).release()
    copy = {path.name: path.read_bytes()}
    with lockfast.connect(f"sqlite:///{path}") as locks:
        for _ in range(3):
            last = hold(locks)
            last.release()
    put_back(copy, path.parent)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        assert not locks.inspect("x").locked  # a question first: it prepares nothing
        assert hold(locks).fence > last.fence


def test_fences_keep_growing_for_a_program_that_runs_while_the_file_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "CHECK_FILE_EVERY_S", 0.0)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks).release()
    copy = {path.name: path.read_bytes()}
    with lockfast.connect(f"sqlite:///{path}") as locks:
        last = hold(locks)
        last.release()
        put_back(copy, path.parent)
        assert hold(locks).fence > last.fence


# URLs


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///%3Amemory%3A", "sqlite://:memory:"])
def test_a_database_in_memory_is_refused_and_no_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="use memory://"):
        lockfast.connect(url)
    assert list(tmp_path.iterdir()) == []


# Links


@pytest.mark.parametrize("made", ["before the link", "through the link"])
def test_a_link_leads_to_the_same_store_as_its_file(path: Path, made: str) -> None:
    link = path.with_name("link.db")
    link.symlink_to("sub/locks.db")
    file = path.parent / "sub" / "locks.db"
    names = [file, link] if made == "before the link" else [link, file]
    first, second = (lockfast.connect(f"sqlite:///{name}") for name in names)
    with first, second:
        lease = hold(first)
        assert second.lock("x", wait=0).acquire() is None
        lease.release()
        assert hold(second).fence > lease.fence
        assert file.is_file()
    assert link.is_symlink()


def test_a_link_that_leads_elsewhere_now_means_a_loss(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "CHECK_FILE_EVERY_S", 0.0)
    path.symlink_to("one.db")
    with lockfast.connect(f"sqlite:///{path}") as locks:
        lease = hold(locks)
        path.unlink()
        path.symlink_to("two.db")
        with pytest.raises(lockfast.LeaseLost):
            lease.extend()


@SEVERAL_USERS.needed
@pytest.mark.parametrize("mode", [0o1777, 0o777])
def test_a_link_of_another_user_in_a_folder_of_everybodys_is_not_followed(path: Path, mode: int) -> None:
    folder, planted = path.parent / "tmp", path.parent / "planted.db"
    folder.mkdir()
    folder.chmod(mode)
    link = folder / "locks.db"
    link.symlink_to(planted)
    os.lchown(link, ANOTHER_USER, ANOTHER_USER)
    with lockfast.connect(f"sqlite:///{link}") as locks, pytest.raises(BackendUnavailable, match="another user"):
        hold(locks)
    assert not planted.exists()
    os.lchown(link, os.geteuid(), os.getegid())
    with lockfast.connect(f"sqlite:///{link}") as locks:
        assert hold(locks).release()


# Who may read it


def modes(path: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o777])
def test_a_new_store_is_for_its_owner_alone(path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks)
        assert modes(path) == {"locks.db": 0o600, "locks.db-wal": 0o600, "locks.db-shm": 0o600}


@pytest.mark.parametrize("mode", [0o770, 0o2770, 0o2777])
def test_a_new_store_in_a_folder_for_a_group_is_for_that_group(path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks)
        assert modes(path) == {"locks.db": 0o660, "locks.db-wal": 0o660, "locks.db-shm": 0o660}
        assert {file.stat().st_gid for file in path.parent.iterdir()} == {path.parent.stat().st_gid}


def test_a_new_store_is_not_shared_with_a_group_that_its_maker_is_not_in(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.chmod(0o770)
    monkeypatch.setattr("os.chown", _refuse)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks)
        assert set(modes(path).values()) == {0o600}


def _refuse(*args: object) -> None:
    raise PermissionError


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666])
def test_a_store_that_is_there_keeps_its_mode_and_works(path: Path, mode: int) -> None:
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks).release()
    path.chmod(mode)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks)
        assert modes(path) == {"locks.db": mode, "locks.db-wal": mode, "locks.db-shm": mode}


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o1777])
def test_a_folder_in_which_others_cannot_replace_the_file_is_not_warned_of(
    path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path.parent.chmod(mode)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks).release()
    assert caplog.messages == []


def test_a_folder_in_which_anybody_can_replace_the_file_is_warned_of_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.chmod(0o777)
    with lockfast.connect(f"sqlite:///{path}") as locks:
        for _ in range(2):
            hold(locks).release()
    [text] = caplog.messages
    assert f"'{path}' is in a folder that every user of the host can write (mode 777)" in text


def test_a_log_that_grew_during_a_long_read_is_truncated_after_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "LOG_LIMIT_BYTES", 1 << 16)
    log = path.with_name("locks.db-wal")
    with lockfast.connect(f"sqlite:///{path}") as locks:
        hold(locks).release()
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM claims").fetchall()
        while log.stat().st_size < 5 << 20:  # more than SQLite copies into the file by itself
            hold(locks).release()
        reader.close()
        for _ in range(2):  # the first commit copies it into the file, the second starts it again
            hold(locks).release()
        assert log.stat().st_size <= 1 << 16


# Where the default one is


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_user_without_a_home_learns_what_to_set(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    for name in ("LOCKFAST_URL", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", _unknown_user)
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(Unsupported, match=r"no home folder.* set LOCKFAST_URL or HOME"):
        lockfast.connect()
    assert main(["ls"]) == 69
    monkeypatch.setenv("LOCKFAST_URL", "memory://")
    with lockfast.connect() as locks:
        assert hold(locks).release()


def _unknown_user(uid: int) -> None:
    raise KeyError


def test_the_log_may_use_locks_when_it_is_warned_of_a_folder(path: Path) -> None:
    path.parent.chmod(0o777)
    taken: list[bool] = []

    class Takes(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            with lockfast.connect("memory://log") as others, others.lock("log") as lease:
                taken.append(lease.held)

    handler, logger = Takes(), logging.getLogger("lockfast")
    logger.addHandler(handler)
    try:
        with lockfast.connect(f"sqlite:///{path}") as locks, locks.lock("a"):
            assert taken == [True]
    finally:
        logger.removeHandler(handler)


def test_a_waiter_behind_a_link_to_a_store_is_woken_by_users_of_the_store(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[Path] = []
    monkeypatch.setattr(driver, "open_inbox", stores.append)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with lockfast.connect(f"sqlite:///{link}") as locks:
        locks.lock("a").acquire()
        assert locks.lock("a").acquire(timeout=0.01) is None
    assert stores == [path.resolve()]


def test_a_store_whose_name_is_no_text_is_known_by_a_url(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xe4 %41.db"))
    url = url_of_file(file)
    assert url.isascii()
    with lockfast.connect(url) as locks, locks.lock("a"):
        assert file.exists()
        assert file_of(url) == file
