"""Processes that die, stop, fork and end while they hold or wait."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import lockfast
from lockfast._model import poll_after
from lockfast.backends.postgres_table.schema import LISTENER
from lockfast.testing.history import Hold, judge
from tests.adversity.actor import Actor
from tests.polling import HOUR
from tests.scale import by_scale
from tests.servers.postgres_tables import table
from tests.servers.quorum import quorum
from tests.servers.shared import valkey
from tests.servers.waiting import until

pytestmark = pytest.mark.slow

Start = Callable[..., Actor]
Waiting = Callable[[str, int], None]
Queued = Callable[[str, int], None]

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder / 'locks.db'}",
    "redis": lambda folder: valkey().url(folder),
    "redlock": lambda folder: quorum(3).url(folder),
    "postgres": lambda folder: table().url(folder),
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](tmp_path)


def test_the_lock_of_a_killed_holder_is_free_after_its_ttl(start: Start, queued: Queued) -> None:
    holder, waiter = start(), start()
    first = holder.ask("acquire", name="x", ttl=1)
    waiter.send("acquire", name="x")
    queued("x", first["fence"])
    holder.signal(signal.SIGKILL)
    assert waiter.expect()["fence"] > first["fence"]


def until_listeners_are(number: int, url: str) -> None:
    """PostgreSQL learns that a process was killed when it reads the end of its connection; the others know at once."""
    if url.startswith("postgresql"):
        ours = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        query = f"SELECT count(*) FROM pg_locks WHERE {ours} AND classid = {LISTENER}"
        with psycopg.connect(url, autocommit=True) as connection:
            until(lambda: connection.execute(query.encode()).fetchone() == (number,))


def test_killed_waiters_hold_up_nobody(start: Start, waiting: Waiting, url: str) -> None:
    holder, *dead, next_one = (start() for _ in range(5))
    holder.ask("acquire", name="x", ttl=HOUR)
    next_one.ask("never_poll")
    for number, actor in enumerate((*dead, next_one), 1):
        actor.send("acquire", name="x")
        waiting("x", number)
    for actor in dead:
        actor.signal(signal.SIGKILL)
        actor.process.wait()
    until_listeners_are(1, url)
    holder.ask("release")
    assert next_one.expect()["fence"], "it was woken, past all of them"


def test_a_lock_that_only_dead_waiters_wait_for_is_granted(
    start: Start, waiting: Waiting, locks: lockfast.Locks, url: str
) -> None:
    holder, *dead = (start() for _ in range(4))
    holder.ask("acquire", name="x", ttl=HOUR)
    for number, actor in enumerate(dead, 1):
        actor.send("acquire", name="x")
        waiting("x", number)
    for actor in dead:
        actor.signal(signal.SIGKILL)
        actor.process.wait()
    until_listeners_are(0, url)
    holder.ask("release")
    lease = locks.lock("x").acquire(blocking=False)
    assert lease is not None
    assert lease.release()


def test_a_waiter_killed_when_it_is_its_turn_delays_the_next_by_its_ttl_at_most(start: Start, waiting: Waiting) -> None:
    holder, killed, next_one = start(), start(), start()
    first = holder.ask("acquire", name="x", ttl=HOUR)
    for number, (actor, ttl) in enumerate(((killed, 2), (next_one, HOUR)), 1):
        actor.send("acquire", name="x", ttl=ttl)
        waiting("x", number)
    killed.signal(signal.SIGSTOP)
    holder.ask("release")
    killed.signal(signal.SIGKILL)
    assert next_one.expect()["fence"] > first["fence"]


def test_a_stopped_waiter_is_passed_over_and_served_when_it_goes_on(start: Start, waiting: Waiting) -> None:
    holder, stopped, next_one = start(), start(), start()
    first = holder.ask("acquire", name="x", ttl=HOUR)
    for number, (actor, ttl) in enumerate(((stopped, 2), (next_one, HOUR)), 1):
        actor.send("acquire", name="x", ttl=ttl)
        waiting("x", number)
    stopped.signal(signal.SIGSTOP)
    holder.ask("release")
    second = next_one.expect()
    assert second["fence"] > first["fence"], "while the other stood still"
    stopped.signal(signal.SIGCONT)
    next_one.ask("release")
    assert stopped.expect()["fence"] > second["fence"]


def test_a_holder_stopped_past_its_ttl_learns_that_it_lost(start: Start, queued: Queued) -> None:
    holder, waiter = start(), start()
    first = holder.ask("acquire", name="x", ttl=1)
    waiter.send("acquire", name="x", ttl=60)
    queued("x", first["fence"])
    holder.signal(signal.SIGSTOP)
    second = waiter.expect()
    holder.signal(signal.SIGCONT)
    assert holder.ask("state").items() >= {"held": False, "lost": True, "check": "LeaseLost"}.items()
    until(
        lambda: holder.ask("state")["reported"] == 1,
        "on_lost, which is called by the thread that noticed first, in its own time",
    )
    assert holder.ask("release")["released"] is False
    assert waiter.ask("state")["held"] is True
    (now,) = waiter.ask("inspect", name="x")["holders"]
    assert now["fence"] == second["fence"]


def test_a_fork_neither_holds_nor_ends_its_parents_lease(start: Start) -> None:
    parent = start()
    parent.ask("acquire", name="x", ttl=60)
    child = parent.ask("fork")
    assert (child["held"], child["lost"], child["check"]) == (False, False, "NotHeld")
    assert child["released"] is False
    assert str(parent.pid) not in child["own_holder"]
    assert child["own_holder"] == child["holder"]
    assert parent.ask("state")["held"] is True
    (holder,) = parent.ask("inspect", name="x")["holders"]
    assert str(parent.pid) in holder["holder"]


def test_a_parent_goes_on_renewing_after_a_fork(start: Start, locks: lockfast.Locks) -> None:
    parent = start()
    parent.ask("acquire", name="x", ttl=60)
    parent.ask("fork")
    first = locks.inspect("x").holders[0].expires_at
    parent.ask("renew")
    assert locks.inspect("x").holders[0].expires_at > first
    assert parent.ask("state")["held"] is True


def test_a_process_that_ends_releases_what_it_holds(start: Start, waiting: Waiting) -> None:
    holder, waiter = start(), start()
    holder.ask("acquire", name="x", ttl=60)
    waiter.send("acquire", name="x")
    waiting("x", 1)
    assert holder.end() == 0
    assert waiter.expect()["fence"]


def test_an_asyncio_program_that_ends_releases_what_it_holds(start: Start, locks: lockfast.Locks) -> None:
    program = start("async")
    assert locks.inspect("forgotten").locked
    assert program.end() == 0
    assert not locks.inspect("forgotten").locked


def test_a_waiter_costs_no_cpu_while_it_waits(start: Start, waiting: Waiting, locks: lockfast.Locks) -> None:
    """It sleeps between its polls, which are few; `python -m bench --only waiting` measures what they cost."""
    lease = locks.lock("x", ttl=HOUR).acquire()
    waiter = start()
    before = waiter.ask("acquire", name="another")
    waiter.ask("release")
    waited = waiter.ask("acquire", name="x", wait=1.5)
    assert waited["fence"] is None
    assert lease is not None
    assert waited["at"] >= before["at"] + 1.5
    assert waited["asked"] - before["asked"] <= 2 + 1.5 / poll_after(0)


def test_a_holder_whose_interpreter_stands_still_past_its_ttl_knows_that_it_lost(start: Start, queued: Queued) -> None:
    holder, waiter = start(), start()
    first = holder.ask("acquire", name="x", ttl=0.4)
    waiter.send("acquire", name="x")
    queued("x", first["fence"])
    stalled = holder.ask("stall", seconds=0.8)
    assert (stalled["held"], stalled["lost"], stalled["check"]) == (False, True, "LeaseLost")
    assert waiter.expect()["fence"]


def test_eight_processes_lose_no_increment(start: Start, tmp_path: Path, url: str) -> None:
    workers, times = 8, by_scale(20, soak=400)
    counter = tmp_path / "counter"
    counter.write_text("0")
    actors = [start() for _ in range(workers)]
    for actor in actors:
        actor.send("increment", name="counter", path=str(counter), times=times)
    holds = [
        Hold("counter", str(actor.pid), fence, begin, end)
        for actor in actors
        for fence, begin, end in actor.expect()["holds"]
    ]
    assert len(holds) == workers * times
    assert judge(holds) == []
    assert int(counter.read_text()) == workers * times
