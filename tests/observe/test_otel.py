"""Metrics and spans for OpenTelemetry, read back from the exporters in memory of its SDK."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import lockfast
import lockfast.aio
from lockfast.observe import otel
from lockfast.observe.metrics import METRICS, WAIT_TIME
from lockfast.testing import FakeClock, FaultyBackend
from tests.observe.numbers import released
from tests.renewals import renew_soon
from tests.servers.waiting import join, until


class Collected:
    """Providers of a test of its own, and what they have got."""

    def __init__(self) -> None:
        self._reader, self._exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.tracers.get_tracer("test")

    def install(self, locks: Any) -> None:
        otel.install(locks, self.meters, self.tracers)

    def metrics(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        found = data.resource_metrics if data is not None else []
        return {metric.name: metric for one in found for scope in one.scope_metrics for metric in scope.metrics}

    def value(self, name: str, **labels: Any) -> float:
        """Of a histogram how many values there were."""
        wanted = {f"lockfast.{label}": value for label, value in labels.items()}.items()
        metric = self.metrics().get(name)
        points = [] if metric is None else [one for one in metric.data.data_points if wanted <= one.attributes.items()]
        return sum(one.count if isinstance(one, HistogramDataPoint) else one.value for one in points)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        [span] = self.spans(name)
        return span


@pytest.fixture
def collected() -> Iterator[Collected]:
    collected = Collected()
    yield collected
    collected.meters.shutdown()
    collected.tracers.shutdown()


def test_what_happens_is_measured_by_the_names_of_the_table(locks: lockfast.Locks, collected: Collected) -> None:
    collected.install(locks)
    with locks.lock("order:42"):
        assert collected.value("lockfast.lease.count", pattern="order:{n}", namespace="shop") == 1
        assert locks.lock("order:42", wait=0).acquire() is None
    locks.limiter("api", rate=1).try_acquire()
    assert collected.value("lockfast.acquire.wait_time", outcome="granted") == 1
    assert collected.value("lockfast.acquire.wait_time", outcome="busy") == 1
    assert collected.value("lockfast.lease.hold_time", end="released") == 1
    assert collected.value("lockfast.limiter.requests", allowed=True, outcome="allowed") == 1
    assert collected.value("lockfast.lease.count") == collected.value("lockfast.acquire.pending") == 0
    by_name = {f"lockfast.{metric.name}": metric for metric in METRICS}
    for name, metric in collected.metrics().items():
        assert (metric.unit, metric.description) == (by_name[name].unit, by_name[name].help)


def test_a_histogram_has_the_boundaries_of_the_table(locks: lockfast.Locks, collected: Collected) -> None:
    collected.install(locks)
    locks.lock("a").acquire()
    [point] = collected.metrics()["lockfast.acquire.wait_time"].data.data_points
    assert tuple(point.explicit_bounds) == WAIT_TIME.buckets


def test_an_acquire_is_a_client_span_of_the_work_and_the_lease_is_linked_to_it(
    locks: lockfast.Locks, collected: Collected
) -> None:
    collected.install(locks)
    with collected.tracer.start_as_current_span("charge"), locks.lock("order:42") as lease:
        with collected.tracer.start_as_current_span("inside"):
            pass
        fence = lease.fence
    charge, acquire, hold = (collected.span(name) for name in ("charge", "acquire order:{n}", "hold order:{n}"))
    assert acquire.kind is SpanKind.CLIENT
    assert hold.kind is SpanKind.INTERNAL
    for span in (acquire, hold, collected.span("inside")):
        assert span.parent is not None
        assert span.parent.span_id == charge.context.span_id
        assert span.context.trace_id == charge.context.trace_id
    assert [link.context for link in hold.links] == [acquire.context]
    said = dict(acquire.attributes or {})
    assert (
        said.items()
        >= {
            "lockfast.name": "order:42",
            "lockfast.pattern": "order:{n}",
            "lockfast.primitive": "lock",
            "lockfast.backend": "memory",
            "lockfast.namespace": "shop",
            "lockfast.outcome": "granted",
            "lockfast.attempts": 1,
            "lockfast.fence": fence,
        }.items()
    )
    assert said["lockfast.waited"] == 0.0
    assert acquire.status.status_code is hold.status.status_code is StatusCode.UNSET
    assert (hold.attributes or {})["lockfast.reason"] == "by_holder"


def test_an_acquire_that_times_out_is_an_error_that_names_who_was_in_the_way(
    locks: lockfast.Locks, clock: FakeClock, collected: Collected
) -> None:
    collected.install(locks)
    with locks.lock("a", ttl=600):
        waiter = threading.Thread(target=locks.lock("a", wait=5).acquire)
        waiter.start()
        until(lambda: locks.inspect("a").waiters == 1)
        clock.advance(5)
        join(waiter)
        assert locks.lock("a", wait=0).acquire() is None
    _, timeout, busy = collected.spans("acquire a")
    assert (timeout.attributes or {}).items() >= {
        "lockfast.outcome": "timeout",
        "lockfast.held_by": "worker-7",
        "error.type": "timeout",
    }.items()
    assert timeout.status.status_code is StatusCode.ERROR
    assert "held by 'worker-7'" in (timeout.status.description or "")
    assert busy.status.status_code is StatusCode.UNSET  # it was only to try


def test_a_loss_is_an_event_of_the_lease_and_of_the_work(url: str, clock: FakeClock, collected: Collected) -> None:
    with lockfast.connect(url, clock=clock) as locks, collected.tracer.start_as_current_span("charge"):
        collected.install(locks)
        locks.lock("order:42", renew=False, ttl=30).acquire()
        clock.advance(31.0)
        until(lambda: collected.spans("hold order:{n}"), "the loss to be reported")
    hold, charge = collected.span("hold order:{n}"), collected.span("charge")
    for span in (hold, charge):
        [lost] = span.events
        assert lost.name == "lock lost"
        assert (lost.attributes or {}).items() >= {
            "lockfast.reason": "not_renewed",
            "lockfast.outcome": "expired",
            "lockfast.name": "order:42",
        }.items()
    assert hold.status.status_code is StatusCode.ERROR
    assert collected.value("lockfast.lease.lost", reason="not_renewed") == 1


def test_a_failing_renewal_is_an_event_of_the_lease(
    locks: lockfast.Locks, backends: list[FaultyBackend], collected: Collected
) -> None:
    collected.install(locks)
    with locks.lock("a", ttl=60) as lease:
        backends[0].lose_request("renew", 1)
        renew_soon(lease)
        until(lambda: collected.value("lockfast.renewal.failures"), "a renewal to fail")
    assert "renewal failed" in [event.name for event in collected.span("hold a").events]


def test_spans_of_threads_and_tasks_belong_to_the_work_of_each(url: str, collected: Collected) -> None:
    def in_a_thread(locks: lockfast.Locks, name: str) -> None:
        with collected.tracer.start_as_current_span(f"work {name}"), locks.lock(name):
            pass

    with lockfast.connect(url) as locks:
        collected.install(locks)
        threads = [threading.Thread(target=in_a_thread, args=(locks, name)) for name in ("ta", "tb")]
        for thread in threads:
            thread.start()
        join(*threads)

    async def in_a_task(locks: lockfast.aio.AsyncLocks, name: str) -> None:
        with collected.tracer.start_as_current_span(f"work {name}"):
            await asyncio.sleep(0)
            async with locks.lock("shared"), locks.lock(name):
                await asyncio.sleep(0)

    async def main() -> None:
        async with lockfast.aio.connect(url) as locks:
            collected.install(locks)
            await asyncio.gather(in_a_task(locks, "aa"), in_a_task(locks, "ab"))

    asyncio.run(main())
    for name in ("ta", "tb", "aa", "ab"):
        for span in (collected.span(f"acquire {name}"), collected.span(f"hold {name}")):
            assert span.parent is not None
            assert span.parent.span_id == collected.span(f"work {name}").context.span_id
    works = {collected.span(f"work {name}").context.span_id for name in ("aa", "ab")}
    assert {span.parent and span.parent.span_id for span in collected.spans("acquire shared")} == works


def test_to_install_twice_is_to_install_once(locks: lockfast.Locks, collected: Collected) -> None:
    collected.install(locks)
    collected.install(locks)
    locks.lock("a").acquire()
    assert len(collected.spans("acquire a")) == 1
    assert collected.value("lockfast.acquire.wait_time") == 1


def test_without_providers_those_of_the_process_are_used_once(url: str) -> None:
    with lockfast.connect(url, observe=["otel"]) as locks:
        listeners = len(locks.events._listeners)
        otel.install(locks)
        assert len(locks.events._listeners) == listeners == 2
        with locks.lock("a") as lease:
            assert lease.held


def test_a_child_of_a_fork_does_not_end_the_spans_of_its_parent(url: str, collected: Collected) -> None:
    with lockfast.connect(url) as locks:
        collected.install(locks)
        with locks.lock("a") as lease:
            pid = os.fork()
            if pid == 0:
                locks.lock("b").acquire()
                locks.events.emit(released(lease.claim_id))
                right = collected.value("lockfast.lease.count") == 1 and not collected.spans("hold a")
                os._exit(0 if right else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(collected.spans("hold a")) == 1
