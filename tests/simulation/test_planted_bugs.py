"""The checks can fail: every planted bug is found, by the same seeds and checks that the real engine passes."""

from __future__ import annotations

import pytest

from holdfast.testing.simulation import simulate
from tests.simulation.planted import PLANTED

WITHIN = 400  # seeds

# Seeds that showed a bug of ours when they were first run, and must never fail again. What a seed means moves with the
# engine, so each of these bugs is also planted, or has a story of its own in tests/backends/test_model.py.
REPLAYS = {
    87: "one that came back late was let in beside a younger reservation",
    743: "one with a reservation was refused because an older one was back",
    33: "one renewal that went unanswered was waited for until the deadline",
    338: "a release handed over behind a hold that time had ended",
    379: "a release handed over behind a hold that time had ended",
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    parts, words = PLANTED[bug]
    for seed in range(WITHIN):
        if any(words in line for line in simulate(seed, parts).wrong):
            return
    pytest.fail(f"{WITHIN} seeds did not show: {bug}")


@pytest.mark.parametrize("seed", REPLAYS)
def test_a_seed_that_once_showed_a_bug_of_ours_passes(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.wrong, str(outcome)
