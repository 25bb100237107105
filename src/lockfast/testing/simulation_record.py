"""What the clients of a simulated run believed and received, as they saw it.

Decides: from when to when a belief counts. Leaves to `history` and the checks: whether it was right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from lockfast._model import EXCLUSIVE, SHARED
from lockfast.aio import AsyncLease
from lockfast.primitives.election import Leadership
from lockfast.primitives.multi import MultiLease
from lockfast.testing.history import Hold
from lockfast.testing.simulated_client import Client
from lockfast.testing.simulation_checks import Loss
from lockfast.testing.simulation_plans import JobPlan


class Belief:
    """A hold as its holder saw it."""

    def __init__(self, client: Client, lease: AsyncLease, plan: JobPlan, together: MultiLease | None = None) -> None:
        self.client, self.lease, self.plan = client, lease, plan
        self.together = together  # the one lease over several names that it is a part of
        self.start = client.world.simulation.time
        self.end = float("inf")
        self.shares_from = float("inf")  # when it was downgraded

    def over(self) -> None:
        self.end = min(self.end, self.client.world.simulation.time)

    def downgrades(self) -> None:
        """From the asking on: the server does it at some moment after that."""
        self.shares_from = self.client.world.simulation.time

    def holds(self, broken: dict[str, float]) -> Iterator[Hold]:
        lease, plan = self.lease, self.plan
        deadline = self.client.world.true_time(lease._deadline)
        end = min(self.end, deadline, broken.get(lease.claim_id, deadline))
        hold = Hold(lease.name, lease.holder, lease.fence, self.start, end, plan.mode, plan.limit, lease.claim_id)
        yield hold._replace(end=min(end, self.shares_from))
        yield hold._replace(start=self.shares_from, mode=SHARED)


class Reign:
    """A leader as it saw itself, each time that it checked; in between it went on leading."""

    def __init__(self, client: Client, candidate: str, lease: AsyncLease) -> None:
        self._client, self._candidate, self._lease = client, candidate, lease
        self.start = self.end = client.world.simulation.time

    def checked(self) -> None:
        self.end = self._client.world.simulation.time

    def hold(self, broken: dict[str, float]) -> Hold:
        lease = self._lease
        end = min(self.end, broken.get(lease.claim_id, self.end))
        return Hold(lease.name, self._candidate, lease.fence, self.start, end, EXCLUSIVE, None, lease.claim_id)


class ReceivedChange(NamedTuple):
    """One change as an observer received it."""

    time: float
    asked_at: float  # since when the observer waited for it
    leadership: Leadership


class ElectionWatch:
    """All that one observer received."""

    def __init__(self, client: Client, name: str, claim_id: str) -> None:
        self.client, self.name, self.claim_id = client, name, claim_id
        self.received: list[ReceivedChange] = []

    @property
    def to_the_end(self) -> bool:
        return not self.client.world.crashed


class Use(NamedTuple):
    """A limiter gave a client permits."""

    time: float
    client: str
    cost: int


class Record:
    """Of one run."""

    def __init__(self) -> None:
        self.beliefs: list[Belief] = []
        self.reigns: list[Reign] = []
        self.losses: list[Loss] = []
        self.watches: list[ElectionWatch] = []
        self.uses: list[Use] = []
        self.wrong: list[str] = []  # what could be seen to be wrong at once
        self.counts: Counter[str] = Counter()

    def belief(self, claim_id: str) -> Belief | None:
        return next((belief for belief in reversed(self.beliefs) if belief.lease.claim_id == claim_id), None)

    def holds(self, broken: dict[str, float]) -> Iterator[Hold]:
        for belief in self.beliefs:
            yield from belief.holds(broken)

    def count(self) -> Counter[str]:
        return self.counts + Counter(
            holds=len(self.beliefs),
            losses=len(self.losses),
            reigns=len(self.reigns),
            permits=len(self.uses),
            changes_received=sum(len(watch.received) for watch in self.watches),
            vacancies_received=sum(received.leadership.vacant for watch in self.watches for received in watch.received),
        )
