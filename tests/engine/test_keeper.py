"""The keeper: renews in batches from one loop, rides out errors, and reports a loss in time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

import lockfast
from lockfast._model import Claim, Grant, Renewal
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.engine.core import Engine
from lockfast.engine.extending import downgrade, extend
from lockfast.engine.keeper import MAX_EARLY_LOSSES, Keeper
from lockfast.engine.keeper_loop import IDLE_S
from lockfast.engine.lease import Lease
from lockfast.engine.not_held import Reason
from lockfast.engine.renewing import HANGING_S
from lockfast.errors import BackendUnavailable, LeaseLost
from lockfast.testing.clock import FakeClock
from lockfast.testing.simulated import Park, SimulatedWorld, Simulation
from tests.engine.stub import OnLost, StubBackend, all_kept, take
from tests.servers.waiting import join, until


class Stage:
    """An engine in virtual time over the stub."""

    def __init__(self, renew_batch: int = 500) -> None:
        self.simulation = Simulation(0)
        self.world = SimulatedWorld(self.simulation, "machine")
        self.backend = StubBackend(renew_batch)
        self.engine = Engine(self.backend, self.world, holder="us")
        self.lost: list[str] = []
        self.engine.events.listen(lambda event: self.lost.append(event.name) if event.kind == "lost" else None)

    def take(self, name: str = "a", ttl: float = 30.0, renew: bool = True, on_lost: OnLost | None = None) -> Lease:
        work = take(self.engine, name, ttl, renew, on_lost)
        lease: Lease = self.simulation.run_until_done(self.world.task(work, "job"))
        return lease

    def release(self, lease: Lease) -> None:
        self.simulation.run_until_done(self.world.task(self.engine.release(lease), "job"))

    def pass_time(self, seconds: float) -> None:
        self.simulation.run(self.simulation.time + seconds)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.engine.closed = True
    stage.simulation.close()
    assert stage.simulation.broken_tasks == []


async def fail(batch: Sequence[Renewal]) -> list[bool]:
    raise BackendUnavailable("not now")


async def hang(batch: Sequence[Renewal]) -> list[bool]:
    await Park()
    return [True] * len(batch)


def test_a_lease_is_renewed_in_time_for_ever(stage: Stage) -> None:
    lease = stage.take(ttl=30)
    stage.pass_time(3600)
    assert lease.held
    assert 100 <= len(stage.backend.renewals) <= 400


def test_leases_that_are_due_together_are_renewed_in_one_request(stage: Stage) -> None:
    for n in range(100):
        stage.take(f"lock{n}", ttl=30)
    stage.pass_time(11)
    assert [len(names) for names in stage.backend.renewals] == [100]


def test_a_batch_is_no_larger_than_the_backend_can_take() -> None:
    stage = Stage(renew_batch=40)
    for n in range(100):
        stage.take(f"lock{n}")
    stage.pass_time(11)
    assert sorted(len(names) for names in stage.backend.renewals) == [20, 40, 40]
    stage.engine.closed = True
    stage.simulation.close()


def test_ten_thousand_leases_cost_a_few_requests_and_little_time(stage: Stage) -> None:
    """How little is measured by `python -m bench --only keeper`."""
    leases = [stage.take(f"lock{n}") for n in range(10_000)]
    stage.pass_time(29)
    assert all(lease.held for lease in leases)
    assert 40 <= len(stage.backend.renewals) <= 80, "20 requests of 500, two or three times"


def test_leases_that_were_released_do_not_stay_until_they_would_have_been_due(stage: Stage) -> None:
    kept = [stage.take(f"kept{n}", ttl=86400) for n in range(50)]
    for number in range(2000):
        lease = stage.take(f"lock{number}", ttl=86400)
        stage.engine.keeper.loop.poke()
        stage.pass_time(0.01)  # the keeper has looked at it
        stage.release(lease)
    keeper = stage.engine.keeper
    schedule = keeper._schedule
    assert sum(len(group) for _, _, group in schedule._heap) == schedule._size <= 2 * len(kept) + 110
    assert len(keeper._states) == len(kept)
    stage.pass_time(86400 * 2)
    assert all(lease.held for lease in kept)


def test_a_lease_that_is_not_to_be_renewed_ends_at_its_deadline(stage: Stage) -> None:
    lease = stage.take(ttl=5, renew=False)
    stage.pass_time(4.9)
    assert lease.held
    stage.pass_time(0.2)
    assert stage.lost == ["a"]
    assert stage.backend.renewals == []


def test_nothing_is_renewed_after_its_release(stage: Stage) -> None:
    lease = stage.take()
    stage.pass_time(25)
    stage.release(lease)
    asked = len(stage.backend.renewals)
    assert asked > 0
    stage.pass_time(300)
    assert len(stage.backend.renewals) == asked
    assert stage.engine.keeper.leases == {}


def test_errors_are_ridden_out_until_the_deadline(stage: Stage) -> None:
    lease = stage.take(ttl=30)
    stage.backend.answer = fail
    stage.pass_time(29)
    assert lease.held
    assert len(stage.backend.renewals) >= 4
    stage.backend.answer = StubBackend().answer
    stage.pass_time(100)
    assert lease.held
    assert stage.lost == []


def test_errors_until_the_deadline_are_a_loss_and_not_before(stage: Stage) -> None:
    lease = stage.take(ttl=30)
    stage.backend.answer = fail
    stage.pass_time(29.9)
    assert stage.lost == []
    stage.pass_time(0.2)
    assert stage.lost == ["a"]
    with pytest.raises(LeaseLost):
        lease.check()
    asked = len(stage.backend.renewals)
    stage.pass_time(100)
    assert len(stage.backend.renewals) == asked, "what is lost is not renewed"


def test_a_loss_is_reported_in_time_while_the_renewal_hangs(stage: Stage) -> None:
    stage.take(ttl=30)
    stage.backend.answer = hang
    stage.pass_time(29.9)
    assert stage.lost == []
    stage.pass_time(0.2)
    assert stage.lost == ["a"]


def test_a_renewal_that_hangs_does_not_keep_others_from_being_renewed(stage: Stage) -> None:
    stage.take("slow", ttl=30)
    stage.backend.answer = hang
    stage.pass_time(11)
    stage.backend.answer = StubBackend().answer
    quick = stage.take("quick", ttl=10)
    stage.pass_time(100)
    assert quick.held
    assert stage.lost == ["slow"]


def test_a_denied_renewal_is_a_loss_at_once(stage: Stage) -> None:
    lease = stage.take(ttl=30)

    async def deny(batch: Sequence[Renewal]) -> list[bool]:
        return [False] * len(batch)

    stage.backend.answer = deny
    stage.pass_time(11)
    assert stage.lost == ["a"]
    assert lease.lost


def test_a_short_lease_that_comes_while_the_loop_sleeps_is_renewed_in_time(stage: Stage) -> None:
    stage.take("long", ttl=3600)
    stage.pass_time(5)
    short = stage.take("short", ttl=1)
    stage.pass_time(60)
    assert short.held


def test_a_new_lease_after_a_long_time_without_any_is_kept(stage: Stage) -> None:
    stage.release(stage.take())
    stage.pass_time(1000)
    lease = stage.take(ttl=5)
    stage.pass_time(100)
    assert lease.held


def test_what_was_lost_never_comes_back() -> None:
    clock = FakeClock()
    backend = StubBackend()
    engine = Engine(backend, ThreadWorld(clock), holder="us")
    engine.keeper.loop.close()  # as if its loop had not run yet
    lease = drive(take(engine, ttl=10, renew=False))
    seen: list[bool] = []

    async def answer_after_the_deadline(batch: Sequence[Renewal]) -> list[bool]:
        clock.advance(6)
        seen.append(lease.lost)
        return [True]

    backend.answer = answer_after_the_deadline
    clock.advance(5)
    drive(engine.keeper.renewals.renew([engine.keeper.state_of(lease)]))
    assert seen == [True]
    assert lease.lost, "it was seen to be lost, so a late answer must not make it held again"


def test_all_leases_of_a_blocking_locks_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with lockfast.connect("memory://one-thread") as locks:
        world, started = locks._logic.engine.world, list[str]()
        spawn = world.spawn

        def counted(work: Any, name: str) -> None:
            started.append(name)
            spawn(work, name)

        monkeypatch.setattr(world, "spawn", counted)
        for n in range(200):
            assert locks.lock(f"lock{n}").acquire() is not None
        until(lambda: locks._logic.engine.keeper.loop.running is not None)
        assert started == ["lockfast-keeper"]


def test_a_loss_is_reported_though_no_thread_could_be_started_for_that_at_first(stage: Stage) -> None:
    reported: list[str] = []
    refused: list[str] = []
    usual = stage.world.spawn

    def spawn(work: Any, name: str) -> None:
        if name == "lockfast-on-lost" and not refused:
            refused.append(name)
            work.close()
            raise RuntimeError("can't start new thread")
        usual(work, name)

    stage.world.spawn = spawn  # type: ignore[method-assign]
    stage.backend.answer = fail
    stage.take("a", ttl=5, on_lost=lambda lease: reported.append(lease.name))
    stage.take("b", ttl=600)
    stage.pass_time(300)
    assert refused
    assert reported == ["a"]


def test_a_lease_that_comes_while_the_loop_ends_needs_no_other_thread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, late = stage.engine.keeper, stage.take("a", ttl=600)
    keeper.forget(late)  # as if it had not come yet
    retire = keeper.loop._retire

    def retire_and_keep() -> bool:
        over = retire()
        monkeypatch.setattr(keeper.loop, "_retire", retire)
        keeper.leases[late._claim.id] = keeper.fresh[late._claim.id] = late
        return over

    def spawn(work: Any, name: str) -> None:
        assert name != "lockfast-keeper"
        usual(work, name)

    monkeypatch.setattr(keeper.loop, "_retire", retire_and_keep)
    usual, stage.world.spawn = stage.world.spawn, spawn  # type: ignore[method-assign]
    stage.pass_time(1000)
    assert late.held
    assert stage.backend.renewals


@pytest.mark.parametrize("change", [extend, downgrade])
def test_nothing_is_kept_of_a_lease_that_another_thread_releases_while_it_is_changed(
    change: Callable[..., Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = StubBackend()
    engine = Engine(backend, ThreadWorld(FakeClock()), holder="us")
    lease: Lease = drive(take(engine, "a", 30.0, False))
    renewed = Keeper.renewed

    def renewed_too_late(keeper: Keeper, lease: Lease, asked_at: float) -> None:
        other = threading.Thread(target=lambda: drive(engine.release(lease)))
        other.start()
        join(other)
        renewed(keeper, lease, asked_at)

    monkeypatch.setattr(Keeper, "renewed", renewed_too_late)
    backend._fence = 0  # a downgrade is granted with the fence that the lease has
    drive(change(engine, lease, *((60.0,) if change is extend else ())))
    assert backend.released == ["a"]
    assert engine.keeper._states == {}
    drive(engine.close())


# Losses that the backend notices by itself


class _ReportsEarly(StubBackend):
    """Its session ends after the grant, before the caller has the lease."""

    on_loss: Any = None
    before = 0  # of how many grants ago the loss is reported

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant:
        self._fence += 1
        self.on_loss([(claim.id, self._fence - self.before)], "the session that held it has ended")
        return Grant(self._fence, 0.0)


def test_a_loss_that_is_reported_before_the_lease_is_kept_is_not_forgotten() -> None:
    engine = Engine(_ReportsEarly(500), ThreadWorld(FakeClock()), holder="us")
    lease: Lease = drive(take(engine, "a", 30.0, False))
    assert lease.lost
    with pytest.raises(LeaseLost, match="the session that held it has ended"):
        lease.check()
    assert not engine.keeper.leases
    assert not engine.keeper._early
    drive(engine.close())


def test_a_loss_of_what_the_claim_held_before_is_not_taken_for_one_of_what_it_holds_now() -> None:
    backend = _ReportsEarly(500)
    backend.before = 1
    engine = Engine(backend, ThreadWorld(FakeClock()), holder="us")
    lease: Lease = drive(take(engine, "a", 30.0, False))
    assert lease.held
    backend.on_loss([(lease.claim_id, lease.fence - 1)], "gone")
    assert lease.held
    drive(engine.close())


def test_a_lease_that_comes_while_the_idle_loop_ends_is_renewed(stage: Stage) -> None:
    keeper, late = stage.engine.keeper, stage.take("late", 30.0)
    keeper.forget(late)

    class Heap(list[Any]):
        def clear(self) -> None:  # the loop has seen that nothing is to be kept, and has yet to say that it ends
            super().clear()
            if late._claim.id not in keeper.leases:
                keeper.loop.wake_at = stage.simulation.time - 1  # as after a look at a lease that was released
                keeper.keep(late)

    keeper._schedule._heap = Heap(keeper._schedule._heap)
    stage.pass_time(IDLE_S + 15)
    assert late.held
    assert ("late",) in stage.backend.renewals


def test_a_renewal_that_hangs_holds_up_another_until_it_hangs_and_no_longer(stage: Stage) -> None:
    stage.backend.answer = hang
    stage.take("a", ttl=3.0)
    stage.pass_time(0.2)
    stage.take("b", ttl=3.0)
    stage.pass_time(1.0 + HANGING_S - 0.2 - 0.01)  # "b" has been due for a moment
    assert stage.backend.renewals == [("a",)]
    stage.pass_time(0.02)
    assert stage.backend.renewals == [("a",), ("b",)]


def test_the_loop_sleeps_while_the_renewal_of_a_lease_that_was_released_is_unanswered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, seen = stage.engine.keeper, 0
    inspect = keeper.inspect

    def count(now: float) -> float:
        nonlocal seen
        seen += 1
        assert seen < 1000, "it never sleeps"
        return inspect(now)

    monkeypatch.setattr(keeper, "inspect", count)
    stage.backend.answer = hang
    lease = stage.take(ttl=30.0)
    stage.pass_time(11)
    assert len(stage.backend.renewals) == 1
    stage.release(lease)
    seen = 0
    stage.pass_time(3 * IDLE_S)
    assert seen <= 10


def test_losses_of_what_is_never_kept_are_not_remembered_without_end(stage: Stage) -> None:
    stage.engine.keeper.on_loss([(str(number), 1) for number in range(2 * MAX_EARLY_LOSSES)], "gone")
    assert len(stage.engine.keeper._early) == MAX_EARLY_LOSSES


class _EndsInRelease(StubBackend):
    """Its session ends while the release is under way; a second release finds nothing to release."""

    on_loss: Any = None

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        if self.on_loss is not None:
            report, self.on_loss = self.on_loss, None
            report([(claim.id, self._fence)], "its session ended before the release was answered")
            raise BackendUnavailable("ended the session")
        return False


def test_a_loss_that_the_backend_reports_during_a_release_is_not_taken_for_one_that_was_done() -> None:
    engine = Engine(_EndsInRelease(500), ThreadWorld(), holder="us")
    reported: list[str] = []
    engine.events.listen(lambda event: reported.append(event.kind))
    lease: Lease = drive(take(engine, "a", 30.0, False))
    assert drive(engine.release(lease)) is False
    assert lease.lost
    assert not engine.keeper.leases
    until(lambda: reported[-1] == "lost", "the loss to be reported")
    assert "released" not in reported
    with pytest.raises(LeaseLost, match="before the release was answered"):
        lease.check()
    drive(engine.close())


def test_a_renewal_that_is_denied_during_a_release_is_not_a_loss(stage: Stage) -> None:
    lease = stage.take("a")
    lease._move("release")
    stage.engine.keeper.lose(lease, "denied", Reason("gone", "the backend no longer has it"))
    assert not lease.lost


# A backend that cannot say whether it still has a lease


def test_extend_keeps_a_lease_of_which_the_backend_cannot_say_whether_it_has_it(stage: Stage) -> None:
    lease = stage.take(ttl=30)

    async def unknown(batch: Sequence[Renewal]) -> list[bool | None]:
        return [None]

    stage.backend.answer = unknown
    with pytest.raises(BackendUnavailable, match="cannot say whether it still has lock 'a'"):
        stage.simulation.run_until_done(stage.world.task(stage.engine.extend(lease, 60.0), "job"))
    assert lease.held


def test_an_outage_that_concerns_some_leases_only_is_reported_once_and_so_is_its_end(stage: Stage) -> None:
    stage.take("a")
    lost = stage.take("b")
    kinds: list[str] = []
    details: list[str] = []
    stage.engine.events.listen(lambda event: kinds.append(event.kind))
    stage.engine.events.listen(lambda event: details.append(event.detail) if event.kind == "unreachable" else None)

    async def without_b(batch: Sequence[Renewal]) -> list[bool | None]:
        return [True if renewal.claim.terms.name == "a" else None for renewal in batch]

    stage.backend.answer = without_b
    stage.pass_time(20)
    assert kinds.count("renewal_failed") > 2
    assert (kinds.count("unreachable"), kinds.count("reachable")) == (1, 0)
    assert "cannot say whether it still has 1 of " in details[0]
    stage.backend.answer = all_kept
    stage.pass_time(20)
    assert lost.held
    assert (kinds.count("unreachable"), kinds.count("reachable")) == (1, 1)


def test_a_lease_that_could_not_be_renewed_in_time_says_why(stage: Stage) -> None:
    lease = stage.take(ttl=30)
    stage.backend.answer = fail
    stage.pass_time(31)
    with pytest.raises(LeaseLost, match=r"before a renewal came through \(last error: BackendUnavailable: not now\)"):
        lease.check()


def test_the_reason_of_a_loss_is_none_of_a_renewal_that_failed_earlier(stage: Stage) -> None:
    lease = stage.take(ttl=30)
    stage.backend.answer = fail
    stage.pass_time(12)
    stage.backend.answer = all_kept
    stage.pass_time(5)
    stage.backend.answer = hang
    stage.pass_time(31)
    with pytest.raises(LeaseLost) as lost:
        lease.check()
    assert "last error" not in str(lost.value)
