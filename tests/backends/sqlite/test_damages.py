"""Damaged records where SQLite has ways of its own: lists in pieces, questions without a write lock, other hosts.

Leaves to `test_damages`: what is true of a damaged record on every backend.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._model import MAX_TTL_S
from lockfast.backends.sqlite import backend as sqlite
from lockfast.backends.sqlite import schema as sqlite_store
from lockfast.backends.sqlite.io.host import this_host
from lockfast.sync import Locks
from tests.backends import damages
from tests.backends.sqlite.stage import hold, on_host
from tests.patience import impatient

NO_TEXT = "CAST(x'61fffe' AS TEXT)"


@pytest.fixture
def store(tmp_path: Path) -> damages.SqliteStore:
    return damages.SqliteStore(tmp_path)


@pytest.fixture
def locks(store: damages.SqliteStore) -> Iterator[Locks]:
    with lockfast.connect(store.url) as locks:
        yield locks


# Lists in pieces


@pytest.mark.parametrize("what", damages.HOLDS["sqlite"])
@pytest.mark.parametrize("at_a_time", [1, 2])
def test_damaged_holds_where_one_piece_ends_hide_no_other(
    locks: Locks, store: damages.SqliteStore, monkeypatch: pytest.MonkeyPatch, what: str, at_a_time: int
) -> None:
    monkeypatch.setattr(sqlite, "MAX_LISTED_AT_ONCE", at_a_time)
    for name in "abcde":
        hold(locks, name)
    for name in "bcd":
        damages.HOLDS["sqlite"][what](store, name)
    assert [(info.name, bool(info.damage)) for info in locks.list()] == [(name, name in "bcd") for name in "abcde"]


@pytest.mark.parametrize("at_a_time", [1, 2, 500])
@pytest.mark.parametrize("key", [NO_TEXT, "x'61'", "zeroblob(3)"])
def test_a_key_that_is_no_text_neither_ends_a_list_nor_begins_it_again(
    locks: Locks, store: damages.SqliteStore, monkeypatch: pytest.MonkeyPatch, key: str, at_a_time: int
) -> None:
    monkeypatch.setattr(sqlite, "MAX_LISTED_AT_ONCE", at_a_time)
    for name in ("a", "ab", "b", "spoilt"):
        hold(locks, name)
    store.execute(f"UPDATE claims SET key = {key} WHERE key = 'spoilt'")
    assert [info.name for info in locks.list()] == ["a", "ab", "b"]
    assert [info.name for info in locks.list("a")] == ["a", "ab"]


def test_dead_waiters_do_not_end_a_list(
    locks: Locks, store: damages.SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "MAX_LISTED_AT_ONCE", 1)
    for name in "abc":
        hold(locks, name)
    store.execute("UPDATE claims SET waiting = 1, ends_at = 'tomorrow' WHERE key IN ('a', 'b')")
    assert [info.name for info in locks.list()] == ["c"]


# Questions without a write lock


def asked(locks: Locks) -> tuple[object, ...]:
    with pytest.raises(BackendUnavailable, match=r"cell 'x' is damaged.*delete\(\)"):
        locks.cell("x").read()
    return locks.inspect("x").damage, [info.name for info in locks.list()]


def test_reading_what_is_no_text_waits_for_no_writer_and_ends(locks: Locks, store: damages.SqliteStore) -> None:
    hold(locks, "w")
    before = hold(locks)
    locks.cell("x").write(1)
    store.execute(f"UPDATE claims SET mode = {NO_TEXT} WHERE key = 'x'")
    store.execute(f"UPDATE cells SET value = {NO_TEXT} WHERE key = 'x'")
    writer = sqlite3.connect(store.url.removeprefix("sqlite:///"), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with lockfast.connect(store.url) as newcomer:
        for one in (newcomer, locks):
            with impatient(one, 0.0):
                assert asked(one) == ("a hold cannot be read", ["w", "x"])
        writer.execute("UPDATE claims SET mode = mode WHERE key = 'w'")
        writer.execute("COMMIT")
        writer.close()
        for one in (newcomer, locks):  # what they have asked keeps no old state of the file open
            one.break_lock("x")
            again = hold(one)
            assert again.fence > before.fence
            assert again.release()


# A damaged hold beside a sound one


@pytest.mark.parametrize("change", ["waiting = 7", "waiting = 'no'", "waiting = -1", "mode = 'both'"])
def test_a_claim_does_not_wait_for_a_sound_hold_beside_a_damaged_one(
    locks: Locks, store: damages.SqliteStore, change: str
) -> None:
    hold(locks)
    hold(locks, "y")
    store.execute(f"UPDATE claims SET key = 'x', {change} WHERE key = 'y'")
    with pytest.raises(BackendUnavailable, match="damaged"):
        locks.lock("x", wait=0).acquire()


# Other hosts, and the store's own row


@pytest.mark.parametrize("change", ["ttl = 'long'", "ttl = zeroblob(8)", "ttl = 9e300", "ttl = 9e999", "waiting = 7"])
def test_a_damaged_hold_of_another_host_excludes_this_host_for_the_longest_ttl(
    locks: Locks, store: damages.SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before = hold(locks)
    store.execute(f"UPDATE claims SET {change} WHERE key = 'x'")
    other = this_host()._replace(machine="another machine", boot="its boot")
    with on_host(tmp_path / "locks.db", other) as elsewhere:
        for use in (lambda: hold(elsewhere), elsewhere.list, lambda: elsewhere.inspect("y")):
            with pytest.raises(BackendUnavailable, match="another host"):
                use()
        monkeypatch.setattr("time.time", lambda: before.acquired_at + MAX_TTL_S + 1)
        assert elsewhere.list() == []
        assert hold(elsewhere).fence > before.fence


@pytest.mark.parametrize("change", ["holder = zeroblob(8)", "claim = zeroblob(8)", "acquired_at = 'yesterday'"])
def test_after_a_reboot_a_file_whose_own_row_is_damaged_is_named_as_corrupt(
    locks: Locks, store: damages.SqliteStore, tmp_path: Path, change: str
) -> None:
    before = hold(locks)
    store.execute(f"UPDATE claims SET {change} WHERE {sqlite_store.STORE}")
    rebooted = this_host()._replace(boot="the next boot", booted_at=before.acquired_at + 1)
    with on_host(tmp_path / "locks.db", rebooted) as after:
        is_corrupt(lambda: hold(after), after.list, lambda: after.inspect("x"))


@pytest.mark.parametrize("counter", ["'many'", "9e300", "zeroblob(8)", "NULL", "1 << 60"])
def test_a_new_connection_goes_on_above_no_counter_that_is_damaged(
    locks: Locks, store: damages.SqliteStore, counter: str
) -> None:
    hold(locks)
    store.execute(f"UPDATE claims SET counter = {counter} WHERE {sqlite_store.STORE}")
    with lockfast.connect(store.url) as newcomer:
        is_corrupt(newcomer.list, lambda: hold(newcomer, "y"), lambda: newcomer.break_lock("x"), newcomer.list)


def is_corrupt(*uses: Callable[[], object]) -> None:
    for use in uses:
        with pytest.raises(BackendUnavailable, match="corrupt: its own row, with the counter, is missing or damaged"):
            use()


# Cells that were deleted


@pytest.mark.parametrize(
    "change", ["version = 'two'", "version = 9e300", "version = (1 << 53) - 1", "writer = zeroblob(8)"]
)
def test_no_version_is_given_twice_though_that_of_the_last_deleted_cell_is_damaged(
    locks: Locks, store: damages.SqliteStore, change: str
) -> None:
    cell = locks.cell("x")
    cell.write(1)
    before = cell.write(2)
    cell.delete()
    store.execute(f"UPDATE cells SET {change} WHERE key = ''")
    for _ in range(2):
        version = cell.write(3)
        assert version > before
        before = version
        cell.delete()
    damages.count_on(locks, before)
