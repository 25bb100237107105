"""The manager by name: the manager is the holder, not its callers, in every world and on every backend."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lockfast
from lockfast import AcquireTimeout, BackendUnavailable, LeaseLost, LockInfo, LockResult
from lockfast.testing.awaited import AwaitedLock
from lockfast.testing.contract import Promise, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage
from tests.contract.backends import BACKENDS
from tests.contract.suites import at_scale, classes
from tests.primitives.managed import AwaitedManager, settled
from tests.servers.waiting import LIMIT_S


class Manager(Promise, about="engine"):
    # Acquire here, release there

    async def test_a_lock_is_acquired_in_one_place_and_released_in_another(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        result = await manager.acquire("order:42:process")
        assert result
        assert result.acquired
        assert result.error is None
        assert await stage.start(manager.release("order:42:process")).result() is True  # by another thread or task
        assert await stage.is_free("order:42:process")
        assert await manager.release("order:42:process") is False
        assert manager.raw._logic._held == {}

    @needs("metadata")
    async def test_the_result_says_what_was_acquired(self, stage: Stage) -> None:
        manager = AwaitedManager(stage, holder="worker-7")
        result = await manager.acquire("shop", 20, metadata={"step": 1})
        assert result.lock is not None
        [holder] = result.lock.holders
        assert (result.lock.name, result.lock.locked, result.lock.waiters) == ("shop", True, 0)
        assert (holder.holder, holder.metadata, holder.mode) == ("worker-7", {"step": 1}, "exclusive")
        assert result.fence == holder.fence
        assert await stage.fences("shop") == [result.fence]
        assert (await stage.info("shop")).holders[0].claim_id == holder.claim_id

    @needs("metadata")
    async def test_the_result_of_a_refusal_says_who_holds_it(self, stage: Stage) -> None:
        await AwaitedManager(stage, holder="first").acquire("shop", metadata="why")
        result = await AwaitedManager(stage, holder="second").acquire("shop")
        assert not result
        assert result.fence is None
        assert result.error == "lock 'shop' is held by 'first'"
        assert isinstance(result.lock, LockInfo)
        assert [(holder.holder, holder.metadata) for holder in result.lock.holders] == [("first", "why")]

    @needs("metadata")
    @pytest.mark.parametrize("acquired", [True, False])
    async def test_the_result_has_the_columns_of_a_lock_table(self, stage: Stage, acquired: bool) -> None:
        first = await AwaitedManager(stage, holder="first").acquire("shop", 20, metadata={"step": 1})
        row = (first if acquired else await AwaitedManager(stage).acquire("shop")).lock
        assert row is not None
        assert (row.lock_name, row.holder_id, row.metadata) == ("shop", "first", {"step": 1})
        assert (row.acquired_at, row.expires_at) == (row.holders[0].acquired_at, row.holders[0].expires_at)

    async def test_every_method_takes_the_name_as_lock_name(self, stage: Stage) -> None:
        manager = AwaitedManager(stage).raw

        async def work() -> str:
            return "done"

        assert await settled(manager.acquire(lock_name="shop"))
        assert await settled(manager.extend(lock_name="shop", seconds=60)) is True
        assert await settled(manager.release(lock_name="shop")) is True
        async with AwaitedLock(manager.lock(lock_name="shop")) as lease:
            assert lease.name == "shop"
        fn = (lambda: "done") if isinstance(manager, lockfast.DistributedLock) else work
        assert await settled(manager.with_lock(lock_name="shop", fn=fn)) == "done"

    async def test_every_instance_has_a_holder_id_of_its_own(self, stage: Stage) -> None:
        first, second = AwaitedManager(stage), AwaitedManager(stage)
        assert first.holder_id != second.holder_id
        await first.acquire("shop")
        assert (await stage.info("shop")).holders[0].holder == first.holder_id
        assert not await second.acquire("shop")
        assert await second.release("shop") is False
        assert await second.extend("shop", 60) is False
        assert (await stage.info("shop")).locked

    # How long it lasts

    async def test_what_is_acquired_ends_after_its_time_and_is_not_renewed(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        await manager.acquire("shop", 30)
        await stage.asleep()
        await stage.pass_time(30)
        other = await AwaitedManager(stage).acquire("shop")
        assert other
        assert await manager.extend("shop", 30) is False
        assert await manager.release("shop") is False
        assert await stage.fences("shop") == [other.fence]

    async def test_acquiring_what_it_holds_extends_it_from_now(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        first = await manager.acquire("shop", 30)
        stage.clock.advance(20)
        again = await stage.start(manager.acquire("shop", 30)).result()  # by another caller
        assert again
        assert again.fence == first.fence
        stage.clock.advance(29)
        assert not await AwaitedManager(stage).acquire("shop")
        assert await manager.release("shop") is True  # one release ends it, however often it was acquired
        assert await stage.is_free("shop")

    async def test_what_was_lost_meanwhile_is_asked_for_afresh(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        first = await manager.acquire("shop", 30)
        await stage.observer.break_lock("shop")
        again = await manager.acquire("shop", 30)
        assert again
        assert first.fence is not None
        assert again.fence is not None
        assert again.fence > first.fence
        await stage.observer.break_lock("shop")
        other = await AwaitedManager(stage, holder="other").acquire("shop")
        refused = await manager.acquire("shop", 30)
        assert (refused.acquired, refused.error) == (False, "lock 'shop' is held by 'other'")
        assert await stage.fences("shop") == [other.fence]

    async def test_extending_holds_it_longer(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        await manager.acquire("shop", 10)
        assert await manager.extend("shop", 60) is True
        stage.clock.advance(59)
        assert not await AwaitedManager(stage).acquire("shop")
        stage.clock.advance(1)
        assert await manager.extend("shop", 60) is False
        assert await AwaitedManager(stage).acquire("shop")

    async def test_the_manager_forgets_leases_that_have_ended(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        for number in range(300):
            assert await manager.acquire(f"job:{number}", 1)
            stage.clock.advance(1)
        assert len(manager.raw._logic._held) < 100

    # Waiting

    async def test_blocking_waits_until_it_is_free(self, stage: Stage) -> None:
        first, second = AwaitedManager(stage), AwaitedManager(stage)
        await first.acquire("shop")
        waiting = stage.start(second.acquire("shop", blocking=True))
        await stage.queue("shop", 1)
        assert await first.release("shop")
        result = await waiting.result()
        assert result
        assert await stage.fences("shop") == [result.fence]

    async def test_blocking_gives_up_after_its_time(self, stage: Stage) -> None:
        first, second = AwaitedManager(stage, holder="first"), AwaitedManager(stage)
        await first.acquire("shop", 60)
        waiting = stage.start(second.acquire("shop", blocking=True, blocking_timeout_seconds=10))
        await stage.queue("shop", 1)
        assert await stage.sleep_through(waiting) == pytest.approx(10)
        result = await waiting.result()
        assert (result.acquired, result.error) == (False, "lock 'shop' is still held by 'first' after 10s")
        assert (await stage.info("shop")).waiters == 0

    async def test_blocking_without_a_limit_waits_for_as_long_as_it_takes(self, stage: Stage) -> None:
        first, second = AwaitedManager(stage), AwaitedManager(stage)
        await first.acquire("shop", 3600)
        waiting = stage.start(second.acquire("shop", blocking=True, blocking_timeout_seconds=None))
        await stage.queue("shop", 1)
        await stage.pass_time(100)
        assert not waiting.done
        await first.release("shop")
        assert await waiting.result()

    async def test_all_callers_of_one_manager_that_wait_get_what_the_first_gets(self, stage: Stage) -> None:
        first, second = AwaitedManager(stage), AwaitedManager(stage)
        await first.acquire("shop")
        waiting = [stage.start(second.acquire("shop", blocking=True)) for _ in range(4)]
        await stage.queue("shop", 1)  # one waiter stands in the queue for all
        assert not await second.acquire("shop")  # and a caller that only tries gets its answer at once
        await first.release("shop")
        results = [await each.result() for each in waiting]
        assert all(results)
        assert {result.fence for result in results} == set(await stage.fences("shop"))
        assert await stage.start(second.release("shop")).result()
        assert await stage.is_free("shop")

    async def test_a_caller_gives_up_in_its_own_time_while_another_waits_longer(self, stage: Stage) -> None:
        first, second = AwaitedManager(stage), AwaitedManager(stage)
        await first.acquire("shop", 600)
        patient = stage.start(second.acquire("shop", blocking=True, blocking_timeout_seconds=60))
        await stage.queue("shop", 1)
        hasty = stage.start(second.acquire("shop", blocking=True, blocking_timeout_seconds=5))
        await stage.until(lambda: len(second.raw._logic._turns._queues.get(("waiting for", "shop"), ())) == 2)
        await stage.asleep(1)
        assert await stage.sleep_through(hasty, at_most=10) == pytest.approx(5)
        assert not await hasty.result()
        assert not patient.done
        await first.release("shop")
        assert await patient.result()

    async def test_callers_of_one_manager_that_ask_at_once_all_have_it(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        results = [await actor.result() for actor in [stage.start(manager.acquire("shop")) for _ in range(5)]]
        assert all(results)
        assert {result.fence for result in results} == set(await stage.fences("shop"))

    async def test_a_caller_that_tries_while_another_asks_waits_for_that_answer(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        manager.faults.hang_reply("acquire")
        first = stage.start(manager.acquire("shop"))
        await stage.until(lambda: manager.faults.hanging == 1)
        second = stage.start(manager.acquire("shop"))
        await stage.until(lambda: len(manager.raw._logic._turns._queues["shop"]) == 2)
        manager.faults.resume()
        assert (await first.result()).fence == (await second.result()).fence is not None

    @needs("cancellation")
    async def test_a_cancelled_caller_leaves_its_turn_to_the_next(self, stage: Stage) -> None:
        first, second = AwaitedManager(stage), AwaitedManager(stage)
        await first.acquire("shop")
        waiting = [stage.start(second.acquire("shop", blocking=True)) for _ in range(3)]
        await stage.queue("shop", 1)
        await stage.until(lambda: len(second.raw._logic._turns._queues["waiting for", "shop"]) == 3)
        for cancelled in waiting[:2]:  # the one in the queue, and the one whose turn comes then
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled.result()
        await stage.queue("shop", 1)
        await first.release("shop")
        assert await waiting[2].result()
        assert second.raw._logic._turns._queues == {}

    @needs("asyncio")
    async def test_a_turn_that_comes_to_one_who_is_being_cancelled_goes_on_to_the_next(self, stage: Stage) -> None:
        turns = AwaitedManager(stage).raw._logic._turns
        over = asyncio.Event()
        having = asyncio.ensure_future(turns.run("shop", over.wait, None))
        waiting = [asyncio.ensure_future(turns.run("shop", over.wait, None)) for _ in range(2)]
        await stage.until(lambda: len(turns._queues.get("shop", ())) == 3)
        turns._leave("shop", turns._queues["shop"][0])  # to the first that waits, which does not know it yet when …
        waiting[0].cancel()
        await stage.until(lambda: len(turns._queues["shop"]) == 1)
        over.set()
        assert await asyncio.wait_for(waiting[1], LIMIT_S) is True
        assert await asyncio.wait_for(having, LIMIT_S) is True
        assert turns._queues == {}

    # Blocks

    async def test_a_block_is_renewed_and_released(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        async with manager.lock("shop", timeout_seconds=30) as lease:
            await stage.asleep()
            await stage.pass_time(300)
            assert lease.held
            assert await stage.fences("shop") == [lease.fence]
        assert await stage.is_free("shop")

    async def test_a_block_never_runs_without_the_lock(self, stage: Stage) -> None:
        await AwaitedManager(stage, holder="first").acquire("shop")
        with pytest.raises(AcquireTimeout, match="is held by 'first'"):
            async with AwaitedManager(stage).lock("shop", blocking=False):
                pytest.fail("the block ran")

    async def test_a_block_is_apart_from_what_its_manager_acquires(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        async with manager.lock("shop") as lease:
            refused = await manager.acquire("shop")
            assert not refused
            assert refused.error == f"lock 'shop' is held by {manager.holder_id!r}"
            assert await manager.release("shop") is False
            assert await manager.extend("shop", 60) is False
            assert await manager.release_all() == 0
            assert lease.held
        assert await manager.acquire("shop")
        with pytest.raises(AcquireTimeout):
            async with manager.lock("shop", blocking=False):
                pytest.fail("the block ran")
        assert await manager.release("shop")

    async def test_with_lock_returns_what_the_function_does(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        blocking = manager.raw._logic.locks.engine.world.blocking

        def work() -> str:
            return "done"

        async def work_later() -> str:
            assert await stage.fences("shop") != []
            return "done"

        assert await manager.with_lock("shop", work if blocking else work_later) == "done"
        assert await stage.is_free("shop")

    async def test_with_lock_releases_after_an_error(self, stage: Stage) -> None:
        def work() -> Any:
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await AwaitedManager(stage).with_lock("shop", work)
        assert await stage.is_free("shop")

    async def test_with_lock_does_not_run_without_the_lock(self, stage: Stage) -> None:
        await AwaitedManager(stage).acquire("shop")
        ran: list[int] = []
        with pytest.raises(AcquireTimeout):
            await AwaitedManager(stage).with_lock("shop", lambda: ran.append(1), blocking=False)
        assert ran == []

    async def test_with_lock_raises_on_a_loss(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        manager.faults.lose_request("renew", ALWAYS)

        def work() -> None:
            stage.clock.advance(31)

        with pytest.raises(LeaseLost):
            await manager.with_lock("shop", work)

    # When the backend does not answer

    async def test_an_unanswered_question_is_not_a_refusal(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        manager.faults.lose_request("acquire", ALWAYS, BackendUnavailable("down", transient=False))
        with pytest.raises(BackendUnavailable):
            await manager.acquire("shop")
        manager.faults.heal()
        assert await manager.acquire("shop")
        manager.faults.lose_request("renew", ALWAYS, BackendUnavailable("down", transient=False))
        with pytest.raises(BackendUnavailable):
            await manager.acquire("shop")
        with pytest.raises(BackendUnavailable):
            await manager.extend("shop", 30)
        manager.faults.heal()
        assert await manager.release("shop") is True

    async def test_a_release_that_went_unanswered_can_be_asked_again(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        for again in (manager.release, manager.acquire):
            await manager.acquire("shop")
            manager.faults.lose_request("release", ALWAYS, BackendUnavailable("down", transient=False))
            with pytest.raises(BackendUnavailable):
                await manager.release("shop")
            manager.faults.heal()
            assert await again("shop")

    # The end

    @needs("breaks_alone")
    async def test_release_all_releases_what_was_acquired_and_counts_it(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        for name in ("a", "b", "c"):
            await manager.acquire(name)
        await stage.observer.break_lock("b")
        assert await manager.release_all() == 2
        assert await manager.release_all() == 0
        for name in ("a", "b", "c"):
            assert await stage.is_free(name)

    @needs("expires")  # else what failed is tried again in the background
    async def test_release_all_tries_each_though_one_fails(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        for name in ("a", "b"):
            await manager.acquire(name)
        manager.faults.lose_request("release", 1, BackendUnavailable("down", transient=False))
        with pytest.raises(BackendUnavailable):
            await manager.release_all()
        assert [await stage.is_free(name) for name in ("a", "b")] == [False, True]
        assert await manager.release_all() == 1

    async def test_closing_releases_everything(self, stage: Stage) -> None:
        manager = AwaitedManager(stage)
        await manager.acquire("a")
        await manager.close()
        assert await stage.is_free("a")

    # What makes no sense

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("",), "lock name must not be empty"),
            (("shop", 0), "timeout_seconds must be a positive number of seconds"),
            (("shop", "30"), "timeout_seconds must be seconds"),
            (("shop", 30, True, -1), "blocking_timeout_seconds must be zero or a positive number"),
            (("shop", 30, False, 10, {1, 2}), "metadata must be JSON"),
        ],
    )
    async def test_bad_input_is_refused_in_the_callers_words(
        self, stage: Stage, arguments: tuple[Any, ...], said: str
    ) -> None:
        manager = AwaitedManager(stage)
        with pytest.raises(ValueError, match=said):
            await manager.acquire(*arguments)
        with pytest.raises(ValueError, match="seconds must be"):
            await manager.extend("shop", 0)
        assert manager.faults.calls["acquire"] == 0


for _row in filter(None, map(at_scale, BACKENDS)):
    globals().update(classes(_row, __name__, [Manager]))


def test_a_result_unpacks_and_is_true_if_acquired() -> None:
    acquired, lock, error = LockResult(False, None, "busy")
    assert (acquired, lock, error) == (False, None, "busy")
    assert not LockResult(False)
    assert LockResult(True)
