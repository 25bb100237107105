"""Several names, whatever is asked in whatever order as time passes: all or nothing, and never two holders."""

from __future__ import annotations

import tempfile
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import lockfast
from lockfast.testing import FakeClock
from tests.scale import by_scale

NAMES = ("a", "b", "c", "d")


class Several(RuleBasedStateMachine):
    """A lease is modelled by its names and when it ends; nothing is renewed."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        url = self.url.format(folder=self.folder.name, store=uuid4().hex)
        self.clients = [lockfast.connect(url, clock=self.clock, holder=holder) for holder in ("us", "them")]
        self.leases: list[tuple[lockfast.MultiLease, frozenset[str], float]] = []
        self.last_fence = 0

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        self.folder.cleanup()

    def _taken(self) -> dict[str, int]:
        """The names that are held, and by which lease."""
        now = self.clock.now()
        return {name: n for n, (_, names, until) in enumerate(self.leases) if until > now for name in names}

    @rule(
        who=st.integers(0, 1),
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True),
        ttl=st.sampled_from([1.0, 5.0]),
    )
    def try_all(self, who: int, names: list[str], ttl: float) -> None:
        lease = self.clients[who].all(*names, ttl=ttl, renew=False).acquire(blocking=False)
        assert (lease is not None) == (not self._taken().keys() & set(names))
        if lease is not None:
            assert lease.names == tuple(sorted(names))
            assert min(lease.fence.values()) > self.last_fence
            self.last_fence = max(lease.fence.values())
            self.leases.append((lease, frozenset(names), self.clock.now() + ttl))

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 50))
    def release(self, which: int) -> None:
        lease, names, until = self.leases[which % len(self.leases)]
        assert lease.release() == (until > self.clock.now())
        self.leases[which % len(self.leases)] = (lease, names, 0.0)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 50), ttl=st.sampled_from([1.0, 9.0]))
    def extend(self, which: int, ttl: float) -> None:
        place = which % len(self.leases)
        lease, names, until = self.leases[place]
        if until > self.clock.now():
            lease.extend(ttl)
            self.leases[place] = (lease, names, max(until, self.clock.now() + ttl))
        else:
            with pytest.raises((lockfast.LeaseLost, lockfast.NotHeld)):
                lease.extend(ttl)

    @rule(seconds=st.sampled_from([0.4, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def the_store_and_the_leases_say_what_the_model_says(self) -> None:
        now, taken = self.clock.now(), self._taken()
        assert {info.name for info in self.clients[0].list()} == taken.keys()
        for lease, _, until in self.leases:
            assert lease.held == (until > now)


class SeveralInMemory(Several):
    url = "memory://{store}"


class SeveralInSqlite(Several):
    url = "sqlite:///{folder}/locks.db"


@pytest.mark.timeout(by_scale(120, soak=1800))
@pytest.mark.parametrize(
    ("machine", "runs"),
    [(SeveralInMemory, by_scale(60, soak=2000, quick=15)), (SeveralInSqlite, by_scale(20, soak=500, quick=4))],
)
def test_several_names_are_taken_and_ended_as_one(machine: type[Several], runs: int) -> None:
    limits = settings(
        max_examples=runs,
        stateful_step_count=25,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=limits)
