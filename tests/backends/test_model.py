"""Every backend answers every verb as the reference does, in any order of requests, as time passes."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockfast._connect import open_backend
from lockfast._ids import new_claim_id
from lockfast._model import EXCLUSIVE, GRACE_S, PRESENCE_S, RECENT_S, SHARED, Busy, Claim, Grant, Mode, Renewal, Terms
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.base import Backend
from lockfast.errors import LimitMismatch
from lockfast.testing.clock import FakeClock
from tests.backends.reference import Event, Resource
from tests.scale import by_scale
from tests.servers.shared import valkey
from tests.servers.waiting import LIMIT_S, until

KEYS = ("a", "b")
HOLDERS = ("us", "them")
WITHIN = LIMIT_S
# All lengths of time are whole 64ths of a second: then sums that look equal are equal, in microseconds too.
times = st.sampled_from([0.0625, 0.3125, GRACE_S / 2, GRACE_S, 2.0, 5.0, PRESENCE_S / 2, PRESENCE_S])


def claim_of(
    key: str, mode: Mode = EXCLUSIVE, limit: int | None = None, ttl: float = 10.0, holder: str = "us"
) -> Claim:
    return Claim(new_claim_id(), Terms(key, key, holder, ttl, mode, limit))


def is_woken(backend: Backend, claim: Claim) -> bool:
    """Whether a wake-up is there or arrives; from a server it comes by a way of its own, so in real time."""
    return bool(until(lambda: drive(backend.wait(claim, 0.0)), "a wake-up"))


class Observer:
    """The reports that one observer got."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.reports = [(0, -1)]  # for each answer: its last number, and how many changes of the name were over by then
        self.unreported = 0  # changes there were at its last report


