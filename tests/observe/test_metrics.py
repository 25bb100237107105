"""Which event counts where, in every exporter alike."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import lockfast
from lockfast.observe import metrics
from lockfast.observe.events import Event
from lockfast.observe.metrics import (
    FAILURES,
    HOLD_TIME,
    LABELS,
    LEADER,
    LEASES,
    LOST,
    MAX_PATTERNS,
    METRICS,
    OTHER,
    PENDING,
    REQUESTS,
    SLACK,
    WAIT_TIME,
    Labels,
    Measuring,
    Metric,
)
from tests.observe.numbers import event, granted, lost, released

ORDER = ("order:{n}", "lock", "memory", "ns")


class Recorded(list[tuple[Metric, Labels, float]]):
    """What a listener has recorded, but for the zeros with which counters begin."""

    def __init__(self, *, copied_by_fork: bool = True) -> None:
        super().__init__()
        self.listener = Measuring(lambda *what: self.append(what), copied_by_fork=copied_by_fork)

    def after(self, *events: Event) -> list[tuple[Metric, Labels, float]]:
        self.clear()
        for one in events:
            self.listener(one)
        return [(metric, labels, change) for metric, labels, change in self if change or metric.kind != "counter"]

    def gauges(self, metric: Metric) -> Counter[Labels]:
        sums: Counter[Labels] = Counter()
        for one, labels, change in self:
            if one is metric:
                sums[labels] += int(change)
        return +sums + -sums if any(count < 0 for count in sums.values()) else +sums


def test_an_acquire_is_pending_until_it_is_granted_and_a_lease_counts_until_it_ends() -> None:
    recorded = Recorded()
    assert recorded.after(event("asked")) == [(PENDING, ORDER, 1.0)]
    assert recorded.after(granted()) == [
        (PENDING, ORDER, -1.0),
        (WAIT_TIME, (*ORDER, "granted"), 0.5),
        (LEASES, ORDER, 1.0),
    ]
    assert recorded.after(released()) == [(LEASES, ORDER, -1.0), (HOLD_TIME, (*ORDER, "released"), 2.0)]


def test_an_acquire_that_fails_is_no_longer_pending_and_says_how_it_ended() -> None:
    recorded = Recorded()
    recorded.after(event("asked"))
    assert recorded.after(event("not_granted", outcome="timeout", waited=1.0)) == [
        (PENDING, ORDER, -1.0),
        (WAIT_TIME, (*ORDER, "timeout"), 1.0),
    ]


def test_a_loss_is_counted_by_its_reason() -> None:
    recorded = Recorded()
    recorded.after(event("asked"), granted())
    assert recorded.after(lost(reason="renewals_failed"))[1:] == [
        (HOLD_TIME, (*ORDER, "lost"), 3.0),
        (LOST, (*ORDER, "renewals_failed"), 1.0),
    ]


def test_renewals_are_measured_by_what_they_left_and_by_how_often_they_failed() -> None:
    recorded = Recorded()
    assert recorded.after(event("renewed", slack=0.67), event("renewal_failed")) == [
        (SLACK, ORDER, 0.67),
        (FAILURES, ORDER, 1.0),
    ]


@pytest.mark.parametrize(("outcome", "allowed"), [("allowed", "true"), ("refused", "false"), ("unavailable", "false")])
def test_a_call_of_a_limiter_counts_by_what_it_was_answered(outcome: str, allowed: str) -> None:
    labels = ("api", "limiter", "memory", "ns", allowed, outcome)
    made = event("limited", primitive="limiter", pattern="api", outcome=outcome)
    assert Recorded().after(made) == [(REQUESTS, labels, 1.0)]


def test_a_leader_is_counted_while_it_leads() -> None:
    recorded = Recorded()
    recorded.after(event("asked", primitive="election"))
    assert (LEADER, ("order:{n}", "election", "memory", "ns"), 1.0) in recorded.after(granted(primitive="election"))
    assert (LEADER, ("order:{n}", "election", "memory", "ns"), -1.0) in recorded.after(lost(primitive="election"))


def test_what_began_before_this_listened_changes_no_gauge_when_it_ends() -> None:
    recorded = Recorded()
    assert recorded.after(released()) == [(HOLD_TIME, (*ORDER, "released"), 2.0)]
    assert recorded.after(event("not_granted", outcome="busy", waited=0.0)) == [(WAIT_TIME, (*ORDER, "busy"), 0.0)]


def test_the_counters_of_losses_and_failures_begin_at_zero_with_the_first_grant() -> None:
    recorded = Recorded()
    recorded.after(event("asked"), granted(), event("asked", "c2"), granted("c2"))
    zeros = [(metric, labels) for metric, labels, change in recorded if change == 0.0]
    assert (LOST, (*ORDER, "renewals_failed")) in zeros
    assert (FAILURES, ORDER) in zeros
    assert len(zeros) == len(set(zeros))


def test_no_more_patterns_are_kept_apart_than_the_cap_allows() -> None:
    recorded = Recorded()
    made = recorded.after(*(event("asked", str(n), pattern=f"p{n}") for n in range(2 * MAX_PATTERNS)))
    assert [labels[0] for _, labels, _ in made[:MAX_PATTERNS]] == [f"p{n}" for n in range(MAX_PATTERNS)]
    assert {labels for _, labels, _ in made[MAX_PATTERNS:]} == {(OTHER, "lock", "memory", OTHER)}
    assert recorded.after(event("asked", pattern="p0"))[0][1][0] == "p0"
    assert recorded.after(granted(str(MAX_PATTERNS), pattern=f"p{MAX_PATTERNS}"))[0] == (
        PENDING,
        (OTHER, "lock", "memory", OTHER),
        -1.0,
    )


def test_many_namespaces_do_not_evade_the_cap() -> None:
    recorded = Recorded()
    made = recorded.after(*(event("asked", str(n), namespace=f"n{n}") for n in range(2 * MAX_PATTERNS)))
    assert len({labels for _, labels, _ in made}) == MAX_PATTERNS + 1


STEPS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["granted", "not_granted", "lost", "released"])))


@given(STEPS, st.integers(0, 20))
def test_gauges_count_just_what_is_open_of_what_this_has_seen_begin(steps: list[Any], begins: int) -> None:
    recorded = Recorded()
    state: dict[str, str] = {}  # of each claim
    seen: set[str] = set()  # claims that began while this listened
    made: list[Event] = []
    for name, kind in steps:
        if state.get(name) == "held":
            made.append(lost(name) if kind == "lost" else released(name))
            del state[name]
        elif state.get(name) == "asked":
            made.append(granted(name) if kind != "not_granted" else event(kind, name, outcome="busy", waited=0.0))
            state[name] = "held"
            if kind == "not_granted":
                del state[name]
        else:
            made.append(event("asked", name))
            state[name] = "asked"
    for one in made[begins:]:
        recorded.listener(one)
        if one.kind in ("asked", "granted"):
            seen.add(one.claim_id)
        elif one.kind != "granted":
            seen.discard(one.claim_id)
    pending = sum(change for metric, _, change in recorded if metric is PENDING)
    leases = sum(change for metric, _, change in recorded if metric is LEASES)
    assert pending == sum(state.get(name) == "asked" for name in seen)
    assert leases == sum(state.get(name) == "held" for name in seen)


@pytest.mark.parametrize("copied", [True, False])
def test_a_child_of_a_fork_counts_nothing_of_its_parent(copied: bool) -> None:
    recorded = Recorded(copied_by_fork=copied)
    recorded.after(event("asked", "a"), event("asked", "b"), granted("b"))
    pid = os.fork()
    if pid == 0:
        made = recorded.after(event("asked", "c"))
        expected = [(PENDING, ORDER, -1.0), (LEASES, ORDER, -1.0)] if copied else []
        made += recorded.after(released("b"))  # the parent's: it does not count twice
        right = made == [*expected, (PENDING, ORDER, 1.0), (HOLD_TIME, (*ORDER, "released"), 2.0)]
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert recorded.after(released("b"))[0] == (LEASES, ORDER, -1.0)


def test_every_label_has_a_value_and_no_label_is_a_raw_name(url: str) -> None:
    recorded = Recorded()
    with lockfast.connect(url) as locks:
        locks.events.listen(recorded.listener)
        with locks.lock("order:42"), locks.semaphore("pool:7", 2), locks.all("x:1", "y:2"), locks.election("e:3"):
            locks.limiter("api:9", rate=1).try_acquire()
    assert {metric for metric, _, _ in recorded} >= {WAIT_TIME, HOLD_TIME, PENDING, LEASES, LEADER, REQUESTS}
    for metric, labels, _ in recorded:
        assert len(labels) == len(metric.labels)
        assert all(labels)
        assert labels[0] in ("order:{n}", "pool:{n}", "x:{n}", "y:{n}", "e:{n}", "api:{n}")


def test_the_table_keeps_the_conventions_of_both() -> None:
    assert len({metric.name for metric in METRICS}) == len({metric.prometheus for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.labels[:4] == LABELS
        assert metric.prometheus.startswith("lockfast_")
        assert metric.prometheus.endswith("_total") == (metric.kind == "counter")
        assert metric.prometheus.endswith("_seconds") == (metric.unit == "s")
        assert metric.prometheus.endswith("_ratio") == (metric.unit == "1")
        assert not metric.prometheus.endswith(("_count", "_sum", "_bucket"))  # of histograms only
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_every_loss_begins_at_zero_but_those_of_a_program_that_ends() -> None:
    page = (metrics.__spec__.origin or "").partition("/src/")[0] + "/docs/events.md"
    with open(page) as text:
        rows = [line.split("|") for line in text if line.startswith("| `")]
    reasons = {row[1].strip(" `") for row in rows if row[2].strip() in ("`lost`", "`broken`")}
    assert {*metrics._LOSSES} == reasons | {"max_hold"}
