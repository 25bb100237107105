"""The verdict of a torture run: what it must find in journals, and what it must let pass. No server, no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockfast._model import EXCLUSIVE, SHARED
from tests.torture.journal import Journal
from tests.torture.plants import EVERY, PLANTS
from tests.torture.table import table, verdict
from tests.torture.verdict import Findings, gather, judged

FILE = "worker-0-threads-1.jsonl"
OTHER = "worker-1-asyncio-1.jsonl"
TTL_S = 1.0


def write_hold(journal: Journal, start: float, fence: int, **others: Any) -> None:
    """As `Belief` begins it."""
    facts = {"at": start, "id": f"claim{fence}", "until": start + TTL_S, "asked": start - 0.1, "kept": 0.0}
    kind = {"name": "mutex:0", "holder": "one", "fence": fence, "mode": EXCLUSIVE, "style": "with", "limit": None}
    journal.write("held", **{**facts, **kind, **others})


def write_history(folder: Path, plant: str = "") -> None:
    """Holds one after the other; every third outlives its lease, and the next one begins at its deadline."""
    journal = PLANTS[plant](folder / FILE)
    at = 100.0
    for fence in range(1001, 1000 + 3 * EVERY):
        write_hold(journal, at, fence)
        lost = fence % 3 == 0
        if lost:
            journal.write("lost", at=at + TTL_S, id=f"claim{fence}", reason="")
        journal.write("over", at=at + (1.5 if lost else 0.5), id=f"claim{fence}")
        at += TTL_S if lost else 0.5
    journal.close()
    supervise(folder)


def supervise(folder: Path, *lines: tuple[str, dict[str, Any]]) -> None:
    journal = Journal(folder / "supervisor.jsonl")
    for event, facts in lines:
        journal.write(event, **facts)
    journal.close()


def of(folder: Path, *faults: str, by_session: bool = False) -> Findings:
    return judged(gather(folder), 1.0, faults, by_session=by_session)


def test_a_history_without_a_fault_of_ours_is_green(tmp_path: Path) -> None:
    write_history(tmp_path)
    findings = of(tmp_path)
    assert verdict(findings) == "green"
    assert findings.holds == {"with": 3 * EVERY - 1}
    assert "| violations | 0 |" in table("redis", 1.0, 7, findings)


@pytest.mark.parametrize(
    ("plant", "words"), [("late", "held together"), ("fence", "fence went back"), ("unasked", "held together")]
)
def test_each_planted_bug_is_found(tmp_path: Path, plant: str, words: str) -> None:
    write_history(tmp_path, plant)
    findings = of(tmp_path)
    assert verdict(findings) == "RED"
    assert any(words in line for line in findings.violations)


def test_every_plant_has_a_test() -> None:
    assert set(PLANTS) == {"", "late", "fence", "unasked"}


@pytest.mark.parametrize(("ahead", "words"), [(61, ["fences ran away: one was 61 s ahead of the clock"]), (59, [])])
def test_fences_that_run_away_from_the_clock_are_found(tmp_path: Path, ahead: int, words: list[str]) -> None:
    journal = Journal(tmp_path / FILE)
    journal.write("began", at=100.0, wall=5000.0)
    write_hold(journal, 110.0, (5010 + ahead) * 1_000_000)
    journal.close()
    supervise(tmp_path)
    assert of(tmp_path).violations == words


def test_a_killed_worker_believes_nothing_from_then_on(tmp_path: Path) -> None:
    for file, start, fence in ((FILE, 100.0, 1), (OTHER, 100.6, 2)):
        journal = Journal(tmp_path / file)
        write_hold(journal, start, fence)
        journal.close()
    supervise(tmp_path, ("killed", {"at": 100.5, "file": FILE, "code": -9}))
    assert of(tmp_path).violations == []
    (tmp_path / "supervisor.jsonl").unlink()
    supervise(tmp_path, ("killed", {"at": 100.7, "file": FILE, "code": -9}))
    assert len(of(tmp_path).violations) == 1


def test_a_renewed_hold_lasts_until_the_deadline_that_was_reported_last(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE)
    write_hold(journal, 100.0, 1)
    journal.write("renewed", id="claim1", until=102.0)
    write_hold(journal, 101.5, 2)
    journal.close()
    supervise(tmp_path)
    assert len(of(tmp_path).violations) == 1


def test_a_name_that_stays_taken_after_the_release_is_not_given_to_another(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE)
    write_hold(journal, 100.0, 1, kept=100.4)
    journal.write("over", at=100.1, id="claim1")
    write_hold(journal, 100.3, 2)
    journal.close()
    supervise(tmp_path)
    assert len(of(tmp_path).violations) == 1


def test_several_names_that_were_asked_for_together_are_believed_in_until_the_first_deadline(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE)
    write_hold(journal, 100.0, 1, asked=99.0)
    write_hold(journal, 100.0, 2, asked=99.0, name="mutex:1", until=100.5)
    write_hold(journal, 100.6, 3)
    journal.close()
    supervise(tmp_path)
    assert of(tmp_path).violations == []


def test_a_downgraded_hold_is_shared_from_the_call_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE)
    write_hold(journal, 100.0, 1)
    journal.write("shares", at=100.2, id="claim1")
    write_hold(journal, 100.3, 2, mode=SHARED)
    journal.close()
    supervise(tmp_path)
    assert of(tmp_path).violations == []


@pytest.mark.parametrize("ends_sessions", [True, False])
def test_an_overlap_after_the_end_of_a_session_is_documented_for_advisory_locks_alone(
    tmp_path: Path, ends_sessions: bool
) -> None:
    journal = Journal(tmp_path / FILE)
    write_hold(journal, 100.0, 1)
    write_hold(journal, 100.5, 2)
    journal.close()
    supervise(tmp_path, ("fault", {"name": "cut", "began": 100.4, "begun": 100.4, "ends_sessions": ends_sessions}))
    assert len(of(tmp_path).violations) == 1
    findings = of(tmp_path, by_session=True)
    assert (len(findings.violations), findings.documented) == ((0, 1) if ends_sessions else (1, 0))


def test_a_grant_that_is_believed_after_its_session_has_ended_is_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE)
    write_hold(journal, 100.5, 2)
    write_hold(journal, 100.6, 1)
    journal.close()
    supervise(tmp_path, ("fault", {"name": "cut", "began": 100.4, "begun": 100.4, "ends_sessions": True}))
    assert len(of(tmp_path, by_session=True).violations) == 2


@pytest.mark.parametrize(
    ("event", "facts"),
    [
        ("unexpected", {"style": "with", "error": "KeyError('x')", "trace": "…"}),
        ("ended", {"threads": ["lockfast-keeper"]}),
    ],
)
def test_an_error_or_a_thread_that_is_left_is_a_finding(tmp_path: Path, event: str, facts: dict[str, Any]) -> None:
    write_history(tmp_path)
    journal = Journal(tmp_path / OTHER)
    journal.write(event, **facts)
    journal.close()
    assert verdict(of(tmp_path)) == "RED"


@pytest.mark.parametrize("event", ["left", "crashed", "stuck"])
def test_a_name_that_is_left_and_a_worker_that_did_not_end_in_order_are_findings(tmp_path: Path, event: str) -> None:
    write_history(tmp_path)
    supervise(tmp_path, (event, {"name": "mutex:0", "info": "not free", "file": FILE, "code": -11}))
    assert verdict(of(tmp_path)) == "RED"


def test_a_run_without_holds_or_without_a_fault_does_not_count(tmp_path: Path) -> None:
    supervise(tmp_path)
    assert verdict(of(tmp_path)) == "VACUOUS"
    write_history(tmp_path)
    assert of(tmp_path, "failover").vacuous == ["no fault 'failover'"]
    supervise(tmp_path, ("fault", {"name": "failover", "began": 90.0, "begun": 90.0, "ends_sessions": False}))
    assert verdict(of(tmp_path, "failover")) == "green"


def test_a_wait_counts_as_far_as_it_falls_into_a_calm(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE)
    write_hold(journal, 100.0, 1, asked=90.0)
    journal.close()
    supervise(tmp_path, ("calm", {"began": 95.0, "at": 98.0}))
    findings = of(tmp_path)
    assert (findings.longest_wait, findings.longest_calm_wait) == (10.0, 3.0)
