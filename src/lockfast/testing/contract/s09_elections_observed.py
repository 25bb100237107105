"""`election.observe`: first what is true, then each change in order, the vacancies too.

None comes twice, none is missing, and no observer polls. One that was away for too long begins again with the present
state.
"""

from __future__ import annotations

import asyncio

import pytest

from lockfast._model import MAX_POLL_S, PRESENCE_S, Grant
from lockfast.errors import LockError
from lockfast.testing.awaited import AwaitedChanges, AwaitedLocks
from lockfast.testing.contract.s09_elections import candidates, line_up
from lockfast.testing.contract.story import Promise, needs
from lockfast.testing.stage import Actor, Stage

LeaderAndTerm = tuple[str | None, int]
VACANT: LeaderAndTerm = (None, 0)


class ObservedElections(Promise, about="store", needs=("observe",)):
    async def test_an_observer_first_receives_the_present_state(self, stage: Stage) -> None:
        (ann,) = candidates(stage, "ann")
        assert await _first(stage) == VACANT
        lease = await ann.win()
        assert await _first(stage) == ("ann", lease.fence)
        await ann.resign()
        assert await _first(stage) == VACANT

    async def test_an_observer_is_woken_by_each_change_and_not_by_its_timer(self, stage: Stage) -> None:
        ann, bob = candidates(stage, "ann", "bob")
        seen = _ObserverActor(stage)
        await seen.until(VACANT)
        first = (await ann.win()).fence
        await seen.until(("ann", first))
        (campaign,) = await line_up(stage, bob)
        await ann.resign()
        second = (await campaign.result()).fence
        await seen.until((None, first), ("bob", second))
        await stage.observer.break_lock("lead")
        await seen.until((None, second))  # and the clock has not moved

    async def test_changes_that_happen_while_an_observer_is_away_are_all_received_in_order(self, stage: Stage) -> None:
        ann, bob = candidates(stage, "ann", "bob")
        locks = stage.locks()
        locks.faults.hang_reply("wait")
        seen = _ObserverActor(stage, locks)
        await stage.until(lambda: locks.faults.waiting == 1)
        expected: list[LeaderAndTerm] = [VACANT]
        for _ in range(25):
            for name, candidate in (("ann", ann), ("bob", bob)):
                term = (await candidate.win()).fence
                await candidate.resign()
                expected += [(name, term), (None, term)]
        await stage.until(lambda: locks.faults.hanging == 1)
        locks.faults.resume()
        await seen.until(*expected[1:])
        assert seen.changes == expected

    async def test_a_vacancy_by_expiry_is_noticed_though_nobody_asks(self, stage: Stage) -> None:
        dead = stage.claim("lead", ttl=12.3)
        grant = await stage.locks().faults.acquire(dead, enqueue=False, within=5)
        assert isinstance(grant, Grant)
        seen = _ObserverActor(stage, enough=2)
        await stage.asleep(1)
        assert await stage.sleep_through(seen.actor) == pytest.approx(12.3)
        assert seen.changes == [("direct", grant.fence), (None, grant.fence)]

    async def test_an_observer_of_a_quiet_name_goes_on_observing(self, stage: Stage) -> None:
        (ann,) = candidates(stage, "ann")
        seen = _ObserverActor(stage)
        await stage.asleep(1)
        await stage.pass_time(4 * PRESENCE_S)
        term = (await ann.win()).fence
        await ann.resign()
        await seen.until(("ann", term), (None, term))
        assert len(seen.changes) == 3  # and nothing came twice

    async def test_an_observer_that_was_away_for_too_long_begins_again_with_what_is_true(self, stage: Stage) -> None:
        ann, bob = candidates(stage, "ann", "bob")
        first = (await ann.win()).fence
        locks = stage.locks()
        locks.faults.hang_reply("wait")
        seen = _ObserverActor(stage, locks)
        await stage.asleep(1)
        stage.clock.advance(PRESENCE_S)
        await stage.until(lambda: locks.faults.hanging == 1)
        await ann.resign()
        for _ in range(3):
            await bob.resign()
            second = (await bob.win()).fence
        locks.faults.resume()
        await seen.until(("bob", second))
        assert seen.changes == [("ann", first), ("bob", second)]

    async def test_an_observer_that_was_away_does_not_receive_again_what_is_still_true(self, stage: Stage) -> None:
        (ann,) = candidates(stage, "ann")
        first = (await ann.win()).fence
        locks = stage.locks()
        locks.faults.hang_reply("wait")
        seen = _ObserverActor(stage, locks)
        await stage.asleep(1)
        stage.clock.advance(PRESENCE_S)
        await stage.until(lambda: locks.faults.hanging == 1)
        locks.faults.resume()
        await stage.until(lambda: locks.faults.calls["observe"] == 2)
        await stage.asleep(1)
        await ann.resign()
        await seen.until((None, first))
        assert seen.changes == [("ann", first), (None, first)]

    async def test_a_lost_wake_up_costs_an_observer_a_bounded_delay(self, stage: Stage) -> None:
        (ann,) = candidates(stage, "ann")
        locks = stage.locks()
        locks.faults.loses_wakeups = True
        seen = _ObserverActor(stage, locks, enough=2)
        await stage.until(lambda: locks.faults.waiting == 1)
        await stage.asleep(1)
        term = (await ann.win()).fence
        await stage.asleep(1)
        assert await stage.sleep_through(seen.actor) <= MAX_POLL_S
        assert seen.changes == [VACANT, ("ann", term)]

    @pytest.mark.parametrize("lost", ["request", "reply"])
    async def test_a_lost_message_of_an_observer_loses_nothing(self, stage: Stage, lost: str) -> None:
        (ann,) = candidates(stage, "ann")
        locks = stage.locks()
        lose = locks.faults.lose_reply if lost == "reply" else locks.faults.lose_request
        lose("observe", 2)
        expected: list[LeaderAndTerm] = [VACANT]
        seen = _ObserverActor(stage, locks)
        await seen.sleep_until(VACANT)
        for _ in range(3):
            lose("observe")
            term = (await ann.win()).fence
            await ann.resign()
            expected += [("ann", term), (None, term)]
            await seen.sleep_until((None, term))
        assert seen.changes == expected

    async def test_several_observers_receive_the_same_changes(self, stage: Stage) -> None:
        (ann,) = candidates(stage, "ann")
        one = stage.locks()
        seen = [_ObserverActor(stage, one), _ObserverActor(stage, one), _ObserverActor(stage)]
        for each in seen:
            await each.until(VACANT)
        term = (await ann.win()).fence
        await ann.resign()
        for each in seen:
            await each.until((None, term))
            assert each.changes == [VACANT, ("ann", term), (None, term)]

    async def test_an_observed_name_that_nobody_holds_is_not_in_use(self, stage: Stage) -> None:
        seen = _ObserverActor(stage)
        await seen.until(VACANT)
        assert await stage.observer.list() == []
        assert await stage.is_free("lead")

    async def test_an_observer_that_has_seen_enough_leaves_nothing_in_the_store(self, stage: Stage) -> None:
        (ann,) = candidates(stage, "ann")
        seen = _ObserverActor(stage, enough=3)
        await seen.until(VACANT)
        await ann.win()
        await ann.resign()
        await seen.actor.result()
        assert stage.records() == 0

    @needs("cancellation")
    async def test_an_observer_that_is_cancelled_leaves_nothing_in_the_store(self, stage: Stage) -> None:
        seen = _ObserverActor(stage)
        await seen.until(VACANT)
        seen.actor.cancel()
        with pytest.raises(asyncio.CancelledError):
            await seen.actor.result()
        assert stage.records() == 0

    async def test_an_observer_that_died_is_forgotten_after_a_while(self, stage: Stage) -> None:
        verbs, dead = stage.locks().faults, stage.claim("lead")
        await verbs.observe(dead, after=0, within=5)
        stage.clock.advance(PRESENCE_S)
        (ann,) = candidates(stage, "ann")
        await ann.win()
        await ann.resign()
        assert await _first(stage) == VACANT
        assert stage.records() == 0

    async def test_observing_ends_with_the_locks(self, stage: Stage) -> None:
        locks = stage.locks()
        seen = _ObserverActor(stage, locks)
        await stage.until(lambda: locks.faults.waiting == 1)
        await stage.asleep(1)
        await locks.close()
        await seen.actor.result()  # and the clock has not moved
        assert seen.changes == [VACANT]
        assert stage.records() == 0
        with pytest.raises(LockError, match="closed"):
            await locks.election("lead").observe().next()


