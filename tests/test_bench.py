"""What `make bench` makes of what it measured: verdicts, the tables of the page, and the exit status.

Decides: nothing about speed. No figure is measured here.
"""

from __future__ import annotations

import json
from array import array
from math import log
from pathlib import Path

import pytest
from bench import page, results
from bench.__main__ import main
from bench.competitors import Task
from bench.harness import Finding, Setting, Work, work_of
from bench.peers import Missing
from bench.plots import works
from bench.questions import QUESTIONS
from bench.redlock_ng import redlock_ng
from bench.report import misses
from bench.rounds import jain, judge
from bench.scaling import MAX_EXPONENT, exponent, findings
from bench.scaling_steps import Point

HAND_OVERS = Work("hand-overs", "/s", ours=2400.0, floor=9600.0, peer=2000.0, best_peer="other-lock")
SLOW = Finding("ours / the floor's", 0.25, "×", at_least=0.5, work=HAND_OVERS, against="floor")
FAST = Finding("ours / other-lock's", 1.2, "×", at_least=1, work=HAND_OVERS, against="other-lock")
LOST = Finding("leases lost", 3, "", at_most=0)
EMPTY = "".join(f"<!-- {name}: made by `make bench` -->\n<!-- end of {name} -->\n" for name in ("results", "scaling"))


def kept(folder: Path, question: str, *found: Finding, quick: bool = False) -> list[results.Result]:
    results.write(question, found, folder, quick=quick, seconds=1.0)
    return results.read(folder)


def ran(*found: Finding, folder: Path, arguments: tuple[str, ...] = ()) -> int:
    words = ["--only", "memory", "--out", str(folder), *arguments]
    return main(words, ask=lambda question, quick: list(found), show=lambda folder: None)


def test_a_run_can_be_limited_to_the_series_with_some_words(tmp_path: Path) -> None:
    some = Setting(tmp_path, quick=True, series=("permits of one semaphore, SQLite", "names"))
    names = ["permits of one semaphore, SQLite", "permits of one semaphore, Redis", "names, Redis"]
    assert [some.asks_for(name) for name in names] == [True, False, True]
    assert all(Setting(tmp_path, quick=True).asks_for(name) for name in names)


# Verdicts


@pytest.mark.parametrize(
    ("finding", "miss"),
    [
        (Finding("at most, met", 7, "µs", at_most=7), ""),
        (Finding("at most, missed", 8.75, "µs", at_most=7), "missed by 25 %"),
        (Finding("at least, met", 1000, "/s", at_least=1000), ""),
        (Finding("at least, missed", 880, "/s", at_least=1000), "missed by 12 %"),
        (Finding("none at all, missed", 3, "", at_most=0), "missed by 3"),
        (Finding("without a bound", 3, ""), ""),
    ],
)
def test_a_miss_is_put_in_words(finding: Finding, miss: str) -> None:
    assert finding.miss == miss
    assert (finding.within_bound is False) == bool(miss)


def test_each_miss_is_listed_with_its_figure_its_bound_and_by_how_much() -> None:
    assert misses({"one": [SLOW, FAST], "other": [LOST, Finding("shown", 1, "")]}).splitlines() == [
        "missed by 50 %: ours / the floor's, 0.25×, bound ≥ 0.5×",
        "missed by 3: leases lost, 3, bound ≤ 0",
        "1 of 3 bounds met",
    ]


def test_strict_exits_1_on_a_miss_and_says_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(SLOW, folder=tmp_path, arguments=("--strict",)) == 1
    assert "missed by 50 %" in capsys.readouterr().out
    assert ran(FAST, folder=tmp_path, arguments=("--strict",)) == 0
    assert ran(SLOW, folder=tmp_path) == 0


def test_a_missing_package_is_named_and_the_other_questions_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(question: str, quick: bool) -> list[Finding]:
        if question == "memory":
            raise Missing("other-lock is not installed")
        return [FAST]

    words = ["--only", "memory", "--only", "startup", "--out", str(tmp_path)]
    assert main(words, ask=ask, show=lambda folder: None) == 2
    assert "memory is not answered: other-lock is not installed" in capsys.readouterr().err
    assert [result.question for result in results.read(tmp_path)] == ["startup"]