class Machine(RuleBasedStateMachine):
    url: str
    hands_over = True
    counts_the_dead = False  # behind the first waiter: it deletes them only when their turn comes

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.backend: Backend = open_backend(self.where(), ThreadWorld(self.clock), self.clock)
        self.model: defaultdict[str, Resource] = defaultdict(lambda: Resource(self.hands_over))
        self.claims: list[Claim] = []
        self.given_up: set[str] = set()  # they are never asked for again, so a store may refuse them from then on
        self.last_fence = 0
        self.observers: list[Observer] = []
        self.attentive: list[Observer] = []
        self.numbers: dict[tuple[str, int], int] = {}  # by key and place in its history: each change has one number
        self.last_number = 0

    def where(self) -> str:
        return self.url.format(folder=self.folder.name, store=uuid4().hex)

    def teardown(self) -> None:
        drive(self.backend.close())
        self.folder.cleanup()

    def _some(self, which: int) -> Claim:
        return self.claims[which % len(self.claims)]

    def _acquire(self, claim: Claim, enqueue: bool) -> None:
        resource, now = self.model[claim.terms.key], self.clock.now()
        expected = resource.acquire(claim, now, enqueue)
        if expected == "mismatch":
            with pytest.raises(LimitMismatch):
                drive(self.backend.acquire(claim, enqueue=enqueue, within=WITHIN))
            return
        answer = drive(self.backend.acquire(claim, enqueue=enqueue, within=WITHIN))
        self.learn_what_was_granted()  # not before: the turn of the claim may come with this request
        if expected == "busy":
            assert isinstance(answer, Busy)
            if enqueue:
                ahead = resource.queue[: [waiter.claim for waiter in resource.queue].index(claim)]
                living = sum(not waiter.late for waiter in ahead)
                assert answer.position == living or (self.counts_the_dead and answer.position > living > 0)
            return
        assert isinstance(answer, Grant)
        if expected == "again":
            hold = resource.holder(claim)
            assert hold is not None
            assert answer.fence == hold.fence
        else:
            assert answer.fence > self.last_fence
            self.last_fence = answer.fence
            resource.granted(claim, now, answer.fence)

    @rule(
        key=st.sampled_from(KEYS),
        shared=st.booleans(),
        limit=st.sampled_from([2, 2, 2, 1, None]),
        ttl=st.sampled_from([0.5, 3.0, 60.0]),
        enqueue=st.sampled_from([True, True, True, False]),
        holder=st.sampled_from(HOLDERS),
    )
    def acquire(self, key: str, shared: bool, limit: int | None, ttl: float, enqueue: bool, holder: str) -> None:
        claim = claim_of(key, SHARED if shared else EXCLUSIVE, limit if shared else None, ttl, holder)
        self.claims.append(claim)
        self._acquire(claim, enqueue)

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 50), enqueue=st.sampled_from([True, True, False]))
    def ask_again(self, which: int, enqueue: bool) -> None:
        claim = self._some(which)
        if not self.model[claim.terms.key].lingers(claim) and claim.id not in self.given_up:
            self._acquire(claim, enqueue)

    def _called(self) -> list[Claim]:
        return [each.claim for resource in self.model.values() for each in resource.queue if each.reserved_until]

    @precondition(lambda self: self._called())
    @rule()
    def a_woken_waiter_asks_again(self) -> None:
        self._acquire(self._called()[0], True)

    def learn_what_was_granted(self) -> None:
        """A hand-over makes waiters holders; their fences are the store's choice."""
        for key, resource in self.model.items():
            if resource.unknown:
                info = drive(self.backend.inspect(key, within=WITHIN))
                fences = {holder.claim_id: holder.fence for holder in info.holders}
                for id in resource.unknown:
                    fence = fences[id]
                    assert fence is not None
                    assert fence > self.last_fence
                    resource.learn(id, fence)
                    self.last_fence = fence

    @precondition(lambda self: self.claims)
    @rule(
        which=st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True),
        ttl=st.sampled_from([0.1875, 5.0, 90.0]),
    )
    def renew(self, which: list[int], ttl: float) -> None:
        claims = [self._some(n) for n in which]
        expected = [self.model[claim.terms.key].renew(claim, self.clock.now(), ttl) for claim in claims]
        holds = [self.model[claim.terms.key].holder(claim) for claim in claims]
        batch = [Renewal(claim, ttl, hold.fence if hold else 1) for claim, hold in zip(claims, holds, strict=True)]
        assert drive(self.backend.renew(batch, within=WITHIN)) == expected

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 50))
    def renew_an_older_grant(self, which: int) -> None:
        claim = self._some(which)
        hold = self.model[claim.terms.key].holder(claim)
        older = Renewal(claim, 60.0, hold.fence - 1 if hold else 1)
        assert drive(self.backend.renew([older], within=WITHIN)) == [False]

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 50))
    def downgrade(self, which: int) -> None:
        claim = self._some(which)
        hold = self.model[claim.terms.key].holder(claim)
        if hold is not None and hold.claim.terms.mode == EXCLUSIVE:
            shared = Claim(claim.id, claim.terms._replace(mode=SHARED, limit=None))
            self.claims[self.claims.index(claim)] = shared
            self.model[claim.terms.key].downgrade(claim, shared, self.clock.now())
            answer = drive(self.backend.acquire(shared, enqueue=False, within=WITHIN))
            assert isinstance(answer, Grant)
            assert answer.fence == hold.fence

    @precondition(lambda self: self.claims)
    @rule(
        which=st.integers(0, 50),
        linger=st.sampled_from([0.0, 0.0, 0.375, 4.0]),
        successor=st.sampled_from(["", "", *HOLDERS]),
    )
    def release(self, which: int, linger: float, successor: str) -> None:
        claim = self._some(which)
        expected = self.model[claim.terms.key].release(claim, self.clock.now(), linger, successor)
        assert drive(self.backend.release(claim, linger=linger, within=WITHIN, successor=successor)) == expected
        for one in self.handed():
            self._acquire(one, enqueue=True)

    def handed(self) -> list[Claim]:
        """Claims that a release has granted to at once, where a backend does so: as if they came at once."""
        return []

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 50))
    def abandon(self, which: int) -> None:
        claim = self._some(which)
        self.given_up.add(claim.id)
        self.model[claim.terms.key].abandon(claim, self.clock.now())
        drive(self.backend.abandon(claim, within=WITHIN))

    @rule(key=st.sampled_from(KEYS))
    def break_(self, key: str) -> None:
        before = drive(self.backend.break_(key, within=WITHIN))
        assert {was.claim_id for was in before.holders} == {hold.claim.id for hold in self.model[key].held}
        self.model[key].broken(self.clock.now())

    @initialize(keys=st.sampled_from([(), KEYS[:1], KEYS]))
    def choose_what_is_watched_all_the_time(self, keys: tuple[str, ...]) -> None:
        """Not always all: a backend may have a fast path without observers."""
        self.attentive = [Observer(claim_of(key)) for key in keys]

    @invariant()
    def an_attentive_observer_misses_nothing(self) -> None:
        for observer in self.attentive:
            self._observe(observer, -1)

    @rule(key=st.sampled_from(KEYS))
    def begin_to_observe(self, key: str) -> None:
        self.observers.append(Observer(claim_of(key)))
        self._observe(self.observers[-1], 0)

    @precondition(lambda self: self.observers)
    @rule(which=st.integers(0, 20), answer=st.sampled_from([-1, -1, -1, -1, -2, 0]))
    def observe(self, which: int, answer: int) -> None:
        """Mostly after the last answer; if that was lost after the one before; or from the beginning."""
        self._observe(self.observers[which % len(self.observers)], answer)

    def _observe(self, observer: Observer, answer: int) -> None:
        self.learn_what_was_granted()
        claim, resource, now = observer.claim, self.model[observer.claim.terms.key], self.clock.now()
        after, known = observer.reports[max(answer, -len(observer.reports))]
        if claim.id in resource.watched_until and len(resource.history) > observer.unreported:
            assert is_woken(self.backend, claim), "an observer is woken by each change"
        expected = resource.observe(claim, known if after else None, now)
        changes, retry_after = drive(self.backend.observe(claim, after=after, within=WITHIN))
        reported = [Event(change.fence, change.holder) for change in changes]
        if expected is None:
            assert reported == resource.as_it_is()
            (number,) = {change.number for change in changes}
            assert number > self.last_number
            observer.reports = [(0, -1), (number, len(resource.history))]
        else:
            assert reported == expected
            for place, change in enumerate(changes, known):
                assert self.numbers.setdefault((claim.terms.key, place), change.number) == change.number
            numbers = [change.number for change in changes]
            assert [after, *numbers] == sorted({after, *numbers})
            observer.reports.append((numbers[-1] if numbers else after, len(resource.history)))
        self.last_number = max([self.last_number, *(change.number for change in changes)])
        observer.unreported = len(resource.history)
        assert retry_after == pytest.approx(resource.retry_after(now), abs=1e-6)

    @precondition(lambda self: self.observers)
    @rule(which=st.integers(0, 20))
    def stop_observing(self, which: int) -> None:
        observer = self.observers.pop(which % len(self.observers))
        self.model[observer.claim.terms.key].abandon(observer.claim, self.clock.now())
        drive(self.backend.abandon(observer.claim, within=WITHIN))

    @rule(seconds=times)
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._all_poll()

    @precondition(lambda self: self.claims)
    @rule(seconds=times, which=st.integers(0, 50))
    def pass_time_of_which_a_claim_learns_first(self, seconds: float, which: int) -> None:
        self.clock.advance(seconds)
        asking = self._some(which)
        resource = self.model[asking.terms.key]
        if not resource.lingers(asking) and asking.id not in self.given_up:
            resource.settle(self.clock.now(), asking=asking)  # no other name: a store need not notice that
            self._acquire(asking, enqueue=True)
        self._all_poll()

    def _all_poll(self) -> None:
        for key, resource in self.model.items():
            resource.settle(self.clock.now())
            drive(self.backend.abandon(claim_of(key), within=WITHIN))  # ends nothing, and makes it poll

    @invariant()
    def inspect_and_list_agree_with_the_reference(self) -> None:
        self.learn_what_was_granted()
        listed = {info.name: info for info in drive(self.backend.list("", within=WITHIN))}
        for key in KEYS:
            resource = self.model[key]
            info = drive(self.backend.inspect(key, within=WITHIN))
            holders = {(was.claim_id, was.fence, was.mode) for was in info.holders}
            assert holders == {(hold.claim.id, hold.fence, hold.claim.terms.mode) for hold in resource.held}
            assert info.queue == tuple(waiter.claim.terms.holder for waiter in resource.queue)
            assert info.waiters == len(resource.queue)
            assert (key in listed) == bool(resource.held or resource.queue)
            if key in listed:
                assert (len(listed[key].holders), listed[key].waiters) == (len(info.holders), info.waiters)


