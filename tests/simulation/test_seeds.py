"""A thousand runs of the real engine over a bad network: never two believers, fences grow, nothing is left behind,
waiters are served in order, nothing is lost without need. A failing seed prints the command that replays it."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.testing.simulation import main, simulate
from tests.simulation.planted import PLANTED

BLOCK = 100
SEEDS = 1000
FAULTS = ("lost_request", "lost_reply", "reset", "late", "repeated", "slow", "lost_wake", "crash", "freeze", "cut_off")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_whatever_happens_on_the_way_no_promise_breaks(first: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        outcome = simulate(seed)
        assert not outcome.wrong, str(outcome)
        total += outcome.counts
    # A run in which nothing happens proves nothing.
    assert total["holds"] > 1500
    assert total["wakes"] > 1000
    assert total["cancelled"] > 100
    assert total["losses"] > 50
    assert {kind: total[kind] for kind in FAULTS if total[kind] < 50} == {}


def test_a_few_seeds_for_the_quick_loop() -> None:
    for seed in range(10_000, 10_040):
        outcome = simulate(seed)
        assert not outcome.wrong, str(outcome)


def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = simulate(7), simulate(7), simulate(8)
    assert first.counts == again.counts
    assert first.trace == again.trace
    assert first.trace != other.trace


def test_a_failing_seed_prints_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    parts, _ = PLANTED["wake everybody"]
    outcome = simulate(0, parts)
    assert str(outcome).endswith("replay with: python -m holdfast.testing.simulation 0")
    assert main(["0"], print) == 0, "the replay runs that seed, without the planted bug"
    assert capsys.readouterr().out.startswith("0 of 1 seeds failed")
