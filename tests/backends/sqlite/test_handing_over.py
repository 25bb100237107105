"""A release makes the next waiter the holder: what becomes of one that is gone, or that no wake-up reaches."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockfast._connect import open_backend
from lockfast._model import SHARED, Busy, Claim, Grant, LockInfo
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.sqlite.backend import SqliteBackend
from lockfast.backends.sqlite.io.datagrams import DatagramSender
from lockfast.backends.wakeups import write_wake_up
from tests.backends.sqlite.stage import claim_on
from tests.servers.waiting import LIMIT_S

Open = Callable[[], SqliteBackend]


@pytest.fixture
def process(path: Path) -> Iterator[Open]:
    """Each has an inbox of its own, as each process has."""
    opened: list[SqliteBackend] = []

    def one() -> SqliteBackend:
        backend = open_backend(f"sqlite:///{path}", ThreadWorld(), None)
        assert isinstance(backend, SqliteBackend)
        opened.append(backend)
        return backend

    yield one
    for backend in opened:
        drive(backend.close())


def ask(backend: SqliteBackend, claim: Claim) -> Grant | Busy:
    return drive(backend.acquire(claim, enqueue=True, within=LIMIT_S))


def must_wait(backend: SqliteBackend, claim: Claim) -> Busy:
    answer = ask(backend, claim)
    assert isinstance(answer, Busy)
    return answer


def release(backend: SqliteBackend, claim: Claim) -> None:
    assert drive(backend.release(claim, linger=0.0, within=LIMIT_S))


def seen(backend: SqliteBackend) -> LockInfo:
    return drive(backend.inspect("x", within=LIMIT_S))


def holders(backend: SqliteBackend) -> list[str | None]:
    return [holder.claim_id for holder in seen(backend).holders]


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


def test_a_waiter_in_another_process_is_woken_with_its_grant(process: Open) -> None:
    us, they = process(), process()
    holder, waiter = claim_on("x"), claim_on("x")
    ask(us, holder)
    busy = must_wait(they, waiter)
    release(us, holder)
    assert they.capabilities.hands_over, "so the engine believes it, and asks nothing"
    granted = drive(they.wait(waiter, LIMIT_S))
    assert isinstance(granted, Grant)
    assert [(each.claim_id, each.fence) for each in seen(us).holders] == [(waiter.id, granted.fence)]
    assert granted.acquired_at == pytest.approx(seen(us).holders[0].acquired_at, abs=1e-5)
    assert busy.last_fence is not None
    assert granted.fence > busy.last_fence


@pytest.mark.parametrize("shared", [False, True])
def test_an_answer_that_it_is_held_names_a_fence_that_no_earlier_grant_exceeds(process: Open, shared: bool) -> None:
    us, holder, waiter = process(), claim_on("x"), claim_on("x")
    if shared:
        holder = holder._replace(terms=holder.terms._replace(mode=SHARED))
    granted, elsewhere = ask(us, holder), ask(us, claim_on("y"))
    assert isinstance(granted, Grant)
    assert isinstance(elsewhere, Grant)
    last = must_wait(us, waiter).last_fence
    assert last is not None
    assert last >= elsewhere.fence > granted.fence


@pytest.mark.parametrize("gone", [1, 3])
def test_waiters_whose_process_is_gone_are_passed_over_by_the_release_itself(process: Open, gone: int) -> None:
    us, they = process(), process()
    holder, waiter = claim_on("x"), claim_on("x")
    ask(us, holder)
    for _ in range(gone):
        dead = process()
        must_wait(dead, claim_on("x"))
        dead._driver.wakeups.close()  # its inbox ends, as with its process
    must_wait(they, waiter)
    release(us, holder)
    assert isinstance(drive(they.wait(waiter, LIMIT_S)), Grant)
    assert holders(us) == [waiter.id]
    assert seen(us).waiters == 0


def test_a_waiter_that_asks_while_its_wake_up_is_refused_keeps_its_hold(
    process: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where names are files, another program may delete the file of a live process."""
    us, they = process(), process()
    holder, waiter = claim_on("x"), claim_on("x")
    ask(us, holder)
    must_wait(they, waiter)
    answers: list[Grant | Busy] = []

    def is_refused(sender: DatagramSender, address: str, wake_up: str) -> bool:
        poll = threading.Thread(target=lambda: answers.append(ask(they, waiter)))
        poll.start()
        poll.join()
        return False

    monkeypatch.setattr(DatagramSender, "send", is_refused)
    release(us, holder)
    assert [isinstance(answer, Grant) for answer in answers] == [True]
    assert holders(us) == [waiter.id]


@pytest.mark.parametrize("address", ["", "@1/lockfast-0123456789abcdef", "/dev/log"])
def test_a_waiter_that_no_wake_up_reaches_from_here_is_not_made_the_holder_until_it_asks(
    process: Open, path: Path, address: str
) -> None:
    """One in another network namespace, or where there are no sockets: it might not ask for seconds."""
    us, they = process(), process()
    holder, waiter = claim_on("x"), claim_on("x")
    ask(us, holder)
    must_wait(they, waiter)
    execute(path, f"UPDATE claims SET address = '{address}' WHERE waiting = 1")
    release(us, holder)
    assert (holders(us), seen(us).waiters) == ([], 1)
    assert isinstance(ask(us, claim_on("x")), Busy), "it is reserved"
    assert isinstance(ask(they, waiter), Grant)


def test_a_wake_up_with_an_older_grant_costs_a_waiter_neither_its_place_nor_an_error(process: Open) -> None:
    """It was under way for longer than the hold that it announces, and its claim waits again."""
    us, they = process(), process()
    holder, waiter = claim_on("x"), claim_on("x")
    ask(us, holder)
    must_wait(they, waiter)
    must_wait(us, claim_on("x"))
    they._driver.wakeups.wake(write_wake_up(waiter.id, Grant(1, 5.0)))
    assert drive(they.wait(waiter, LIMIT_S)) == Grant(1, 5.0)  # which the engine does not believe, so that it asks
    assert must_wait(they, waiter).position == 0
    release(us, holder)
    assert holders(us) == [waiter.id]


@pytest.mark.parametrize("change", ["ttl = 'long'", "ttl = 9e300", "ttl = 9e999", "ttl = -1.0", "lim = 'many'"])
def test_a_waiter_with_damaged_terms_is_not_made_the_holder_by_them(process: Open, path: Path, change: str) -> None:
    us, holder, waiter = process(), claim_on("x"), claim_on("x")
    ask(us, holder)
    must_wait(us, waiter)
    execute(path, f"UPDATE claims SET {change} WHERE waiting = 1")
    release(us, holder)
    assert holders(us) == []
    granted = ask(us, waiter)
    assert isinstance(granted, Grant)
    assert [holder.fence for holder in seen(us).holders] == [granted.fence]


@pytest.mark.parametrize("change", ["waiting = 7", "waiting = 'no'", "waiting = -1", "mode = 'both'"])
def test_a_release_beside_a_damaged_hold_makes_no_waiter_the_holder(process: Open, path: Path, change: str) -> None:
    us, holder, waiter = process(), claim_on("x"), claim_on("x")
    ask(us, holder)
    ask(us, claim_on("y"))
    must_wait(us, waiter)
    execute(path, f"UPDATE claims SET key = 'x', {change} WHERE key = 'y'")
    release(us, holder)
    assert seen(us).damage
    assert waiter.id not in holders(us)
    drive(us.break_("x", within=LIMIT_S))
    assert holders(us) == [waiter.id]
