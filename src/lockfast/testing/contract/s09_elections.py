"""`locks.election`: at most one leader believes that it leads, and every client can observe who that is.

Terms are fences: they only grow. Who watches is the matter of `s09_elections_observed`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockfast._model import Grant
from lockfast._reentry import run_to_end
from lockfast.errors import AcquireTimeout, LeaseLost, LockError, NotHeld
from lockfast.testing.awaited import AwaitedElection, AwaitedLocks
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Actor, Stage


class Elections(Promise, about="engine", needs=("observe",)):
    # Leading

    @about("store")
    async def test_one_leads_and_the_others_do_not(self, stage: Stage) -> None:
        ann, bob = candidates(stage, "ann", "bob")
        lease = await ann.win()
        assert (ann.is_leader, ann.term) == (True, lease.fence)
        assert await bob.campaign(timeout=0) is None
        assert (bob.is_leader, bob.term) == (False, None)

    async def test_two_candidates_of_one_locks_are_two(self, stage: Stage) -> None:
        locks = stage.locks(holder="host-1")
        unnamed, named = locks.election("lead"), locks.election("lead", candidate="ann")
        assert (unnamed.raw.candidate, named.raw.candidate) == ("host-1", "ann")
        await named.win()
        assert not unnamed.is_leader
        follower = stage.start(unnamed.win())
        await stage.queue("lead", 1)
        assert await unnamed.candidates() == ("host-1",)
        await named.resign()
        await follower.result()
        assert await _leader(named) == "host-1"

    @about("store")
    async def test_terms_strictly_grow_however_the_last_one_ended(self, stage: Stage) -> None:
        terms: list[int] = []
        for ending in ("resigned", "expired", "broken", "handed over"):
            locks = stage.locks()
            leader = locks.election("lead", candidate=ending, ttl=10)
            terms.append((await leader.win()).fence)
            assert leader.term == terms[-1]
            if ending == "resigned":
                await leader.resign()
            elif ending == "expired":
                locks.faults.lose_request("renew", ALWAYS)
                stage.clock.advance(10)
            elif ending == "broken":
                await stage.observer.break_lock("lead")
        successor = stage.start(stage.locks().election("lead", candidate="successor").win())
        await stage.queue("lead", 1)
        await leader.hand_over("successor")
        terms.append((await successor.result()).fence)
        assert terms == sorted(set(terms))

    async def test_a_leader_whose_time_ran_out_knows_it_from_the_clock(self, stage: Stage) -> None:
        locks = stage.locks()
        leader = locks.election("lead", ttl=10)
        await leader.win()
        locks.faults.lose_request("renew", ALWAYS)
        stage.clock.advance(10)
        assert (leader.is_leader, leader.term) == (False, None)

    @about("store")
    async def test_a_campaign_that_takes_too_long_ends_and_leaves_nothing(self, stage: Stage) -> None:
        ann, bob = candidates(stage, "ann", "bob")
        await ann.win()
        campaign = stage.start(bob.campaign(timeout=5))
        await stage.queue("lead", 1)
        stage.clock.advance(5)
        assert await campaign.result() is None
        assert await ann.candidates() == ()

    async def test_the_wait_of_an_election_is_that_of_its_campaigns(self, stage: Stage) -> None:
        await stage.locks().election("lead").win()
        assert await stage.locks().election("lead", wait=0).campaign() is None
        with pytest.raises(AcquireTimeout):
            await _lead(stage.locks().election("lead", wait=0), [])

    async def test_a_leader_that_campaigns_again_goes_on_leading(self, stage: Stage) -> None:
        locks = stage.locks()
        election = locks.election("lead")
        lease = await election.win()
        assert (await election.win()).raw is lease.raw
        assert locks.faults.calls["acquire"] == 1
        await election.resign()
        assert (await election.win()).fence > lease.fence

    # Stepping down

    @about("store")
    async def test_resigning_makes_the_next_candidate_leader_at_once(self, stage: Stage) -> None:
        ann, bob, eve = candidates(stage, "ann", "bob", "eve")
        await ann.win()
        campaigns = await line_up(stage, bob, eve)
        assert await ann.resign() is True
        await campaigns[0].result()
        assert (ann.is_leader, bob.is_leader, eve.is_leader) == (False, True, False)
        assert await ann.resign() is False
        assert bob.is_leader

    @about("store")
    async def test_a_leader_hands_over_to_a_candidate_by_name_before_older_ones(self, stage: Stage) -> None:
        ann, bob, eve, joe = candidates(stage, "ann", "bob", "eve", "joe")
        await ann.win()
        campaigns = await line_up(stage, bob, eve, joe)
        await ann.hand_over("eve")
        await campaigns[1].result()
        assert (ann.is_leader, eve.is_leader) == (False, True)
        assert not ann.raw._logic._lock._current  # nothing of the old term is kept
        assert await eve.candidates() == ("bob", "joe")  # as they stood
        await eve.resign()
        await campaigns[0].result()

    @about("store")
    async def test_handing_over_to_nobody_changes_nothing(self, stage: Stage) -> None:
        ann, bob = candidates(stage, "ann", "bob")
        lease = await ann.win()
        with pytest.raises(LockError, match=r"no candidate 'zoe' waits to lead 'lead' \(waiting: none\)"):
            await ann.hand_over("zoe")
        await line_up(stage, bob)
        with pytest.raises(LockError, match=r"waiting: 'bob'\); the leader is still the same"):
            await ann.hand_over("zoe")
        assert ann.term == lease.fence
        assert await stage.fences("lead") == [lease.fence]

    async def test_only_the_leader_hands_over(self, stage: Stage) -> None:
        ann, bob, eve = candidates(stage, "ann", "bob", "eve")
        await ann.win()
        await line_up(stage, bob)
        with pytest.raises(NotHeld, match="'eve' does not lead 'lead'"):
            await eve.hand_over("bob")
        assert ann.is_leader

    @about("store")
    async def test_a_successor_that_is_gone_leaves_the_place_to_the_next_in_line(self, stage: Stage) -> None:
        verbs, claim = stage.locks().faults, stage.claim("lead")
        assert isinstance(await verbs.acquire(claim, enqueue=False, within=5), Grant)
        (bob,) = candidates(stage, "bob")
        (campaign,) = await line_up(stage, bob)
        assert await verbs.release(claim, linger=0.0, within=5, successor="a candidate who left")
        await campaign.result()

    @about("store")
    async def test_handing_over_survives_a_lost_reply(self, stage: Stage) -> None:
        locks = stage.locks()
        ann = locks.election("lead", candidate="ann")
        bob, eve = candidates(stage, "bob", "eve")
        await ann.win()
        campaigns = await line_up(stage, bob, eve)
        locks.faults.lose_reply("release")
        handing = stage.start(ann.hand_over("eve"))
        await campaigns[1].result()
        await stage.sleep_through(handing)
        await handing.result()
        assert (ann.is_leader, bob.is_leader, eve.is_leader) == (False, False, True)

    # Who leads

    @about("store")
    async def test_anybody_can_ask_who_leads_and_who_waits(self, stage: Stage) -> None:
        ann, bob, eve = candidates(stage, "ann", "bob", "eve")
        bystander = stage.locks().election("lead")
        assert await bystander.leader() is None
        assert await bystander.candidates() == ()
        lease = await ann.win()
        await line_up(stage, bob, eve)
        leader = await bystander.leader()
        assert leader is not None
        assert (leader.holder, leader.fence) == ("ann", lease.fence)
        assert await bystander.candidates() == ("bob", "eve")
        assert not bystander.is_leader

    @about("store")
    async def test_an_election_shows_when_locks_are_inspected(self, stage: Stage) -> None:
        ann = stage.locks().election("lead", candidate="ann", metadata={"port": 80})
        lease = await ann.win()
        info = await stage.info("lead")
        (holder,) = info.holders
        assert (holder.holder, holder.fence, holder.metadata) == ("ann", lease.fence, {"port": 80})
        assert [listed.name for listed in await stage.observer.list()] == ["lead"]

    async def test_bad_names_of_elections_and_candidates_are_refused(self, stage: Stage) -> None:
        with pytest.raises(ValueError, match="lock name must not be empty"):
            stage.locks().election("")
        with pytest.raises(ValueError, match="candidate must not be empty"):
            stage.locks().election("lead", candidate="")

    # A block of one's own

    async def test_a_block_runs_while_leader_and_resigns_at_its_end(self, stage: Stage) -> None:
        (ann,) = candidates(stage, "ann")
        async with ann as lease:
            assert (ann.is_leader, ann.term) == (True, lease.fence)
        assert not ann.is_leader
        assert await stage.is_free("lead")

    async def test_a_block_in_which_the_lead_was_lost_learns_from_check_and_on_exit(self, stage: Stage) -> None:
        locks, reached = stage.locks(), list[str]()
        locks.faults.lose_request("renew", ALWAYS)
        with pytest.raises(LeaseLost):
            await _lead(locks.election("lead", ttl=10), reached, lambda: stage.clock.advance(10))
        assert reached == ["elected"]

    async def test_a_block_may_hand_over_and_come_to_its_end(self, stage: Stage) -> None:
        ann, bob = candidates(stage, "ann", "bob")
        async with ann:
            (campaign,) = await line_up(stage, bob)
            await ann.hand_over("bob")
        await campaign.result()
        assert (ann.is_leader, bob.is_leader) == (False, True)

    @needs("cancellation")
    async def test_the_block_of_an_async_leader_is_stopped_on_loss(self, stage: Stage) -> None:
        locks, ran = stage.locks(), list[str]()

        async def work() -> None:
            async with locks.election("lead", ttl=30):
                ran.append("elected")
                await stage.for_ever()

        leader = stage.start(work())
        await stage.until(lambda: ran)
        await _depose(stage, locks)
        with pytest.raises(LeaseLost):
            await leader.result()

    # Callbacks

    async def test_run_calls_back_once_elected_and_returns_the_answer_having_resigned(self, stage: Stage) -> None:
        ann, bob = candidates(stage, "ann", "bob")
        await ann.win()
        terms: list[int] = []
        running = stage.start(bob.run(_callback(stage, terms, _nothing)))
        await stage.queue("lead", 1)
        assert not terms
        await ann.resign()
        assert await running.result() == "done"
        assert len(terms) == 1
        assert await stage.is_free("lead")

    async def test_an_exception_of_the_callback_goes_through_and_resigns(self, stage: Stage) -> None:
        async def fail() -> None:
            raise ZeroDivisionError

        (ann,) = candidates(stage, "ann")
        with pytest.raises(ZeroDivisionError):
            await ann.run(_callback(stage, [], fail))
        assert await stage.is_free("lead")

    async def test_the_loss_of_another_lock_is_the_callbacks_own_business(self, stage: Stage) -> None:
        async def lose_another() -> None:
            raise LeaseLost("lease on 'other' was lost", name="other")

        (ann,) = candidates(stage, "ann")
        with pytest.raises(LeaseLost, match="'other'"):
            await ann.run(_callback(stage, [], lose_another))
        assert await stage.is_free("lead")

    async def test_run_campaigns_again_after_a_loss_and_reports_each(self, stage: Stage) -> None:
        (ann,) = candidates(stage, "ann")
        terms: list[int] = []
        lost: list[int] = []

        async def lose_twice() -> None:
            if len(terms) < 3:
                await stage.observer.break_lock("lead")

        answer = await ann.run(_callback(stage, terms, lose_twice), lambda lease: lost.append(lease.fence))
        await stage.until(lambda: len(lost) == 2)
        assert answer == "done"
        assert terms == sorted(set(terms))
        assert lost == terms[:2]

    async def test_on_lost_is_called_while_the_callback_still_runs(self, stage: Stage) -> None:
        locks = stage.locks()
        terms: list[int] = []
        lost: list[int] = []

        async def until_lost() -> None:
            if len(terms) == 1:
                await stage.until(lambda: lost)

        election = locks.election("lead", ttl=30)
        running = stage.start(election.run(_callback(stage, terms, until_lost), lambda lease: lost.append(lease.fence)))
        await stage.until(lambda: terms)
        await _depose(stage, locks)
        assert await running.result() == "done"
        assert lost == terms[:1]

    @needs("cancellation")
    async def test_an_async_callback_is_stopped_on_loss_and_called_again(self, stage: Stage) -> None:
        locks = stage.locks()
        terms: list[int] = []

        async def first_for_ever() -> None:
            if len(terms) == 1:
                await stage.for_ever()

        running = stage.start(locks.election("lead", ttl=30).run(_callback(stage, terms, first_for_ever)))
        await stage.until(lambda: terms)
        await _depose(stage, locks)
        assert await running.result() == "done"
        assert len(terms) == 2


def candidates(stage: Stage, *names: str) -> list[AwaitedElection]:
    """Each with a client of its own."""
    return [stage.locks().election("lead", candidate=name, ttl=600) for name in names]


async def line_up(stage: Stage, *elections: AwaitedElection) -> list[Actor[Any]]:
    """They wait to be elected, in that order."""
    before = (await stage.info("lead")).waiters
    campaigns = []
    for number, election in enumerate(elections, before + 1):
        campaigns.append(stage.start(election.win()))
        await stage.queue("lead", number)
    return campaigns


async def _leader(election: AwaitedElection) -> str | None:
    leader = await election.leader()
    return None if leader is None else leader.holder


async def _lead(election: AwaitedElection, reached: list[str], happens: Callable[[], object] = list) -> None:
    async with election as lease:
        reached.append("elected")
        happens()
        lease.check()
        reached.append("after the loss")


async def _depose(stage: Stage, locks: AwaitedLocks) -> None:
    """Let the leader, whose ttl is 30, lose its place."""
    await stage.asleep()
    locks.faults.lose_request("renew", ALWAYS)
    stage.clock.advance(30)


def _callback(stage: Stage, terms: list[int], work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[Any], Any]:
    """For `run`: remembers the term, works, and is done."""

    async def on_elected(lease: Any) -> str:
        terms.append(lease.fence)
        await work()
        return "done"

    return (lambda lease: run_to_end(on_elected(lease))) if stage.world == "threads" else on_elected


async def _nothing() -> None:
    return
