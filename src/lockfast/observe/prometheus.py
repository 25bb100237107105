"""Metrics for Prometheus, with its own client library: `pip install 'lockfast[prometheus]'`.

Decides: how each metric of the table is kept by that library, in one process and in several (multi-process mode).
Leaves to `metrics`: what is measured. Leaves to the program: how its metrics are served.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from lockfast.observe.events import Events
from lockfast.observe.metrics import METRICS, Labels, Measuring, Metric
from lockfast.observe.shielding import ShieldedListener, listen_once

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ImportError(f"metrics for Prometheus need an extra: pip install 'lockfast[prometheus]' ({error})") from error

__all__ = ["install"]

# Of the processes that live. An election of many is counted where it is led, so a sum says how many are led, and a
# pattern may stand for several elections.
_OF_LIVING: Final = "livesum"


class Observed(Protocol):
    """A `Locks` or an `AsyncLocks`, or a manager."""

    @property
    def events(self) -> Events: ...


def install(locks: Observed, registry: CollectorRegistry | None = None) -> None:
    """Count what happens to these locks in `registry`, by default the one of the whole process.

    Any number of `Locks` share one set of metrics. To install twice is to install once.
    In multi-process mode `PROMETHEUS_MULTIPROC_DIR` is set before the client library is imported, as it demands.
    """
    listen_once(locks.events, _listener_of(REGISTRY if registry is None else registry))


_listeners: WeakKeyDictionary[CollectorRegistry, ShieldedListener] = WeakKeyDictionary()
_mutex = threading.Lock()


def _listener_of(registry: CollectorRegistry) -> ShieldedListener:
    with _mutex:
        listener = _listeners.get(registry)
        if listener is None:
            # In multi-process mode each process has values of its own, from 0.
            measuring = Measuring(_Families(registry).record, copied_by_fork=not _several_processes())
            listener = _listeners[registry] = ShieldedListener(measuring, "metrics for Prometheus")
        return listener


def _several_processes() -> bool:
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ


class _Families:
    """The metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = {metric.name: _family(metric, registry) for metric in METRICS}
        self._adders: dict[tuple[str, Labels], Callable[[float], None]] = {}

    def record(self, metric: Metric, labels: Labels, value: float) -> None:
        key = (metric.name, labels)
        add = self._adders.get(key)
        if add is None:
            child = self._families[metric.name].labels(*labels)
            add = self._adders[key] = child.observe if isinstance(child, Histogram) else child.inc
        add(value)


def _family(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name, labels = metric.prometheus, metric.labels
    if metric.kind == "histogram":
        return Histogram(name, metric.help, labels, registry=registry, buckets=metric.buckets)
    if metric.kind == "gauge":
        return Gauge(name, metric.help, labels, registry=registry, multiprocess_mode=_OF_LIVING)
    return Counter(name, metric.help, labels, registry=registry)


def _after_fork() -> None:
    global _mutex
    _mutex = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
