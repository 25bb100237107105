"""What is measured: one table of metrics, and the one way from events to them. All exporters and `stats` use both.

Decides: names, units, labels and the boundaries of buckets; which event counts where; how many patterns are kept apart.
Leaves to `prometheus`, `otel` and `stats`: where the values go.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, Literal, NamedTuple, Protocol
from weakref import WeakSet

from lockfast.observe.events import Event

MAX_PATTERNS: Final = 100  # in each place that values go to; then they are counted as the next
OTHER: Final = "other"
LABELS: Final = ("pattern", "primitive", "backend", "namespace")  # of every metric

MetricKind = Literal["histogram", "counter", "gauge"]


class Metric(NamedTuple):
    """One row of the table."""

    name: str  # for OpenTelemetry with "lockfast." before it
    kind: MetricKind
    unit: str  # as OpenTelemetry writes it
    prometheus: str  # its name by the conventions of Prometheus
    help: str
    more_labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # upper boundaries

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels, in the order of their values."""
        return LABELS + self.more_labels


# Up to 10 s these are the boundaries that OpenTelemetry advises for `db.client.connection.wait_time` and `use_time`.
_WAITS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_HOLDS_S: Final = (*_WAITS_S, 1800.0, 3600.0)
_SHARES: Final = tuple(tenths / 10 for tenths in range(10))

WAIT_TIME: Final = Metric(
    "acquire.wait_time",
    "histogram",
    "s",
    "lockfast_acquire_wait_seconds",
    "From asking for a lock to the end of the acquire, with or without a lease",
    ("outcome",),
    _WAITS_S,
)
PENDING: Final = Metric(
    "acquire.pending", "gauge", "{acquire}", "lockfast_acquire_pending", "Acquires that have not ended yet"
)
HOLD_TIME: Final = Metric(
    "lease.hold_time",
    "histogram",
    "s",
    "lockfast_lease_hold_seconds",
    "From the grant to the end of the lease",
    ("end",),
    _HOLDS_S,
)
LEASES: Final = Metric("lease.count", "gauge", "{lease}", "lockfast_leases", "Leases that are held")
LOST: Final = Metric(
    "lease.lost",
    "counter",
    "{lease}",
    "lockfast_lease_lost_total",
    "Leases that ended while their holder wanted them",
    ("reason",),
)
SLACK: Final = Metric(
    "renewal.slack",
    "histogram",
    "1",
    "lockfast_renewal_slack_ratio",
    "Share of the ttl that was left when a renewal came through; 0 is a loss",
    (),
    _SHARES,
)
FAILURES: Final = Metric(
    "renewal.failures",
    "counter",
    "{renewal}",
    "lockfast_renewal_failures_total",
    "Renewals that failed and were tried again",
)
LEADER: Final = Metric(
    "election.leader", "gauge", "{election}", "lockfast_election_leader", "Elections that this process leads"
)
REQUESTS: Final = Metric(
    "limiter.requests",
    "counter",
    "{request}",
    "lockfast_limiter_requests_total",
    "Calls of a limiter that are over",
    ("allowed", "outcome"),
)
# Each counter of these begins at 0 with the first grant: one that appears as 1 has not grown, in the eyes of an alert.
_LOSSES: Final = (
    "broken",
    "gone",
    "keeper_failed",
    "late",
    "loop_closed",
    "max_hold",
    "renewals_failed",
    "session_ended",
)
METRICS: Final = (WAIT_TIME, PENDING, HOLD_TIME, LEASES, LOST, SLACK, FAILURES, LEADER, REQUESTS)

Labels = tuple[str, ...]
Record = Callable[[Metric, Labels, float], None]  # adds a value: to a gauge what it changes by


