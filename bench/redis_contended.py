"""Redis, many processes want one lock all the time: how fast does it go from hand to hand, how long does one wait?

In order of time, a hand-over is a hold whose competitor is not the one before it. A wait is from asking to being
granted. Commands are what the clients sent, as the server counts them for each connection; what a script calls by
itself is part of the one command that ran the script. A peer waits for nothing but the lock here: its client has no
time limit.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, get_args

from bench.harness import Finding, Setting, quartiles
from bench.redis_crew import Crew, Kind, Task
from bench.redis_server import Server, server

PROCESSES = 32
_SHORT = 0.5  # seconds of a stretch that only warms up


@dataclass(frozen=True)
class Round:
    """What the competitors did to one lock in one stretch of time."""

    hand_overs: float  # a second
    acquisitions: float  # a second
    fairness: float  # Jain's index of the competitors' counts: 1 is the same for all
    waits: list[float]  # seconds, sorted
    handed: int
    commands: int  # that clients sent meanwhile

    def wait(self, percent: int) -> float:
        return self.waits[len(self.waits) * percent // 101]

    def plain(self) -> dict[str, Any]:
        return {
            "hand_overs_per_s": round(self.hand_overs, 1),
            "acquisitions_per_s": round(self.acquisitions, 1),
            "jain": round(self.fairness, 4),
            "wait_ms": {f"p{p}": round(self.wait(p) * 1e3, 3) for p in (1, 25, 50, 75, 90, 99, 100)},
            "commands_per_hand_over": round(self.commands / max(self.handed, 1), 3),
        }


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_contended`."""
    seconds, rounds = float(setting.scaled(3, 1)), setting.scaled(5, 2)
    with server(setting.folder) as redis:
        with Crew(redis.port, PROCESSES) as crew:
            seen = _rounds(redis, crew, seconds, rounds)
            commands = {n: _round(redis, crew, "holdfast", seconds, n) for n in (2, 8)}
        commands[32] = seen["holdfast"][-1]
        with Crew(redis.port, 8, threads=16) as crew:
            _round(redis, crew, "holdfast", _SHORT)
            commands[128] = _round(redis, crew, "holdfast", seconds)
    return [*_compared(seen), *[_commands(n, each) for n, each in commands.items()], *_shown(seen)]


def _rounds(redis: Server, crew: Crew, seconds: float, rounds: int) -> dict[Kind, list[Round]]:
    kinds: tuple[Kind, ...] = get_args(Kind)
    for kind in kinds:
        _round(redis, crew, kind, _SHORT)
    seen: dict[Kind, list[Round]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
            seen[kind].append(_round(redis, crew, kind, seconds))
    return seen


def _round(redis: Server, crew: Crew, kind: Kind, seconds: float, members: int | None = None) -> Round:
    client = redis.client()
    before = _sent(client)
    task, notes = crew.compete(kind, seconds, members)
    return judge(task, notes, _sent(client) - before - 1)


def _sent(client: Any) -> int:
    """Commands of all connections that are there; asking is itself one."""
    return sum(int(each["tot-cmds"]) for each in client.client_list())


def judge(task: Task, notes: list[array[float]], commands: int) -> Round:
    """From each competitor's notes to what they mean together. What the last ones still do after time is up counts only
    as waits and as commands' worth, not as speed."""
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
        commands=commands,
    )


def _compared(seen: dict[Kind, list[Round]]) -> list[Finding]:
    ours, theirs = seen["holdfast"], seen["python-redis-lock"]
    speed = [a.hand_overs / b.hand_overs for a, b in zip(ours, theirs, strict=True)]
    waits = [b.wait(99) / a.wait(99) for a, b in zip(ours, theirs, strict=True)]
    fairness = [a.fairness for a in ours]
    detail = {kind: [a.plain() for a in rounds] for kind, rounds in seen.items()}
    name = "Redis, 32 processes"
    return [
        Finding(f"{name}: hand-overs/s / python-redis-lock's", median(speed), "×", None, 4, quartiles(speed), detail),
        Finding(f"{name}: python-redis-lock's p99 wait / ours", median(waits), "×", None, 5, quartiles(waits)),
        Finding(f"{name}: Jain index", median(fairness), "", None, 0.99, quartiles(fairness)),
    ]


def _commands(competitors: int, each: Round) -> Finding:
    what = f"Redis, {competitors} that want it: commands per hand-over"
    return Finding(what, each.commands / max(each.handed, 1), "", at_most=4, detail=each.plain())


def _shown(seen: dict[Kind, list[Round]]) -> list[Finding]:
    found = []
    for kind, rounds in seen.items():
        found += [
            Finding(f"{kind}: hand-overs/s", median(a.hand_overs for a in rounds), "/s"),
            Finding(f"{kind}: p50 wait", median(a.wait(50) for a in rounds) * 1e3, "ms"),
            Finding(f"{kind}: p99 wait", median(a.wait(99) for a in rounds) * 1e3, "ms"),
            Finding(f"{kind}: Jain index", median(a.fairness for a in rounds), ""),
            Finding(f"{kind}: commands per hand-over", median(a.commands / max(a.handed, 1) for a in rounds), ""),
        ]
    return found
