"""Hundreds of runs of a quorum: as long as the assumptions hold no two holds overlap, and fences grow.

Beyond them the simulation finds two believers, and a resource that checks fences still refuses the older one.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.scale import by_scale
from tests.servers.run import first_new_seed
from tests.simulation.planted_quorum import PLANTED_QUORUM
from tests.simulation.quorum_runs import LONGEST_TTL_S, Climate, Outcome, simulate

SEEDS = by_scale(10, soak=400)
SEEDS_BEYOND = by_scale(60, soak=400)  # rare things must show
TRIES = 180  # seeds in which a planted bug must show
NEW = by_scale(4, soak=400)
WITHIN = {
    "servers that remember": Climate(),
    "messages that come late, or twice": Climate(late=6.0),
    "clocks of clients that are a minute apart": Climate(skew=60.0),
    "servers that forget and are excluded for a ttl": Climate(forgets=True, rejoin=LONGEST_TTL_S),
    "servers that forget, are back at once, and are excluded": Climate(
        forgets=True, at_once=True, rejoin=LONGEST_TTL_S
    ),
    "the same, and the clock of a server is stepped when it starts": Climate(
        forgets=True, at_once=True, rejoin=LONGEST_TTL_S, stepped=3600.0
    ),
    "the same, by clients without rejoin that agree on the ttl": Climate(forgets=True, at_once=True, ttls=(2.0,)),
}
BEYOND = {
    "a server's clock that runs too fast": Climate(fast=0.3),
    "servers that forget and are excluded for less than a ttl": Climate(forgets=True, at_once=True, rejoin=0.5),
}
LEAST = {
    "holds": 8 * SEEDS,
    "crash": 3 * SEEDS,
    "cut": SEEDS,
    "freeze": SEEDS,
    "written": 8 * SEEDS,
    "losses": SEEDS // 8,
}


def run(climate: Climate, seeds: range) -> tuple[list[Outcome], Counter[str]]:
    outcomes = [simulate(seed, climate) for seed in seeds]
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total += outcome.counts
    return outcomes, total


def refuse_wrong(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert not outcome.wrong, f"seed {outcome.seed}: {outcome.wrong[:3]}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("climate", WITHIN)
def test_there_are_never_two_believers_within_the_bounds(climate: str) -> None:
    outcomes, total = run(WITHIN[climate], range(SEEDS))
    refuse_wrong(outcomes)
    assert {what: total[what] for what, times in LEAST.items() if total[what] < times} == {}
    assert total["unfinished"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("climate", WITHIN)
def test_there_are_never_two_believers_with_new_seeds(climate: str) -> None:
    outcomes, _ = run(WITHIN[climate], range(first_new_seed(), first_new_seed() + NEW))
    refuse_wrong(outcomes)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("climate", BEYOND)
def test_two_believers_are_found_beyond_the_bounds_and_the_fence_still_refuses_the_older(climate: str) -> None:
    outcomes, _ = run(BEYOND[climate], range(SEEDS_BEYOND))
    together = [outcome for outcome in outcomes if any("held together" in line for line in outcome.wrong)]
    assert len(together) >= SEEDS_BEYOND // 40, "a check that finds nothing is no check"
    assert all("held together" in line for outcome in outcomes for line in outcome.wrong), "fences grow all the same"
    assert any(outcome.refused_beside for outcome in together), "the resource refused an old holder"
    assert not any(outcome.accepted_late for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", PLANTED_QUORUM)
def test_a_planted_bug_is_found(bug: str) -> None:
    parts, climate, words = PLANTED_QUORUM[bug]
    for seed in range(TRIES):
        if any(line.startswith(words) for line in simulate(seed, climate, parts).wrong):
            return
    pytest.fail(f"{TRIES} seeds did not show: {bug}")


def test_a_few_seeds_for_the_quick_loop() -> None:
    outcomes, total = run(Climate(forgets=True, rejoin=LONGEST_TTL_S), range(1000, 1004))
    assert [outcome.wrong for outcome in outcomes if outcome.wrong] == []
    assert total["holds"] > 20


def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = (simulate(seed, Climate()) for seed in (7, 7, 8))
    assert first.counts == again.counts
    assert first.counts != other.counts
