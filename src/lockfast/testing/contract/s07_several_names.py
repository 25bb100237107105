"""Several names as one lock: taken in one order, all or nothing within one `wait`, and lost together."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.errors import AcquireTimeout, BackendUnavailable, LeaseLost, LockError, NotHeld
from lockfast.testing.awaited import AwaitedLease, AwaitedLock, AwaitedLocks
from lockfast.testing.contract.story import Promise, about
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage


async def all_free(stage: Stage, *names: str) -> bool:
    return all([await stage.is_free(name) for name in names])


async def until_free(stage: Stage, *names: str) -> None:
    """Until all are, without any time passing."""

    async def they_are() -> bool:
        return await all_free(stage, *names)

    await stage.until(they_are, f"{names} to be free")


async def lose(stage: Stage, locks: AwaitedLocks, *broken: str) -> None:
    """Let leases with a ttl of 30 be lost: those that are broken, or else all."""
    await stage.asleep()
    for name in broken:
        await stage.observer.break_lock(name)
    if not broken:
        locks.faults.lose_request("renew", ALWAYS)
    stage.clock.advance(10 if broken else 30)


async def body(lock: AwaitedLock, ran: list[str]) -> None:
    async with lock:
        ran.append("body")


class SeveralNames(Promise, about="engine"):
    # One order

    async def test_names_are_taken_in_one_order_however_they_are_given(self, stage: Stage) -> None:
        locks = stage.locks()
        assert locks.all("c", "a", "b").raw.names == locks.all("b", "c", "a").raw.names == ("a", "b", "c")
        holder = await stage.locks().lock("a").take()
        waiter = stage.start(locks.all("c", "b", "a").take())
        await stage.queue("a", 1)
        assert await all_free(stage, "b", "c")  # nothing is kept while an earlier one is waited for
        await holder.release()
        assert (await waiter.result()).names == ("a", "b", "c")

    @about("store")
    async def test_callers_with_opposite_orders_never_wait_for_each_other_for_ever(self, stage: Stage) -> None:
        inside: list[int] = []

        async def visit(*names: str) -> int:
            locks, contended = stage.locks(), 0
            for _ in range(15):
                async with locks.all(*names) as lease:
                    inside.append(1)
                    await stage.step()
                    contended += len(inside) > 1
                    lease.check()
                    inside.pop()
            return contended

        orders = [("left", "right"), ("right", "left"), ("right", "middle", "left")]
        visitors = [stage.start(visit(*names)) for names in orders]
        assert [await visitor.result() for visitor in visitors] == [0, 0, 0]
        assert await all_free(stage, "left", "middle", "right")

    async def test_one_name_alone_is_fine_too(self, stage: Stage) -> None:
        async with stage.locks().all("a") as lease:
            assert lease.fence == {"a": (await stage.fences("a"))[0]}
        assert await stage.is_free("a")

    # All or nothing

    @about("store")
    @pytest.mark.parametrize("taken", ["a", "b", "c"])
    async def test_a_try_takes_all_names_or_none(self, stage: Stage, taken: str) -> None:
        holder = await stage.locks().lock(taken).take()
        several = stage.locks().all("a", "b", "c")
        assert await several.acquire(blocking=False) is None
        assert await all_free(stage, *({"a", "b", "c"} - {taken}))
        assert await stage.fences(taken) == [holder.fence]
        await holder.release()
        assert (await several.take()).held

    async def test_a_try_that_is_refused_says_so_without_a_time(self, stage: Stage) -> None:
        await stage.locks(holder="worker-7").lock("b").take()
        with pytest.raises(AcquireTimeout, match=r"^lock 'b' is held by 'worker-7'; none of \('a', 'b'\) is kept$"):
            await body(stage.locks().all("a", "b", wait=0), [])

    async def test_a_body_never_runs_without_all_its_names(self, stage: Stage) -> None:
        await stage.locks(holder="worker-7").lock("b", ttl=60).take()
        ran: list[str] = []
        visitor = stage.start(body(stage.locks().all("a", "b", wait=5), ran))
        await stage.queue("b", 1)
        assert await stage.fences("a") != []
        stage.clock.advance(5)
        with pytest.raises(AcquireTimeout, match=r"'b' is still held by 'worker-7' after 5s; none") as refused:
            await visitor.result()
        error = refused.value
        assert (error.name, error.holder, error.waited) == ("b", "worker-7", 5.0)
        assert not ran
        assert await stage.is_free("a")

    async def test_one_wait_is_for_all_names_together(self, stage: Stage) -> None:
        others = stage.locks()
        first, _ = await others.lock("a", ttl=600).take(), await others.lock("b", ttl=600).take()
        waiter = stage.start(stage.locks().all("a", "b", ttl=600).acquire(timeout=10))
        await stage.queue("a", 1)
        stage.clock.advance(6)
        await stage.queue("a", 1)
        await first.release()
        await stage.queue("b", 1)
        assert await stage.sleep_through(waiter) == pytest.approx(4)
        assert await waiter.result() is None
        assert await stage.is_free("a")

    async def test_a_backend_that_fails_in_the_middle_leaves_nothing_held(self, stage: Stage) -> None:
        holder = await stage.locks().lock("b").take()
        locks = stage.locks()
        locks.faults.lose_request("wait", 1, BackendUnavailable("the disk is full", transient=False))
        with pytest.raises(BackendUnavailable, match="disk"):
            await locks.all("a", "b", "c").acquire()
        assert await all_free(stage, "a", "c")
        assert await stage.fences("b") == [holder.fence]
        assert (await stage.info("b")).waiters == 0

    async def test_an_early_name_that_is_lost_meanwhile_is_asked_for_again(self, stage: Stage) -> None:
        """That loss is not reported: no caller had the lease yet."""
        reported: list[Any] = []
        second, third = [await stage.locks().lock(name, ttl=600).take() for name in ("b", "c")]
        locks = stage.locks()
        received = stage.record(locks)
        waiter = stage.start(locks.all("a", "b", "c", ttl=30, on_lost=reported.append).take())
        await stage.queue("b", 1)
        await lose(stage, locks, "a")
        await stage.until(lambda: "lost" in [event.kind for event in received])
        thief = await stage.locks().lock("a", ttl=600).take()
        await second.release()
        await stage.queue("a", 1)  # and not for the third, while it keeps others from the second
        await until_free(stage, "b")
        await thief.release()
        await stage.queue("c", 1)
        await third.release()
        lease = await waiter.result()
        assert lease.held
        assert lease.fence["a"] > thief.fence
        assert not reported

    async def test_an_early_name_that_is_found_lost_when_time_is_up_is_a_refusal(self, stage: Stage) -> None:
        holder = await stage.locks().lock("b", ttl=600).take()
        locks = stage.locks()
        received = stage.record(locks)
        waiter = stage.start(body(locks.all("a", "b", ttl=30, wait=15), []))
        await stage.queue("b", 1)
        await lose(stage, locks, "a")
        await stage.until(lambda: "lost" in [event.kind for event in received])
        await stage.queue("b", 1)
        locks.faults.hang_reply("wait")
        await stage.pass_time(1)  # it polls, and waits again
        await holder.release()
        await stage.until(lambda: locks.faults.hanging == 1)  # it is the turn of the last one, which learns of it late
        stage.clock.advance(5)
        locks.faults.resume()
        with pytest.raises(AcquireTimeout, match="'a' is still not free after 16s"):
            await waiter.result()
        assert await all_free(stage, "a", "b")

    # One lease

    async def test_a_lease_over_several_names_has_a_fence_for_each(self, stage: Stage) -> None:
        several = stage.locks().all("a", "b")
        lease = await several.take()
        assert lease.fence == {name: (await stage.fences(name))[0] for name in ("a", "b")}
        assert {name: single.fence for name, single in lease.leases.items()} == lease.fence
        await lease.release()
        later = await several.take()
        assert all(later.fence[name] > lease.fence[name] for name in ("a", "b"))

    async def test_a_lease_over_several_names_is_held_while_all_are(self, stage: Stage) -> None:
        lease = await stage.locks().all("a", "b", ttl=10, renew=False).take()
        await AwaitedLease(lease.leases["a"]).extend(60)
        stage.clock.advance(4)
        assert (lease.held, lease.lost, lease.remaining) == (True, False, pytest.approx(6))
        lease.check()
        stage.clock.advance(6)
        assert (lease.held, lease.lost, lease.remaining) == (False, True, 0)
        with pytest.raises(LeaseLost, match="'b'"):
            lease.check()

    async def test_all_names_are_renewed_and_extended(self, stage: Stage) -> None:
        lease = await stage.locks().all("a", "b", ttl=30).take()
        assert lease.acquired_at == max(one.acquired_at for one in lease.leases.values())
        await stage.asleep()
        await stage.pass_time(100)
        assert lease.held
        await lease.extend(200)
        assert lease.remaining == pytest.approx(200)
        assert [await stage.fences(name) for name in ("a", "b")] == [[lease.fence["a"]], [lease.fence["b"]]]

    @about("store")
    async def test_all_names_are_released_once(self, stage: Stage) -> None:
        several = stage.locks().all("a", "b")
        lease = await several.take()
        assert await several.locked()
        assert await lease.release() is True
        assert await all_free(stage, "a", "b")
        assert not await several.locked()
        assert await lease.release() is False
        with pytest.raises(NotHeld):
            await lease.extend()
        with pytest.raises(NotHeld, match="not held through this object"):
            await several.release()

    async def test_release_through_the_object_releases_all_names(self, stage: Stage) -> None:
        several = stage.locks().all("a", "b")
        lease = await several.take()
        await several.release()
        assert not lease.held
        assert not lease.lost
        assert await all_free(stage, "a", "b")

    async def test_a_body_that_releases_by_itself_is_left_as_well(self, stage: Stage) -> None:
        several = stage.locks().all("a", "b")
        async with several:
            await several.release()
            other = await stage.locks().all("b", "a").take()
        assert [await stage.fences(name) for name in ("a", "b")] == [[other.fence["a"]], [other.fence["b"]]]

    async def test_a_failed_release_of_one_name_still_releases_the_others(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        lease = await locks.all("a", "b", "c").take()
        locks.faults.lose_request("release", 1, BackendUnavailable("the disk is full", transient=False))
        with pytest.raises(BackendUnavailable, match="disk"):
            await lease.release()
        await until_free(stage, "a", "b")
        assert await lease.release() is False  # some were released before
        assert await stage.is_free("c")

    async def test_tasks_or_threads_can_share_one_object_for_several_names(self, stage: Stage) -> None:
        shared = stage.locks().all("a", "b")
        inside: list[int] = []
        contended: list[int] = []

        async def visit() -> None:
            for _ in range(5):
                async with shared as lease:
                    inside.append(1)
                    await stage.breathe()
                    contended.append(len(inside))
                    lease.check()
                    inside.pop()

        for visitor in [stage.start(visit()) for _ in range(3)]:
            await visitor.result()
        assert contended == [1] * 15
        assert await all_free(stage, "a", "b")

    async def test_releasing_through_a_shared_object_never_ends_the_lease_of_another(self, stage: Stage) -> None:
        shared = stage.locks().all("a", "b", ttl=10, renew=False)
        steps: list[str] = []

        async def unlucky() -> None:
            async with shared:
                steps.append("inside")
                await stage.until(lambda: "taken" in steps)
                with pytest.raises(LeaseLost):
                    await shared.release()

        first = stage.start(unlucky())
        await stage.until(lambda: steps)
        stage.clock.advance(10)  # time ends what it holds, and it does not know
        lease = await shared.take()
        steps.append("taken")
        with pytest.raises(LeaseLost):
            await first.result()
        assert lease.held
        assert [await stage.fences(name) for name in ("a", "b")] == [[lease.fence["a"]], [lease.fence["b"]]]

    async def test_the_same_names_in_two_namespaces_are_different_names(self, stage: Stage) -> None:
        here, there = stage.locks(), stage.locks(namespace=f"{stage.namespace}-other")
        mine, theirs = await here.all("a", "b").take(), await there.all("b", "a").take()
        assert mine.held
        assert theirs.held
        await mine.release()
        assert (await there.inspect("a")).locked

    # Bad input

    @pytest.mark.parametrize("names", [("a", "b", "a"), ("a", "a"), (), ("a", ""), ("a", 7)])
    async def test_names_that_make_no_sense_together_are_refused_before_anything_is_sent(
        self, stage: Stage, names: tuple[Any, ...]
    ) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="name"):
            locks.all(*names)
        assert not locks.faults.calls

    async def test_a_closed_locks_gives_no_several_names(self, stage: Stage) -> None:
        locks = stage.locks()
        several = locks.all("a", "b")
        await locks.close()
        with pytest.raises(LockError, match="closed"):
            await several.acquire()
