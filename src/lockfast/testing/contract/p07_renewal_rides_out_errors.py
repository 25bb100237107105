"""Promise 7: renewal rides out errors until the deadline; a transient error is not a loss.

One keeper renews all leases of a `Locks`, in batches; its cost per lease is not a thread. It does not depend on the
body: a blocked event loop does not stop it.
"""

from __future__ import annotations

import pytest

from lockfast.errors import BackendUnavailable, LeaseLost
from lockfast.testing.contract.story import Promise, about, needs, on_the_real_clock
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage
from lockfast.testing.stage_asyncio import AsyncioStage


class RenewalRidesOutErrors(Promise, about="engine"):
    @about("store")
    async def test_a_lease_is_renewed_for_as_long_as_it_is_held(self, stage: Stage) -> None:
        lease = await stage.locks().lock("line", ttl=30).take()
        await stage.asleep()
        for _ in range(10):
            await stage.pass_time(30)
            assert lease.held
            assert lease.remaining > 10
        assert await stage.fences("line") == [lease.fence]

    async def test_renewal_comes_well_before_the_deadline_and_not_all_the_time(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("line", ttl=30).take()
        await stage.asleep()
        stage.clock.advance(8)
        assert locks.faults.calls["renew"] == 0
        await stage.pass_time(292)
        assert lease.held
        assert 10 <= locks.faults.calls["renew"] <= 40

    async def test_a_lease_that_shall_not_be_renewed_is_not(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("line", ttl=30, renew=False).take()
        await stage.asleep()
        stage.clock.advance(29.9)
        assert lease.held
        stage.clock.advance(0.1)
        assert not lease.held
        assert locks.faults.calls["renew"] == 0
        await stage.until(lambda: stage.is_free("line"), "the name to be free")

    async def test_a_lease_is_renewed_at_the_interval_that_its_caller_chose(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("line", ttl=30, renew_every=20).take()
        await stage.asleep()
        await stage.pass_time(15)
        assert locks.faults.calls["renew"] == 0
        await stage.pass_time(285)
        assert lease.held
        assert 10 <= locks.faults.calls["renew"] <= 20

    @about("store")
    async def test_a_lease_is_not_renewed_past_its_max_hold_and_then_its_lock_is_free(self, stage: Stage) -> None:
        lost: list[object] = []
        locks = stage.locks()
        lease = await locks.lock("line", ttl=30, max_hold=100, on_lost=lost.append).take()
        await stage.asleep()
        await stage.pass_time(100)
        assert lease.remaining > 10
        renewals = locks.faults.calls["renew"]
        await stage.pass_time(lease.remaining - 0.1)
        assert lease.held
        assert locks.faults.calls["renew"] == renewals
        stage.clock.advance(0.1)
        await stage.until(lambda: lost, "the loss to be reported")
        await stage.until(lambda: stage.is_free("line"), "the name to be free")
        assert (await stage.locks().lock("line").take()).fence > lease.fence
        with pytest.raises(LeaseLost, match="it reached its max_hold of 100s"):
            lease.check()

    @pytest.mark.parametrize(
        "error", [BackendUnavailable("gone for a moment"), OSError("reset"), ZeroDivisionError("a bug of a driver")]
    )
    async def test_an_error_in_passing_is_not_a_loss_whatever_it_is(self, stage: Stage, error: Exception) -> None:
        lost: list[object] = []
        locks = stage.locks()
        received = stage.record(locks)
        lease = await locks.lock("line", ttl=30, on_lost=lost.append).take()
        locks.faults.lose_request("renew", 3, error)
        await stage.asleep()
        await stage.pass_time(100)
        assert lease.held
        assert not lost
        kinds = [event.kind for event in received]
        assert kinds.count("renewal_failed") == 3
        assert kinds[-1] == "renewed"

    async def test_renewal_is_tried_again_and_again_until_the_deadline(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("line", ttl=30).take()
        locks.faults.lose_request("renew", ALWAYS)
        await stage.asleep()
        await stage.pass_time(29)
        assert lease.held
        assert locks.faults.calls["renew"] >= 4
        locks.faults.heal()
        await stage.pass_time(60)
        assert lease.held

    async def test_a_lease_that_cannot_be_renewed_is_lost_at_its_deadline_and_no_sooner(self, stage: Stage) -> None:
        lost: list[object] = []
        locks = stage.locks()
        lease = await locks.lock("line", ttl=30, on_lost=lost.append).take()
        locks.faults.lose_request("renew", ALWAYS)
        await stage.asleep()
        await stage.pass_time(29.9)
        assert lease.held
        assert not lost
        stage.clock.advance(0.1)
        assert not lease.held
        await stage.until(lambda: lost, "the loss to be reported")

    @about("store")
    async def test_one_request_renews_all_leases_that_are_due(self, stage: Stage) -> None:
        locks = stage.locks()
        leases = [await locks.lock(f"line-{number}", ttl=30).take() for number in range(100)]
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: all(lease.remaining == 30 for lease in leases), "all to be renewed")
        assert locks.faults.calls["renew"] == 1

    async def test_a_batch_is_no_larger_than_the_backend_takes(self, stage: Stage) -> None:
        locks = stage.locks(capabilities={"renew_batch": 10})
        leases = [await locks.lock(f"line-{number}", ttl=30).take() for number in range(25)]
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: all(lease.remaining == 30 for lease in leases), "all to be renewed")
        assert locks.faults.calls["renew"] == 3

    async def test_leases_due_at_about_the_same_time_are_renewed_together(self, stage: Stage) -> None:
        locks = stage.locks()
        leases = []
        for number in range(50):
            leases.append(await locks.lock(f"line-{number}", ttl=30).take())
            stage.clock.advance(0.02)
        await stage.asleep()
        await stage.pass_time(29)
        assert all(lease.held for lease in leases)
        assert locks.faults.calls["renew"] <= 4

    async def test_a_hundred_leases_cost_no_hundred_threads_or_tasks(self, stage: Stage) -> None:
        before = stage._at_work()
        locks = stage.locks()
        for number in range(100):
            await locks.lock(f"line-{number}", ttl=30).take()
        await stage.asleep()
        assert stage._at_work() < before + 10

    @about("store")
    @needs("breaks_alone")
    async def test_a_lease_lost_from_a_batch_does_not_harm_the_others(self, stage: Stage) -> None:
        lost: list[str] = []
        locks = stage.locks()
        leases = [
            await locks.lock(f"line-{number}", ttl=30, on_lost=lambda lease: lost.append(lease.name)).take()
            for number in range(5)
        ]
        await stage.locks().break_lock("line-2")
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: lost, "the loss to be reported")
        await stage.asleep()
        await stage.pass_time(60)
        assert lost == ["line-2"]
        assert [lease.held for lease in leases] == [True, True, False, True, True]

    async def test_nothing_is_renewed_after_its_release(self, stage: Stage) -> None:
        locks = stage.locks()
        for number in range(5):
            async with locks.lock(f"line-{number}", ttl=30):
                pass
        stage.clock.advance(1000)
        kept = await locks.lock("kept", ttl=30).take()
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: kept.remaining == 30)
        assert locks.faults.calls["renew"] == 1
        assert await stage.is_free("line-0")

    @about("store")
    async def test_a_renewal_that_crosses_the_release_is_no_loss(self, stage: Stage) -> None:
        lost: list[object] = []
        locks = stage.locks()
        lease = await locks.lock("line", ttl=30, on_lost=lost.append).take()
        locks.faults.hang_request("renew")
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: locks.faults.hanging == 1)
        assert await lease.release()
        locks.faults.resume()
        await stage.until(lambda: stage._calm())
        assert not lost
        assert not lease.lost
        assert await stage.is_free("line")

    async def test_a_hanging_renewal_of_one_lease_does_not_starve_another(self, stage: Stage) -> None:
        locks = stage.locks()
        stuck = await locks.lock("stuck", ttl=30).take()
        locks.faults.hang_request("renew")
        await stage.asleep()
        stage.clock.advance(10)
        await stage.until(lambda: locks.faults.hanging == 1)
        lease = await locks.lock("line", ttl=12).take()
        await stage.asleep()
        await stage.pass_time(15)
        assert lease.held
        assert stuck.held

    @about("store")
    async def test_an_extension_sets_the_ttl_of_later_renewals(self, stage: Stage) -> None:
        lease = await stage.locks().lock("line", ttl=10).take()
        await lease.extend(60)
        assert lease.ttl == 60
        assert lease.remaining == pytest.approx(60)
        await stage.asleep()
        await stage.pass_time(300)
        assert lease.held
        assert lease.remaining > 20

    async def test_extending_without_a_length_uses_the_ttl(self, stage: Stage) -> None:
        lease = await stage.locks().lock("line", ttl=10, renew=False).take()
        stage.clock.advance(6)
        await lease.extend()
        assert lease.remaining == pytest.approx(10)
        stage.clock.advance(9.9)
        assert await stage.fences("line") == [lease.fence]

    @about("store")
    async def test_an_extension_of_what_was_broken_is_a_loss(self, stage: Stage) -> None:
        lease = await stage.locks().lock("line").take()
        await stage.locks().break_lock("line")
        with pytest.raises(LeaseLost):
            await lease.extend(60)
        assert lease.lost

    @about("store")
    @needs("asyncio")
    async def test_a_body_that_blocks_its_event_loop_keeps_its_lock(self, stage: AsyncioStage) -> None:
        lost: list[object] = []
        locks = stage.stands_by(stage.locks())
        async with locks.lock("line", ttl=30, on_lost=lost.append) as lease:
            stage.block_loop(300, lease)
            assert lease.held
            assert await stage.fences("line") == [lease.fence]
            assert await stage.locks().lock("line", wait=0).acquire() is None
        assert not lost
        assert await stage.is_free("line")

    @about("store")
    @needs("asyncio", "shared")
    async def test_all_that_is_held_in_a_blocked_event_loop_is_kept(self, stage: AsyncioStage) -> None:
        locks = stage.stands_by(stage.locks())
        leases = [await locks.lock(f"line-{number}", ttl=30).take() for number in range(20)]
        leases += [await locks.rwlock("shelf", ttl=20).read().take() for _ in range(3)]
        stage.block_loop(120, *leases)
        assert all(lease.held for lease in leases)
        assert [await lease.release() for lease in leases] == [True] * 23

    @about("store")
    @needs("asyncio", "breaks_alone")
    async def test_a_lock_that_is_broken_while_its_event_loop_is_blocked_is_lost_at_once(
        self, stage: AsyncioStage
    ) -> None:
        lost: list[str] = []
        locks = stage.stands_by(stage.locks())
        lease = await locks.lock("line", ttl=30, on_lost=lambda lease: lost.append(lease.name)).take()
        await stage.locks().break_lock("line")
        stage.block_loop(30, lease)
        with pytest.raises(LeaseLost, match="it expired or was broken"):
            lease.check()
        assert not lost
        await stage.until(lambda: lost == ["line"], "the loss to be reported in the loop")

    @about("store")
    @needs("asyncio")
    async def test_what_is_not_to_be_renewed_is_not_renewed_in_a_blocked_event_loop(self, stage: AsyncioStage) -> None:
        locks = stage.stands_by(stage.locks())
        briefly = await locks.lock("line-1", ttl=30, renew=False).take()
        longer = await locks.lock("line-2", ttl=30, max_hold=100).take()
        kept = await locks.lock("line-3", ttl=30).take()
        stage.block_loop(240, kept)
        assert [briefly.held, longer.held, kept.held] == [False, False, True]
        with pytest.raises(LeaseLost, match="it reached its max_hold of 100s"):
            longer.check()

    @about("store")
    @on_the_real_clock
    async def test_a_sub_second_ttl_is_kept_alive_on_the_real_clock(self, stage: Stage) -> None:
        locks = stage.locks()

        async def kept_alive() -> bool:
            """Through two renewals; a machine that stands still for longer than its ttl gets another chance."""
            received = stage.record(locks)
            lease = await locks.lock("line", ttl=0.75).take()
            await stage.until(lambda: lease.lost or [event.kind for event in received].count("renewed") >= 2)
            return await lease.release()

        await stage.until(kept_alive, "a lease of 0.75 seconds to be kept alive")
