"""`locks.cell`: a write that knows what it is over, and a check of fences.

A write over another version than expected, or with an older fence than the last one seen, changes nothing and says so.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockfast._facades.primitives import AsyncCell
from lockfast._reentry import run_to_end
from lockfast._time import full_jitter
from lockfast.errors import BackendUnavailable, Conflict, LockError, StaleFence
from lockfast.primitives.cell import MAX_VALUE_CHARS
from lockfast.testing.contract.story import Promise, about, needs
from lockfast.testing.faults import ALWAYS
from lockfast.testing.stage import Stage

VALUES: tuple[Any, ...] = (None, True, 0, -1.5, "", "ünïcödé \ud800", [], {}, {"a": [1, {"b": None}]}, 2**70)
NO_VALUES = {"object": object(), "set": {1}, "nan": float("nan"), "bytes": b"", "large": "x" * MAX_VALUE_CHARS}


class OptimisticCells(Promise, about="store", needs=("cell",)):
    # Values and versions

    async def test_a_cell_that_was_never_written_is_nothing_at_version_zero(self, stage: Stage) -> None:
        assert await stage.locks().cell("page").read() == (None, 0)

    async def test_versions_count_the_writes(self, stage: Stage) -> None:
        cell, other = stage.locks().cell("page"), stage.locks().cell("page")
        assert [await cell.write("a"), await other.write("b"), await cell.write("c")] == [1, 2, 3]
        assert await other.read() == ("c", 3)

    @pytest.mark.parametrize("value", VALUES, ids=ascii)
    async def test_any_json_is_a_value_and_null_is_one_too(self, stage: Stage, value: Any) -> None:
        cell = stage.locks().cell("page")
        assert await cell.write(value) == 1
        assert await stage.locks().cell("page").read() == (value, 1)

    @about("engine")
    @pytest.mark.parametrize("value", NO_VALUES.values(), ids=NO_VALUES)
    async def test_what_is_not_json_or_too_large_is_refused_before_anything_is_sent(
        self, stage: Stage, value: Any
    ) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="a cell's value must be"):
            await locks.cell("page").write(value)
        assert not locks.faults.calls

    async def test_the_largest_value_goes_through(self, stage: Stage) -> None:
        cell = stage.locks().cell("page")
        largest = "x" * (MAX_VALUE_CHARS - 2)  # and two quotes
        await cell.write(largest)
        assert (await cell.read()).value == largest

    @about("engine")
    @pytest.mark.parametrize("how", [{"if_version": -1}, {"if_version": "1"}, {"fence": 0}, {"fence": True}], ids=str)
    async def test_a_version_or_fence_that_makes_no_sense_is_refused(self, stage: Stage, how: dict[str, Any]) -> None:
        locks = stage.locks()
        with pytest.raises(ValueError, match="must be a whole number"):
            await locks.cell("page").write("a", **how)
        assert not locks.faults.calls

    @about("engine")
    async def test_a_bad_name_of_a_cell_is_refused(self, stage: Stage) -> None:
        with pytest.raises(ValueError, match="cell name must not be empty"):
            stage.locks().cell("")

    async def test_cells_of_namespaces_are_apart_and_so_are_locks_of_the_same_name(self, stage: Stage) -> None:
        locks, elsewhere = stage.locks(), stage.locks(namespace=f"{stage.namespace}-2")
        await locks.cell("page").write("here")
        await elsewhere.cell("page").write("there")
        await locks.lock("page").take()
        await locks.break_lock("page")
        assert await locks.cell("page").read() == ("here", 1)
        assert await elsewhere.cell("page").read() == ("there", 1)
        assert await locks.list() == []  # a cell is no lock

    @about("engine")
    async def test_the_cell_of_a_closed_locks_says_so(self, stage: Stage) -> None:
        locks = stage.locks()
        cell = locks.cell("page")
        await locks.close()
        for ask in (cell.read, lambda: cell.write(1), cell.delete, lambda: cell.update(str)):
            with pytest.raises(LockError, match="closed"):
                await ask()

    # Writing over what was read

    async def test_a_write_over_the_expected_version_goes_through(self, stage: Stage) -> None:
        cell = stage.locks().cell("page")
        assert await cell.write("a", if_version=0) == 1
        assert await cell.write("b", if_version=1) == 2
        assert await cell.read() == ("b", 2)

    @pytest.mark.parametrize("expected", [0, 1, 3, 7])
    async def test_a_write_over_another_version_is_a_conflict_and_nothing_is_lost(
        self, stage: Stage, expected: int
    ) -> None:
        cell = stage.locks().cell("page")
        await cell.write("a")
        await cell.write("b")
        with pytest.raises(Conflict, match=rf"'page' has version 2, not {expected}; nothing was changed") as raised:
            await cell.write("mine", if_version=expected)
        error = raised.value
        assert (error.name, error.version, error.expected) == ("page", 2, expected)
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (Conflict, str(error), vars(error))
        assert await cell.read() == ("b", 2)

    async def test_of_many_who_write_over_one_version_one_gets_through(self, stage: Stage) -> None:
        await stage.locks().cell("page").write("start")

        async def attempt(number: int) -> str:
            try:
                await stage.locks().cell("page").write(number, if_version=1)
            except Conflict:
                return "conflict"
            return "written"

        actors = [stage.start(attempt(number)) for number in range(5)]
        became = [await actor.result() for actor in actors]
        assert sorted(became) == ["conflict"] * 4 + ["written"]
        assert await stage.locks().cell("page").read() == (became.index("written"), 2)

    # Deleting

    async def test_a_deleted_cell_is_nothing_and_goes_on_above_its_old_versions(self, stage: Stage) -> None:
        cell = stage.locks().cell("page")
        for value in "abc":
            await cell.write(value)
        await cell.delete()
        assert await cell.read() == (None, 0)
        assert await cell.write("d", if_version=0) > 3
        with pytest.raises(Conflict):
            await cell.write("by who has read it before", if_version=3)

    async def test_deleting_over_another_version_is_a_conflict(self, stage: Stage) -> None:
        cell = stage.locks().cell("page")
        await cell.write("a")
        with pytest.raises(Conflict):
            await cell.delete(if_version=2)
        assert await cell.read() == ("a", 1)
        await cell.delete(if_version=1)
        assert await cell.read() == (None, 0)

    async def test_deleting_nothing_is_no_error(self, stage: Stage) -> None:
        cell = stage.locks().cell("page")
        await cell.delete()
        assert await cell.write("a") == 1

    # Updating

    async def test_an_update_writes_what_it_made_of_the_value(self, stage: Stage) -> None:
        cell = stage.locks().cell("count")
        assert await cell.update(lambda value: (value or 0) + 1) == (1, 1)
        assert await cell.update(lambda value: (value or 0) + 1) == (2, 2)
        assert await cell.read() == (2, 2)

    async def test_an_update_that_others_came_before_is_made_anew_from_what_they_wrote(self, stage: Stage) -> None:
        cell, other = stage.locks().cell("count"), stage.locks().cell("count")
        await cell.write(1)
        seen: list[int] = []
        meddle = _meddling(stage, other, seen, times=2)
        assert await stage.finish(cell.update(meddle)) == (12, 4)
        assert seen == [1, 101, 11]
        assert await other.read() == (12, 4)

    @about("engine")
    async def test_updates_pause_longer_after_each_conflict_by_full_jitter(self, stage: Stage) -> None:
        locks, other = stage.locks(), stage.locks().cell("count")
        locks.raw._logic.engine.world.chance = lambda: 0.5  # type: ignore[method-assign]
        before = stage.clock.now()
        meddle = _meddling(stage, other, [], times=4)
        await stage.finish(locks.cell("count").update(meddle))
        assert stage.clock.now() - before == pytest.approx(sum(full_jitter(n, 0.5) for n in (1, 2, 3, 4)))

    @about("engine")
    async def test_an_update_gives_up_with_a_conflict_when_its_time_is_over(self, stage: Stage) -> None:
        cell, other = stage.locks().cell("count"), stage.locks().cell("count")
        before = stage.clock.now()
        seen: list[int] = []
        with pytest.raises(Conflict):
            await stage.finish(cell.update(_meddling(stage, other, seen), wait=0.5))
        assert 0 < stage.clock.now() - before < 0.5
        assert len(seen) > 2  # it did try again
        assert (await other.read()).version == len(seen)

    @about("engine")
    async def test_an_update_that_may_not_wait_tries_once(self, stage: Stage) -> None:
        cell, other = stage.locks().cell("count"), stage.locks().cell("count")
        seen: list[int] = []
        with pytest.raises(Conflict):
            await cell.update(_meddling(stage, other, seen), wait=0)
        assert len(seen) == 1

    @about("engine")
    async def test_an_update_whose_change_fails_writes_nothing(self, stage: Stage) -> None:
        cell = stage.locks().cell("count")
        await cell.write(0)
        with pytest.raises(ZeroDivisionError):
            await cell.update(lambda value: 1 / value)
        assert await cell.read() == (0, 1)

    @about("engine")
    @needs("cancellation")
    async def test_a_change_that_can_be_awaited_is_awaited(self, stage: Stage) -> None:
        async def change(value: int | None) -> int:
            await stage.step()
            return (value or 0) + 1

        assert await stage.locks().cell("count").update(change) == (1, 1)

    async def test_many_clients_increments_are_all_counted(self, stage: Stage) -> None:
        async def work(cell: AsyncCell) -> None:
            for _ in range(8):
                await cell.update(lambda value: (value or 0) + 1)

        workers = [stage.start(work(stage.locks().cell("count"))) for _ in range(4)]

        def done() -> bool:
            at = stage.clock.next_alarm
            if at is not None:
                stage.clock.advance_to(at)
            return all(worker.done for worker in workers)

        await stage.until(done, "the workers to finish")
        assert await stage.locks().cell("count").read() == (32, 32)

    # Fences

    async def test_an_older_fence_is_refused_and_an_equal_or_newer_one_is_not(self, stage: Stage) -> None:
        cell = stage.locks().cell("page")
        await cell.write("a", fence=7)
        await cell.write("b", fence=7)
        await cell.write("c", fence=9)
        with pytest.raises(StaleFence, match=r"'page' was written with fence 9, so fence 8 is out of date") as raised:
            await cell.write("late", fence=8)
        error = raised.value
        assert (error.name, error.fence, error.last) == ("page", 8, 9)
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (StaleFence, str(error), vars(error))
        assert await cell.read() == ("c", 3)

    async def test_the_last_fence_is_remembered_through_writes_without_one(self, stage: Stage) -> None:
        cell = stage.locks().cell("page")
        await cell.write("a", fence=9)
        await cell.write("b")
        await cell.update(str.upper)
        with pytest.raises(StaleFence):
            await cell.write("late", fence=8)
        with pytest.raises(StaleFence):
            await cell.update(str.lower, fence=8)
        with pytest.raises(StaleFence):
            await cell.write("late", fence=8, if_version=3)
        assert await cell.read() == ("B", 3)

    async def test_a_holder_that_lost_its_lock_cannot_write(self, stage: Stage) -> None:
        """The worked example: though it does not know of the loss, and no clock shows it."""
        cell = stage.locks().cell("account")
        stalled = await stage.locks().lock("account", ttl=10, renew=False).take()
        await cell.write(100, fence=stalled.fence)
        stage.clock.advance(10)
        following = await stage.locks().lock("account").take()
        await cell.write(50, fence=following.fence)
        with pytest.raises(StaleFence):
            await cell.write(90, fence=stalled.fence)
        assert await cell.read() == (50, 2)

    # Lost requests and replies

    @pytest.mark.parametrize("lost", ["request", "reply"])
    @pytest.mark.parametrize("how", [{}, {"if_version": 1}, {"fence": 7}], ids=str)
    async def test_a_write_whose_message_was_lost_is_done_once(
        self, stage: Stage, lost: str, how: dict[str, int]
    ) -> None:
        locks = stage.locks()
        await stage.locks().cell("page").write("before")
        lose = locks.faults.lose_reply if lost == "reply" else locks.faults.lose_request
        lose("write", 2)
        lose("read", 1)
        assert await stage.finish(locks.cell("page").write("a", **how)) == 2
        assert await stage.locks().cell("page").read() == ("a", 2)

    @pytest.mark.parametrize("how", [{}, {"if_version": 0}, {"fence": 7}], ids=str)
    async def test_a_write_that_was_overwritten_before_its_reply_came_is_not_done_again(
        self, stage: Stage, how: dict[str, int]
    ) -> None:
        locks, other = stage.locks(), stage.locks().cell("page")
        locks.faults.lose_reply("write")
        writer = stage.start(locks.cell("page").write("a", **how))
        await stage.until(lambda: stage.clock.sleepers == 1)
        assert await other.write("b", if_version=1) == 2
        stage.clock.advance(1)
        with pytest.raises(BackendUnavailable, match="not known whether cell 'page' was written"):
            await writer.result()
        assert await other.read() == ("b", 2)

    async def test_an_update_whose_outcome_is_not_known_is_not_made_again(self, stage: Stage) -> None:
        locks, other = stage.locks(), stage.locks().cell("count")
        locks.faults.lose_reply("write")
        writer = stage.start(locks.cell("count").update(lambda value: (value or 0) + 1))
        await stage.until(lambda: stage.clock.sleepers == 1)
        assert await other.update(lambda value: value + 1) == (2, 2)
        stage.clock.advance(1)
        with pytest.raises(BackendUnavailable):
            await writer.result()
        assert await other.read() == (2, 2)

    async def test_a_delete_whose_reply_was_lost_is_done_and_never_takes_what_came_after(self, stage: Stage) -> None:
        locks, other = stage.locks(), stage.locks().cell("page")
        await other.write("a")
        locks.faults.lose_reply("write")
        await stage.finish(locks.cell("page").delete())
        assert await other.read() == (None, 0)
        version = await other.write("b")
        locks.faults.lose_reply("write")
        deleter = stage.start(locks.cell("page").delete())
        await stage.until(lambda: stage.clock.sleepers == 1)
        assert await other.write("c", if_version=0) > version
        stage.clock.advance(1)
        with pytest.raises(BackendUnavailable, match="not known"):
            await deleter.result()
        assert (await other.read()).value == "c"

    async def test_a_store_that_cannot_be_asked_is_an_error_and_not_an_empty_cell(self, stage: Stage) -> None:
        locks = stage.locks(patience=2)
        locks.faults.lose_request("read", ALWAYS)
        locks.faults.lose_request("write", ALWAYS)
        with pytest.raises(BackendUnavailable):
            await stage.finish(locks.cell("page").read())
        with pytest.raises(BackendUnavailable):
            await stage.finish(locks.cell("page").write("a", if_version=0))


def _meddling(stage: Stage, other: AsyncCell, seen: list[int], times: float = ALWAYS) -> Callable[[Any], Any]:
    """Adds one; but while it does, the first `times` times, another client writes another number."""

    async def change(value: int | None) -> int:
        seen.append(value or 0)
        if len(seen) <= times:
            await other.write(100 * len(seen) + 1 if len(seen) < 2 else 11)
        return (value or 0) + 1

    def change_here(value: int | None) -> int:
        work: Coroutine[Any, Any, int] = change(value)
        return run_to_end(work)

    return change_here if stage.world == "threads" else change
