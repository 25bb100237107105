"""Metrics and traces for OpenTelemetry, with its API alone: `pip install 'lockfast[otel]'`.

Decides: which instrument each metric of the table is; which spans there are, what they say and what they are linked to.
Leaves to `metrics`: what is measured. Leaves to the program: the SDK, and where it exports to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from lockfast.observe.events import Event, Events, Listener
from lockfast.observe.metrics import METRICS, Labels, Measuring, Metric, resets_at_fork
from lockfast.observe.shielding import ShieldedListener, listen_once

try:
    from opentelemetry.metrics import Meter, MeterProvider, get_meter, get_meter_provider
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
        get_current_span,
        get_tracer,
        get_tracer_provider,
        set_span_in_context,
    )
except ImportError as error:
    raise ImportError(f"OpenTelemetry needs an extra: pip install 'lockfast[otel]' ({error})") from error

__all__ = ["install"]

SCOPE: Final = "lockfast"  # of all instruments and spans
_FAILED: Final = ("timeout", "unavailable", "deadlock", "closed", "error")  # outcomes of an acquire that are errors

# Fields of an event that a span has as attributes. Values that are None or an empty text are left out.
_ATTRIBUTES: Final = {
    "lockfast.name": "name",
    "lockfast.pattern": "pattern",
    "lockfast.primitive": "primitive",
    "lockfast.mode": "mode",
    "lockfast.backend": "backend",
    "lockfast.namespace": "namespace",
    "lockfast.holder": "holder",
    "lockfast.claim_id": "claim_id",
}
_AT_THE_END: Final = {
    "lockfast.outcome": "outcome",
    "lockfast.reason": "reason",
    "lockfast.fence": "fence",
    "lockfast.waited": "waited",
    "lockfast.held_for": "held_for",
    "lockfast.attempts": "attempts",
    "lockfast.position": "position",
    "lockfast.held_by": "held_by",
}


class Emitting(Protocol):
    """A `Locks` or an `AsyncLocks`, or a manager."""

    @property
    def events(self) -> Events: ...


def install(
    locks: Emitting, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> None:
    """Report what happens to these locks as metrics and spans, by default to the providers of the whole process.

    These may be set later. To install twice is to install once. To leave out one of both, pass its no-op provider.
    """
    if meter_provider is get_meter_provider():
        meter_provider = None
    if tracer_provider is get_tracer_provider():
        tracer_provider = None
    listen_once(locks.events, _metrics.of(meter_provider))
    listen_once(locks.events, _spans.of(tracer_provider))


class _PerProvider:
    """One listener for each provider, and one for that of the process, whichever it is or becomes."""

    def __init__(self, make: Callable[[Any], ShieldedListener]) -> None:
        self._make = make
        self._default: ShieldedListener | None = None
        self._others: WeakKeyDictionary[Any, ShieldedListener] = WeakKeyDictionary()
        self._mutex = threading.Lock()
        resets_at_fork(self)

    def of(self, provider: Any) -> ShieldedListener:
        with self._mutex:
            listener = self._default if provider is None else self._others.get(provider)
            if listener is None:
                listener = self._make(provider)
                if provider is None:
                    self._default = listener
                else:
                    self._others[provider] = listener
            return listener

    def after_fork(self) -> None:
        self._mutex = threading.Lock()


# Metrics


class _Instruments:
    def __init__(self, meter: Meter) -> None:
        self._calls = {metric.name: _instrument(metric, meter) for metric in METRICS}
        self._attributes: dict[Labels, Mapping[str, str | bool]] = {}

    def record(self, metric: Metric, labels: Labels, value: float) -> None:
        attributes = self._attributes.get((metric.name, *labels))
        if attributes is None:
            named = zip(metric.labels, labels, strict=True)
            attributes = {f"lockfast.{name}": text == "true" if name == "allowed" else text for name, text in named}
            self._attributes[(metric.name, *labels)] = attributes
        self._calls[metric.name](value, attributes)


def _instrument(metric: Metric, meter: Meter) -> Callable[[float, Mapping[str, str | bool]], None]:
    about = (f"lockfast.{metric.name}", metric.unit, metric.help)
    if metric.kind == "histogram":
        return meter.create_histogram(*about, explicit_bucket_boundaries_advisory=metric.buckets).record
    if metric.kind == "gauge":
        return meter.create_up_down_counter(*about).add
    return meter.create_counter(*about).add


def _measuring(provider: MeterProvider | None) -> ShieldedListener:
    meter = get_meter(SCOPE, meter_provider=provider)
    return ShieldedListener(Measuring(_Instruments(meter).record, copied_by_fork=True), "metrics for OpenTelemetry")


# Traces


class _Held(NamedTuple):
    span: Span  # of the lease
    work: Span  # what the caller was doing when it acquired


class _Tracing:
    """An acquire is a span of kind CLIENT, below the one that is current in the thread or task that asks. A lease is
    one of kind INTERNAL beside it, with a link to it. Neither is made current: a lease may end in another thread.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._asked: dict[str, tuple[Span, Span]] = {}  # by claim: its span, and the one above it
        self._held: dict[str, _Held] = {}
        resets_at_fork(self)

    def __call__(self, event: Event) -> None:
        follow = _FOLLOWS.get(event.kind)
        if follow is not None:
            follow(self, event)

    def after_fork(self) -> None:
        """These are the parent's, which ends them."""
        self._asked, self._held = {}, {}

    def asked(self, event: Event) -> None:
        work = get_current_span()
        attributes = _attributes(event, _ATTRIBUTES)
        span = self._tracer.start_span(f"acquire {event.pattern}", kind=SpanKind.CLIENT, attributes=attributes)
        self._asked[event.claim_id] = (span, work)

    def waiting(self, event: Event) -> None:
        span, _ = self._asked.get(event.claim_id, (None, None))
        if span is not None:
            span.add_event("still waiting", _attributes(event, _AT_THE_END))

    def answered(self, event: Event) -> None:
        span, work = self._asked.pop(event.claim_id, (None, None))
        if span is None or work is None:
            return
        span.set_attributes(_attributes(event, _AT_THE_END))
        if event.outcome in _FAILED:
            span.set_attribute("error.type", event.outcome)
            span.set_status(Status(StatusCode.ERROR, event.detail))
        span.end()
        if event.kind == "granted":
            held = self._tracer.start_span(
                f"hold {event.pattern}",
                set_span_in_context(work),
                SpanKind.INTERNAL,
                _attributes(event, {**_ATTRIBUTES, "lockfast.fence": "fence"}),
                [Link(span.get_span_context())],
            )
            self._held[event.claim_id] = _Held(held, work)

    def renewal_failed(self, event: Event) -> None:
        held = self._held.get(event.claim_id)
        if held is not None:
            said = {"lockfast.reason": "reason", "lockfast.remaining": "remaining", "lockfast.detail": "detail"}
            held.span.add_event("renewal failed", _attributes(event, said))

    def ended(self, event: Event) -> None:
        held = self._held.pop(event.claim_id, None)
        if held is None:
            return
        said = _attributes(event, _AT_THE_END)
        held.span.set_attributes(said)
        if event.kind == "lost":
            lost = {**said, **_attributes(event, {"lockfast.name": "name", "lockfast.detail": "detail"})}
            held.span.add_event("lock lost", lost)
            if held.work.is_recording():
                held.work.add_event("lock lost", lost)
            held.span.set_attribute("error.type", event.outcome)
            held.span.set_status(Status(StatusCode.ERROR, event.detail))
        held.span.end()


_FOLLOWS: Final[dict[str, Callable[[_Tracing, Event], None]]] = {
    "asked": _Tracing.asked,
    "waiting": _Tracing.waiting,
    "granted": _Tracing.answered,
    "not_granted": _Tracing.answered,
    "renewal_failed": _Tracing.renewal_failed,
    "released": _Tracing.ended,
    "lost": _Tracing.ended,
}


def _attributes(event: Event, fields: Mapping[str, str]) -> dict[str, Any]:
    values = {name: getattr(event, field) for name, field in fields.items()}
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _tracing(provider: TracerProvider | None) -> ShieldedListener:
    listener: Listener = _Tracing(get_tracer(SCOPE, tracer_provider=provider))
    return ShieldedListener(listener, "traces")


_metrics: Final = _PerProvider(_measuring)
_spans: Final = _PerProvider(_tracing)