def test_redlock_ng_is_never_left_out_in_silence(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="make bench"), redlock_ng([1], tmp_path / "python"):
        pass


# Rows


def test_the_best_peer_is_the_fastest_of_those_that_were_measured() -> None:
    samples = {"lockfast": [2e-6], "floor": [1e-6], "slow": [9e-6], "fast": [4e-6]}
    work = work_of("cycle", samples, floor="floor", peers=["slow", "fast", "not measured"])
    assert work.best_peer == "fast"
    assert [work.peer, work.floor] == pytest.approx([4, 1])
    rate = work_of("cycle", samples, peers=["slow", "fast"], rate=True)
    assert (rate.best_peer, rate.floor) == ("fast", None)
    assert rate.peer == pytest.approx(250_000)


def test_what_was_measured_is_read_back_from_its_file(tmp_path: Path) -> None:
    spread = Finding("with all", 1.5, "×", 2, None, (1.0, 2.0), {"rounds": [1, 2]}, HAND_OVERS, "floor")
    [result] = kept(tmp_path, "memory", spread, SLOW)
    assert result.findings == [spread, SLOW]
    assert json.loads((tmp_path / "memory.json").read_text())["findings"][1]["miss"] == "missed by 50 %"


def test_a_row_has_floor_best_peer_ours_ratio_bar_and_verdict(tmp_path: Path) -> None:
    text = page.updated(EMPTY, kept(tmp_path, "memory", SLOW, FAST, LOST, Finding("shown", 1, "")))
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        "| hand-overs | 9,600/s | 2,000/s (other-lock) | 2,400/s "
        "| 0.25× as fast as floor<br>1.2× as fast as other-lock "
        "| ≥ 0.5× as fast as floor<br>≥ 1× as fast as other-lock | **no**, missed by 50 %<br>yes |",
        "| leases lost | – | – | 3 | – | ≤ 0 | **no**, missed by 3 |",
    ]


def test_a_bar_that_is_a_figure_has_its_ratio_to_the_best_peer(tmp_path: Path) -> None:
    found = Finding("hand-overs", 2400, "/s", at_least=4000, work=HAND_OVERS)
    [line] = [
        line for line in page.updated(EMPTY, kept(tmp_path, "memory", found)).splitlines() if "| hand-overs |" in line
    ]
    assert "| 1.2× as fast as other-lock | ≥ 4,000/s | **no**, missed by 40 % |" in line


def test_the_page_says_which_run_it_is_from_and_that_it_was_a_quick_one(tmp_path: Path) -> None:
    full = page.updated(EMPTY, kept(tmp_path, "memory", FAST))
    assert "From the full run of " in full
    both = page.updated(EMPTY, kept(tmp_path, "startup", FAST, quick=True))
    assert "- `memory`: full run of " in both
    assert "- `startup`: quick run, a first impression only, of " in both


def test_making_the_page_again_changes_nothing(tmp_path: Path) -> None:
    asked = kept(tmp_path, "memory", SLOW)
    once = page.updated(EMPTY, asked)
    assert page.updated(once, asked) == once


def test_a_page_without_its_markers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'results'"):
        page.updated("no markers", kept(tmp_path, "memory", SLOW))


def test_the_tables_of_the_page_are_what_the_files_of_results_say() -> None:
    text = page.PAGE.read_text()
    assert page.updated(text, results.read()) == text, "`make bench` makes the tables; they are not edited by hand"


def test_every_file_of_results_answers_a_question_of_today() -> None:
    assert {file.stem for file in results.FOLDER.glob("*.json")} <= set(QUESTIONS)


def test_every_question_is_explained_on_the_page() -> None:
    text = page.PAGE.read_text()
    assert [question for question in QUESTIONS if f"`{question}`" not in text] == []


def test_the_plot_shows_each_work_once_that_can_be_compared(tmp_path: Path) -> None:
    alone = Finding("alone", 5, "µs", at_most=7, work=Work("alone", "µs", ours=5))
    assert works(kept(tmp_path, "memory", SLOW, FAST, alone, LOST)) == [HAND_OVERS]


