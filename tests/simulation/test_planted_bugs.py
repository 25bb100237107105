"""The checks can fail: every planted bug is found, by the same seeds and checks that the real engine passes."""

from __future__ import annotations

import pytest

from holdfast.testing.simulation import simulate
from tests.simulation.planted import PLANTED

WITHIN = 400  # seeds

# Seeds that showed a bug of our own: with the bug planted again they fail, without it they pass.
FOUND_BY = {
    "wait all the time for one renewal": 10,
    "forget younger reservations": 20,
    "refuse the reserved": 97,
    "hand over behind the expired": 338,
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    parts, words = PLANTED[bug]
    for seed in range(WITHIN):
        if any(words in line for line in simulate(seed, parts).wrong):
            return
    pytest.fail(f"{WITHIN} seeds did not show: {bug}")


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_seed_that_once_showed_a_bug_of_ours_still_would(bug: str) -> None:
    parts, words = PLANTED[bug]
    assert any(words in line for line in simulate(FOUND_BY[bug], parts).wrong)
    outcome = simulate(FOUND_BY[bug])
    assert not outcome.wrong, str(outcome)
