"""When requests stay away from a loop that the disk has stopped. The clock is the test's own."""

from __future__ import annotations

from lockfast.backends.sqlite.io.stalls import ALLOWED_S, AWAY_S, FORGOTTEN_PER_S, MAX_AWAY_S, SLOW_S, Stalls


def _away_for(stalls: Stalls, now: float) -> float:
    """In whole seconds from `now` on."""
    seconds = 0.0
    while stalls.avoid_loop(now + seconds):
        seconds += 1.0
    return seconds


def test_requests_that_are_quick_never_stay_away() -> None:
    stalls, now = Stalls(), 1000.0
    for _ in range(10_000):
        stalls.took(SLOW_S * 0.99, now)
        now += SLOW_S
    assert not stalls.avoid_loop(now)


def test_one_slow_request_says_nothing() -> None:
    stalls = Stalls()
    stalls.took(ALLOWED_S * 0.99, 1000.0)
    assert not stalls.avoid_loop(1000.0)


def test_requests_leave_the_loop_for_a_while_after_they_stopped_it_for_too_long() -> None:
    stalls = Stalls()
    stalls.took(ALLOWED_S, 1000.0)
    assert stalls.avoid_loop(1000.0)
    assert _away_for(stalls, 1000.0) == AWAY_S


def test_slow_requests_add_up() -> None:
    stalls, slow = Stalls(), 0
    while not stalls.avoid_loop(1000.0):
        stalls.took(SLOW_S, 1000.0)
        slow += 1
    assert slow == ALLOWED_S / SLOW_S


def test_slow_requests_that_seldom_come_are_forgotten() -> None:
    stalls, now = Stalls(), 1000.0
    for _ in range(1000):
        stalls.took(2 * SLOW_S, now)
        assert not stalls.avoid_loop(now)
        now += 2 * SLOW_S / FORGOTTEN_PER_S


def test_a_disk_that_goes_on_stalling_stops_the_loop_less_and_less_often() -> None:
    stalls, now, away = Stalls(), 1000.0, []
    for _ in range(7):
        stalls.took(1.0, now)
        away.append(_away_for(stalls, now))
        now += away[-1]
    assert away == [10, 20, 40, 80, 160, 160, 160]
    assert away[-1] == MAX_AWAY_S


def test_a_disk_that_was_well_for_as_long_as_requests_were_away_is_new_to_stalling() -> None:
    stalls = Stalls()
    stalls.took(1.0, 1000.0)
    stalls.took(1.0, 1000.0 + 2 * AWAY_S)
    assert _away_for(stalls, 1000.0 + 2 * AWAY_S) == AWAY_S