# Rounds


def notes(*holds: tuple[float, float, float]) -> array[float]:
    """From when it asked, was granted, released."""
    return array("d", [moment for hold in holds for moment in hold])


def test_the_start_up_is_judged_apart_from_the_steady_state() -> None:
    a = notes((10.0, 10.5, 10.6), (10.6, 11.1, 11.2), (11.2, 11.5, 11.6))
    b = notes((10.0, 10.7, 10.8), (10.8, 11.3, 11.4))
    round_ = judge(Task("kind", begin=10.0, until=12.0), [a, b])
    assert round_.start_up == pytest.approx(0.7)  # until both have held
    assert round_.start_up_hand_overs == pytest.approx(1)  # in the first second: one, from a to b
    assert round_.hand_overs == pytest.approx(3)
    assert round_.release_to_next == [pytest.approx(value) for value in (0.1, 0.1, 0.3)]
    assert round_.waits == [pytest.approx(0.3)]  # asked after the first second
    assert len(round_.all_waits) == 5
    assert round_.all_waits[-1] == pytest.approx(0.7)


def test_a_hold_by_the_same_competitor_is_no_hand_over() -> None:
    a = notes((10.0, 11.0, 11.1), (11.1, 11.2, 11.3), (11.3, 11.4, 11.5))
    round_ = judge(Task("kind", begin=10.0, until=12.0), [a, notes((10.0, 11.6, 11.7))])
    assert (round_.hand_overs, round_.acquisitions) == (1, 4)


def test_a_grant_after_the_time_is_no_speed_but_its_wait_counts() -> None:
    a = notes((11.0, 11.5, 11.6), (11.6, 12.4, 12.5))
    round_ = judge(Task("kind", begin=10.0, until=12.0), [a, notes((11.0, 11.7, 11.8))])
    assert (round_.hand_overs, round_.handed) == (1, 2)
    assert round_.waits[-1] == pytest.approx(0.8)


def test_jain_s_index_is_1_for_equals_and_one_nth_if_one_takes_all() -> None:
    assert jain([5, 5, 5, 5]) == 1
    assert jain([8, 0, 0, 0]) == 0.25


# How cost grows


def test_the_exponent_is_the_slope_of_the_upper_two_decades() -> None:
    assert exponent([(n, 3e-6 * n) for n in (1, 10, 100, 1000)]) == pytest.approx(1)
    assert exponent([(n, 3e-6 * n**0.5) for n in (1, 10, 100, 1000)]) == pytest.approx(0.5)
    assert exponent([(n, 7e-6) for n in (1, 10, 100)]) == pytest.approx(0)
    floor_below = [(1, 1e-3), (10, 1e-3), (100, 1e-3), (1000, 1e-2), (10_000, 1e-1)]
    assert exponent(floor_below) == pytest.approx(1)
    assert exponent([(1, 1e-6)]) == 0


def test_a_cost_in_proportion_is_a_miss_and_one_like_log_n_is_not() -> None:
    assert exponent([(n, log(n)) for n in (100, 1000, 10_000)]) <= MAX_EXPONENT
    points = [Point(n, 1e-6 * n, 1e-4, None, 1e-5, None, 100.0) for n in (1, 10, 100)]
    found = {finding.detail["measure"]: finding for finding in findings("waiters", "Redis", points, complete=True)}
    assert found["acquire"].miss == "missed by 400 %"
    assert found["hand-over"].within_bound
    assert "list" not in found
    assert "adding one more" not in found


def test_a_series_that_ran_out_of_time_says_how_far_it_came(tmp_path: Path) -> None:
    points = [Point(n, 1e-6, 1e-4, 1e-3, None, 1e-5, 100.0) for n in (1, 10, 1000)]
    text = page.updated(EMPTY, kept(tmp_path, "scaling", *findings("names", "SQLite", points, complete=False)))
    assert "| SQLite | names | 1,000, then its time was over | 1 µs | 0.00 |" in text
