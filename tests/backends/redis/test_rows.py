"""A name with many shared holds keeps each as a row of its own: what a step costs, and that nothing else differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import pytest

import lockfast
from lockfast._ids import new_claim_id
from lockfast._model import EXCLUSIVE, GRACE_S, SHARED, Busy, Claim, Grant, Renewal
from lockfast._worlds import drive
from lockfast.testing.clock import FakeClock
from lockfast.testing.contract.p05_lost_replies_change_nothing import LostRepliesChangeNothing
from lockfast.testing.contract.s04_one_admission_rule import OneAdmissionRule
from lockfast.testing.contract.s05_semaphores import Semaphores
from lockfast.testing.contract.s06_read_write_locks import ReadWriteLocks
from tests.backends.redis.rows import many_holds_are
from tests.backends.redis.test_costs import DAY_MS, HELD, WITHIN, Store, claim_of
from tests.backends.test_model import RedisMachine, run_machine
from tests.contract.backends import BACKENDS
from tests.contract.suites import classes
from tests.scale import by_scale
from tests.servers import binaries
from tests.servers.server import Server
from tests.servers.shared import cluster
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

ROWS, ENDS = "lockfast:{x}:rows", "lockfast:{x}:ends"
FEW, MANY = 50, 2000  # permits, all of which are rows
ONE_SERVER = ["valkey", *(["redis6"] if binaries.HAS_REDIS_6 else [])]


@pytest.fixture(params=ONE_SERVER)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with ExitStack() as stack:
        binary = binaries.redis_6() if request.param == "redis6" else binaries.valkey()
        store = Store("redis", [stack.enter_context(Server(binary=binary))])
        stack.callback(lambda: drive(store.backend.close()))
        yield store


def command(store: Store, *words: Any) -> Any:
    return store.servers[0].command(*words)


def fill(store: Store, number: int, limit: int | None = None, ttl: float = 60.0) -> list[Renewal]:
    """So many permits of a semaphore that has one more."""
    permits = []
    for _ in range(number):
        claim = claim_of("x", SHARED, number + 1 if limit is None else limit, ttl=ttl)
        grant: Any = store.ask(claim)
        permits.append(Renewal(claim, ttl, grant.fence))
    assert command(store, "HLEN", ROWS) == command(store, "ZCARD", ENDS) == number
    return permits


def server_us(store: Store, do: Callable[[], object]) -> float:
    """The least of several, in microseconds of the server: what else the machine does cannot make it less."""

    def once() -> int:
        command(store, "CONFIG", "RESETSTAT")
        do()
        (used,) = re.findall(rb"cmdstat_evalsha:calls=\d+,usec=(\d+)", command(store, "INFO", "commandstats"))
        return int(used)

    return min(once() for _ in range(20))


class TestCosts:
    @pytest.mark.parametrize("waits", [False, True], ids=["free", "taken"])
    def test_a_step_of_a_permit_does_not_grow_with_the_permits_that_are_held(self, store: Store, waits: bool) -> None:
        """Commands, and the server's time: forty times as many lines take thirty times as long."""
        costs = {}
        for number in (FEW, MANY):
            command(store, "FLUSHALL")
            permits = fill(store, number, number + (not waits))
            taken = iter(permits)

            def step(taken: Iterator[Renewal] = taken, last: Renewal = permits[-1], number: int = number) -> None:
                claim = claim_of("x", SHARED, number + (not waits))
                answer = store.ask(claim)
                assert isinstance(answer, Busy if waits else Grant)
                assert store.renew([last]) == [True]
                assert store.release(next(taken).claim if waits else claim)
                if waits:
                    assert isinstance(drive(store.backend.wait(claim, WITHIN)), Grant)

            step()
            costs[number] = store.commands(step).total(), server_us(store, step)
        assert costs[MANY][0] <= costs[FEW][0] + 10, "one request in a hundred clears up"
        assert costs[MANY][1] < 4 * costs[FEW][1]

    def test_a_renewal_of_all_permits_of_a_process_reads_and_writes_their_ends_alone(self, store: Store) -> None:
        permits = fill(store, MANY)
        ours = permits[:: MANY // 100]
        store.clock.advance(1)
        assert store.renew(ours[:1]) == [True]  # the server has the script
        command(store, "CONFIG", "SET", "appendonly", "yes")
        kept: list[object] = []
        store.clock.advance(1)

        def log_fact(name: str) -> int:
            return int(re.findall(rf"{name}:(\d+)", command(store, "INFO", "persistence").decode())[0])

        def log_is_written() -> bool:
            return not (log_fact("aof_rewrite_in_progress") or log_fact("aof_rewrite_scheduled"))

        until(log_is_written, "the first log to be written")
        before = log_fact("aof_current_size")
        commands = store.commands(lambda: kept.append(store.renew(ours)))
        assert kept == [[True] * len(ours)]
        assert {name: commands[name] for name in ("get", "set", "hmget", "zmscore", "zadd", "hset")} == {
            "get": 1,
            "set": 1,
            "hmget": 1,
            "zmscore": 1,
            "zadd": 1,
            "hset": 0,
        }
        assert log_fact("aof_current_size") - before < len(ours) * 100 + 1000

    def test_all_permits_are_renewed_by_one_request(self, store: Store) -> None:
        """More than one command of a script can take."""
        number = 5000
        permits = fill(store, number)
        store.clock.advance(30)
        assert store.renew([*permits, permits[0]._replace(fence=1)]) == [True] * number + [False]
        store.clock.advance(59)
        again: Any = store.ask(permits[0].claim)
        assert again.fence == permits[0].fence
        assert len(store.fences("x")) == number

    def test_many_that_expire_at_once_make_room(self, store: Store) -> None:
        fill(store, MANY, ttl=30.0)
        writer = claim_of("x")
        assert isinstance(store.ask(writer), Busy)
        store.clock.advance(30)
        store.take(writer)
        assert command(store, "KEYS", "*") == [HELD.encode()]

    def test_a_break_ends_them_all(self, store: Store) -> None:
        permits = fill(store, MANY)
        info = drive(store.backend.break_("x", within=WITHIN))
        assert [holder.fence for holder in info.holders] == [permit.fence for permit in permits], "the oldest first"
        assert command(store, "KEYS", "*") == [HELD.encode()]
        assert store.renew(permits[:2]) == [False, False]
        store.take(claim_of("x"))


class TestForms:
    def test_a_free_name_keeps_its_last_fence_alone(self, store: Store) -> None:
        permits = fill(store, FEW)
        for number, permit in enumerate(permits, 1):
            assert store.release(permit.claim)
            assert command(store, "HLEN", ROWS) in (0, FEW - number), "its metadata is deleted at once"
        assert command(store, "KEYS", "*") == [HELD.encode()]
        assert re.fullmatch(rb"\d{16}-", command(store, "GET", HELD))

    def test_no_key_is_without_a_ttl_or_ends_before_its_holds(self, store: Store) -> None:
        def key_ttls() -> list[int]:
            return [command(store, "PTTL", key) for key in (ROWS, ENDS, HELD)]

        permits = fill(store, FEW)
        assert min(key_ttls()) > DAY_MS
        assert store.renew([permit._replace(ttl=7 * 86400.0) for permit in permits[:3]]) == [True] * 3
        assert min(key_ttls()) > 8 * DAY_MS

    def test_permits_are_lines_again_when_few_are_left(self, store: Store) -> None:
        permits = fill(store, FEW)
        for permit in permits[3:]:
            assert store.release(permit.claim)
        assert command(store, "EXISTS", ROWS, ENDS) == 0
        assert store.fences("x") == {permit.claim.id: permit.fence for permit in permits[:3]}
        assert store.renew(permits) == [True] * 3 + [False] * (FEW - 3)

    def test_a_claim_that_is_renewed_as_an_exclusive_one_is_found_among_them(self, store: Store) -> None:
        """The reply to its downgrade was lost. Another one is not there: it has lost the name."""
        permit, other = fill(store, FEW)[0], claim_of("y")
        grant: Any = store.ask(other)
        exclusive = Claim(permit.claim.id, permit.claim.terms._replace(mode=EXCLUSIVE, limit=None))
        batch = [
            Renewal(claim_of("x"), 60.0, permit.fence),
            permit._replace(claim=exclusive),
            Renewal(other, 60.0, grant.fence),
        ]
        assert store.renew(batch) == [False, True, True]

    def test_a_linger_keeps_its_permit_and_no_renewal_prolongs_it(self, store: Store) -> None:
        permits = fill(store, FEW, FEW)
        assert drive(store.backend.release(permits[0].claim, linger=10.0, within=WITHIN))
        assert store.renew(permits[:1]) == [False]
        assert isinstance(store.ask(claim_of("x", SHARED, FEW), enqueue=False), Busy)
        store.clock.advance(10)
        assert isinstance(store.ask(claim_of("x", SHARED, FEW), enqueue=False), Grant)

    def test_another_limit_is_refused(self, store: Store) -> None:
        fill(store, FEW)
        with pytest.raises(lockfast.LimitMismatch):
            store.ask(claim_of("x", SHARED, FEW))

    def test_a_claim_that_must_wait_learns_when_there_may_be_room(self, store: Store) -> None:
        store.take(claim_of("x", SHARED, FEW + 1, ttl=0.5))
        fill_others = [store.ask(claim_of("x", SHARED, FEW + 1, ttl=3.0)) for _ in range(FEW)]
        assert len(fill_others) == FEW
        for claim, seconds in ((claim_of("x", SHARED, FEW + 1), 0.5), (claim_of("x"), GRACE_S * 0.75)):
            answer = store.ask(claim, enqueue=False)
            assert isinstance(answer, Busy)
            assert answer.retry_after == pytest.approx(seconds)
            assert answer.holder

    @pytest.mark.parametrize("seconds", [5.0, 3600.0])
    def test_after_the_clock_was_set_back_each_counts_from_then(self, store: Store, seconds: float) -> None:
        """The name says when the last of its holds was begun or renewed, so that not all rows have to be read."""
        store.clock.advance(3600)
        permits = fill(store, FEW, ttl=30.0)
        store.clock.advance(10)
        assert store.renew([permit._replace(ttl=30.0) for permit in permits]) == [True] * FEW
        store.clock = FakeClock(store.clock.now() - seconds)
        backend: Any = store.backend
        backend._driver.now = store.clock.now
        assert isinstance(store.ask(claim_of("x"), enqueue=False), Busy)
        store.clock.advance(29.75)
        assert isinstance(store.ask(claim_of("x"), enqueue=False), Busy)
        store.clock.advance(0.25)
        store.take(claim_of("x"))

    def test_a_renewal_after_the_clock_was_set_back_leaves_that_to_be_found(self, store: Store) -> None:
        """It reads the rows of its own claims only. The others are read by the next step that may grant."""
        store.clock.advance(3600)
        permits = fill(store, FEW, FEW, ttl=30.0)
        store.clock = FakeClock(store.clock.now() - 3600)
        backend: Any = store.backend
        backend._driver.now = store.clock.now
        assert store.renew([permits[0]._replace(ttl=7200.0)]) == [True]
        assert isinstance(store.ask(claim_of("x", SHARED, FEW), enqueue=False), Busy)
        store.clock.advance(30)
        assert isinstance(store.ask(claim_of("x", SHARED, FEW), enqueue=False), Grant)


def test_the_rows_of_a_name_are_in_one_slot_of_a_cluster() -> None:
    with lockfast.connect(cluster()) as locks:
        pool = locks.semaphore(f"pool {new_claim_id()}", 20, wait=LIMIT_S)
        permits = [pool.acquire() for _ in range(20)]
        for permit in permits:
            assert permit
            permit.extend(100)
        (info,) = locks.list(pool.name)
        assert [holder.fence for holder in info.holders] == [permit.fence for permit in permits if permit]
        assert all(permit.release() for permit in permits if permit)
        assert not locks.inspect(pool.name).holders


class TestDamage:
    def test_a_row_that_cannot_be_read_takes_its_permit_until_its_end(self, store: Store) -> None:
        permits = fill(store, FEW, FEW)
        command(store, "HSET", ROWS, permits[0].claim.id, "nonsense")
        info = drive(store.backend.inspect("x", within=WITHIN))
        assert (len(info.holders), bool(info.damage)) == (FEW, True)
        assert isinstance(store.ask(claim_of("x", SHARED, FEW), enqueue=False), Busy)
        assert store.renew(permits[:2]) == [False, True]
        for ask in (partial(store.ask, permits[0].claim), partial(store.release, permits[0].claim)):
            with pytest.raises(lockfast.BackendUnavailable, match="damaged"):
                ask()
        for permit in permits[1:]:
            assert store.release(permit.claim)
        assert isinstance(store.ask(claim_of("x"), enqueue=False), Busy)
        store.clock.advance(60)
        store.take(claim_of("x"))
        assert command(store, "KEYS", "*") == [HELD.encode()]

    def test_a_break_frees_a_row_that_cannot_be_read(self, store: Store) -> None:
        permits = fill(store, FEW)
        command(store, "HSET", ROWS, permits[0].claim.id, "nonsense")
        assert drive(store.backend.break_("x", within=WITHIN)).damage
        store.take(claim_of("x"))

    @pytest.mark.parametrize("instead", [None, "another type"])
    def test_if_the_ends_are_gone_the_name_is_damaged_until_a_break(self, store: Store, instead: str | None) -> None:
        permits = fill(store, FEW)
        command(store, "DEL", ENDS)
        if instead:
            command(store, "SET", ENDS, instead)
        assert store.renew(permits[:1]) == [False]
        with pytest.raises(lockfast.BackendUnavailable, match="damaged"):
            store.ask(claim_of("x", SHARED, FEW + 1))
        assert drive(store.backend.break_("x", within=WITHIN)).damage
        store.take(claim_of("x"))

    def test_rows_of_a_name_that_was_evicted_come_to_no_life(self, store: Store) -> None:
        old = fill(store, FEW)
        command(store, "DEL", HELD)
        assert store.renew(old[:1]) == [False]
        new = fill(store, FEW)
        assert store.renew([old[0], new[0]]) == [False, True]
        assert set(store.fences("x")) == {permit.claim.id for permit in new}


@pytest.fixture(params=[(0, 0), (1, 1)], ids=["always", "from two on"])
def two_are_many(request: pytest.FixtureRequest) -> Iterator[None]:
    with many_holds_are(*request.param):
        yield


@pytest.mark.usefixtures("two_are_many")
def test_a_name_with_rows_answers_as_the_reference_does() -> None:
    run_machine(RedisMachine, by_scale(20, soak=500))


@pytest.fixture(autouse=True)
def contract_on_rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """The contract has every shared hold as a row."""
    with many_holds_are(0, 0) if request.cls and request.cls.__name__.endswith("_redis") else ExitStack():
        yield


_ROW: Final = next(row for row in BACKENDS if row.name == "redis")
_CHAPTERS: Final = (OneAdmissionRule, Semaphores, ReadWriteLocks, LostRepliesChangeNothing)
globals().update(classes(_ROW, __name__, _CHAPTERS))
