"""Promise 4: every grant carries a fence, strictly growing for its name for ever; its memory is bounded."""

from __future__ import annotations

from lockfast._model import Grant
from lockfast.testing.contract.story import Promise, needs
from lockfast.testing.stage import Stage


class FencesOnlyGrow(Promise, about="store"):
    @needs("expires")
    async def test_fences_strictly_grow_through_every_way_to_end(self, stage: Stage) -> None:
        one, other = stage.locks(), stage.locks()
        fences: list[int] = []
        for _ in range(3):
            lease = await one.lock("page").take()  # released by its lease
            fences.append(lease.fence)
            await lease.release()
            async with other.lock("page") as lease:  # released by its `with`
                fences.append(lease.fence)
            lease = await one.lock("page", ttl=5, renew=False).take()  # expired
            fences.append(lease.fence)
            stage.clock.advance(5)
            lease = await other.lock("page").take()  # broken
            fences.append(lease.fence)
            await one.break_lock("page")
            claim = stage.claim("page")  # abandoned
            grant = await one.faults.acquire(claim, enqueue=False, within=5)
            assert isinstance(grant, Grant)
            fences.append(grant.fence)
            await one.faults.abandon(claim, within=5)
        assert fences == sorted(set(fences))

    async def test_fences_strictly_grow_through_release_break_and_abandoning(self, stage: Stage) -> None:
        """As above, on stores too that end no hold by themselves."""
        one, other = stage.locks(), stage.locks()
        fences: list[int] = []
        for _ in range(3):
            lease = await one.lock("page").take()
            fences.append(lease.fence)
            await lease.release()
            async with other.lock("page") as lease:
                fences.append(lease.fence)
            lease = await other.lock("page").take()
            fences.append(lease.fence)
            await one.break_lock("page")
            claim = stage.claim("page")
            grant = await one.faults.acquire(claim, enqueue=False, within=5)
            assert isinstance(grant, Grant)
            fences.append(grant.fence)
            await one.faults.abandon(claim, within=5)
        assert fences == sorted(set(fences))

    async def test_fences_grow_through_a_hand_over_to_a_waiter(self, stage: Stage) -> None:
        holder = await stage.locks().lock("page").take()
        waiter = stage.start(stage.locks().lock("page").take())
        await stage.queue("page", 1)
        await holder.release()
        assert (await waiter.result()).fence > holder.fence

    async def test_fences_grow_through_the_forgetting_of_a_name(self, stage: Stage) -> None:
        locks = stage.locks()
        async with locks.lock("page") as lease:
            first = lease.fence
        for number in range(200):
            async with locks.lock(f"other-{number}"):
                pass
        stage.clock.advance(400 * 86400.0)
        assert await locks.list() == []
        async with locks.lock("page") as lease:
            assert lease.fence > first

    async def test_fences_grow_through_closing_and_connecting_again(self, stage: Stage) -> None:
        last = 0
        for _ in range(3):
            locks = stage.locks()
            async with locks.lock("page") as lease:
                assert lease.fence > last
                last = lease.fence
            await locks.close()

    async def test_a_fence_is_a_positive_whole_number_that_survives_json(self, stage: Stage) -> None:
        lease = await stage.locks().lock("page").take()
        assert type(lease.fence) is int
        assert 0 < lease.fence < 2**53

    async def test_a_hold_keeps_its_fence_through_renewal_extension_and_asking_again(self, stage: Stage) -> None:
        locks = stage.locks()
        claim = stage.claim("page", ttl=3)
        first = await locks.faults.acquire(claim, enqueue=True, within=5)
        again = await locks.faults.acquire(claim, enqueue=True, within=5)
        assert isinstance(first, Grant)
        assert isinstance(again, Grant)
        assert first.fence == again.fence
        await locks.faults.release(claim, linger=0.0, within=5)
        lease = await locks.lock("page", ttl=3).take()
        fence = lease.fence
        await stage.asleep()
        await stage.pass_time(9)
        await lease.extend(10)
        assert lease.fence == fence
        assert await stage.fences("page") == [fence]

    @needs("shared")
    async def test_holders_who_share_a_name_each_have_a_fence_of_their_own(self, stage: Stage) -> None:
        verbs = stage.locks().faults
        fences: list[int] = []
        for _ in range(5):
            grant = await verbs.acquire(stage.claim("page", mode="shared"), enqueue=False, within=5)
            assert isinstance(grant, Grant)
            fences.append(grant.fence)
        assert fences == sorted(set(fences))

    async def test_grants_of_many_at_once_never_share_a_fence(self, stage: Stage) -> None:
        fences: list[int] = []

        async def work(number: int) -> None:
            locks = stage.locks()
            for _ in range(10):
                async with locks.lock("page") as lease:
                    fences.append(lease.fence)

        for worker in [stage.start(work(number)) for number in range(4)]:
            await worker.result()
        assert len(fences) == 40
        assert fences == sorted(set(fences))

    async def test_a_refused_try_has_no_fence_and_a_broken_name_has_a_higher_one(self, stage: Stage) -> None:
        stale = await stage.locks().lock("page").take()
        assert await stage.locks().lock("page").acquire(blocking=False) is None
        await stage.locks().break_lock("page")
        fresh = await stage.locks().lock("page").take()
        assert fresh.fence > stale.fence

    @needs("expires")
    async def test_names_that_are_never_used_again_leave_nothing_in_the_store(self, stage: Stage) -> None:
        locks = stage.locks()
        for number in range(150):
            lease = await locks.lock(f"once-{number}", ttl=10, renew=False).take()
            if number % 2:
                await lease.release()
        await locks.faults.acquire(stage.claim("once-0"), enqueue=True, within=5)  # and a waiter that died
        stage.clock.advance(400 * 86400.0)
        for _ in range(1100):  # whatever sweeps, sweeps on the way
            async with locks.lock("in use"):
                pass
        assert stage.records() == 0
        assert await locks.list() == []
