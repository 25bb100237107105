"""Processes on one file: what only SQLite's can meet with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversity.actor import Actor
from tests.servers.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow

Start = Callable[..., Actor]


def test_a_holder_whose_log_was_deleted_under_it_stops_believing(start: Start, tmp_path: Path) -> None:
    holder, other = start(), start()
    holder.ask("acquire", name="x", ttl=1.5)
    for ending in ("-wal", "-shm"):
        (tmp_path / f"locks.db{ending}").unlink()
    assert other.ask("acquire", name="x", wait=LIMIT_S)["fence"]
    until(lambda: not holder.ask("state")["held"], "the holder to stop believing, by its next renewal at the latest")


def test_no_process_starves_at_a_busy_file(start: Start, tmp_path: Path) -> None:
    """Four processes write without a pause; a fifth one gets its turns all the same."""
    busy = [start() for _ in range(4)]
    patient = start()
    *counters, own = (tmp_path / f"counter{number}" for number in range(5))
    for counter in (*counters, own):
        counter.write_text("0")
    for number, (actor, counter) in enumerate(zip(busy, counters, strict=True)):
        actor.send("increment", name=f"own {number}", path=str(counter), times=1_000_000)
    until(lambda: all(int(counter.read_text() or 0) for counter in counters), "all to be busy")
    assert len(patient.ask("increment", name="own 4", path=str(own), times=30)["holds"]) == 30
    assert all(actor.process.poll() is None for actor in busy), "they were busy all the time"
