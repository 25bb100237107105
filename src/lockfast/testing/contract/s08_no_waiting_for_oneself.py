"""Nothing waits for itself: in the body of a `with`, to wait without limit for what that `with` holds is an error.

Only there is it certain that the wait would never end. A try and a bounded wait stay what they are, another task or
thread waits as ever, and so does the same one outside of such a body: others may release what it holds.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable

import pytest

from lockfast.errors import AcquireTimeout, LockError, SelfDeadlock
from lockfast.testing.awaited import AwaitedLease, AwaitedLock, AwaitedLocks
from lockfast.testing.contract.story import Promise, in_ways, needs
from lockfast.testing.stage import Stage

Ask = Callable[[AwaitedLocks], AwaitedLock]

# What is held, and what is then asked for. The name that is in the way is always "seat".
PAIRS: dict[str, tuple[Ask, Ask]] = {
    "a lock twice": (lambda locks: locks.lock("seat", ttl=600), lambda locks: locks.lock("seat")),
    "a reader that writes": (
        lambda locks: locks.rwlock("seat", ttl=600).read(),
        lambda locks: locks.rwlock("seat").write(),
    ),
    "a writer that reads": (
        lambda locks: locks.rwlock("seat", ttl=600).write(),
        lambda locks: locks.rwlock("seat").read(),
    ),
    "one of several": (lambda locks: locks.lock("seat", ttl=600), lambda locks: locks.all("row", "seat")),
    "one that is among several": (
        lambda locks: locks.all("row", "seat", ttl=600),
        lambda locks: locks.lock("seat"),
    ),
    "several that overlap": (
        lambda locks: locks.all("row", "seat", ttl=600),
        lambda locks: locks.all("desk", "seat"),
    ),
    "a permit under a lock": (
        lambda locks: locks.lock("seat", ttl=600),
        lambda locks: locks.semaphore("seat", 2),
    ),
}
each_pair = in_ways(
    "pair",
    PAIRS,
    needs={"a reader that writes": "shared", "a writer that reads": "shared", "a permit under a lock": "limits"},
)


class NoWaitingForOneself(Promise, about="engine"):
    @each_pair
    async def test_waiting_without_limit_for_what_one_holds_is_an_error_at_once(
        self, stage: Stage, pair: tuple[Ask, Ask]
    ) -> None:
        locks, (hold, ask) = stage.locks(), pair
        async with hold(locks) as lease:
            with pytest.raises(SelfDeadlock, match="'seat' is held by the `with` block around") as refused:
                await ask(locks).acquire()
            with pytest.raises(SelfDeadlock):
                await ask(locks).acquire(timeout=-1)
            assert lease.held
        error = refused.value
        assert isinstance(error, LockError)
        assert isinstance(error, RuntimeError)
        assert error.name == "seat"
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (SelfDeadlock, str(error), vars(error))

    @each_pair
    async def test_a_body_that_would_wait_for_itself_never_runs_and_leaves_nothing(
        self, stage: Stage, pair: tuple[Ask, Ask]
    ) -> None:
        locks, (hold, ask) = stage.locks(), pair
        async with hold(locks) as lease:
            with pytest.raises(SelfDeadlock):
                async with ask(locks):
                    pytest.fail("the body ran without the lock")
            assert lease.held
            assert (await stage.info("seat")).waiters == 0
            assert await stage.is_free("desk")
        for name in ("desk", "row", "seat"):
            assert await stage.is_free(name)

    async def test_a_call_that_the_body_makes_is_part_of_it(self, stage: Stage) -> None:
        locks = stage.locks()

        async def help_out() -> None:
            await locks.lock("seat").take()

        async with locks.lock("seat"):
            with pytest.raises(SelfDeadlock, match=r"in .*test_a_call_that_the_body_makes"):
                await help_out()

    async def test_what_the_body_has_released_is_waited_for(self, stage: Stage) -> None:
        locks = stage.locks()
        async with locks.lock("seat") as lease:
            await lease.release()
            other = await stage.locks().lock("seat", ttl=600).take()
            waiter = stage.start(locks.lock("seat").take())
            await stage.queue("seat", 1)
            await other.release()
            assert (await waiter.result()).held

    @each_pair
    async def test_what_one_holds_outside_of_a_with_is_waited_for(self, stage: Stage, pair: tuple[Ask, Ask]) -> None:
        """Another one may release it: a thread of a pool serves many, and a lease is often handed on."""
        locks, (hold, ask) = stage.locks(), pair
        held: list[AwaitedLease] = []

        async def work() -> AwaitedLease:
            held.append(await hold(locks).take())
            return await ask(locks).take()

        worker = stage.start(work())
        await stage.queue("seat", 1)
        await held[0].release()
        assert (await worker.result()).held

    @each_pair
    async def test_a_with_that_stands_still_in_a_generator_is_waited_for(
        self, stage: Stage, pair: tuple[Ask, Ask]
    ) -> None:
        """Another one may go on with the generator: so do frameworks whose dependencies are generators."""
        locks, (hold, ask) = stage.locks(), pair

        async def dependency() -> AsyncIterator[None]:
            async with hold(locks):
                yield

        held = dependency()

        async def work() -> AwaitedLease:
            await anext(held)
            return await ask(locks).take()

        worker = stage.start(work())
        await stage.queue("seat", 1)
        with pytest.raises(StopAsyncIteration):
            await anext(held)
        assert (await worker.result()).held

    @each_pair
    async def test_a_try_for_what_one_holds_is_refused_as_ever(self, stage: Stage, pair: tuple[Ask, Ask]) -> None:
        locks, (hold, ask) = stage.locks(), pair
        async with hold(locks) as lease:
            assert await ask(locks).acquire(blocking=False) is None
            assert await ask(locks).acquire(timeout=0) is None
            assert lease.held

    @each_pair
    async def test_a_bounded_wait_for_what_one_holds_ends_in_time_as_ever(
        self, stage: Stage, pair: tuple[Ask, Ask]
    ) -> None:
        locks, (hold, ask) = stage.locks(), pair

        async def work() -> object:
            async with hold(locks):
                return await ask(locks).acquire(timeout=3)

        worker = stage.start(work())
        await stage.queue("seat", 1)
        assert await stage.sleep_through(worker) == pytest.approx(3)
        assert await worker.result() is None
        assert (await stage.info("seat")).waiters == 0

    async def test_a_bounded_wait_of_a_body_for_what_one_holds_times_out_as_ever(self, stage: Stage) -> None:
        locks = stage.locks()

        async def work() -> None:
            async with locks.lock("seat", ttl=600), locks.lock("seat", wait=3):
                pytest.fail("the body ran without the lock")

        worker = stage.start(work())
        await stage.queue("seat", 1)
        await stage.sleep_through(worker)
        with pytest.raises(AcquireTimeout, match="after 3s"):
            await worker.result()
        assert await stage.is_free("seat")

    @each_pair
    async def test_another_task_or_thread_waits_as_ever(self, stage: Stage, pair: tuple[Ask, Ask]) -> None:
        locks, (hold, ask) = stage.locks(), pair
        async with hold(locks):
            waiter = stage.start(ask(locks).take())
            await stage.until(lambda: locks.faults.waiting == 1)
            await stage.breathe()
            assert not waiter.done
        assert (await waiter.result()).held

    @each_pair
    async def test_after_the_release_it_is_free_to_ask_again(self, stage: Stage, pair: tuple[Ask, Ask]) -> None:
        locks, (hold, ask) = stage.locks(), pair
        await (await hold(locks).take()).release()
        assert (await ask(locks).take()).held

    async def test_a_reentrant_lock_is_entered_again(self, stage: Stage) -> None:
        lock = stage.locks().lock("seat", reentrant=True)
        async with lock as outer, lock as inner:
            assert outer.fence == inner.fence
        assert await stage.is_free("seat")

    async def test_what_was_lost_is_not_waited_for_as_one_s_own(self, stage: Stage) -> None:
        locks = stage.locks()
        steps: list[str] = []

        async def work() -> int:
            lease = await locks.lock("seat", ttl=10, renew=False).take()
            steps.append("held")
            await stage.until(lambda: "taken" in steps)
            assert lease.lost
            later: int = (await locks.lock("seat").take()).fence
            return later

        worker = stage.start(work())
        await stage.until(lambda: steps)
        stage.clock.advance(10)
        following = await stage.locks().lock("seat", ttl=600).take()
        steps.append("taken")
        await stage.queue("seat", 1)
        await following.release()
        assert await worker.result() > following.fence

    async def test_what_was_lost_and_is_free_is_granted(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("seat", ttl=10, renew=False).take()
        stage.clock.advance(10)
        assert (await locks.lock("seat").take()).fence > lease.fence

    @needs("shared")
    async def test_a_reader_may_read_again(self, stage: Stage) -> None:
        rwlock = stage.locks().rwlock("seat")
        first, second = await rwlock.read().take(), await rwlock.read().take()
        assert first.held
        assert second.held

    @needs("shared")
    async def test_a_reader_that_would_wait_behind_a_writer_that_waits_for_it_is_an_error(self, stage: Stage) -> None:
        rwlock = stage.locks().rwlock("seat", ttl=600)
        async with rwlock.read():
            writer = stage.start(stage.locks().rwlock("seat").write().take())
            await stage.queue("seat", 1)
            with pytest.raises(SelfDeadlock):
                await rwlock.read().acquire()
            await stage.queue("seat", 1)
            assert not writer.done
        assert (await writer.result()).held

    @needs("shared")
    async def test_a_downgraded_writer_may_read_again_and_not_write(self, stage: Stage) -> None:
        rwlock = stage.locks().rwlock("seat")
        async with rwlock.write() as lease:
            await lease.downgrade()
            await rwlock.read().take()
            with pytest.raises(SelfDeadlock):
                await rwlock.write().acquire()

    @needs("limits")
    async def test_a_holder_of_every_permit_may_wait_for_one_that_another_thread_gives_back(self, stage: Stage) -> None:
        """A permit is often taken by one and given back by another, who does the work."""
        pool = stage.locks().semaphore("seat", 2, ttl=600)
        permits: list[AwaitedLease] = []

        async def hand_out() -> None:
            for _ in range(3):
                permits.append(await pool.take())

        dispatcher = stage.start(hand_out())
        await stage.queue("seat", 1)
        await permits[0].release()
        await dispatcher.result()
        assert [permit.held for permit in permits] == [False, True, True]

    async def test_several_names_of_which_one_is_held_are_refused_before_the_others_are_waited_for(
        self, stage: Stage
    ) -> None:
        locks = stage.locks()
        await stage.locks().lock("row").take()
        async with locks.lock("seat"):
            with pytest.raises(SelfDeadlock):
                await locks.all("row", "seat").acquire()
            assert (await stage.info("row")).waiters == 0

    async def test_other_names_are_no_matter(self, stage: Stage) -> None:
        locks = stage.locks()
        async with locks.lock("seat"), locks.lock("row") as other:
            assert other.held
