"""Processes that are stopped, killed or stalled while they hold or wait for an advisory lock, which no time ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import lockfast
from lockfast._time import boot_now
from tests.adversity.actor import Actor
from tests.servers.postgres_shared import advisory
from tests.servers.server import await_stop
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

Start = Callable[..., Actor]
Waiting = Callable[[str, int], None]

LOST = {"held": False, "lost": True, "check": "LeaseLost"}.items()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return advisory().url(tmp_path).replace("postgresql:", "postgresql+advisory:")


def test_a_holder_stopped_past_its_ttl_excludes_others_until_it_goes_on_and_then_knows_that_it_lost(
    start: Start, locks: lockfast.Locks
) -> None:
    holder, ttl = start(), 1.0

    def stopped_while_it_holds() -> bool:
        holder.signal(signal.SIGCONT)
        holder.ask("acquire", name="x", ttl=ttl)
        holder.signal(signal.SIGSTOP)
        await_stop(holder.pid)
        return locks.inspect("x").locked

    until(stopped_while_it_holds, "a stop that comes before the end of the ttl")
    over_at = boot_now() + ttl
    until(lambda: boot_now() >= over_at, "the end of the ttl")
    assert locks.lock("x").acquire(blocking=False) is None, "the stopped process is in the middle of its body"
    holder.signal(signal.SIGCONT)
    assert holder.ask("state").items() >= LOST
    assert holder.ask("release")["released"] is False
    with locks.lock("x", wait=LIMIT_S) as lease:
        assert lease.held, "a lease that is lost holds nothing"


def test_a_holder_whose_interpreter_stands_still_past_its_ttl_knows_that_it_lost(start: Start) -> None:
    holder = start()
    holder.ask("acquire", name="x", ttl=0.4)
    assert holder.ask("stall", seconds=0.8).items() >= LOST


def test_killed_waiters_hold_up_nobody(start: Start, waiting: Waiting, locks: lockfast.Locks) -> None:
    holder, *dead, next_one = (start() for _ in range(4))
    first = holder.ask("acquire", name="x", ttl=60)
    next_one.ask("never_poll")
    for number, actor in enumerate((*dead, next_one), 1):
        actor.send("acquire", name="x")
        waiting("x", number)
    for actor in dead:
        actor.signal(signal.SIGKILL)
    holder.ask("release")
    assert next_one.expect()["fence"] > first["fence"]
