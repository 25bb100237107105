"""Processes that die, stop, fork and end while they hold or wait."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast._model import GRACE, PATROL
from holdfast.testing.history import Hold, judge
from tests.adversity.actor import Actor

pytestmark = pytest.mark.slow

Start = Callable[..., Actor]
Waiting = Callable[[str, int], None]

SOON = 0.5  # seconds: much less than any timer that could have done it instead


def test_the_lock_of_a_killed_holder_is_free_after_its_ttl(start: Start, waiting: Waiting) -> None:
    holder, waiter = start(), start()
    first = holder.ask("acquire", name="x", ttl=1)
    waiter.tell("acquire", name="x")
    waiting("x", 1)
    holder.signal(signal.SIGKILL)
    second = waiter.expect()
    assert second["fence"] > first["fence"]
    assert second["at"] - first["at"] < 1 + 1 + SOON  # a renewal may have come just before the end


def test_a_killed_waiter_holds_up_nobody(start: Start, waiting: Waiting) -> None:
    holder, dead, next_one = start(), start(), start()
    holder.ask("acquire", name="x")
    for number, actor in enumerate((dead, next_one), 1):
        actor.tell("acquire", name="x")
        waiting("x", number)
    dead.signal(signal.SIGKILL)
    dead.process.wait()
    released = holder.ask("release")
    assert next_one.expect()["at"] - released["at"] < SOON  # its wake-up came back, so nobody waited for it


def test_a_waiter_killed_after_the_lock_was_reserved_for_it_delays_the_next_by_a_grace(
    start: Start, waiting: Waiting
) -> None:
    holder, reserved, next_one = start(), start(), start()
    holder.ask("acquire", name="x")
    for number, actor in enumerate((reserved, next_one), 1):
        actor.tell("acquire", name="x")
        waiting("x", number)
    reserved.signal(signal.SIGSTOP)
    released = holder.ask("release")
    reserved.signal(signal.SIGKILL)
    assert next_one.expect()["at"] - released["at"] < GRACE + PATROL


def test_a_stopped_waiter_is_passed_over_and_served_when_it_goes_on(
    start: Start, waiting: Waiting, locks: holdfast.Locks
) -> None:
    holder, stopped, next_one = start(), start(), start()
    holder.ask("acquire", name="x")
    for number, actor in enumerate((stopped, next_one), 1):
        actor.tell("acquire", name="x")
        waiting("x", number)
    stopped.signal(signal.SIGSTOP)
    released = holder.ask("release")
    second = next_one.expect()
    assert second["at"] - released["at"] < GRACE + PATROL
    stopped.signal(signal.SIGCONT)
    next_one.ask("release")
    assert stopped.expect()["fence"] > second["fence"]


def test_a_holder_stopped_past_its_ttl_learns_that_it_lost(start: Start, waiting: Waiting) -> None:
    holder, waiter = start(), start()
    holder.ask("acquire", name="x", ttl=1)
    waiter.tell("acquire", name="x")
    waiting("x", 1)
    holder.signal(signal.SIGSTOP)
    second = waiter.expect()
    holder.signal(signal.SIGCONT)
    assert holder.ask("look").items() >= {"held": False, "lost": True, "check": "LeaseLost"}.items()
    while holder.ask("look")["told"] != 1:  # on_lost is called by whoever noticed first, in its own time
        continue
    assert holder.ask("release")["released"] is False
    assert waiter.ask("look")["held"] is True
    (now,) = waiter.ask("inspect", name="x")["holders"]
    assert now["fence"] == second["fence"]


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_a_fork_neither_holds_nor_ends_its_parents_lease(start: Start, url: str, kind: str) -> None:
    parent = start(on=url if kind == "sqlite" else "memory://")
    parent.ask("acquire", name="x", ttl=0.5)
    child = parent.ask("fork")
    assert (child["held"], child["lost"], child["check"]) == (False, False, "NotHeld")
    assert child["released"] is False
    assert str(parent.pid) not in child["own_holder"]
    assert child["own_holder"] == child["holder"]
    assert parent.ask("look")["held"] is True
    (holder,) = parent.ask("inspect", name="x")["holders"]
    assert str(parent.pid) in holder["holder"]


def test_a_parent_goes_on_renewing_after_a_fork(start: Start, locks: holdfast.Locks) -> None:
    parent = start()
    parent.ask("acquire", name="x", ttl=0.6)
    parent.ask("fork")
    first = locks.inspect("x").holders[0].expires_at
    while locks.inspect("x").holders[0].expires_at < first + 1.2:  # two whole ttls later
        pass
    assert parent.ask("look")["held"] is True


def test_a_process_that_ends_lets_go_of_what_it_holds(start: Start, waiting: Waiting) -> None:
    holder, waiter = start(), start()
    holder.ask("acquire", name="x", ttl=60)
    waiter.tell("acquire", name="x")
    waiting("x", 1)
    assert holder.end() == 0
    assert waiter.expect()["fence"]


def test_an_asyncio_program_that_ends_lets_go_of_what_it_holds(start: Start, locks: holdfast.Locks) -> None:
    program = start("async")
    assert locks.inspect("forgotten").locked
    assert program.end() == 0
    assert not locks.inspect("forgotten").locked


def test_a_waiter_costs_no_cpu_while_it_waits(start: Start, waiting: Waiting, locks: holdfast.Locks) -> None:
    lease = locks.lock("x", ttl=30).acquire()
    waiter = start()
    before = waiter.ask("acquire", name="another")
    waiter.ask("release")
    waited = waiter.ask("acquire", name="x", wait=3)
    assert waited["fence"] is None
    assert lease is not None
    assert waited["at"] - before["at"] >= 3
    assert waited["cpu"] - before["cpu"] < 0.03  # one in a hundred of the time, the start included


def test_a_holder_whose_log_was_deleted_under_it_stops_believing(start: Start, tmp_path: Path) -> None:
    holder, other = start(), start()
    holder.ask("acquire", name="x", ttl=1.5)
    for ending in ("-wal", "-shm"):
        (tmp_path / f"locks.db{ending}").unlink()
    assert other.ask("acquire", name="x", wait=20)["fence"]
    while holder.ask("look")["held"]:  # until its next renewal at the latest; the test's time limit ends this
        continue


def test_a_holder_whose_interpreter_stands_still_past_its_ttl_knows_that_it_lost(
    start: Start, waiting: Waiting
) -> None:
    holder, waiter = start(), start()
    holder.ask("acquire", name="x", ttl=0.4)
    waiter.tell("acquire", name="x")
    waiting("x", 1)
    stalled = holder.ask("stall", seconds=0.8)  # the last and longest of several stalls, with no time between
    assert (stalled["held"], stalled["lost"], stalled["check"]) == (False, True, "LeaseLost")
    assert waiter.expect()["fence"]


def test_nobody_is_shut_out_of_a_busy_file(start: Start, tmp_path: Path) -> None:
    """Four processes write without a pause; a fifth one gets its turns all the same."""
    busy = [start() for _ in range(4)]
    patient = start()
    for number in range(5):
        (tmp_path / f"counter{number}").write_text("0")
    for number, actor in enumerate(busy):
        actor.tell("increment", name=f"own {number}", path=str(tmp_path / f"counter{number}"), times=2000)
    turns = patient.ask("increment", name="own 4", path=str(tmp_path / "counter4"), times=100)["holds"]
    waits = [later[1] - earlier[2] for earlier, later in itertools.pairwise(turns)]
    assert max(waits) < 1.0
    for actor in busy:
        assert actor.expect()["holds"][-1][2] > turns[-1][2], "they were busy all the time"


@pytest.mark.timeout(180)
def test_eight_processes_lose_no_increment(start: Start, tmp_path: Path) -> None:
    workers, times = 8, 2000
    counter = tmp_path / "counter"
    counter.write_text("0")
    actors = [start() for _ in range(workers)]
    for actor in actors:
        actor.tell("increment", name="counter", path=str(counter), times=times)
    holds = [
        Hold("counter", str(actor.pid), fence, begin, end)
        for actor in actors
        for fence, begin, end in actor.expect()["holds"]
    ]
    assert len(holds) == workers * times
    assert judge(holds) == []
    assert int(counter.read_text()) == workers * times
