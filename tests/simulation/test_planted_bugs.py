"""The checks can fail: every planted bug is found, by the same seeds and checks that the real engine passes."""

from __future__ import annotations

import pytest

from lockfast.testing.simulation import simulate
from tests.simulation.planted import PLANTED
from tests.simulation.planted_primitives import PLANTED_PRIMITIVES

WITHIN = 400  # seeds
ALL = PLANTED | PLANTED_PRIMITIVES

# Seeds that show a bug that was ours when it is put back, and what they are about; they must never fail again. What a
# seed means moves with the engine and the plans, so each of these bugs is also planted, or has a story of its own in
# tests/backends/test_model.py.
REPLAYS = {
    (23, ""): "one that came back late was let in beside a younger reservation",
    (19, ""): "one with a reservation was refused because an older one was back",
    (18, ""): "one renewal that went unanswered was waited for until the deadline",
    (282, "rwlock"): "a release handed over behind a hold that time had ended",
    (195, "several"): "a cancelled release of several names kept the rest",
    (65, "election"): "a leader whose time had run out handed over all the same",
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", ALL)
def test_a_planted_bug_is_found(bug: str) -> None:
    parts, words, about, first = ALL[bug]
    for seed in range(first, first + WITHIN):
        if any(words in line for line in simulate(seed, parts, about).wrong):
            return
    pytest.fail(f"{WITHIN} seeds did not show: {bug}")


@pytest.mark.parametrize(("seed", "about"), REPLAYS)
def test_a_seed_that_once_showed_a_bug_of_ours_passes(seed: int, about: str) -> None:
    outcome = simulate(seed, about=about)
    assert not outcome.wrong, str(outcome)
