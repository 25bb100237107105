"""Questions to an SQLite store: who only asks is in no writer's way, and no writer is in theirs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast._model import LockInfo
from lockfast._records import lock_info
from lockfast.backends.sqlite import backend as sqlite
from lockfast.backends.sqlite.io.host import this_host
from lockfast.sync import Locks
from tests.backends.sqlite.stage import hold, on_host
from tests.patience import impatient

QUESTIONS: dict[str, Callable[[Locks], object]] = {
    "list": lambda locks: [info.name for info in locks.list()],
    "inspect": lambda locks: locks.inspect("x").locked,
    "read a cell": lambda locks: locks.cell("x").read(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_reader_does_not_wait_for_a_writer(locks: Locks, path: Path, question: str) -> None:
    hold(locks)
    before = QUESTIONS[question](locks)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with lockfast.connect(f"sqlite:///{path}") as newcomer:
        for one in (newcomer, locks):
            with impatient(one, 0.0):
                assert QUESTIONS[question](one) == before
    writer.rollback()
    writer.close()


@pytest.mark.parametrize("question", ["list", "inspect"])
def test_in_the_middle_of_an_answer_others_can_write(
    locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    assert locks.lock("x", metadata={"job": 7}).acquire()
    writer = sqlite3.connect(path, isolation_level=None, timeout=0)
    written: list[int] = []

    def write_and_make(*facts: Any) -> LockInfo:
        written.append(writer.execute("UPDATE claims SET mode = mode").rowcount)
        return lock_info(*facts)

    monkeypatch.setattr(sqlite, "lock_info", write_and_make)
    assert QUESTIONS[question](locks)
    writer.close()
    assert written == [2]  # the hold, and the store's own row


def test_a_long_list_is_read_in_pieces_and_lacks_nothing(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pieces what this process holds can be renewed."""
    monkeypatch.setattr(sqlite, "MAX_LISTED_AT_ONCE", 2)
    names = ["a", "b", "b!", "ba", "bé", "b\U0001f512", "c"]
    first = [hold(locks, name) for name in reversed(names)][-1]
    assert [info.name for info in locks.list()] == names
    assert [info.name for info in locks.list("b")] == names[1:-1]
    assert [info.name for info in locks.list("bé")] == ["bé"]
    assert locks.list("bb") == []
    first.release()
    assert [info.name for info in locks.list()] == names[1:]


def test_a_question_after_a_reboot_finds_nothing_held_and_writes_nothing(locks: Locks, path: Path) -> None:
    lease = hold(locks)
    rebooted = this_host()._replace(boot="the next boot", booted_at=lease.acquired_at + 1)
    with on_host(path, rebooted) as after:
        assert not after.inspect("x").locked
        assert after.list() == []
    assert locks.inspect("x").locked


def test_doctor_reports_a_store_that_can_be_read_and_not_written(
    locks: Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(locks).release()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with monkeypatch.context() as impatient:
        impatient.setattr("lockfast.backends.optional._IDENTIFY_WITHIN_S", 0.0)
        (health,) = locks.doctor().servers
    writer.rollback()
    writer.close()
    assert "stayed locked" in health.error
    assert locks.doctor().works