class Measuring:
    """A listener that passes what is measured to `record`.

    A gauge changes by +1 at the beginning of an acquire or a lease and by -1 at its end, and only if both are seen: the
    end of what began before this listened changes no gauge. Takes no mutex: each step on a dictionary is atomic.
    """

    __slots__ = ("__weakref__", "_begun", "_copied", "_held", "_inherited", "_known", "_pending", "_record", "_tickets")

    def __init__(self, record: Record, *, copied_by_fork: bool) -> None:
        self._record = record
        self._copied = copied_by_fork  # else the gauges of a child begin at 0
        self._pending: dict[str, Labels] = {}  # by claim
        self._held: dict[str, Labels] = {}
        self._known: dict[tuple[str, str], None] = {}  # namespace and pattern
        self._tickets = count()
        self._begun: set[Labels] = set()  # of which there was a grant
        self._inherited: deque[tuple[Metric, Labels]] = deque()  # what gauges still count of the parent's
        resets_at_fork(self)

    def __call__(self, event: Event) -> None:
        while self._inherited:
            self._record(*self._inherited.popleft(), -1.0)
        measure = _MEASURES.get(event.kind)
        if measure is not None:
            measure(self, event)

    def after_fork(self) -> None:
        """The parent's claims have no end here. What records them is not called yet: it may have locks of its own."""
        if self._copied:
            self._inherited.extend((PENDING, labels) for labels in self._pending.values())
            for labels in self._held.values():
                self._inherited.extend((gauge, labels) for gauge in _gauges_of_lease(labels))
        self._pending, self._held = {}, {}
        self._begun = set()

    def _labels(self, event: Event) -> Labels:
        """Of an event. No more than MAX_PATTERNS of them differ in pattern and namespace, except for `OTHER`."""
        named = (event.namespace, event.pattern)
        if named not in self._known:
            if next(self._tickets) >= MAX_PATTERNS:
                return (OTHER, event.primitive, event.backend, OTHER)
            self._known[named] = None
        return (event.pattern, event.primitive, event.backend, event.namespace)

    def _begin(self, labels: Labels) -> None:
        self._begun.add(labels)
        self._record(FAILURES, labels, 0.0)
        for reason in _LOSSES:
            self._record(LOST, (*labels, reason), 0.0)

    def asked(self, event: Event) -> None:
        labels = self._pending[event.claim_id] = self._labels(event)
        self._record(PENDING, labels, 1.0)

    def answered(self, event: Event) -> None:
        labels = self._pending.pop(event.claim_id, None)
        if labels is None:
            labels = self._labels(event)
        else:
            self._record(PENDING, labels, -1.0)
        self._record(WAIT_TIME, (*labels, event.outcome), event.waited or 0.0)
        if event.kind == "granted":
            if labels not in self._begun:
                self._begin(labels)
            self._held[event.claim_id] = labels
            for gauge in _gauges_of_lease(labels):
                self._record(gauge, labels, 1.0)

    def ended(self, event: Event) -> None:
        labels = self._held.pop(event.claim_id, None)
        if labels is None:
            labels = self._labels(event)
        else:
            for gauge in _gauges_of_lease(labels):
                self._record(gauge, labels, -1.0)
        self._record(HOLD_TIME, (*labels, event.outcome), event.held_for or 0.0)
        if event.kind == "lost":
            self._record(LOST, (*labels, event.reason), 1.0)

    def renewed(self, event: Event) -> None:
        labels = self._held.get(event.claim_id) or self._labels(event)
        self._record(SLACK, labels, event.slack or 0.0)

    def renewal_failed(self, event: Event) -> None:
        labels = self._held.get(event.claim_id) or self._labels(event)
        self._record(FAILURES, labels, 1.0)

    def limited(self, event: Event) -> None:
        allowed = "true" if event.outcome == "allowed" else "false"
        self._record(REQUESTS, (*self._labels(event), allowed, event.outcome), 1.0)


_MEASURES: Final[dict[str, Callable[[Measuring, Event], None]]] = {
    "asked": Measuring.asked,
    "granted": Measuring.answered,
    "not_granted": Measuring.answered,
    "released": Measuring.ended,
    "lost": Measuring.ended,
    "renewed": Measuring.renewed,
    "renewal_failed": Measuring.renewal_failed,
    "limited": Measuring.limited,
}


def _gauges_of_lease(labels: Labels) -> tuple[Metric, ...]:
    return (LEASES, LEADER) if labels[1] == "election" else (LEASES,)


# A fork


class ResetsAtFork(Protocol):
    def after_fork(self) -> None: ...


_living: WeakSet[ResetsAtFork] = WeakSet()


def resets_at_fork(one: ResetsAtFork) -> None:
    """Have its `after_fork` called in the child of each fork, as long as it lives."""
    _living.add(one)


def _after_fork() -> None:
    for one in list(_living):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
