"""Processes on one file: what only SQLite's can meet with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversity.actor import Actor

pytestmark = pytest.mark.slow

Start = Callable[..., Actor]


def test_a_holder_whose_log_was_deleted_under_it_stops_believing(start: Start, tmp_path: Path) -> None:
    holder, other = start(), start()
    holder.ask("acquire", name="x", ttl=1.5)
    for ending in ("-wal", "-shm"):
        (tmp_path / f"locks.db{ending}").unlink()
    assert other.ask("acquire", name="x", wait=20)["fence"]
    while holder.ask("look")["held"]:  # until its next renewal at the latest; the test's time limit ends this
        continue


def test_nobody_is_shut_out_of_a_busy_file(start: Start, tmp_path: Path) -> None:
    """Four processes write without a pause; a fifth one gets its turns all the same."""
    busy = [start() for _ in range(4)]
    patient = start()
    for number in range(5):
        (tmp_path / f"counter{number}").write_text("0")
    for number, actor in enumerate(busy):
        actor.tell("increment", name=f"own {number}", path=str(tmp_path / f"counter{number}"), times=2000)
    turns = patient.ask("increment", name="own 4", path=str(tmp_path / "counter4"), times=100)["holds"]
    waits = [later[1] - earlier[2] for earlier, later in itertools.pairwise(turns)]
    assert max(waits) < 1.0
    for actor in busy:
        assert actor.expect()["holds"][-1][2] > turns[-1][2], "they were busy all the time"
