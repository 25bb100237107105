"""A name with many shared holds has an index of them: what a step costs, and that nothing else differs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import lockfast
from lockfast._model import EXCLUSIVE, SHARED, Busy, Claim, Grant, Renewal
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.sqlite import backend as sqlite
from lockfast.backends.sqlite import resource, schema
from lockfast.backends.sqlite.hold_index import MAX_UNINDEXED, MIN_INDEXED
from lockfast.testing import open_backend
from lockfast.testing.clock import FakeClock
from lockfast.testing.contract.p05_lost_replies_change_nothing import LostRepliesChangeNothing
from lockfast.testing.contract.s04_one_admission_rule import OneAdmissionRule
from lockfast.testing.contract.s05_semaphores import Semaphores
from lockfast.testing.contract.s06_read_write_locks import ReadWriteLocks
from tests.backends.sqlite.stage import claim_on
from tests.backends.sqlite.test_costs import Counted
from tests.backends.test_model import SqliteMachine, UnobservedSqliteMachine, run_machine
from tests.contract.backends import BACKENDS
from tests.contract.suites import classes
from tests.scale import by_scale
from tests.servers.waiting import LIMIT_S

FEW, MANY = 2 * MAX_UNINDEXED, 40 * MAX_UNINDEXED  # permits, all of which are in the index


def permit_of(limit: int, ttl: float = 60.0) -> Claim:
    claim = claim_on("x")
    return claim._replace(terms=claim.terms._replace(mode=SHARED, limit=limit, ttl=ttl))


def writer() -> Claim:
    return claim_on("x")


class Store:
    """A backend on a fake clock, and the file below it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.backend = open_backend(f"sqlite:///{path}", ThreadWorld(self.clock), self.clock)

    def ask(self, claim: Claim, *, enqueue: bool = False) -> Any:
        return drive(self.backend.acquire(claim, enqueue=enqueue, within=LIMIT_S))

    def release(self, claim: Claim, linger: float = 0.0) -> bool:
        return drive(self.backend.release(claim, linger=linger, within=LIMIT_S))

    def renew(self, batch: list[Renewal]) -> list[bool | None]:
        return list(drive(self.backend.renew(batch, within=LIMIT_S)))

    def inspect(self) -> lockfast.LockInfo:
        return drive(self.backend.inspect("x", within=LIMIT_S))

    def fill(self, number: int, limit: int | None = None, ttl: float = 60.0) -> list[Renewal]:
        """So many permits of a semaphore that has one more. All are in the index."""
        permits = []
        for _ in range(number):
            claim = permit_of(number + 1 if limit is None else limit, ttl)
            permits.append(Renewal(claim, ttl, self.ask(claim).fence))
        self.ask(writer())  # a name gains its index with the first step that finds many holds
        assert self.indexed() == number
        return permits

    def indexed(self) -> int | None:
        """The number that the index says; None if there is none. It has as many rows."""
        rows = self.sql("SELECT counter FROM claims WHERE waiting = ?", schema.INDEXED)
        ((number,),) = self.sql("SELECT count(*) FROM shared_holds")
        assert number == (rows[0][0] if rows else 0)
        return rows[0][0] if rows else None

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """As another program does."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            return db.execute(statement, values).fetchall()

    def close(self) -> None:
        drive(self.backend.close())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "locks.db")
    yield store
    store.close()


@contextmanager
def many_holds_are(more_than: int, few: int) -> Iterator[None]:
    """Shared holds get an index if there are more, and lose it if there are less than `few`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resource, "MAX_UNINDEXED", more_than)
        patched.setattr(resource, "MIN_INDEXED", few)
        yield