class MemoryMachine(Machine):
    url = "memory://{store}"


class SqliteMachine(Machine):
    url = "sqlite:///{folder}/locks.db"


class UnobservedSqliteMachine(SqliteMachine):
    """Its fast paths are for names without observers."""

    choose_what_is_watched_all_the_time = begin_to_observe = observe = stop_observing = None  # type: ignore[assignment]


class RedisMachine(Machine):
    counts_the_dead = True

    def where(self) -> str:
        return valkey().url(Path(self.folder.name))


MACHINES = [MemoryMachine, SqliteMachine, UnobservedSqliteMachine, RedisMachine]


def run_machine(machine: type[RuleBasedStateMachine], runs: int) -> None:
    limits = settings(
        max_examples=runs,
        stateful_step_count=40,
        derandomize=True,  # the same runs every time; a failure prints its own reproduction
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=limits)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_backend_answers_as_the_reference_does(machine: type[Machine]) -> None:
    run_machine(machine, 20)


@pytest.mark.slow
@pytest.mark.timeout(by_scale(900, soak=3600))
@pytest.mark.parametrize("machine", MACHINES)
def test_a_backend_answers_as_the_reference_does_in_many_runs(machine: type[Machine]) -> None:
    run_machine(machine, by_scale(40, soak=1000))


