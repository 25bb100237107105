"""What competitors' notes mean: how fast one lock goes from hand to hand, how fairly, and how long one waits.

Decides: what a hand-over and a wait are, and that the start-up is judged apart. Every round has new processes of one
kind, ours, a peer's or the floor's, so all begin without a connection and have the same first second to warm up.
In order of time, a hand-over is a hold whose competitor is not the one before it; release-to-next is the time from
calling release there to acquire returning in the next.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from bench.competitors import Competitors, Task
from bench.harness import Finding, Setting, quartiles

START_UP_S = 1.0  # seconds in which processes connect, subscribe and start threads
Hold = tuple[float, int, float, float]  # granted, competitor, asked, released


@dataclass(frozen=True)
class Round:
    """What the competitors did to one lock. Figures are of the steady state, except where they say otherwise."""

    hand_overs: float  # a second
    acquisitions: float  # a second
    fairness: float  # Jain's index of the competitors' counts: 1 is the same for all, 1/n is one takes all
    waits: list[float] = field(repr=False)  # seconds, sorted
    release_to_next: list[float] = field(repr=False)  # seconds, sorted, for each hand-over
    start_up_hand_overs: float  # a second, in the first second
    start_up: float  # seconds until every competitor has held once
    all_waits: list[float] = field(repr=False)  # seconds, sorted, with the start-up
    handed: int  # in all, also after the time was up: claims that still waited were granted too

    @property
    def all_waits_p99_to_mean(self) -> float:
        return percentile(self.all_waits, 99) / fmean(self.all_waits)

    def plain(self) -> dict[str, Any]:
        return {
            "hand_overs_per_s": round(self.hand_overs, 1),
            "acquisitions_per_s": round(self.acquisitions, 1),
            "jain": round(self.fairness, 4),
            "start_up_hand_overs_per_s": round(self.start_up_hand_overs, 1),
            "start_up_s": round(self.start_up, 3),
            "wait_ms": _spread_ms(self.waits),
            "wait_ms_with_start_up": _spread_ms(self.all_waits),
            "release_to_next_ms": _spread_ms(self.release_to_next),
        }


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Infinite without any: what never happened took for ever."""
    return ordered[len(ordered) * percent // 101] if ordered else float("inf")


def _spread_ms(ordered: Sequence[float]) -> dict[str, float]:
    if not ordered:
        return {}
    shown = {f"p{percent}": round(percentile(ordered, percent) * 1e3, 4) for percent in (1, 25, 50, 75, 90, 99, 100)}
    return {**shown, "mean": round(fmean(ordered) * 1e3, 4)}


def judge(task: Task, notes: Sequence[array[float]], start_up_s: float = START_UP_S) -> Round:
    """From each competitor's notes to what they mean together. What is granted after the time was up is no speed."""
    steady, until = task.begin + start_up_s, task.until
    holds: list[Hold] = sorted(
        (times[i + 1], who, times[i], times[i + 2]) for who, times in enumerate(notes) for i in range(0, len(times), 3)
    )
    handed = [(before, after) for before, after in pairwise(holds) if before[1] != after[1]]
    settled = [hold for hold in holds if steady <= hold[0] < until]
    counts = [0] * len(notes)
    for _, who, _, _ in settled:
        counts[who] += 1
    firsts = [times[1] for times in notes if times]
    in_time = [(before, after) for before, after in handed if steady <= after[0] < until]
    return Round(
        hand_overs=len(in_time) / (until - steady),
        acquisitions=len(settled) / (until - steady),
        fairness=jain(counts),
        waits=sorted(granted - asked for granted, _, asked, _ in holds if asked >= steady),
        release_to_next=sorted(after[0] - before[3] for before, after in in_time),
        start_up_hand_overs=sum(after[0] < steady for _, after in handed) / (start_up_s or 1.0),
        start_up=max(firsts) - task.begin if len(firsts) == len(notes) else float("inf"),
        all_waits=sorted(granted - asked for granted, _, asked, _ in holds),
        handed=len(handed),
    )


def jain(counts: Sequence[int]) -> float:
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts) or 1)


def rounds_of(
    setting: Setting, kinds: Sequence[str], started: Callable[[str, int], Competitors]
) -> Mapping[str, list[Round]]:
    """Each kind once in every round, in an order that turns, with new processes from `started(kind, round)`."""
    seconds, rounds = START_UP_S + setting.scaled(2, 1), setting.scaled(5, 2)
    seen: dict[str, list[Round]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        for kind in [*kinds[turn % len(kinds) :], *kinds[: turn % len(kinds)]]:
            with started(kind, turn) as competitors:
                seen[kind].append(judge(*competitors.compete(kind, seconds)))
    return seen


def shown(title: str, seen: Mapping[str, list[Round]]) -> list[Finding]:
    """Lines without a bound: the start-up of each kind apart from its steady state."""
    return [line for kind, rounds in seen.items() for line in _lines(f"{title}, {kind}", rounds)]


def _lines(title: str, rounds: list[Round]) -> list[Finding]:
    def line(what: str, values: list[float], unit: str) -> Finding:
        return Finding(f"{title}: {what}", median(values), unit, spread=quartiles(values))

    return [
        line("hand-overs/s, steady state", [a.hand_overs for a in rounds], "/s"),
        line("acquisitions/s, steady state", [a.acquisitions for a in rounds], "/s"),
        line("Jain index", [a.fairness for a in rounds], ""),
        line("p50 wait, steady state", [percentile(a.waits, 50) * 1e3 for a in rounds], "ms"),
        line("p99 wait, steady state", [percentile(a.waits, 99) * 1e3 for a in rounds], "ms"),
        line("p99 wait, start-up included", [percentile(a.all_waits, 99) * 1e3 for a in rounds], "ms"),
        line("start-up: hand-overs in the first second", [a.start_up_hand_overs for a in rounds], "/s"),
        line("start-up: until each competitor has held once", [a.start_up for a in rounds], "s"),
    ]


def medians(seen: Mapping[str, list[Round]], figure: Callable[[Round], float]) -> dict[str, float]:
    """Of each kind."""
    return {kind: median(figure(each) for each in rounds) for kind, rounds in seen.items()}


def compared(
    seen: Mapping[str, list[Round]], ours: str, to: str, figure: Callable[[Round], float]
) -> tuple[float, tuple[float, float]]:
    """Ours over theirs: the median of the rounds' own ratios, and their quartiles."""
    ratios = [figure(a) / (figure(b) or float("nan")) for a, b in zip(seen[ours], seen[to], strict=True)]
    return median(ratios), quartiles(ratios)


def plain(seen: Mapping[str, list[Round]]) -> dict[str, Any]:
    """For the JSON."""
    return {kind: [each.plain() for each in rounds] for kind, rounds in seen.items()}
