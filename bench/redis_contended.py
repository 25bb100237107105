"""Redis, many processes want one lock all the time: how fast does it go from hand to hand, how long does one wait?

In order of time, a hand-over is a hold whose competitor is not the one before it. A wait is from asking to being
granted. Commands are what the clients sent, counted in stretches of their own by a connection that the server reports
everything; what a script calls by itself is part of the one command that ran the script. A peer's client has no time
limit here: it waits for the lock and for nothing else. The floor hands a list's one element on.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, get_args

from tests.servers.server import Server

from bench.competitors import Competitors, Task
from bench.harness import Finding, Setting, quartiles
from bench.redis_competitors import Kind, redis_competitors
from bench.redis_server import Monitor

PROCESSES = 32
KINDS: tuple[Kind, ...] = get_args(Kind)  # ours first
_WARM_UP_S = 0.5  # seconds of a stretch that only warms up


@dataclass(frozen=True)
class Round:
    """What the competitors did to one lock in one stretch of time."""

    hand_overs: float  # a second
    acquisitions: float  # a second
    fairness: float  # Jain's index of the competitors' counts: 1 is the same for all
    waits: list[float]  # seconds, sorted
    handed: int  # also after the time was up: claims that still waited got it too

    def wait(self, percent: int) -> float:
        return self.waits[len(self.waits) * percent // 101]

    def plain(self) -> dict[str, Any]:
        return {
            "hand_overs_per_s": round(self.hand_overs, 1),
            "acquisitions_per_s": round(self.acquisitions, 1),
            "jain": round(self.fairness, 4),
            "wait_ms": {f"p{p}": round(self.wait(p) * 1e3, 3) for p in (1, 25, 50, 75, 90, 99, 100)},
        }


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_contended`."""
    seconds, rounds = float(setting.scaled(3, 1)), setting.scaled(5, 2)
    with Server() as redis:
        with redis_competitors(redis.port, PROCESSES) as competitors:
            seen = _rounds(competitors, seconds, rounds)
            commands = [_commands(redis.port, competitors, "lockfast", n, n) for n in (2, 8, PROCESSES)]
            peers = [_commands(redis.port, competitors, kind, PROCESSES, PROCESSES) for kind in KINDS[1:]]
        with redis_competitors(redis.port, 8, threads=16) as competitors:
            competitors.compete("lockfast", _WARM_UP_S)
            commands.append(_commands(redis.port, competitors, "lockfast", 8, 8 * 16))
    return [*_compared(seen), *commands, *_shown(seen), *peers]


def _rounds(competitors: Competitors, seconds: float, rounds: int) -> dict[Kind, list[Round]]:
    for kind in KINDS:
        competitors.compete(kind, _WARM_UP_S)
    seen: dict[Kind, list[Round]] = {kind: [] for kind in KINDS}
    for turn in range(rounds):
        for kind in KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)]:
            seen[kind].append(judge(*competitors.compete(kind, seconds)))
    return seen


def _commands(port: int, competitors: Competitors, kind: Kind, processes: int, waiters: int) -> Finding:
    with Monitor(port) as monitor:
        each = judge(*competitors.compete(kind, 1.0, processes))
    value = monitor.commands.total() / max(each.handed, 1)
    detail = {"commands": dict(monitor.commands), "hand_overs": each.handed, **each.plain()}
    what = f"Redis, {waiters} that want it: commands per hand-over" + (f", {kind}" if kind != "lockfast" else "")
    return Finding(what, value, "", at_most=4 if kind == "lockfast" else None, detail=detail)


def judge(task: Task, notes: list[array[float]]) -> Round:
    """From each competitor's notes to what they mean together. What is granted after time was up is no speed."""
    holds = sorted((times[i + 1], who, times[i]) for who, times in enumerate(notes) for i in range(0, len(times), 3))
    handed = [after for before, after in pairwise(holds) if before[1] != after[1]]
    counts = [len(times) // 3 for times in notes]
    seconds = task.until - task.begin
    return Round(
        hand_overs=sum(granted < task.until for granted, _, _ in handed) / seconds,
        acquisitions=sum(granted < task.until for granted, _, _ in holds) / seconds,
        fairness=sum(counts) ** 2 / (len(counts) * sum(n * n for n in counts) or 1),
        waits=sorted(granted - asked for granted, _, asked in holds),
        handed=len(handed),
    )


def _compared(seen: dict[Kind, list[Round]]) -> list[Finding]:
    ours, theirs = seen["lockfast"], seen["python-redis-lock"]
    speed = [a.hand_overs / b.hand_overs for a, b in zip(ours, theirs, strict=True)]
    waits = [b.wait(99) / a.wait(99) for a, b in zip(ours, theirs, strict=True)]
    floor = [a.hand_overs / b.hand_overs for a, b in zip(ours, seen["bare BLPOP"], strict=True)]
    fairness = [a.fairness for a in ours]
    detail: dict[str, Any] = {kind: [a.plain() for a in rounds] for kind, rounds in seen.items()}
    name = "Redis, 32 processes"
    return [
        Finding(f"{name}: hand-overs/s / python-redis-lock's", median(speed), "×", None, 4, quartiles(speed), detail),
        Finding(f"{name}: python-redis-lock's p99 wait / ours", median(waits), "×", None, 5, quartiles(waits)),
        Finding(f"{name}: Jain index", median(fairness), "", None, 0.99, quartiles(fairness)),
        Finding(f"{name}: hand-overs/s / the bare BLPOP's", median(floor), "×", spread=quartiles(floor)),
    ]


def _shown(seen: dict[Kind, list[Round]]) -> list[Finding]:
    found = []
    for kind, rounds in seen.items():
        found += [
            Finding(f"{kind}: hand-overs/s", median(a.hand_overs for a in rounds), "/s"),
            Finding(f"{kind}: p50 wait", median(a.wait(50) for a in rounds) * 1e3, "ms"),
            Finding(f"{kind}: p99 wait", median(a.wait(99) for a in rounds) * 1e3, "ms"),
            Finding(f"{kind}: Jain index", median(a.fairness for a in rounds), ""),
        ]
    return found