@pytest.fixture(params=["memory", "sqlite", "redis"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Backend, FakeClock]]:
    clock = FakeClock()
    urls = {"memory": f"memory://{uuid4().hex}", "sqlite": f"sqlite:///{tmp_path}/locks.db"}
    url = urls.get(request.param) or valkey().url(tmp_path)
    opened = open_backend(url, ThreadWorld(clock), clock)
    yield opened, clock
    drive(opened.close())


def ask(backend: Backend, claim: Claim) -> Grant | Busy:
    return drive(backend.acquire(claim, enqueue=True, within=WITHIN))


def test_one_that_came_back_late_is_not_let_in_beside_a_younger_reservation(backend: tuple[Backend, FakeClock]) -> None:
    store, clock = backend
    holder, late, young = claim_of("a", ttl=60), claim_of("a", ttl=2), claim_of("a", ttl=2)
    ask(store, holder)
    ask(store, late)
    ask(store, young)
    clock.advance(1)  # too much of a ttl of 2 s for the release to grant it
    drive(store.release(holder, linger=0.0, within=WITHIN))  # reserved for `late`, which does not come
    clock.advance(GRACE_S)
    drive(store.abandon(claim_of("a"), within=WITHIN))  # any request: now it is reserved for `young`
    assert isinstance(ask(store, late), Busy)
    assert isinstance(ask(store, young), Grant), "what is reserved for it is its own"
    assert isinstance(ask(store, late), Busy)
    drive(store.release(young, linger=0.0, within=WITHIN))
    assert isinstance(ask(store, late), Grant), "it kept its place"


def test_a_waiter_that_was_silent_for_too_long_is_not_let_in_by_its_old_reservation(
    backend: tuple[Backend, FakeClock],
) -> None:
    store, clock = backend
    holder, silent, young = claim_of("a", ttl=600), claim_of("a"), claim_of("a", ttl=600)
    ask(store, holder)
    ask(store, silent)
    clock.advance(PRESENCE_S - GRACE_S / 2)
    drive(store.release(holder, linger=0.0, within=WITHIN))  # reserved for `silent`, for longer than its presence
    clock.advance(GRACE_S * 3 / 4)
    assert isinstance(ask(store, young), Grant)
    for _ in range(3):
        assert isinstance(ask(store, silent), Busy)


def test_a_waiter_that_was_silent_for_too_long_goes_to_the_end_of_the_queue(backend: tuple[Backend, FakeClock]) -> None:
    store, clock = backend
    holder, silent, young = claim_of("a", ttl=600), claim_of("a"), claim_of("a")
    ask(store, holder)
    ask(store, silent)
    clock.advance(PRESENCE_S)
    ask(store, young)
    answer = ask(store, silent)
    assert isinstance(answer, Busy)
    assert answer.position == 1


def test_a_release_is_handed_over_even_if_another_hold_has_expired_unnoticed(
    backend: tuple[Backend, FakeClock],
) -> None:
    store, clock = backend
    short, long, waiter = claim_of("a", SHARED, ttl=1), claim_of("a", SHARED, ttl=60), claim_of("a")
    ask(store, short)
    ask(store, long)
    assert isinstance(ask(store, waiter), Busy)
    clock.advance(2)
    drive(store.release(long, linger=0.0, within=WITHIN))
    assert is_woken(store, waiter), "it is woken, and need not poll"
    assert isinstance(ask(store, waiter), Grant)


def test_a_holder_that_has_lost_names_no_successor(backend: tuple[Backend, FakeClock]) -> None:
    store, clock = backend
    holder, older, successor = claim_of("a", ttl=1), claim_of("a"), claim_of("a", holder="them")
    ask(store, holder)
    ask(store, older)
    ask(store, successor)
    clock.advance(2)  # and no request comes
    assert not drive(store.release(holder, linger=0.0, within=WITHIN, successor="them"))
    assert isinstance(ask(store, successor), Busy)
    assert isinstance(ask(store, older), Grant)


def test_a_waiter_that_asks_when_its_turn_comes_goes_before_one_that_asked_lately(
    backend: tuple[Backend, FakeClock],
) -> None:
    store, clock = backend
    holder, older, younger = claim_of("a"), claim_of("a", ttl=600), claim_of("a", ttl=600)
    ask(store, holder)
    ask(store, older)
    clock.advance(RECENT_S + 1)
    ask(store, younger)
    clock.advance(10 - RECENT_S)
    assert isinstance(ask(store, older), Grant), "this request is the first to find that the hold has expired"
