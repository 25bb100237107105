"""What peers stored is data: a damaged record is shown as damaged, `break` frees it, and everything else goes on."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import BackendUnavailable
from lockfast._model import SHARED, Claim, Renewal, Terms
from lockfast._records import DEEPEST, LONGEST_KEY, LONGEST_NAME, MOST_READ, StoredHold, lock_info, parsed
from lockfast._reentry import drive
from lockfast.primitives.names import metadata_text
from tests.backends import damages
from tests.polling import poll_often
from tests.renewals import renew, renew_soon
from tests.servers.waiting import LIMIT_S, join, until

pytestmark = pytest.mark.slow

Damage = Callable[[str], object]


def each(table: damages.Table) -> pytest.MarkDecorator:
    rows = [(backend, what) for backend, rows in table.items() for what in rows]
    cases = [pytest.param((backend, table[backend][what]), id=f"{backend}-{what}") for backend, what in rows]
    return pytest.mark.parametrize("case", cases)


@pytest.fixture
def store(case: tuple[str, Any], tmp_path: Path) -> Iterator[Any]:
    store = damages.STORES[case[0]](tmp_path)
    yield store
    store.close()


@pytest.fixture
def damage(case: tuple[str, damages.Damage], store: Any) -> Damage:
    return lambda name: case[1](store, name)


@pytest.fixture
def locks(store: Any) -> Iterator[lockfast.Locks]:
    with lockfast.connect(store.url) as locks:
        yield locks


@pytest.fixture
def others(store: Any) -> Iterator[lockfast.Locks]:
    with lockfast.connect(store.url) as others:
        yield others


class TestHolds:
    @each(damages.HOLDS)
    def test_a_damaged_hold_is_shown_beside_all_others(self, locks: lockfast.Locks, damage: Damage) -> None:
        with locks.lock("w", ttl=60), locks.lock("y", ttl=60) as sound:
            assert locks.lock("x", ttl=60).acquire()
            damage("x")
            info = locks.inspect("x")
            assert info.damage
            assert info.locked
            assert info.holders[-1].holder == "(damaged)"
            assert [one.name for one in locks.list()] == ["w", "x", "y"]
            assert locks.list("y")[0].holders[0].fence == sound.fence
            assert not locks.list("y")[0].damage

    @each(damages.HOLDS)
    def test_no_claim_is_granted_on_a_damaged_lock_until_it_is_broken(
        self, locks: lockfast.Locks, others: lockfast.Locks, damage: Damage
    ) -> None:
        first = locks.lock("x", ttl=60).acquire()
        assert first is not None
        damage("x")
        for wait in (0, LIMIT_S):
            with pytest.raises(BackendUnavailable, match=r"'x'.*damaged.*break_lock"):
                others.lock("x", ttl=60).acquire(timeout=wait)
        with pytest.raises(BackendUnavailable, match=r"'x'.*damaged.*break_lock"):
            others.semaphore("x", 100, ttl=60).acquire()
        assert others.break_lock("x").locked
        assert others.inspect("x") == lockfast.LockInfo("x")
        second = others.lock("x", ttl=60).acquire(timeout=0)
        assert second is not None
        assert second.fence > first.fence
        assert second.release()

    @each(damages.HOLDS)
    def test_its_holder_is_notified_and_keeps_its_other_leases(self, locks: lockfast.Locks, damage: Damage) -> None:
        losses: list[Any] = []
        with locks.lock("y", ttl=60) as sound:
            lease = locks.lock("x", ttl=60, on_lost=losses.append).acquire()
            assert lease is not None
            damage("x")
            renew_soon(lease, sound)
            if lease.claim_id in [one.claim_id for one in locks.inspect("x").holders]:
                renew(lease)  # another line of its record is damaged
            else:
                until(lambda: losses, "the loss")
            renew(sound)

    @each(damages.HOLDS)
    def test_a_release_frees_what_can_be_read_or_says_that_it_is_damaged(
        self, locks: lockfast.Locks, damage: Damage
    ) -> None:
        lease = locks.lock("x", ttl=60, renew=False).acquire()
        assert lease is not None
        damage("x")
        if lease.claim_id in [one.claim_id for one in locks.inspect("x").holders]:
            assert lease.release()
        else:
            with suppress(BackendUnavailable):  # or it frees its own, though the rest cannot be read
                assert lease.release()
        locks.break_lock("x")
        with locks.lock("x", wait=0) as after:
            assert after.fence > lease.fence

    @each(damages.HOLDS)
    def test_a_waiter_gets_the_error_at_its_next_poll_and_leaves_nothing_behind(
        self, locks: lockfast.Locks, others: lockfast.Locks, damage: Damage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        poll_often(monkeypatch)
        assert locks.lock("x", ttl=60).acquire()
        failed: list[Exception] = []

        def wait() -> None:
            try:
                others.lock("x", ttl=60).acquire(timeout=LIMIT_S)
            except BackendUnavailable as error:
                failed.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: locks.inspect("x").waiters, "a waiter")
        damage("x")
        join(waiter)
        assert "damaged" in str(failed[0])
        locks.break_lock("x")
        assert others.inspect("x") == lockfast.LockInfo("x")

    @each(damages.HOLDS)
    def test_an_election_says_that_its_record_is_damaged(self, locks: lockfast.Locks, damage: Damage) -> None:
        assert locks.lock("x", ttl=60).acquire()
        damage("x")
        election = locks.election("x")
        with pytest.raises(BackendUnavailable, match="damaged"):
            next(election.observe())
        locks.break_lock("x")
        assert next(election.observe()).vacant


def test_a_claim_that_is_granted_anew_while_its_hold_lingers_has_one_line_in_redis(tmp_path: Path) -> None:
    store = damages.RedisStore(tmp_path)
    with lockfast.connect(store.url) as locks:
        backend = locks._logic.engine.backend
        claim = Claim("c0", Terms("x", "x", "h", 60.0, SHARED, 3))
        drive(backend.acquire(claim, enqueue=False, within=LIMIT_S))
        assert drive(backend.release(claim, linger=60.0, within=LIMIT_S))
        again: Any = drive(backend.acquire(claim, enqueue=False, within=LIMIT_S))
        info = locks.break_lock("x")
        assert ([one.fence for one in info.holders], info.damage) == ([again.fence], "")
    store.close()


def test_a_reservation_that_redis_keeps_twice_takes_room_once(tmp_path: Path) -> None:
    store = damages.RedisStore(tmp_path)
    with lockfast.connect(store.url) as locks:
        assert locks.lock("x", ttl=60).acquire()
        store.change("x", "held", lambda held: held[:16] + b"+?c0 1 1 1 x\n?c0 1 1 1 x")
        assert locks.lock("x", ttl=60).acquire(timeout=0)
    store.close()


class TestShown:
    @each(damages.SHOWN)
    def test_metadata_that_cannot_be_shown_is_reported_as_damage_and_harms_no_reader(
        self, locks: lockfast.Locks, others: lockfast.Locks, damage: Damage
    ) -> None:
        with others.lock("y", ttl=60):
            lease = locks.lock("x", ttl=60, metadata="mine").acquire()
            assert lease is not None
            damage("x")
            for info in (others.inspect("x"), others.list()[0]):
                assert info.damage
                assert len(info.as_dict()["damage"]) < 200
                assert [one.fence for one in info.holders] == [lease.fence]
                assert len(info.holders[0].holder) <= 255
            assert [one.name for one in others.list()] == ["x", "y"]
            assert others.lock("x").acquire(timeout=0) is None
            with pytest.raises(lockfast.AcquireTimeout) as refused, others.lock("x", wait=0):
                pass
            assert len(pickle.dumps(refused.value)) < 2000
            renew(lease)
            assert others.break_lock("x").damage
            assert others.inspect("x") == lockfast.LockInfo("x")


@pytest.mark.parametrize("backend", damages.STORES)
@pytest.mark.parametrize("position", [0, 1])
def test_metadata_that_names_a_claim_costs_that_claim_nothing(backend: str, position: int, tmp_path: Path) -> None:
    """The same words as its line begins with, in the line of a peer before or after it."""
    mine = Claim("c" * 32, Terms("x", "x", "h", 60.0, SHARED, 5))
    words = json.dumps(f"{mine.id} 1 1 1 60000000 s 5 h ")
    peer = Claim("p" * 32, Terms("x", "x", "peer", 60.0, SHARED, 5, words))
    store = damages.STORES[backend](tmp_path)
    with lockfast.connect(store.url) as locks:
        verbs = locks._logic.engine.backend
        granted: dict[str, Any] = {}
        for claim in (peer, mine) if position else (mine, peer):
            granted[claim.id] = drive(verbs.acquire(claim, enqueue=False, within=LIMIT_S))
        fence = granted[mine.id].fence
        assert drive(verbs.renew([Renewal(mine, 60.0, fence)], within=LIMIT_S)) == [True]
        again: Any = drive(verbs.acquire(mine, enqueue=False, within=LIMIT_S))
        assert again.fence == fence
        assert drive(verbs.release(mine, linger=0.0, within=LIMIT_S))
        assert [one.holder for one in locks.inspect("x").holders] == ["peer"]
    store.close()


def test_an_id_without_end_is_cut() -> None:
    info = lock_info("x", [StoredHold("h", "c" * 1_000_000, 1, "exclusive", 0.0, 1.0, None)], ["h" * 1_000_000])
    assert len(info.holders[0].claim_id) == LONGEST_KEY
    assert info.damage == f"a claim id is longer than {LONGEST_KEY} characters"
    assert len(info.queue[0]) == LONGEST_NAME


@pytest.mark.parametrize("innermost", ["", "1", "null"])
def test_as_deep_as_metadata_is_taken_it_is_read(innermost: str) -> None:
    def nested(levels: int) -> str:
        return "[" * levels + innermost + "]" * levels

    text = metadata_text(json.loads(nested(DEEPEST)))
    assert parsed(text, MOST_READ) == json.loads(nested(DEEPEST))
    for refuse in (lambda text: metadata_text(json.loads(text)), lambda text: parsed(text, MOST_READ)):
        with pytest.raises(ValueError, match=f"nested more than {DEEPEST} deep"):
            refuse(nested(DEEPEST + 1))


class TestWaiters:
    @each(damages.WAITERS)
    def test_a_waiter_whose_place_is_damaged_gets_a_new_one(
        self, locks: lockfast.Locks, others: lockfast.Locks, damage: Damage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        poll_often(monkeypatch)
        lease = locks.lock("x", ttl=600).acquire()
        assert lease is not None
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(others.lock("x", ttl=60).acquire(timeout=LIMIT_S)))
        waiter.start()
        until(lambda: locks.inspect("x").waiters, "a waiter")
        damage("x")
        assert locks.inspect("x").locked
        assert [one.name for one in locks.list()] == ["x"]
        assert lease.release()
        join(waiter)
        assert got[0].fence > lease.fence
        assert got[0].release()

    @each(damages.WAITERS)
    def test_inspecting_a_damaged_queue_changes_nothing(
        self, locks: lockfast.Locks, others: lockfast.Locks, store: Any, damage: Damage
    ) -> None:
        assert locks.lock("x", ttl=60).acquire()
        damages.ask(others, "c0", "h", "", enqueue=True)
        damage("x")
        before = store.content()
        assert locks.inspect("x").locked
        assert [one.name for one in locks.list()] == ["x"]
        assert store.content() == before

    @each(damages.WAITERS)
    def test_a_lock_that_is_handed_over_is_not_damaged_by_a_damaged_place(
        self, locks: lockfast.Locks, others: lockfast.Locks, damage: Damage
    ) -> None:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        damages.ask(others, "c0", "h", "", enqueue=True)
        damage("x")
        assert lease.release()
        assert not others.inspect("x").damage

    @each(damages.CHANGES)
    def test_an_observer_whose_changes_are_damaged_goes_on_with_what_is_true(
        self, locks: lockfast.Locks, others: lockfast.Locks, damage: Damage
    ) -> None:
        watched = locks.election("x").observe()
        assert next(watched).vacant
        first = others.lock("x", ttl=60).acquire()
        assert first is not None
        damage("x")
        assert next(watched).term == first.fence
        assert first.release()
        assert next(watched).vacant


class TestValues:
    @each(damages.LIMITERS)
    def test_a_damaged_limiter_gives_no_permit_twice_and_heals(self, locks: lockfast.Locks, damage: Damage) -> None:
        slow = locks.limiter("x", rate=1, per=3600, burst=2)
        assert slow.try_acquire()
        damage("x")
        answer = slow.try_acquire()
        assert not answer
        assert 0 < answer.retry_after <= 3600
        damage("x")
        quick = locks.limiter("x", rate=1000)
        until(quick.try_acquire, "a permit")

    @each(damages.CELLS)
    def test_a_damaged_cell_says_so_and_its_delete_frees_it(self, locks: lockfast.Locks, damage: Damage) -> None:
        cell = locks.cell("x")
        before = cell.write({"a": 1})
        damage("x")
        for use in (
            cell.read,
            lambda: cell.write(2),
            lambda: cell.write(2, if_version=before),
            lambda: cell.write(2, fence=7),
            lambda: cell.update(lambda value: value),
        ):
            with pytest.raises(BackendUnavailable, match=r"cell 'x' is damaged.*delete\(\)"):
                use()
        cell.delete()
        assert cell.read() == (None, 0)
        assert cell.write(3) > before
        assert cell.read().value == 3

    @each(damages.FAR)
    def test_a_version_that_was_not_counted_to_spoils_no_other_cell(
        self, locks: lockfast.Locks, damage: Damage
    ) -> None:
        before = locks.cell("x").write(1)
        damage("x")
        damages.count_on(locks, before)

    @each(damages.VALUES)
    def test_a_value_that_cannot_be_read_can_be_written_over(self, locks: lockfast.Locks, damage: Damage) -> None:
        cell = locks.cell("x")
        before = cell.write({"a": 1})
        damage("x")
        with pytest.raises(BackendUnavailable, match="cell 'x' is damaged"):
            cell.read()
        cell.delete()
        assert cell.write(3) > before
        assert cell.read().value == 3


@pytest.mark.parametrize("change", ["counter = 'many'", "counter = 9e300", "counter = zeroblob(8)", "counter = NULL"])
def test_a_file_whose_own_row_is_damaged_gives_out_no_fence(tmp_path: Path, change: str) -> None:
    store = damages.SqliteStore(tmp_path)
    with lockfast.connect(store.url) as locks:
        lease = locks.lock("x", ttl=60).acquire()
        assert lease is not None
        store.execute(f"UPDATE claims SET {change} WHERE key = ''")
        for use in (locks.lock("x").acquire, locks.lock("y").acquire, lambda: locks.inspect("x"), lease.extend):
            with pytest.raises(
                BackendUnavailable, match="corrupt: its own row, with the counter, is missing or damaged"
            ):
                use()


class TestQuorum:
    """One server's record is damaged, and two are well."""

    @pytest.mark.parametrize("what", damages.HOLDS["redis"])
    def test_a_damaged_record_is_reported_and_affects_no_other_name(self, tmp_path: Path, what: str) -> None:
        store = damages.QuorumStore(tmp_path)
        with lockfast.connect(store.url) as locks, lockfast.connect(store.url) as others:
            lease = locks.lock("x", ttl=60).acquire()
            assert lease is not None
            until(lambda: store.client.exists("lockfast:{x}:held"), "the vote of the first server")
            damages.HOLDS["redis"][what](store, "x")
            for info in (others.inspect("x"), others.list()[0]):
                assert [one.fence for one in info.holders] == [lease.fence]
                assert info.damage.startswith("127.0.0.1:")
            assert others.lock("x").acquire(timeout=0) is None
            renew(lease)
            assert lease.release()
            with others.lock("x", ttl=60, wait=0) as second:
                assert second.fence > lease.fence
            others.break_lock("x")  # if its release has not freed it at that server too
            until(lambda: others.inspect("x") == lockfast.LockInfo("x"), "nothing to be damaged any more")
        store.close()
