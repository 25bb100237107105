"""How a figure is come by.

Decides: that contenders take turns, that the median counts, and what a finding is.
Leaves to each question's file: what is measured, and against what. Leaves to `report`: how it is shown.

Only ratios of one run mean anything on a machine that others use too: a busy second slows down both sides of a
round, so each round gives its own ratio and the median of these is the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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

    def scaled(self, full: int, quick: int) -> int:
        """As many as the setting asks for."""
        return quick if self.quick else full


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

    @property
    def within_bound(self) -> bool | None:
        """Whether the bound was kept; None if there is none."""
        if self.at_most is not None:
            return self.value <= self.at_most
        if self.at_least is not None:
            return self.value >= self.at_least
        return None

    @property
    def strain(self) -> float | None:
        """Which part of its bound the value uses up: 1 is just met, 0.5 has half of it to spare."""
        part, whole = (self.value, self.at_most) if self.at_most is not None else (self.at_least, self.value)
        if part is None or whole is None:
            return None
        return part / whole if whole else (float("inf") if part else 0.0)


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
) -> Finding:
    """How many times `to` the contender `of` takes: the median of the rounds' own ratios."""
    ratios = [ours / theirs for ours, theirs in zip(samples[of], samples[to], strict=True)]
    microseconds = {name: round(median(values) * 1e6, 3) for name, values in samples.items()}
    detail = {"median_us": microseconds, "ratios": [round(value, 4) for value in ratios]}
    return Finding(what, median(ratios), "×", at_most, at_least, quartiles(ratios), detail)
