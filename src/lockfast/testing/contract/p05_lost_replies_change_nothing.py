"""Promise 5: a lost reply changes nothing; every request can be repeated with the same claim id.

An acquire whose outcome is unknown ends as held, or as cleaned up, never as an orphan.
"""

from __future__ import annotations

import pytest

from lockfast._model import Busy, Grant, Renewal
from lockfast.errors import BackendUnavailable, LeaseLost
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage


class LostRepliesChangeNothing(Promise, about="store"):
    # Acquire

    @pytest.mark.parametrize("losses", [1, 3])
    async def test_a_try_whose_reply_is_lost_ends_as_held_and_not_as_held_by_ourselves(
        self, stage: Stage, losses: int
    ) -> None:
        locks = stage.locks()
        locks.faults.lose_reply("acquire", losses)
        lease = await stage.finish(locks.lock("box").acquire(timeout=0))
        assert lease is not None
        assert lease.held
        assert await stage.fences("box") == [lease.fence]

    @about("engine")
    async def test_a_lost_request_is_sent_again(self, stage: Stage) -> None:
        locks = stage.locks()
        locks.faults.lose_request("acquire", 3)
        lease = await stage.finish(locks.lock("box", wait=10).acquire())
        assert lease is not None
        assert lease.held

    async def test_a_waiter_whose_replies_are_lost_keeps_its_place_and_is_served_once(self, stage: Stage) -> None:
        holder = await stage.locks().lock("box").take()
        unlucky = stage.locks()
        unlucky.faults.lose_reply("acquire")
        first = stage.start(unlucky.lock("box").take())
        await stage.queue("box", 1, dead=1)  # it has its place, though it does not know yet
        second = stage.start(stage.locks().lock("box").take())
        await stage.queue("box", 2, dead=1)
        await stage.until(lambda: stage.clock.sleepers == 3, "the pause before asking again")
        stage.clock.advance(0.1)
        await stage.queue("box", 2)
        unlucky.faults.lose_reply("acquire")  # and the grant's reply too
        await holder.release()
        await stage.until(lambda: stage.fences("box"), "the grant whose reply the first one does not get")
        await stage.sleep_through(first)
        lease = await first.result()
        assert await stage.fences("box") == [lease.fence]
        assert not second.done
        await lease.release()
        assert (await second.result()).fence > lease.fence
        assert (await stage.info("box")).waiters == 0

    async def test_an_acquire_whose_outcome_stays_unknown_is_cleaned_up(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        locks.faults.lose_reply("acquire", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(locks.lock("box").acquire())
        assert await stage.is_free("box")

    @about("engine")
    async def test_cleaning_up_goes_on_until_the_backend_can_be_asked_again(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        locks.faults.lose_reply("acquire", ALWAYS)
        locks.faults.lose_request("abandon", 4)
        with pytest.raises(BackendUnavailable):
            await stage.finish(locks.lock("box", ttl=600).acquire())
        await stage.until(lambda: self._patrolled(stage), "the clean-up")
        assert locks.faults.calls["abandon"] == 5

    @staticmethod
    async def _patrolled(stage: Stage) -> bool:
        """Let the clean-up sleep through its pauses; true once nothing is left."""
        if stage.clock.sleepers:
            stage.clock.advance(0.5)
        return await stage.is_free("box")

    @needs("expires")
    async def test_what_cannot_be_cleaned_up_ends_with_its_ttl(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        locks.faults.lose_reply("acquire", ALWAYS)
        locks.faults.lose_request("abandon", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(locks.lock("box", ttl=10).acquire())
        stage.clock.advance(10)
        assert await stage.is_free("box")

    async def test_giving_up_survives_a_lost_reply(self, stage: Stage) -> None:
        await stage.locks().lock("box", ttl=600).take()
        locks = stage.locks()
        locks.faults.lose_reply("abandon")
        waiter = stage.start(locks.lock("box", wait=5).acquire())
        await stage.queue("box", 1)
        await stage.sleep_through(waiter)
        assert await waiter.result() is None
        assert (await stage.info("box")).waiters == 0

    # Release

    async def test_a_release_whose_reply_is_lost_does_not_raise(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("box").take()
        locks.faults.lose_reply("release", 2)
        assert await stage.finish(lease.release()) is True
        assert not lease.lost
        assert await stage.is_free("box")

    @about("engine")
    async def test_leaving_a_with_survives_a_lost_reply(self, stage: Stage) -> None:
        locks = stage.locks()

        async def work() -> str:
            async with locks.lock("box"):
                locks.faults.lose_reply("release")
                return "done"

        assert await stage.finish(work()) == "done"
        assert await stage.is_free("box")

    async def test_a_release_whose_reply_is_lost_leaves_the_next_holder_alone(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("box").take()
        following = stage.start(stage.locks().lock("box").take())
        await stage.queue("box", 1)
        locks.faults.lose_reply("release")
        await stage.finish(lease.release())
        next_lease = await following.result()
        assert await stage.fences("box") == [next_lease.fence]

    @needs("expires")
    async def test_a_failed_release_can_be_repeated(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        lease = await locks.lock("box").take()
        locks.faults.lose_request("release", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(lease.release())
        assert (await stage.info("box")).locked
        locks.faults.heal()
        assert await lease.release() is True
        assert await stage.is_free("box")

    @about("engine")
    async def test_a_failed_release_can_be_repeated_through_the_lock_object(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        lock = locks.lock("box")
        await lock.take()
        locks.faults.lose_request("release", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(lock.release())
        locks.faults.heal()
        await lock.release()
        assert await stage.is_free("box")

    @needs("expires")
    async def test_a_release_that_failed_is_not_renewed_and_ends_with_its_ttl(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        lease = await locks.lock("box", ttl=10).take()
        locks.faults.lose_request("release", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(lease.release())
        assert not lease.held
        stage.clock.advance(10)
        assert await stage.is_free("box")
        assert locks.faults.calls["renew"] == 0

    @needs("expires")
    async def test_a_release_repeated_too_late_touches_nobody(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        lease = await locks.lock("box", ttl=10).take()
        locks.faults.lose_request("release", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(lease.release())
        stage.clock.advance(10)
        following = await stage.locks().lock("box").take()
        locks.faults.heal()
        assert await lease.release() is False
        assert await stage.fences("box") == [following.fence]

    # Renew and extend

    @about("engine")
    async def test_a_renewal_whose_reply_is_lost_is_repeated_and_no_loss(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("box", ttl=30).take()
        locks.faults.lose_reply("renew")
        await stage.asleep()
        await stage.pass_time(60)
        assert lease.held
        assert locks.faults.calls["renew"] >= 2

    async def test_an_extension_whose_reply_is_lost_is_repeated(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("box", ttl=10, renew=False).take()
        locks.faults.lose_reply("renew", 2)
        await stage.finish(lease.extend(60))
        assert lease.remaining == pytest.approx(60, abs=1)

    @about("engine")
    async def test_an_extension_that_cannot_be_asked_for_leaves_the_lease_what_it_was(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        lease = await locks.lock("box", ttl=20, renew=False).take()
        locks.faults.lose_request("renew", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(lease.extend(60))
        assert lease.held
        assert lease.ttl == 20
        assert 18 <= lease.remaining <= 20

    async def test_an_extension_that_is_refused_after_a_lost_reply_is_a_loss(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("box", ttl=10, renew=False).take()
        locks.faults.lose_request("renew")
        await stage.locks().break_lock("box")
        with pytest.raises(LeaseLost):
            await stage.finish(lease.extend(60))

    # The verbs themselves

    async def test_every_verb_can_be_repeated(self, stage: Stage) -> None:
        verbs, claim, waiter = stage.locks().faults, stage.claim("box"), stage.claim("box")
        grants = [await verbs.acquire(claim, enqueue=True, within=5) for _ in range(3)]
        assert all(isinstance(grant, Grant) for grant in grants)
        assert len({grant.fence for grant in grants if isinstance(grant, Grant)}) == 1
        places = [await verbs.acquire(waiter, enqueue=True, within=5) for _ in range(3)]
        assert [place.position for place in places if isinstance(place, Busy)] == [0, 0, 0]
        await stage.queue("box", 1, dead=1)  # it stands there once, and does not sleep
        renewal = Renewal(claim, 30, max(grant.fence for grant in grants if isinstance(grant, Grant)))
        assert [await verbs.renew([renewal], within=5) for _ in range(2)] == [[True], [True]]
        assert [await verbs.release(claim, linger=0.0, within=5) for _ in range(2)] == [True, False]
        for _ in range(2):
            await verbs.abandon(waiter, within=5)
        assert await stage.is_free("box")

    @needs("expires")
    async def test_asking_again_renews_a_hold_whose_grant_was_never_received(self, stage: Stage) -> None:
        verbs, claim = stage.locks().faults, stage.claim("box", ttl=10)
        await verbs.acquire(claim, enqueue=False, within=5)
        stage.clock.advance(9)
        await verbs.acquire(claim, enqueue=False, within=5)
        stage.clock.advance(9)
        assert (await stage.info("box")).locked
        stage.clock.advance(1)
        assert await stage.is_free("box")
