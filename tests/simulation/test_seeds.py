"""Hundreds of runs of the real engine over a bad network, thousands in the long search: never two believers, fences
grow, nothing is left behind, waiters are served in order, nothing is lost without need; and the same for everything
that is built on it. A failing seed prints the command that replays it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from lockfast.testing.simulated_client import Parts
from lockfast.testing.simulation import main, simulate
from lockfast.testing.simulation_plans import ABOUT
from tests.scale import by_scale
from tests.servers.run import first_new_seed
from tests.simulation.planted import PLANTED, ConfirmsEachGrant

BLOCK = 100  # seeds of one test
FIXED = by_scale(100, soak=10_000)  # seeds that are the same in every run, from 0
NEW = by_scale(100, soak=10_000)  # seeds that no run had before
ALIKE = by_scale(25, soak=400)  # seeds of runs that are about one thing
FAULTS = (
    "lost_request",
    "lost_reply",
    "reset",
    "late",
    "repeated",
    "slow",
    "lost_wake",
    "late_wake",
    "crash",
    "freeze",
    "block",
    "cut_off",
)

# A run in which nothing happens proves nothing: how much must have happened at least in a block of seeds.
OF_EVERYTHING = {
    "holds": 1500,
    "wakeups": 1000,
    "handed_over": 400,
    "cancelled": 100,
    "losses": 50,
    "semaphore_shared": 100,
    "rwlock_shared": 50,
    "rwlock_exclusive": 30,
    "downgrades": 15,
    "mismatches": 5,
    "several": 50,
    "several_given_up": 15,
    "reigns": 100,
    "changes_received": 300,
    "permits": 60,
    "renewed_outside": 50,
    **dict.fromkeys(FAULTS, 50),
}
OF = {
    "mutex": {"mutex_exclusive": 1000, "losses": 50},
    "semaphore": {"semaphore_shared": 1500, "mismatches": 100, "losses": 80},
    "rwlock": {"rwlock_shared": 800, "rwlock_exclusive": 400, "downgrades": 200},
    "mixed": {"mixed_shared": 700, "mixed_exclusive": 400, "mismatches": 50},
    "several": {"several": 500, "several_given_up": 400, "lost_together": 80, "cancelled": 100},
    "election": {
        "reigns": 1000,
        "hand_overs": 200,
        "successors": 200,
        "changes_received": 3000,
        "vacancies_received": 1500,
        "watched": 100,
        "silent_watches": 3,
        "losses": 50,
    },
    "limiter": {"permits": 700, "permits_refused": 1000, "given_back": 25, "lost_reply": 80},
}


def run(seeds: range, about: str = "", least: Mapping[str, int] | None = None) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        outcome = simulate(seed, about=about)
        assert not outcome.wrong, str(outcome)
        total += outcome.counts
    enough = {what: times * len(seeds) // BLOCK for what, times in (least or {}).items()}
    assert {what: total[what] for what, times in enough.items() if total[what] < times} == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, FIXED, BLOCK))
def test_whatever_happens_on_the_way_no_promise_breaks(first: int) -> None:
    run(range(first, first + BLOCK), least=OF_EVERYTHING)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(NEW // BLOCK))
def test_no_promise_breaks_with_seeds_that_nobody_has_tried(block: int) -> None:
    """Where they begin is printed above all tests, and a failing one says how to replay it."""
    first = first_new_seed() + block * BLOCK
    run(range(first, first + BLOCK))


@pytest.mark.slow
def test_no_promise_breaks_where_each_waiter_has_to_confirm() -> None:
    """As on a backend that does not hand over: what is freed is reserved for the next waiter."""
    for seed in range(30_000, 30_000 + FIXED):
        outcome = simulate(seed, Parts(server=ConfirmsEachGrant))
        assert not outcome.wrong, str(outcome)
        assert not outcome.counts["handed_over"]


def test_each_thing_to_contend_for_has_runs_of_its_own() -> None:
    assert OF.keys() == set(ABOUT)


@pytest.mark.slow
@pytest.mark.parametrize("about", OF)
def test_no_promise_breaks_where_all_contend_for_one_thing(about: str) -> None:
    run(range(20_000, 20_000 + ALIKE), about, OF[about])


def test_a_few_seeds_for_the_quick_loop() -> None:
    run(range(10_000, 10_020))


def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = simulate(7), simulate(7), simulate(8)
    assert first.counts == again.counts
    assert first.trace == again.trace
    assert first.trace != other.trace


def test_a_failing_seed_prints_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    parts = PLANTED["wake all waiters"].parts
    assert str(simulate(0, parts)).endswith("replay with: python -m lockfast.testing.simulation 0")
    printed = str(simulate(0, parts, "election"))
    assert printed.endswith("replay with: python -m lockfast.testing.simulation 0 election")
    assert main(["0", "election"], print) == 0, "the replay runs that seed, without the planted bug"
    assert capsys.readouterr().out.startswith("0 of 1 seeds failed")


def test_a_replay_about_nothing_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "elections"], print) == 2
    assert "election, limiter, not 'elections'" in capsys.readouterr().out
