"""Every backend keeps limiters and cells as the reference does, in any order of requests, as time passes."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockfast._connect import open_backend
from lockfast._ids import new_claim_id
from lockfast._values import NS_PER_S, Rate, Write
from lockfast._worlds import drive
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.base import Backend
from lockfast.testing.clock import FakeClock
from tests.backends.reference_values import Bucket, Cell
from tests.backends.test_model import WITHIN, run_machine
from tests.scale import by_scale
from tests.servers.shared import valkey

KEYS = ("a", "b")
RATES = (Rate(NS_PER_S // 2, 3), Rate(NS_PER_S, 1), Rate(NS_PER_S // 3, 2))
BOOKED = tuple[str, Rate, int, int]  # key, rate, cost, until


class ValuesMachine(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.backend: Backend = open_backend(self.where(), ThreadWorld(self.clock), self.clock)
        self.buckets: defaultdict[str, Bucket] = defaultdict(Bucket)
        self.cells: defaultdict[str, Cell] = defaultdict(Cell)
        self.booked: list[BOOKED] = []
        self.writes: list[tuple[str, Write]] = []
        self.deleted = False  # anything at all

    def where(self) -> str:
        return self.url.format(folder=self.folder.name, store=uuid4().hex)

    def teardown(self) -> None:
        drive(self.backend.close())
        self.folder.cleanup()

    @rule(
        key=st.sampled_from(KEYS),
        rate=st.sampled_from(RATES),
        cost=st.integers(1, 3),
        patience=st.sampled_from([0.0, 0.0, 0.4, 3.0, float("inf")]),
    )
    def throttle(self, key: str, rate: Rate, cost: int, patience: float) -> None:
        cost, bucket = min(cost, rate.burst), self.buckets[key]
        expected = bucket.take(self.clock.now(), rate, cost, patience)
        allowance, until = drive(self.backend.throttle(key, rate, cost=cost, patience=patience, within=WITHIN))
        assert (allowance.allowed, allowance.remaining) == (expected.allowed, expected.remaining)
        assert allowance.retry_after == pytest.approx(expected.wait / NS_PER_S, abs=1e-9)
        if expected.allowed:
            assert until == bucket.booked_until()
            self.booked.append((key, rate, cost, until))

    @precondition(lambda self: self.booked)
    @rule(which=st.sampled_from([-1, -1, -1, -2, 0]))
    def give_back(self, which: int) -> None:
        """Mostly the last, and now and then what was given back before, or what others have booked behind."""
        key, rate, cost, until = self.booked[max(which, -len(self.booked))]
        self.buckets[key].give_back(self.clock.now(), rate, cost, until)
        drive(self.backend.unthrottle(key, rate, cost=cost, until=until, within=WITHIN))

    @rule(seconds=st.sampled_from([0.001, 0.3, 0.5, 1.0, 5.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(
        key=st.sampled_from(KEYS),
        value=st.sampled_from(['"x"', "1", "[]", "null", None]),
        behind=st.sampled_from([None, None, 0, 0, 0, 1, -1]),
        fence=st.sampled_from([None, None, 1, 2, 3]),
    )
    def write(self, key: str, value: str | None, behind: int | None, fence: int | None) -> None:
        expects = None if behind is None else max(0, self.cells[key].version - behind)
        fence = fence if value is not None else None  # deleting forgets the fences, so it shows none
        self.writes.append((key, Write(new_claim_id(), value, expects, fence)))
        self._write(*self.writes[-1])

    @precondition(lambda self: self.writes)
    @rule(which=st.sampled_from([-1, -1, -2, -3, 0]))
    def write_again(self, which: int) -> None:
        """As after a reply that was lost."""
        self._write(*self.writes[max(which, -len(self.writes))])

    def _write(self, key: str, write: Write) -> None:
        cell = self.cells[key]
        expected = cell.outcome(write)
        outcome, version, fence = drive(self.backend.write(key, write, within=WITHIN))
        assert outcome == ("written" if expected == "again" else expected)
        if expected != "written":
            assert (version, fence) == (cell.version, cell.fence)
            return
        if write.value is None:
            assert version == 0
            self.deleted = True
        elif cell.version:
            assert version == cell.version + 1
        else:
            assert version > cell.highest
            assert self.deleted or version == 1
        cell.written(write, version)

    @invariant()
    def what_is_read_is_what_was_written(self) -> None:
        for key in KEYS:
            cell, stored = self.cells[key], drive(self.backend.read(key, within=WITHIN))
            assert (stored.value, stored.version, stored.fence) == (cell.value, cell.version, cell.fence)


class MemoryValues(ValuesMachine):
    url = "memory://{store}"


class SqliteValues(ValuesMachine):
    url = "sqlite:///{folder}/locks.db"


class RedisValues(ValuesMachine):
    def where(self) -> str:
        return valkey().url(Path(self.folder.name))


@pytest.mark.parametrize("machine", [MemoryValues, SqliteValues, RedisValues])
def test_a_backend_keeps_values_as_the_reference_does(machine: type[ValuesMachine]) -> None:
    run_machine(machine, 20)


@pytest.mark.slow
@pytest.mark.timeout(by_scale(900, soak=3600))
@pytest.mark.parametrize("machine", [MemoryValues, SqliteValues, RedisValues])
def test_a_backend_keeps_values_as_the_reference_does_in_many_runs(machine: type[ValuesMachine]) -> None:
    run_machine(machine, by_scale(40, soak=1000))
