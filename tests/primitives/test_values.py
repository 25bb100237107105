"""The pure decisions behind limiters and cells: when a permit is free, which write goes through, which pause."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockfast
from lockfast import BackendUnavailable
from lockfast._time import full_jitter
from lockfast._values import EMPTY_CELL, NS_PER_S, Rate, Stored, Write, Written, book_permits, check_write

RATES = st.builds(Rate, interval=st.integers(1, 10**10), burst=st.integers(1, 20))


@given(
    rate=RATES,
    asks=st.lists(st.tuples(st.integers(0, 3 * 10**10), st.integers(1, 20), st.sampled_from((0, 1, 60)))),
)
def test_no_stretch_of_time_has_more_than_the_bound(rate: Rate, asks: list[tuple[int, int, int]]) -> None:
    """Counted from when each permit may be used; times are whole nanoseconds, so the bound is exact."""
    now, until = 0, 0
    uses: list[tuple[int, int]] = []  # when, and how many
    for passed, cost, patience in asks:
        now += passed
        cost = min(cost, rate.burst)
        booked = book_permits(until, now / NS_PER_S, rate, cost, patience)
        if booked.allowance.allowed:
            uses.append((now + round(booked.allowance.retry_after * NS_PER_S), cost))
            until = booked.until
        else:
            assert booked.until == until
            assert booked.allowance.retry_after > patience
    for first, (begin, _) in enumerate(uses):
        taken = 0
        for at, cost in uses[first:]:
            taken += cost
            assert (taken - rate.burst) * rate.interval <= at - begin


@given(rate=RATES, until=st.integers(0, 10**12), now=st.integers(0, 10**12), cost=st.integers(1, 20))
def test_retry_after_is_when_it_is_allowed_and_not_a_nanosecond_earlier(
    rate: Rate, until: int, now: int, cost: int
) -> None:
    cost = min(cost, rate.burst)
    answer = book_permits(until, now / NS_PER_S, rate, cost, 0.0).allowance
    if not answer.allowed:
        then = now + round(answer.retry_after * NS_PER_S)
        assert not book_permits(until, (then - 1) / NS_PER_S, rate, cost, 0.0).allowance.allowed
        assert book_permits(until, then / NS_PER_S, rate, cost, 0.0).allowance.allowed


@given(rate=RATES, until=st.integers(0, 10**12), now=st.integers(0, 10**12), cost=st.integers(1, 20))
def test_remaining_is_what_can_be_had_at_once(rate: Rate, until: int, now: int, cost: int) -> None:
    booked = book_permits(until, now / NS_PER_S, rate, min(cost, rate.burst), 0.0)
    left = booked.allowance.remaining
    assert left == 0 or book_permits(booked.until, now / NS_PER_S, rate, left, 0.0).allowance.allowed
    assert left == rate.burst or not book_permits(booked.until, now / NS_PER_S, rate, left + 1, 0.0).allowance.allowed


def test_full_jitter_is_anywhere_between_nothing_and_an_exponential_backoff() -> None:
    assert [full_jitter(attempt, 0.0) for attempt in (1, 5, 1000)] == [0.0, 0.0, 0.0]
    almost = 1.0 - 2.0**-53
    longest = [full_jitter(attempt, almost) for attempt in range(1, 40)]
    assert longest == sorted(longest)
    assert [round(pause, 6) for pause in longest[:4]] == [0.01, 0.02, 0.04, 0.08]
    assert max(longest) < 1.0
    assert full_jitter(3, 0.5) * 2 == full_jitter(3, 1.0)


def test_a_write_is_decided_by_its_id_then_its_fence_then_its_version() -> None:
    stored = Stored('"a"', version=4, fence=7, writer="w")
    assert check_write(stored, Write("w", '"a"', if_version=3, fence=1)) == Written("written", 4, 7)  # a repeat
    assert check_write(stored, Write("x", '"b"', if_version=3, fence=6)) == Written("stale", 4, 7)
    assert check_write(stored, Write("x", '"b"', if_version=3, fence=7)) == Written("conflict", 4, 7)
    assert check_write(stored, Write("x", '"b"', if_version=4, fence=7)) is None
    assert check_write(stored, Write("x", '"b"')) is None
    assert check_write(EMPTY_CELL, Write("x", '"b"', if_version=0)) is None
    assert check_write(EMPTY_CELL, Write("x", '"b"', if_version=1)) == Written("conflict", 0, 0)


@pytest.mark.parametrize("heals", [True, False])
def test_a_delete_that_is_refused_as_damaged_frees_the_cell_or_says_so(
    monkeypatch: pytest.MonkeyPatch, heals: bool
) -> None:
    """A read may find it sound all the same: another client has damaged it since."""
    with lockfast.connect("memory://") as locks:
        cell = locks.cell("x")
        cell.write(1)
        backend = locks._logic.engine.backend
        done = backend.write

        async def write(key: str, write: Write, **options: Any) -> Written:
            refused = write.if_version is not None or not heals
            return Written("damaged", 0, 0) if refused else await done(key, write, **options)

        monkeypatch.setattr(backend, "write", write)
        if heals:
            cell.delete()
            assert cell.read() == (None, 0)
        else:
            with pytest.raises(BackendUnavailable, match="cell 'x' is damaged"):
                cell.delete()
