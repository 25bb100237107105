"""What an endless wait costs beside many leases: it looks at those of its own key only."""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from typing import Any

import pytest

import lockfast
from lockfast import Lease, Locks, SelfDeadlock
from lockfast._model import Claim, Terms
from lockfast.engine.core import Engine
from lockfast.engine.not_held import Reason

MANY = 500


class Counted(Lease):
    """Counts what this thread reads of any lease."""

    __slots__ = ()
    reads = 0
    thread = 0

    def __getattribute__(self, name: str) -> Any:
        if get_ident() == Counted.thread:
            Counted.reads += 1
        return super().__getattribute__(name)


@pytest.fixture
def locks() -> Iterator[Locks]:
    with lockfast.connect("memory://") as locks:
        locks._logic.engine.lease_type = Counted
        Counted.thread = get_ident()
        yield locks
        Counted.thread = 0


def reads_of_a_wait(engine: Engine, terms: Terms) -> int:
    before = Counted.reads
    engine.must_not_wait_for_itself(Claim("waits", terms))
    return Counted.reads - before


def terms_of(locks: Locks, name: str, limit: int | None = None) -> Terms:
    """As an object of that name asks."""
    return (locks.lock(name) if limit is None else locks.semaphore(name, limit))._logic.request.terms


def test_an_endless_wait_reads_no_lease_of_another_name(locks: Locks) -> None:
    engine, terms = locks._logic.engine, terms_of(locks, "wanted")
    held = locks.lock("wanted").acquire()
    few = reads_of_a_wait(engine, terms)
    others = [locks.lock(f"other-{n}").acquire() for n in range(MANY)]
    reads_of_a_wait(engine, terms)  # files them, each once
    assert reads_of_a_wait(engine, terms) <= few
    assert held is not None
    assert all(other is not None for other in others)


def test_an_endless_wait_for_a_permit_reads_no_other_permit(locks: Locks) -> None:
    engine, terms = locks._logic.engine, terms_of(locks, "pool", MANY)
    permits = [locks.semaphore("pool", MANY).acquire() for _ in range(MANY)]
    reads_of_a_wait(engine, terms)
    assert reads_of_a_wait(engine, terms) == 0
    assert len(permits) == MANY


def test_a_lease_is_filed_once_however_many_waits_follow(locks: Locks) -> None:
    engine, terms = locks._logic.engine, terms_of(locks, "wanted")
    others = [locks.lock(f"other-{n}").acquire() for n in range(MANY)]
    first = reads_of_a_wait(engine, terms)
    assert first <= 2 * MANY
    assert sum(reads_of_a_wait(engine, terms) for _ in range(10)) == 0
    assert len(others) == MANY


@pytest.mark.parametrize("waited", [False, True])
def test_nothing_is_kept_of_a_lease_that_has_ended(locks: Locks, waited: bool) -> None:
    engine = locks._logic.engine
    ended = [locks.lock("broken").acquire(), *(locks.semaphore("pool", 3).acquire() for _ in range(3))]
    if waited:
        reads_of_a_wait(engine, terms_of(locks, "broken"))
    locks.break_lock("broken")
    for lease in ended:
        assert lease is not None
        if lease.name == "broken":
            engine.keeper.lose(lease, "denied", Reason("gone", "broken"))
        else:
            lease.release()
    by_key = engine.keeper.by_key
    assert (by_key.unfiled, by_key._filed) == ({}, {})


def test_a_body_is_found_again_after_waits_that_were_not_for_itself(locks: Locks) -> None:
    with locks.lock("own"):
        for other in ("a", "b"):
            with locks.lock(other):
                pass
            locks._logic.engine.must_not_wait_for_itself(Claim("waits", terms_of(locks, other)))
        with pytest.raises(SelfDeadlock):
            locks.lock("own").acquire()