class _ObserverActor:
    """An observer with a client of its own, and what it received."""

    def __init__(self, stage: Stage, locks: AwaitedLocks | None = None, enough: int | None = None) -> None:
        self.stage = stage
        self.changes: list[LeaderAndTerm] = []
        observed = (locks or stage.locks()).election("lead").observe()
        self.actor: Actor[None] = stage.start(self._watch(observed, enough))

    async def _watch(self, observed: AwaitedChanges, enough: int | None) -> None:
        while len(self.changes) != enough and (change := await observed.next()) is not None:
            self.changes.append((change.leader, change.term))
        await observed.close()

    async def until(self, *last: LeaderAndTerm) -> None:
        """Until these were received last."""
        await self.stage.until(lambda: self._received(last), f"{last} to be received")

    async def sleep_until(self, *last: LeaderAndTerm) -> None:
        """As `until`, letting time pass while they sleep."""
        clock = self.stage.clock

        def received() -> bool:
            at = clock.next_alarm
            if (
                not self._received(last)
                and at is not None
                and at <= clock.now() + MAX_POLL_S
                and not self.stage._under_way()
            ):
                clock.advance_to(at)
            return self._received(last)

        await self.stage.until(received, f"{last} to be received")

    def _received(self, last: tuple[LeaderAndTerm, ...]) -> bool:
        return tuple(self.changes[-len(last) :]) == last


async def _first(stage: Stage) -> LeaderAndTerm | None:
    observed = stage.observer.election("lead").observe()
    first = await observed.next()
    await observed.close()
    return first
