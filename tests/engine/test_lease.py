"""The life-cycle of a lease is one table: every step from every state."""

from __future__ import annotations

from dis import get_instructions
from itertools import product
from types import FunctionType
from typing import get_args

import pytest

from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.engine.core import Engine
from lockfast.engine.lease import LIFE, Lease, State, Step
from lockfast.errors import LeaseLost, NotHeld
from lockfast.testing.clock import FakeClock
from tests.engine.stub import StubBackend, take

STATES: tuple[State, ...] = get_args(State)
STEPS: tuple[Step, ...] = get_args(Step)

LEADS_TO: dict[tuple[State, Step], State] = {
    ("held", "deadline"): "lost",
    ("held", "denied"): "lost",
    ("held", "release"): "releasing",
    ("held", "fork"): "forked",
    ("releasing", "release"): "releasing",
    ("releasing", "freed"): "released",
    ("releasing", "gone"): "lost",
    ("releasing", "fork"): "forked",
}


@pytest.mark.parametrize(("state", "step"), list(product(STATES, STEPS)))
def test_each_step_from_each_state_leads_where_the_table_says_or_nowhere(state: State, step: Step) -> None:
    engine = Engine(StubBackend(), ThreadWorld(FakeClock()), holder="us")
    lease = drive(take(engine, renew=False))
    lease._state = state
    assert lease._move(step, "reason") == ((state, step) in LEADS_TO)
    assert lease._state == LEADS_TO.get((state, step), state)
    engine.keeper.loop.close()


def test_the_table_knows_every_state() -> None:
    assert set(LIFE) == set(STATES)


@pytest.mark.parametrize("end", ["released", "lost", "forked"])
def test_nothing_leads_out_of_an_end(end: State) -> None:
    assert LIFE[end] == {}


@pytest.mark.parametrize("change", [Lease._move, Lease._adopt, Lease._enter, Lease._count_entry])
def test_no_interrupt_and_no_other_thread_comes_into_the_middle_of_a_change(change: FunctionType) -> None:
    """Python looks for them where something is called, and where a loop begins anew."""
    bytecode = [instruction.opname for instruction in get_instructions(change)]
    assert "STORE_ATTR" in bytecode
    assert [name for name in bytecode if "CALL" in name or "JUMP_BACKWARD" in name] == []


def test_what_a_lease_says_of_itself_follows_the_clock() -> None:
    clock = FakeClock()
    engine = Engine(StubBackend(), ThreadWorld(clock), holder="us")
    lease = drive(take(engine, ttl=10, renew=False))
    assert (lease.held, lease.lost, lease.remaining) == (True, False, 10.0)
    clock.advance(9.5)
    assert (lease.held, lease.lost, lease.remaining) == (True, False, 0.5)
    clock.advance(0.5)
    assert (lease.held, lease.lost, lease.remaining) == (False, True, 0.0)
    with pytest.raises(LeaseLost) as caught:
        lease.check()
    assert caught.value.fence == lease.fence
    assert not drive(engine.release(lease)), "what was lost cannot be released"
    engine.keeper.loop.close()


def test_a_released_lease_says_so() -> None:
    backend = StubBackend()
    engine = Engine(backend, ThreadWorld(FakeClock()), holder="us")
    lease = drive(take(engine, renew=False))
    assert drive(engine.release(lease))
    assert (lease.held, lease.lost, lease.remaining) == (False, False, 0.0)
    with pytest.raises(NotHeld, match="released"):
        lease.check()
    assert not drive(engine.release(lease))
    assert backend.released == ["a"], "released once, whatever is asked afterwards"
    engine.keeper.loop.close()


def test_the_deadline_counts_from_before_the_request() -> None:
    clock = FakeClock()

    class Slow(StubBackend):
        async def acquire(self, claim, *, enqueue, within):  # type: ignore[no-untyped-def]
            clock.advance(4)
            return await super().acquire(claim, enqueue=enqueue, within=within)

    engine = Engine(Slow(), ThreadWorld(clock), holder="us")
    assert drive(take(engine, ttl=10, renew=False)).remaining == 6
    engine.keeper.loop.close()


def test_a_renewal_never_shortens_what_is_believed() -> None:
    clock = FakeClock()
    engine = Engine(StubBackend(), ThreadWorld(clock), holder="us")
    lease = drive(take(engine, ttl=30, renew=False))
    lease._renewed(clock.now(), 10)
    assert lease.remaining == 30
    lease._renewed(clock.now(), 50)
    assert lease.remaining == 50
    engine.keeper.loop.close()
