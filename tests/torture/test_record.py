"""The page's table of torture runs is what the recorded files say."""

from __future__ import annotations

from tests.torture.record import PAGE, recorded, updated


def test_the_page_shows_the_recorded_runs_and_nothing_else() -> None:
    page = PAGE.read_text()
    assert updated(page, recorded()) == page


def test_each_recorded_run_is_a_row() -> None:
    run = {
        "kind": "redis",
        "minutes": 15,
        "seed": 7,
        "date": "2026-11-19",
        "commit": "abc",
        "python": "3.11.7",
        "verdict": "RED",
        "holds": 12345,
        "faults": {"cut": 2, "stop": 3},
        "violations": 1,
        "documented": 0,
        "unexpected": 0,
        "left": 2,
        "losses": 0,
        "longest_wait_s": 9.5,
        "jain": 0.998,
    }
    page = updated(PAGE.read_text(), [run])
    assert (
        "| `redis` | 15 min, seed 7, 2026-11-19 at abc, Python 3.11.7 | 12,345 | 5 | 1 | 0, 2 | 9.5 s | 0.998 | RED |"
        in page
    )
