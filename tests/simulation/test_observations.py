"""The judges of observers and limiters: what they must find, and what they must let pass."""

from __future__ import annotations

from typing import Any

from lockfast._model import Change, Claim, Grant, Observation, Terms
from lockfast._values import NS_PER_S, Allowance, Booked, Rate
from lockfast.primitives.election import Leadership
from lockfast.testing.simulated import Simulation
from lockfast.testing.simulated_client import SOUND, Client
from lockfast.testing.simulated_network import Network, Step
from lockfast.testing.simulation_observations import (
    ObservationChecks,
    bookings,
    over_the_rate,
    terms_grow,
    uses_without_permit,
)
from lockfast.testing.simulation_record import ElectionWatch, ReceivedChange, Use

RATE = Rate(NS_PER_S, 2)  # one a second, two at once after a rest


def granted(time: float, leader: str, term: int) -> Step:
    claim = Claim(f"claim{term}", Terms("x", "x", leader, 5.0))
    return Step(time, time, "server", "acquire", claim, {"enqueue": True}, Grant(term, 0.0), ())


def observed(time: float, after: int, number: int) -> Step:
    claim = Claim("observer", Terms("x", "x", "us", 5.0))
    return Step(time, time, "us", "observe", claim, {"after": after}, Observation((Change(number, 0, None),), 5.0), ())


def watch(*received: tuple[float, str | None, int], dies: bool = False) -> ElectionWatch:
    client = Client(Network(Simulation(0)), "us", SOUND, lambda *_: None)
    if dies:
        client.world.crash()
    seen = ElectionWatch(client, "x", "observer")
    seen.received = [ReceivedChange(time, time, Leadership(leader, term)) for time, leader, term in received]
    return seen


LOG = [observed(0, 0, 1), granted(1, "a", 2), observed(1, 1, 2), granted(2, "b", 5), observed(9, 2, 9)]
ALL = ((0, None, 0), (1, "a", 2), (2, None, 2), (2, "b", 5), (3, None, 5))


def wrong(seen: ElectionWatch, log: list[Step] = LOG, excused: frozenset[str] = frozenset()) -> str:
    return "; ".join(ObservationChecks(log, "x", set(excused)).check(seen))


def test_an_observer_that_received_each_change_is_fine() -> None:
    assert wrong(watch(*ALL)) == ""


def test_an_observer_that_dies_may_miss_the_end_and_nothing_else() -> None:
    assert wrong(watch(*ALL[:3], dies=True)) == ""
    assert "what happened" in wrong(watch(*ALL[:3]))
    assert "what happened" in wrong(watch(*ALL[:1], *ALL[3:4], dies=True))


def test_a_change_that_is_missing_repeated_or_out_of_order_is_found() -> None:
    assert "what happened" in wrong(watch(*ALL[:2], *ALL[3:]))
    assert "what happened" in wrong(watch(*ALL[:2], ALL[1], *ALL[2:]))
    assert "do not grow" in wrong(watch(ALL[0], *ALL[3:], *ALL[1:3]))
    assert "never received" in wrong(watch())


def test_a_leader_that_was_never_elected_is_found() -> None:
    assert "what happened" in wrong(watch(*ALL[:3], (2, "c", 5), ALL[4]))


def test_an_observer_that_came_later_begins_with_what_is_true_then() -> None:
    later = [LOG[1], observed(1, 0, 3), LOG[3], observed(9, 3, 9)]
    assert wrong(watch(*ALL[1:]), later) == ""
    assert wrong(watch((1, None, 0), *ALL[3:]), later) == ""
    assert "what happened" in wrong(watch(*ALL[3:]), later)


def test_an_observer_that_was_silent_for_long_may_have_missed_something_but_not_the_end() -> None:
    silent = [*LOG[:2], observed(30, 1, 9)]
    assert wrong(watch(ALL[0], ALL[3], ALL[4]), silent) == ""
    assert "nobody leads" in wrong(watch(ALL[0], ALL[3]), silent)


def test_a_change_that_comes_late_is_found_unless_a_fault_excuses_it() -> None:
    late = watch(*ALL[:3], (4, "b", 5), (4, None, 5))
    late.received[3] = late.received[3]._replace(asked_at=2)
    assert "2.000s late" in wrong(late)
    assert wrong(late, excused=frozenset({"observer"})) == ""


def test_terms_that_do_not_grow_are_found() -> None:
    assert list(terms_grow(LOG, "x")) == []
    assert len(list(terms_grow([granted(1, "a", 5), granted(2, "b", 4)], "x"))) == 1


def booked(time: float, wait: float = 0.0, cost: int = 1, client: str = "us") -> Step:
    answer = Booked(Allowance(True, 0, wait), round((time + wait) * NS_PER_S))
    return Step(time, time, client, "throttle", "x", {"cost": cost}, answer, ())


def given_back(until: float, options: dict[str, Any] | None = None) -> Step:
    return Step(9, 9, "us", "unthrottle", "x", options or {"until": round(until * NS_PER_S)}, None, ())


def over(*log: Step) -> list[str]:
    return list(over_the_rate(bookings(log), RATE))


def test_the_burst_and_the_rate_after_it_are_fine() -> None:
    assert over(booked(5), booked(5), booked(6), booked(6, wait=1)) == []
    assert over(booked(5, cost=2), booked(7, cost=2)) == []


def test_one_too_many_is_found() -> None:
    assert over(booked(5), booked(5), booked(5))
    assert over(booked(5, cost=2), booked(6, cost=2))
    assert over(booked(5), booked(5), booked(6), booked(6))


def test_what_is_given_back_may_be_given_again_once() -> None:
    first, second = booked(5), booked(5)
    ahead, again = booked(5, wait=1), booked(5.5, wait=0.5)
    back = given_back(6)
    assert over(first, second, ahead, back, again) == []
    assert over(first, second, ahead, back, again, back, again), "the same message, come twice, is one"
    assert over(first, second, ahead, again), "nothing was given back"
    assert over(first, second, booked(5, wait=1, client="another"), back, again), "what is another's stays"


def test_a_caller_that_is_allowed_something_has_a_booking_that_is_due() -> None:
    log = bookings([booked(5), booked(5, wait=1)])
    assert list(uses_without_permit([Use(5, "us", 1), Use(6, "us", 1)], log)) == []
    assert list(uses_without_permit([Use(5, "us", 1), Use(5.5, "us", 1)], log)), "before it was due"
    assert list(uses_without_permit([Use(5, "us", 1), Use(6, "us", 1), Use(7, "us", 1)], log)), "one too many"
    assert list(uses_without_permit([Use(5, "us", 2)], log)), "two at once"
