"""Promise 6: a cancelled or interrupted acquire leaves nothing behind.

Release on the way out is shielded from cancellation, and the body's own exception is never replaced.
"""

from __future__ import annotations

import asyncio

import pytest

from lockfast.errors import BackendUnavailable
from lockfast.testing.awaited import AwaitedLock
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage


class InterruptedLeavesNothing(Promise, about="store"):
    # Acquire

    @needs("cancellation")
    async def test_a_cancelled_waiter_leaves_the_queue(self, stage: Stage) -> None:
        holder = await stage.locks().lock("seat").take()
        waiter = stage.start(stage.locks().lock("seat").acquire())
        await stage.queue("seat", 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter.result()
        assert (await stage.info("seat")).waiters == 0
        await holder.release()
        assert await stage.is_free("seat")

    @needs("cancellation")
    @pytest.mark.parametrize("where", ["request", "reply"])
    async def test_a_cancelled_try_leaves_nothing_held(self, stage: Stage, where: str) -> None:
        locks = stage.locks()
        hang = locks.faults.hang_request if where == "request" else locks.faults.hang_reply
        hang("acquire")
        asker = stage.start(locks.lock("seat").acquire())
        await stage.until(lambda: locks.faults.hanging == 1)
        asker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asker.result()
        assert await stage.is_free("seat")

    @needs("cancellation")
    async def test_a_waiter_cancelled_while_it_is_woken_hands_on_to_the_next(self, stage: Stage) -> None:
        holder = await stage.locks().lock("seat").take()
        unlucky = stage.locks()
        unlucky.faults.hang_reply("wait")
        first = stage.start(unlucky.lock("seat").acquire())
        await stage.queue("seat", 1)
        second = stage.start(stage.locks().lock("seat").take())
        await stage.queue("seat", 2)
        await holder.release()
        await stage.until(lambda: unlucky.faults.hanging == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first.result()
        assert (await second.result()).held  # without waiting for any grace to pass

    @about("engine")
    @needs("asyncio")
    async def test_an_acquire_cut_short_by_asyncio_timeout_leaves_nothing(self, stage: Stage) -> None:
        holder = await stage.locks().lock("seat").take()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await stage.locks().lock("seat").acquire()
        assert (await stage.info("seat")).waiters == 0
        await holder.release()
        assert await stage.is_free("seat")

    @needs("cancellation")
    async def test_a_second_cancellation_does_not_cut_the_clean_up_short(self, stage: Stage) -> None:
        locks = stage.locks()
        locks.faults.hang_reply("acquire")
        locks.faults.hang_request("abandon")
        asker = stage.start(locks.lock("seat").acquire())
        await stage.until(lambda: locks.faults.hanging == 1)
        asker.cancel()
        await stage.until(lambda: locks.faults.calls["abandon"] == 1)
        asker.cancel()
        await stage.breathe()
        assert not asker.done
        locks.faults.resume()
        with pytest.raises(asyncio.CancelledError):
            await asker.result()
        assert await stage.is_free("seat")

    @needs("cancellation")
    @pytest.mark.parametrize("taken", [True, False])
    async def test_acquires_cancelled_at_any_moment_leave_nothing(self, stage: Stage, taken: bool) -> None:
        holder = await stage.locks().lock("seat").take() if taken else None
        locks = stage.locks()
        for moment in range(60):
            asker = stage.start(_failing(locks.lock("seat"), ZeroDivisionError()))
            for _ in range(moment % 12):
                await stage.step()
            asker.cancel()
            with pytest.raises((asyncio.CancelledError, ZeroDivisionError)):
                await asker.result()
        assert (await stage.info("seat")).waiters == 0
        if holder is not None:
            assert await holder.release()
        assert await stage.is_free("seat")

    @needs("blocking")
    @pytest.mark.parametrize("where", ["request", "reply"])
    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
    async def test_an_interrupted_try_leaves_nothing_held(
        self, stage: Stage, where: str, interruption: type[BaseException]
    ) -> None:
        locks = stage.locks()
        lose = locks.faults.lose_request if where == "request" else locks.faults.lose_reply
        lose("acquire", 1, interruption())
        with pytest.raises(interruption):
            await locks.lock("seat").acquire()
        assert await stage.is_free("seat")

    @needs("blocking")
    async def test_an_interrupted_waiter_leaves_the_queue(self, stage: Stage) -> None:
        holder = await stage.locks().lock("seat").take()
        locks = stage.locks()
        locks.faults.lose_request("wait", 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            await locks.lock("seat").acquire()
        assert (await stage.info("seat")).waiters == 0
        await holder.release()
        assert await stage.is_free("seat")

    async def test_a_waiter_that_gave_up_leaves_the_queue(self, stage: Stage) -> None:
        holder = await stage.locks().lock("seat", ttl=60).take()
        quitter = stage.start(stage.locks().lock("seat", wait=3).acquire())
        await stage.queue("seat", 1)
        patient = stage.start(stage.locks().lock("seat").take())
        await stage.queue("seat", 2)
        stage.clock.advance(3)
        assert await quitter.result() is None
        await stage.queue("seat", 1)
        await holder.release()
        assert (await patient.result()).held

    # Release

    @needs("cancellation")
    @pytest.mark.parametrize("where", ["request", "reply"])
    async def test_release_on_the_way_out_is_not_cut_short(self, stage: Stage, where: str) -> None:
        locks, inside = stage.locks(), list[str]()
        hang = locks.faults.hang_request if where == "request" else locks.faults.hang_reply
        hang("release")

        async def work() -> None:
            async with locks.lock("seat"):
                inside.append("body")
                await stage.for_ever()

        worker = stage.start(work())
        await stage.until(lambda: inside)
        worker.cancel()
        await stage.until(lambda: locks.faults.hanging == 1)
        worker.cancel()  # once more, in the middle of the release
        await stage.breathe()
        locks.faults.resume()
        with pytest.raises(asyncio.CancelledError):
            await worker.result()
        assert await stage.is_free("seat")

    @needs("cancellation")
    async def test_a_cancelled_release_is_carried_out(self, stage: Stage) -> None:
        locks = stage.locks()
        lease = await locks.lock("seat").take()
        locks.faults.hang_request("release")
        releaser = stage.start(lease.release())
        await stage.until(lambda: locks.faults.hanging == 1)
        releaser.cancel()
        locks.faults.resume()
        with pytest.raises(asyncio.CancelledError):
            await releaser.result()
        assert await stage.is_free("seat")

    @needs("cancellation")
    async def test_a_cancelled_body_releases_and_the_cancellation_is_not_swallowed(self, stage: Stage) -> None:
        inside: list[str] = []

        async def work() -> None:
            async with stage.locks().lock("seat"):
                inside.append("body")
                await stage.for_ever()

        worker = stage.start(work())
        await stage.until(lambda: inside)
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker.result()
        assert await stage.is_free("seat")

    # The body's own exception

    @about("engine")
    @pytest.mark.parametrize(
        "error", [ValueError("body"), KeyboardInterrupt("body"), StopAsyncIteration("body"), TimeoutError("body")]
    )
    async def test_the_body_s_exception_comes_out_as_it_is(self, stage: Stage, error: BaseException) -> None:
        with pytest.raises(type(error), match="body") as raised:
            await _failing(stage.locks().lock("seat"), error)
        assert raised.value is error
        assert not getattr(error, "__notes__", [])
        assert await stage.is_free("seat")

    @about("engine")
    async def test_a_failed_release_never_replaces_the_body_s_exception(self, stage: Stage) -> None:
        locks, error = stage.locks(patience=1), ValueError("body")
        locks.faults.lose_request("release", ALWAYS)
        with pytest.raises(ValueError, match="body") as raised:
            await stage.finish(_failing(locks.lock("seat"), error))
        assert raised.value is error
        assert any("release" in note for note in error.__notes__)

    @about("engine")
    async def test_a_loss_never_replaces_the_body_s_exception(self, stage: Stage) -> None:
        locks, error = stage.locks(), ValueError("body")

        async def work() -> None:
            async with locks.lock("seat", ttl=10, renew=False) as lease:
                stage.clock.advance(10)
                assert not lease.held
                raise error

        with pytest.raises(ValueError, match="body") as raised:
            await work()
        assert raised.value is error
        assert any("lost" in note for note in error.__notes__)

    @about("engine")
    @needs("expires")
    async def test_a_failed_release_does_not_fail_a_body_that_went_well_and_is_reported(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        received = stage.record(locks)
        locks.faults.lose_request("release", ALWAYS)

        async def work() -> str:
            async with locks.lock("seat", ttl=10):
                return "well"

        assert await stage.finish(work()) == "well"
        assert [event.name for event in received if event.kind == "release_failed"] == ["seat"]
        stage.clock.advance(10)
        assert await stage.is_free("seat")

    @about("engine")
    async def test_a_backend_error_of_any_kind_leaves_nothing_behind(self, stage: Stage) -> None:
        locks = stage.locks(patience=1)
        locks.faults.lose_reply("acquire", 1, BackendUnavailable("the disk is full", transient=False))
        with pytest.raises(BackendUnavailable, match="disk"):
            await locks.lock("seat").acquire()
        assert locks.faults.calls["acquire"] == 1  # trying again could not help
        assert await stage.is_free("seat")


async def _failing(lock: AwaitedLock, error: BaseException) -> None:
    async with lock:
        raise error
