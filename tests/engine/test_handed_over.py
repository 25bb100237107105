"""Which grants in a wake-up are believed, and from when they count."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

import lockfast
from lockfast._model import Busy, Claim, Grant, Offer, Terms, offer_to
from lockfast.backends.wakeups import read_wake_up
from lockfast.engine.releasing import time_to_linger
from lockfast.engine.request import Request
from lockfast.engine.waking import handed_over
from lockfast.testing.clock import FakeClock

TERMS = Terms("x", "x", "us", 30.0)
BUSY = Busy(0, 1.0, last_fence=7)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine(clock: FakeClock) -> Any:
    return lockfast.connect(f"memory://{uuid4().hex}", clock=clock)._logic.engine


@pytest.mark.parametrize(("fence", "last", "believed"), [(8, 7, True), (7, 7, False), (6, 7, False), (8, None, False)])
def test_only_a_grant_that_is_newer_than_the_last_answer_is_believed(
    engine: Any, clock: FakeClock, fence: int, last: int | None, believed: bool
) -> None:
    busy, asked_at = BUSY._replace(last_fence=last), clock.now()
    clock.advance(1)
    grant = handed_over(engine, Request(TERMS), Grant(fence, 5.0), busy, asked_at)
    assert grant == (Grant(fence, 5.0, since=asked_at) if believed else None)


def test_a_wake_up_without_a_grant_is_a_hint(engine: Any, clock: FakeClock) -> None:
    assert handed_over(engine, Request(TERMS), True, BUSY, clock.now()) is None


@pytest.mark.parametrize(("passed", "believed"), [(14.9, True), (15.1, False)])
def test_a_grant_of_which_little_is_left_is_asked_for(
    engine: Any, clock: FakeClock, passed: float, believed: bool
) -> None:
    asked_at = clock.now()
    clock.advance(passed)
    assert bool(handed_over(engine, Request(TERMS), Grant(8, 5.0), BUSY, asked_at)) == believed


def test_a_grant_that_is_not_renewed_is_asked_for(engine: Any, clock: FakeClock) -> None:
    assert handed_over(engine, Request(TERMS, renew=False), Grant(8, 5.0), BUSY, clock.now()) is None


def test_a_grant_is_not_believed_where_the_store_does_not_hand_over(engine: Any, clock: FakeClock) -> None:
    """In a cluster and with `replicas` a grant alone is not enough, and only a forged wake-up carries one."""
    engine.backend.capabilities = engine.backend.capabilities._replace(hands_over=False)
    assert handed_over(engine, Request(TERMS), Grant(8, 5.0), BUSY, clock.now()) is None


@pytest.mark.parametrize(
    ("silent", "ttl", "offer"),
    [
        (0.0, 30.0, "grant"),
        (6.0, 30.0, "grant"),
        (5.0, 8.0, "reservation"),
        (6.1, 8.0, "nothing"),
        (0.5, 1.0, "reservation"),
        (6.0, 600.0, "grant"),
        (6.1, 600.0, "nothing"),
    ],
)
def test_a_waiter_is_offered_less_the_longer_it_is_silent(silent: float, ttl: float, offer: Offer) -> None:
    assert offer_to(silent, ttl) == offer


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("c", None),
        ("c 8 5000000", Grant(8, 5.0)),
        ("c 8", None),
        ("c 8 x", None),
        ("c ٣ 5", None),
        ("c -8 5", None),
        ("c 8 5 9", None),
        (f"c {'9' * 5000} 5", None),
    ],
)
def test_what_a_wake_up_says(text: str, grant: Grant | None) -> None:
    assert read_wake_up(text) == ("c", grant)


def test_a_lease_that_was_handed_over_is_kept_for_all_of_min_hold(clock: FakeClock) -> None:
    """It is believed from before the last request, which may be seconds before the grant."""
    backend = lockfast.connect(f"memory://{uuid4().hex}", clock=clock)
    engine: Any = backend._logic.engine
    request = Request(TERMS, min_hold=60.0)
    asked_at = clock.now()
    clock.advance(5)
    lease = engine.lease_type(engine, request, Claim("c", TERMS), Grant(8, 5.0, since=asked_at), clock.now(), 5.0)
    assert lease.remaining == 25
    clock.advance(10)
    assert time_to_linger(engine, lease) == 50
