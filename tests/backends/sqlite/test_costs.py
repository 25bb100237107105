"""What a step on an SQLite store costs must not grow with the waiters of its name, or with other names."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockfast._model import MAX_POSITION, PRESENCE_S, Busy, Claim, Grant, poll_after
from lockfast.backends.sqlite import backend as sqlite
from lockfast.backends.sqlite import schema
from lockfast.backends.sqlite.io.datagrams import open_inbox
from lockfast.backends.sqlite.io.driver import SqliteTransaction
from lockfast.backends.sqlite.io.host import this_host
from lockfast.backends.wakeups.blocking import BlockingWakeups
from tests.backends.sqlite.stage import claim_on

FEW, MANY = 2 * MAX_POSITION, 20 * MAX_POSITION


class Counted:
    """A store in which SQLite counts the instructions of its statements. Without inboxes all waiters confirm."""

    def __init__(self, path: Path, *, inboxes: bool = False) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._inbox = BlockingWakeups(None, partial(open_inbox, path) if inboxes else None)
        self._instructions = self._statements = 0
        self._now = this_host().now()  # it stands still
        self.run(schema.SCHEMA.prepare)
        self.holder = claim_on("x")
        assert isinstance(self.run(sqlite._acquire, self.holder, False), Grant)

    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        transaction = SqliteTransaction(self._execute, this_host(), self._inbox)
        transaction.now = self._now
        return step(transaction, *args)

    def _execute(self, *args: Any) -> sqlite3.Cursor:
        self._statements += 1
        return self._db.execute(*args)

    def enqueue(self, waiters: int) -> list[Claim]:
        claims = [claim_on("x") for _ in range(waiters)]
        for claim in claims:
            assert isinstance(self.run(sqlite._acquire, claim, True), Busy)
        return claims

    def cost(self, step: Callable[..., Any], *args: Any) -> int:
        self._instructions = 0
        self._db.set_progress_handler(self._count, 1)
        self.run(step, *args)
        self._db.set_progress_handler(None, 1)
        return self._instructions

    def statements(self, step: Callable[..., Any], *args: Any) -> int:
        self._statements = 0
        self.run(step, *args)
        return self._statements

    def _count(self) -> int:
        self._instructions += 1
        return 0

    def close(self) -> None:
        self._db.close()
        self._inbox.close()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    monkeypatch.setattr(schema, "SWEEP_EVERY", 1 << 62)  # a sweep reads all names, and belongs to none of these steps
    store = Counted(tmp_path / "locks.db")
    yield store
    store.close()


@pytest.fixture
def handing_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    monkeypatch.setattr(schema, "SWEEP_EVERY", 1 << 62)
    store = Counted(tmp_path / "another.db", inboxes=True)
    yield store
    store.close()


def costs(store: Counted, waiting: list[Claim]) -> dict[str, int]:
    """The last waiter takes part, and the queue is as long as before."""
    newcomer = claim_on("x")
    found = {
        "a try": store.cost(sqlite._acquire, claim_on("x"), False),
        "a new waiter": store.cost(sqlite._acquire, newcomer, True),
        "a waiter that asks again": store.cost(sqlite._acquire, newcomer, True),
        "a waiter that gives up": store.cost(sqlite._abandon, "x", newcomer.id),
        "a release": store.cost(sqlite._release, store.holder, 0.0, ""),
        "the next holder": store.cost(sqlite._acquire, waiting[0], True),
        "a list of one other name": store.cost(sqlite._list_some, "y", "y"),
    }
    store.holder = waiting.pop(0)
    return found


def test_no_step_reads_more_for_each_waiter_of_its_name(store: Counted, handing_over: Counted) -> None:
    for one in (store, handing_over):
        waiting = one.enqueue(FEW)
        few = costs(one, waiting)
        waiting += one.enqueue(MANY - FEW)
        assert costs(one, waiting) == few


def test_a_hand_over_takes_few_statements(handing_over: Counted) -> None:
    """Two transactions for each: a release, and the acquire of a claim that has to wait."""
    (waiter,) = handing_over.enqueue(1)
    assert handing_over.statements(sqlite._acquire, claim_on("x"), True) == 3
    assert handing_over.statements(sqlite._release, handing_over.holder, 0.0, "") == 4
    assert isinstance(handing_over.run(sqlite._acquire, waiter, False), Grant), "it was made the holder by that"


def test_a_waiter_behind_many_polls_as_rarely_as_one_far_behind(store: Counted) -> None:
    """Positions are counted up to one beyond which they do not matter."""
    store.enqueue(FEW)
    answer = store.run(sqlite._acquire, claim_on("x"), True)
    assert answer.position == MAX_POSITION
    assert answer.retry_after == poll_after(10 * MAX_POSITION) < PRESENCE_S


def test_a_waiter_behind_many_reservations_does_not_pass_one_without(store: Counted) -> None:
    """More permits are free than waiters were counted, but an older waiter goes first."""
    limit = 3 * MAX_POSITION

    def permit() -> Claim:
        claim = claim_on("pool")
        return claim._replace(terms=claim.terms._replace(mode="shared", limit=limit))

    holders = [permit() for _ in range(limit)]
    assert all(isinstance(store.run(sqlite._acquire, one, False), Grant) for one in holders)
    waiting = [permit() for _ in range(limit)]
    assert all(isinstance(store.run(sqlite._acquire, one, True), Busy) for one in waiting)
    for one in holders[:-1]:
        store.run(sqlite._release, one, 0.0, "")  # reserves for the first waiters, all but the last one
    store._db.execute("DELETE FROM claims WHERE claim = ?", (waiting[0].id,))  # whose room nobody was given
    assert isinstance(store.run(sqlite._acquire, permit(), False), Busy)
    assert isinstance(store.run(sqlite._acquire, waiting[-1], True), Grant)