class TestCosts:
    @pytest.fixture
    def counted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
        monkeypatch.setattr(schema, "SWEEP_EVERY", 1 << 62)  # a sweep reads all names
        store = Counted(tmp_path / "counted.db", inboxes=True)
        store.run(sqlite._release, store.holder, 0.0, "")
        yield store
        store.close()

    def costs(self, store: Counted, permits: list[Claim], limit: int) -> dict[str, int]:
        """Instructions of SQLite. As many permits are held afterwards as before."""
        last, waiter, read_write = permit_of(limit), permit_of(limit), writer()
        found = {
            "a permit that is free": store.cost(sqlite._acquire, last, False),
            "a try": store.cost(sqlite._acquire, permit_of(limit), False),
            "a writer": store.cost(sqlite._acquire, read_write, True),
            "a writer that gives up": store.cost(sqlite._abandon, "x", read_write.id),
            "a new waiter": store.cost(sqlite._acquire, waiter, True),
            "a waiter that asks again": store.cost(sqlite._acquire, waiter, True),
            "a holder that asks again": store.cost(sqlite._acquire, permits[3], False),
            "a hand-over": store.cost(sqlite._release, permits[0], 0.0, ""),
            "a release that lingers": store.cost(sqlite._release, permits[1], 5.0, ""),
            "a permit that is given up": store.cost(sqlite._abandon, "x", permits[2].id),
            "a release": store.cost(sqlite._release, waiter, 0.0, ""),
            "a quick release": store.cost(sqlite._release_alone, last, 0.0, ""),
        }
        assert isinstance(store.run(sqlite._acquire, permits[3], False), Grant)
        return found

    def test_a_step_reads_no_more_for_each_permit_that_is_held(self, counted: Counted) -> None:
        costs = {}
        for number in (FEW, MANY):
            limit = number + 1
            permits = [permit_of(limit) for _ in range(number)]
            for permit in permits:
                assert isinstance(counted.run(sqlite._acquire, permit, False), Grant)
            costs[number] = self.costs(counted, permits, limit)
            counted.run(sqlite._break, "x")
        assert costs[MANY] == costs[FEW]

    def test_the_holds_of_an_exclusive_lock_are_never_indexed(self, store: Store) -> None:
        assert isinstance(store.ask(writer()), Grant)
        for _ in range(FEW):
            assert isinstance(store.ask(writer(), enqueue=True), Busy)
        assert store.indexed() is None


