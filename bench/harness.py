"""How a figure is come by.

Decides: that contenders take turns, that the median counts, what a finding is and what a row of the page.
Leaves to each question's file: what is measured, and against what. Leaves to `report`: how it is shown.

Only ratios of one run mean anything on a machine that others use too: a busy second slows down both sides of a
round, so each round gives its own ratio and the median of these is the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

Samples = dict[str, list[float]]  # seconds a cycle, by contender, one for each round


@dataclass(frozen=True)
class Setting:
    """What a question's file is given: a folder of its own, and whether to be quick about it."""

    folder: Path
    quick: bool
    series: tuple[str, ...] = ()  # of a question that has many: only those that have one of these words in their name

    def scaled(self, full: int, quick: int) -> int:
        """As many as the setting asks for."""
        return quick if self.quick else full

    def asks_for(self, series: str) -> bool:
        """Whether the series of that name is wanted."""
        return not self.series or any(word.lower() in series.lower() for word in self.series)


@dataclass(frozen=True)
class Work:
    """The same work done by us, by the least that could do it, by the fastest released package: a row of the page."""

    name: str
    unit: str  # of the next three: a rate such as cycles/s, of which more is better, or a time
    ours: float
    floor: float | None = None
    peer: float | None = None
    best_peer: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        unit: str,
        figures: Mapping[str, float],
        *,
        ours: str,
        floor: str = "",
        peers: Iterable[str] = (),
    ) -> Work:
        """From the contenders' figures by name. The best peer is the fastest of those that were measured."""
        fastest = max if is_rate(unit) else min
        best = fastest((peer for peer in peers if peer in figures), key=figures.__getitem__, default="")
        return cls(name, unit, figures[ours], figures.get(floor), figures.get(best), best)


def is_rate(unit: str) -> bool:
    """Whether more of it is better."""
    return unit.endswith("/s")


@dataclass(frozen=True)
class Finding:
    """One answer. Without a bound it is there to be read beside the others."""

    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    spread: tuple[float, float] | None = None  # quartiles over the rounds
    detail: dict[str, Any] = field(default_factory=dict)  # only for the JSON
    work: Work | None = (
        None  # the row of the page that it belongs to; without one it is a row by itself if it is bounded
    )
    against: str = ""  # of a ratio: `at_most` times its time, or `at_least` times as fast

    @property
    def within_bound(self) -> bool | None:
        """Whether the bound was kept; None if there is none."""
        if self.at_most is not None:
            return self.value <= self.at_most
        if self.at_least is not None:
            return self.value >= self.at_least
        return None

    @property
    def miss(self) -> str:
        """By how much the bound was missed, in words; empty if it was not."""
        bound = self.at_most if self.at_most is not None else self.at_least
        if bound is None or self.within_bound:
            return ""
        if bound == 0:
            return f"missed by {self.value:g}"
        return f"missed by {abs(self.value - bound) / abs(bound):.0%}".replace("%", " %")


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Samples:
    """Each contender once in every round, in an order that turns, so that none always comes first."""
    names = list(contenders)
    for name in names:
        contenders[name]()  # warm up: files are opened, caches filled, nothing is counted
    samples: Samples = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            samples[name].append(contenders[name]())
    return samples


def per_cycle(cycle: Callable[[], object], cycles: int) -> float:
    """Seconds for one call, over `cycles` of them."""
    started = time.perf_counter()
    for _ in range(cycles):
        cycle()
    return (time.perf_counter() - started) / cycles


def quartiles(values: list[float]) -> tuple[float, float]:
    """Between these lies the middle half."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def ratio(
    what: str,
    samples: Samples,
    of: str,
    to: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    work: Work | None = None,
) -> Finding:
    """How many times `to` the contender `of` takes: the median of the rounds' own ratios."""
    ratios = [ours / theirs for ours, theirs in zip(samples[of], samples[to], strict=True)]
    microseconds = {name: round(median(values) * 1e6, 3) for name, values in samples.items()}
    detail = {"median_us": microseconds, "ratios": [round(value, 4) for value in ratios]}
    against = to if of.startswith("lockfast") else of
    return Finding(what, median(ratios), "×", at_most, at_least, quartiles(ratios), detail, work, against)


def work_of(name: str, samples: Samples, *, floor: str = "", peers: Iterable[str] = (), rate: bool = False) -> Work:
    """The row of what took turns: medians, in µs a cycle or, as a `rate`, in cycles a second."""
    medians = {contender: median(values) for contender, values in samples.items()}
    figures = {contender: 1 / value if rate else value * 1e6 for contender, value in medians.items()}
    return Work.of(name, "cycles/s" if rate else "µs", figures, ours="lockfast", floor=floor, peers=peers)
