"""The metrics of one `Locks` as a plain object, for programs without Prometheus or OpenTelemetry.

Decides: how values are added up, and how they are shown.
Leaves to `metrics`: what is measured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lockfast._reentry import Mutex
from lockfast._text import shown
from lockfast._time import format_duration
from lockfast.observe.events import Event
from lockfast.observe.metrics import METRICS, Labels, Measuring, Metric, resets_at_fork

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Measured:
    """The values of one metric with certain labels, added up."""

    metric: str
    labels: Mapping[str, str]
    count: int = 0  # of values; of a counter and a gauge what it counts
    total: float = 0.0  # their sum
    most: float = 0.0  # the highest
    buckets: Mapping[float, int] | None = None  # of a histogram: how many were at most that

    @property
    def mean(self) -> float:
        """Of a histogram: what they were on average; 0 if there was none."""
        return self.total / self.count if self.count else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON. The labels are keys of their own."""
        facts: dict[str, Any] = {**self.labels, "count": self.count}
        if self.buckets is not None:
            facts |= {
                "total": self.total,
                "most": self.most,
                "buckets": {f"{le:g}": n for le, n in self.buckets.items()},
            }
        return facts


@dataclass(frozen=True, slots=True)
class Stats:
    """What this process did with the locks of one `Locks`. Prints as a table."""

    seconds: float  # for how long it has been counted; `pending` and `leases` are right even at 0
    pending: int  # acquires that wait now
    leases: int  # leases that are held now
    measured: tuple[Measured, ...]  # since it has been counted: one for each metric and its labels

    def of(self, metric: str, **labels: str) -> Measured:
        """All values of a metric that have these labels, added up: `of("acquire.wait_time", outcome="timeout")`.

        Raises ValueError for a metric or a label that does not exist.
        """
        known = _BY_NAME.get(metric)
        if known is None:
            raise ValueError(f"there is no metric {shown(metric)}; there are {', '.join(_BY_NAME)}")
        for name in labels:
            if name not in known.labels:
                raise ValueError(f"{metric} has no label {shown(name)}; it has {', '.join(known.labels)}")
        fitting = [one for one in self.measured if one.metric == metric and labels.items() <= one.labels.items()]
        buckets = {le: sum((one.buckets or {})[le] for one in fitting) for le in known.buckets} or None
        counts, totals, most = sum(x.count for x in fitting), sum(x.total for x in fitting), [x.most for x in fitting]
        return Measured(metric, labels, counts, totals, max(most, default=0.0), buckets)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `seconds`, `pending`, `leases`, and under the name of each metric a list of values with labels."""
        facts: dict[str, Any] = {"seconds": self.seconds, "pending": self.pending, "leases": self.leases}
        for metric in METRICS:
            facts[metric.name] = [one.as_dict() for one in self.measured if one.metric == metric.name]
        return facts

    def __str__(self) -> str:
        lines = [f"{self.leases} held, {self.pending} pending; counted for {format_duration(self.seconds)}"]
        for one in self.measured:
            labels = ", ".join(f"{name}={value}" for name, value in one.labels.items())
            lines.append(f"{one.metric:18} {_in_words(one):40} {labels}")
        return "\n".join(lines)


def _in_words(one: Measured) -> str:
    if one.buckets is None:
        return str(one.count)
    if _BY_NAME[one.metric].unit != "s":
        return f"{one.count}, mean {one.mean:.2f}"
    return f"{one.count}, mean {format_duration(one.mean)}, most {format_duration(one.most)}"


class _Sum:
    __slots__ = ("buckets", "count", "most", "total")

    def __init__(self, metric: Metric) -> None:
        self.count = 0
        self.total = 0.0
        self.most = 0.0
        self.buckets = [0] * (len(metric.buckets) + 1)


class Counting:
    """The listener of one `Locks` that adds up."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._measuring = Measuring(self._record, copied_by_fork=False)
        self._begin()
        resets_at_fork(self)

    def _begin(self) -> None:
        self._mutex = Mutex()
        self._started = self._now()
        self._sums: dict[tuple[Metric, Labels], _Sum] = {}

    after_fork = _begin  # a child counts what it does itself

    def __call__(self, event: Event) -> None:
        self._measuring(event)

    def _record(self, metric: Metric, labels: Labels, value: float) -> None:
        if value == 0.0 and metric.kind == "counter":
            return  # it only helps to see whether a counter has grown
        with self._mutex:
            key = (metric, labels)
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = _Sum(metric)
            if metric.kind == "histogram":
                sums.count += 1
                sums.total += value
                sums.most = max(sums.most, value)
                sums.buckets[bisect_left(metric.buckets, value)] += 1
            else:
                sums.count += int(value)

    def stats(self, pending: int, leases: int) -> Stats:
        """With what the engine knows of now."""
        with self._mutex:
            sums = {(METRICS.index(metric), labels): one for (metric, labels), one in self._sums.items()}
            measured = tuple(_measured(METRICS[index], labels, sums[index, labels]) for index, labels in sorted(sums))
            return Stats(self._now() - self._started, pending, leases, measured)


def _measured(metric: Metric, labels: Labels, sums: _Sum) -> Measured:
    named = dict(zip(metric.labels, labels, strict=True))
    if metric.kind != "histogram":
        return Measured(metric.name, named, sums.count)
    buckets, upto = {}, 0
    for boundary, count in zip(metric.buckets, sums.buckets, strict=False):
        upto += count
        buckets[boundary] = upto
    return Measured(metric.name, named, sums.count, sums.total, sums.most, buckets)