class TestForms:
    def test_a_name_gains_and_loses_its_index_far_apart(self, store: Store) -> None:
        permits = [permit_of(FEW) for _ in range(MAX_UNINDEXED + 1)]
        for number, permit in enumerate(permits):
            assert isinstance(store.ask(permit), Grant)
            assert store.indexed() == (number if number > MAX_UNINDEXED else None)
        assert isinstance(store.ask(writer()), Busy)
        assert store.indexed() == MAX_UNINDEXED + 1
        for left in range(MAX_UNINDEXED, -1, -1):
            assert store.release(permits[left])
            assert store.indexed() == (left if left >= MIN_INDEXED else None)
        assert isinstance(store.ask(writer()), Grant)

    def test_holds_of_an_earlier_version_are_indexed_by_the_first_step(self, store: Store) -> None:
        store.fill(FEW, FEW)
        store.sql("DELETE FROM shared_holds")
        store.sql("DELETE FROM claims WHERE waiting = ?", schema.INDEXED)
        assert isinstance(store.ask(permit_of(FEW)), Busy)
        assert store.indexed() == FEW

    def test_what_an_earlier_version_renews_and_ends_is_found_when_its_end_in_the_index_comes(
        self, store: Store
    ) -> None:
        """It does not keep the index. Until then a permit that it has ended counts as held."""
        permits = store.fill(FEW, FEW, ttl=30.0)
        store.sql("DELETE FROM claims WHERE waiting = 0 AND claim = ?", permits[0].claim.id)
        store.sql("UPDATE claims SET ends_at = ends_at + 30 WHERE waiting = 0 AND claim = ?", permits[1].claim.id)
        assert isinstance(store.ask(permit_of(FEW)), Busy)
        store.renew([permit._replace(ttl=90.0) for permit in permits[2:]])
        store.clock.advance(30)
        taken = permit_of(FEW, 90.0)
        assert isinstance(store.ask(taken), Grant)
        assert isinstance(store.ask(permit_of(FEW)), Busy)
        store.clock.advance(30)
        assert isinstance(store.ask(permit_of(FEW, 90.0)), Grant)
        assert isinstance(store.ask(permit_of(FEW)), Busy)

    def test_an_earlier_version_sees_a_hold_that_it_cannot_read(self, store: Store) -> None:
        """So it grants nothing, which would be missing in the index."""
        store.fill(FEW)
        unknown = store.sql(
            "SELECT count(*) FROM claims WHERE key = 'x' AND waiting NOT IN (0, 1, 2) AND ends_at > 1e99"
        )
        assert unknown == [(1,)]
        assert len(store.inspect().holders) == FEW
        assert not store.inspect().damage

    def test_many_that_expire_at_once_make_room(self, store: Store) -> None:
        store.fill(FEW, ttl=30.0)
        assert isinstance(store.ask(writer()), Busy)
        store.clock.advance(30)
        assert isinstance(store.ask(writer()), Grant)
        assert store.indexed() is None

    def test_a_permit_that_is_renewed_does_not_expire(self, store: Store) -> None:
        permits = store.fill(FEW, FEW, ttl=30.0)
        store.clock.advance(20)
        assert store.renew(permits[1:]) == [True] * (FEW - 1)
        store.clock.advance(10)
        assert store.renew(permits[:2]) == [False, True]
        assert isinstance(store.ask(permit_of(FEW)), Grant)
        assert isinstance(store.ask(permit_of(FEW)), Busy)

    def test_a_linger_keeps_its_permit_and_no_renewal_prolongs_it(self, store: Store) -> None:
        permits = store.fill(FEW, FEW)
        assert store.release(permits[0].claim, linger=10.0)
        assert store.renew(permits[:1]) == [False]
        assert isinstance(store.ask(permit_of(FEW)), Busy)
        store.clock.advance(10)
        assert isinstance(store.ask(permit_of(FEW)), Grant)

    def test_a_claim_whose_former_hold_lingers_can_hold_again(self, store: Store) -> None:
        permits = store.fill(FEW)
        assert store.release(permits[0].claim, linger=10.0)
        again = store.ask(permits[0].claim)
        assert again.fence > permits[0].fence
        assert store.release(permits[0].claim)

    def test_a_break_ends_them_all(self, store: Store) -> None:
        permits = store.fill(FEW)
        info = drive(store.backend.break_("x", within=LIMIT_S))
        assert [holder.fence for holder in info.holders] == [permit.fence for permit in permits], "the oldest first"
        assert store.indexed() is None
        assert store.renew(permits[:2]) == [False, False]
        assert isinstance(store.ask(writer()), Grant)

    def test_another_limit_is_refused(self, store: Store) -> None:
        store.fill(FEW)
        with pytest.raises(lockfast.LimitMismatch):
            store.ask(permit_of(FEW))

    def test_a_claim_that_must_wait_learns_when_there_may_be_room(self, store: Store) -> None:
        assert isinstance(store.ask(permit_of(FEW + 1, 0.5)), Grant)
        assert all(isinstance(store.ask(permit_of(FEW + 1, 0.7)), Grant) for _ in range(FEW))
        for claim, seconds in ((permit_of(FEW + 1), 0.5), (writer(), 0.7)):
            answer = store.ask(claim)
            assert answer.retry_after == pytest.approx(seconds)
            assert answer.holder == "us"
        assert store.indexed() == FEW + 1

    @pytest.mark.parametrize("how", ["renewed", "asked for again", "renewed by an earlier version"])
    def test_a_claim_that_must_wait_learns_what_was_renewed(self, store: Store, how: str) -> None:
        permits = store.fill(FEW, FEW, ttl=0.5)
        if how == "renewed by an earlier version":
            store.sql("UPDATE claims SET ends_at = ends_at + 0.4 WHERE waiting = 0 AND key = 'x'")
            store.clock.advance(0.5)
        else:
            store.clock.advance(0.4)
            if how == "renewed":
                assert store.renew(permits) == [True] * FEW
            for permit in permits if how == "asked for again" else ():
                assert store.ask(permit.claim).fence == permit.fence
        left = 0.4 if how == "renewed by an earlier version" else 0.5
        assert store.ask(permit_of(FEW)).retry_after == pytest.approx(left)

    def test_a_release_hands_over_what_has_expired_too(self, store: Store) -> None:
        permits = store.fill(FEW, FEW, ttl=10.0)
        store.clock.advance(5)
        store.renew(permits[1:])
        waiting = [permit_of(FEW) for _ in range(3)]
        assert all(isinstance(store.ask(claim, enqueue=True), Busy) for claim in waiting)
        store.clock.advance(5)
        assert store.release(permits[1].claim)
        assert store.inspect().waiters == 1

    def test_a_claim_that_is_asked_for_as_an_exclusive_one_is_found_among_them(self, store: Store) -> None:
        """The reply to its downgrade was lost."""
        permit = store.fill(FEW)[0]
        exclusive = permit.claim._replace(terms=permit.claim.terms._replace(mode=EXCLUSIVE, limit=None))
        assert store.ask(exclusive).fence == permit.fence
        assert store.release(exclusive)
        assert store.indexed() == FEW - 1

    def test_a_name_that_is_not_used_any_more_leaves_nothing(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.fill(FEW, ttl=30.0)
        store.clock.advance(30)
        monkeypatch.setattr(schema, "SWEEP_EVERY", 1)
        assert isinstance(store.ask(claim_on("y")), Grant)
        assert store.indexed() is None
        assert store.sql("SELECT count(*) FROM claims WHERE key = 'x'") == [(0,)]

    def test_a_sweep_leaves_the_index_of_a_name_that_is_held(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.fill(FEW, ttl=30.0)
        monkeypatch.setattr(schema, "SWEEP_EVERY", 1)
        assert isinstance(store.ask(claim_on("y")), Grant)
        assert store.indexed() == FEW


class TestDamage:
    def test_a_hold_that_cannot_be_read_takes_its_permit_until_its_end(self, store: Store) -> None:
        permits = store.fill(FEW, FEW, ttl=30.0)
        store.sql("UPDATE claims SET mode = 'nonsense' WHERE claim = ?", permits[0].claim.id)
        assert store.inspect().damage
        assert isinstance(store.ask(permit_of(FEW)), Busy)
        store.renew([permit._replace(ttl=90.0) for permit in permits[1:]])
        store.clock.advance(30)
        assert isinstance(store.ask(permit_of(FEW)), Grant)

    @pytest.mark.parametrize("damage", ["ends_at = 'nonsense'", "ends_at = 9e99", "acquired_at = 'nonsense'"])
    def test_a_damaged_hold_is_refused_to_its_own_claim_and_freed_by_a_break(self, store: Store, damage: str) -> None:
        permits = store.fill(FEW)
        store.sql(f"UPDATE claims SET {damage} WHERE claim = ?", permits[0].claim.id)
        for _ in range(2):
            with pytest.raises(lockfast.BackendUnavailable, match="damaged"):
                store.ask(permits[0].claim)
        assert isinstance(store.ask(permit_of(FEW + 1)), Grant)
        assert isinstance(store.ask(permit_of(FEW + 1)), Busy)
        drive(store.backend.break_("x", within=LIMIT_S))
        assert isinstance(store.ask(writer()), Grant)

    @pytest.mark.parametrize("damage", ["ends_at = 'nonsense'", "ends_at = 9e99"])
    def test_beside_a_damaged_hold_without_an_end_nothing_is_granted_from_then_on(
        self, store: Store, damage: str
    ) -> None:
        permits = store.fill(FEW, ttl=30.0)
        store.sql(f"UPDATE claims SET {damage} WHERE claim = ?", permits[0].claim.id)
        store.clock.advance(30)
        with pytest.raises(lockfast.BackendUnavailable, match="damaged"):
            store.ask(permit_of(FEW + 1))

    @pytest.mark.parametrize("number", ["NULL", "'nonsense'", "-1"])
    def test_an_index_that_cannot_be_read_is_made_anew(self, store: Store, number: str) -> None:
        store.fill(FEW, FEW)
        store.sql(f"UPDATE claims SET counter = {number} WHERE waiting = {schema.INDEXED}")
        assert isinstance(store.ask(permit_of(FEW)), Busy)
        assert isinstance(store.ask(permit_of(FEW)), Busy)
        assert store.indexed() == FEW


@pytest.mark.slow
@pytest.mark.parametrize("machine", [SqliteMachine, UnobservedSqliteMachine])
@pytest.mark.parametrize("limits", [(0, 1), (1, 2)], ids=["always", "from two on"])
def test_a_name_with_an_index_answers_as_the_reference_does(machine: Any, limits: tuple[int, int]) -> None:
    with many_holds_are(*limits):
        run_machine(machine, by_scale(20, soak=500))


@pytest.fixture(autouse=True)
def contract_with_an_index(request: pytest.FixtureRequest) -> Iterator[None]:
    """The contract has every shared hold in the index."""
    with many_holds_are(0, 1) if request.cls and request.cls.__name__.endswith("_sqlite") else ExitStack():
        yield


_ROW: Final = next(row for row in BACKENDS if row.name == "sqlite")
_CHAPTERS: Final = (OneAdmissionRule, Semaphores, ReadWriteLocks, LostRepliesChangeNothing)
globals().update(classes(_ROW, __name__, _CHAPTERS))
