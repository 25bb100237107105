"""Several names as one lock: lost together, and released together however it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockfast.errors import BackendUnavailable, LeaseLost
from lockfast.testing.awaited import AwaitedLock
from lockfast.testing.contract.s07_several_names import all_free, body, lose, until_free
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage


class SeveralNamesEnd(Promise, about="engine"):
    # Lost together

    @needs("breaks_alone")
    @pytest.mark.parametrize("broken", ["a", "b", "c"])
    async def test_the_loss_of_one_name_ends_the_others(self, stage: Stage, broken: str) -> None:
        locks = stage.locks()
        lease = await locks.all("a", "b", "c", ttl=30).take()
        await lose(stage, locks, broken)
        await stage.until(lambda: lease.lost, "the loss to be noticed")
        assert not lease.held
        await until_free(stage, "a", "b", "c")
        with pytest.raises(LeaseLost, match=f"'{broken}'"):
            lease.check()
        with pytest.raises(LeaseLost):
            await lease.extend()
        assert await lease.release() is False

    @pytest.mark.parametrize("broken", [("b",), ("a", "b"), ()])
    async def test_on_lost_is_called_once_with_the_lease_over_all_names(
        self, stage: Stage, broken: tuple[str, ...]
    ) -> None:
        reported: list[Any] = []
        locks = stage.locks()
        lease = await locks.all("a", "b", ttl=30, on_lost=reported.append).take()
        await lose(stage, locks, *broken)
        await stage.until(lambda: reported, "the loss to be reported")
        await until_free(stage, "a", "b")
        await stage.breathe()
        assert [lost is lease.raw for lost in reported] == [True]
        assert lease.lost

    @needs("breaks_alone")
    async def test_on_lost_is_called_though_the_others_cannot_be_released_just_now(self, stage: Stage) -> None:
        reported: list[Any] = []
        locks = stage.locks()
        await locks.all("a", "b", ttl=30, on_lost=reported.append).take()
        locks.faults.hang_request("release", ALWAYS)
        await lose(stage, locks, "a")
        await stage.until(lambda: reported, "the loss to be reported")
        assert (await stage.fences("b")) != []
        locks.faults.heal()
        await until_free(stage, "a", "b")

    async def test_on_lost_is_not_called_for_a_release_of_several(self, stage: Stage) -> None:
        reported: list[Any] = []
        async with stage.locks().all("a", "b", ttl=30, on_lost=reported.append):
            pass
        stage.clock.advance(100)
        await stage.breathe()
        assert not reported

    @needs("cancellation")
    @pytest.mark.parametrize("broken", [("b",), ("a", "b"), ()])
    async def test_the_body_over_several_names_is_cancelled_once_and_ends_as_lost(
        self, stage: Stage, broken: tuple[str, ...]
    ) -> None:
        locks, cancelled, cancelling = stage.locks(), list[int](), list[int]()

        async def work() -> None:
            try:
                async with locks.all("a", "b", ttl=30):
                    cancelled.append(0)
                    try:
                        await stage.for_ever()
                    finally:
                        cancelled.append(1)
                        await stage.breathe()  # a second cancellation would fall here
                        cancelled.append(2)
            finally:
                cancelling.append(stage._here().cancelling())

        worker = stage.start(work())
        await stage.until(lambda: cancelled)
        await lose(stage, locks, *broken)
        with pytest.raises(LeaseLost):
            await worker.result()
        assert cancelled == [0, 1, 2]
        assert cancelling == [0]  # the task is as good as before
        await until_free(stage, "a", "b")

    async def test_a_body_over_several_names_learns_on_exit_at_the_latest(self, stage: Stage) -> None:
        async def work() -> None:
            async with stage.locks().all("a", "b"):
                await stage.observer.break_lock("a")

        with pytest.raises(LeaseLost, match="'a'"):
            await work()
        assert await all_free(stage, "a", "b")

    async def test_a_loss_of_one_never_touches_who_comes_next(self, stage: Stage) -> None:
        lease = await stage.locks().all("a", "b", ttl=10, renew=False).take()
        stage.clock.advance(10)
        following = await stage.locks().all("a", "b").take()
        assert await lease.release() is False
        assert [await stage.fences(name) for name in ("a", "b")] == [[following.fence["a"]], [following.fence["b"]]]

    @needs("breaks_alone")
    async def test_a_release_while_a_loss_ends_the_others_spoils_nothing(self, stage: Stage) -> None:
        locks = stage.locks()
        received = stage.record(locks)
        lease = await locks.all("a", "b", ttl=30).take()
        locks.faults.hang_reply("release")  # freed, but the caller does not know yet
        await lose(stage, locks, "a")
        await stage.until(lambda: locks.faults.hanging == 1)
        assert await lease.release() is False
        locks.faults.resume()
        await stage.asleep()
        ends = {("lost", "a"), ("released", "b")}  # a loss is reported in the background
        await stage.until(lambda: {(event.kind, event.name) for event in received} >= ends, "both ends to be reported")
        assert len([event for event in received if event.kind in ("lost", "released")]) == 2

    # Interrupted

    @about("store")
    @needs("cancellation")
    @pytest.mark.parametrize("taken", ["", "a", "b", "c"])
    async def test_several_names_cancelled_at_any_moment_leave_nothing(self, stage: Stage, taken: str) -> None:
        holder = await stage.locks().lock(taken).take() if taken else None
        locks = stage.locks()
        for moment in range(40):
            asker = stage.start(failing(locks.all("a", "b", "c"), ZeroDivisionError()))
            for _ in range(moment):
                await stage.step()
            asker.cancel()
            if moment % 2 == (taken in ("a", "c")):  # so each moment has both ways, with one name taken or another
                await stage.step()
                asker.cancel()
            with pytest.raises((asyncio.CancelledError, ZeroDivisionError)):
                await asker.result()
            if holder is not None:
                assert (await stage.info(taken)).waiters == 0
        if holder is not None:
            assert await holder.release()
        assert await all_free(stage, "a", "b", "c")

    @needs("cancellation")
    async def test_a_second_cancellation_does_not_leave_an_earlier_name_held(self, stage: Stage) -> None:
        holder = await stage.locks().lock("c").take()
        locks = stage.locks()
        asker = stage.start(locks.all("a", "b", "c").acquire())
        await stage.queue("c", 1)
        locks.faults.hang_request("release")
        asker.cancel()
        await stage.until(lambda: locks.faults.hanging == 1)  # one of the earlier ones is being released
        asker.cancel()
        await stage.breathe()
        locks.faults.resume()
        with pytest.raises(asyncio.CancelledError):
            await asker.result()
        assert await all_free(stage, "a", "b")
        assert await stage.fences("c") == [holder.fence]

    @needs("cancellation")
    async def test_release_of_several_on_the_way_out_is_not_cut_short(self, stage: Stage) -> None:
        locks, inside = stage.locks(), list[str]()
        locks.faults.hang_request("release")

        async def work() -> None:
            async with locks.all("a", "b", "c"):
                inside.append("body")
                await stage.for_ever()

        worker = stage.start(work())
        await stage.until(lambda: inside)
        worker.cancel()
        await stage.until(lambda: locks.faults.hanging == 1)
        worker.cancel()  # once more, in the middle of the first release
        await stage.breathe()
        locks.faults.resume()
        with pytest.raises(asyncio.CancelledError):
            await worker.result()
        assert await all_free(stage, "a", "b", "c")

    @about("store")
    @needs("blocking")
    async def test_interrupted_in_the_middle_of_several_names_nothing_is_left(self, stage: Stage) -> None:
        holder = await stage.locks().lock("c").take()
        locks = stage.locks()
        locks.faults.lose_request("wait", 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            await locks.all("a", "b", "c").acquire()
        assert await all_free(stage, "a", "b")
        await holder.release()
        assert await stage.is_free("c")

    @needs("blocking")
    @pytest.mark.parametrize("where", ["request", "reply"])
    async def test_interrupted_while_several_are_released_all_are(self, stage: Stage, where: str) -> None:
        locks = stage.locks()
        lose = locks.faults.lose_request if where == "request" else locks.faults.lose_reply
        lose("release", 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            await body(locks.all("a", "b", "c"), [])
        assert await all_free(stage, "a", "b", "c")

    # The body's own exception

    @pytest.mark.parametrize("error", [ValueError("body"), KeyboardInterrupt("body"), TimeoutError("body")])
    async def test_the_exception_of_a_body_over_several_names_comes_out_as_it_is(
        self, stage: Stage, error: BaseException
    ) -> None:
        with pytest.raises(type(error), match="body") as raised:
            await failing(stage.locks().all("a", "b"), error)
        assert raised.value is error
        assert not getattr(error, "__notes__", [])
        assert await all_free(stage, "a", "b")

    async def test_a_loss_of_one_name_never_replaces_the_body_s_exception(self, stage: Stage) -> None:
        error = ValueError("body")

        async def work() -> None:
            async with stage.locks().all("a", "b", ttl=10, renew=False):
                stage.clock.advance(10)
                raise error

        with pytest.raises(ValueError, match="body") as raised:
            await work()
        assert raised.value is error
        assert any("lost" in note for note in error.__notes__)

    async def test_a_failed_release_of_several_never_replaces_the_body_s_exception(self, stage: Stage) -> None:
        locks, error = stage.locks(patience=1), ValueError("body")
        locks.faults.lose_request("release", 2, BackendUnavailable("no release", transient=False))
        with pytest.raises(ValueError, match="body") as raised:
            await failing(locks.all("a", "b"), error)
        assert raised.value is error
        assert any("release" in note for note in error.__notes__)

    async def test_a_failed_release_of_several_does_not_spoil_a_body_that_went_well(self, stage: Stage) -> None:
        locks, ran = stage.locks(patience=1), list[str]()
        locks.faults.lose_request("release", ALWAYS, BackendUnavailable("no release", transient=False))
        await body(locks.all("a", "b", ttl=10), ran)
        assert ran == ["body"]
        stage.clock.advance(10)
        assert await all_free(stage, "a", "b")


async def failing(lock: AwaitedLock, error: BaseException) -> None:
    async with lock:
        raise error
