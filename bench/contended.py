"""SQLite, eight processes want one lock all the time: how fast does it go from hand to hand, and how fairly?

Every process notes when its acquire returned and when it called release, on the clock that all processes of a host
share. In order of time, a hand-over is a hold whose process is not the one before it; release-to-next is the time
from calling release in one process to acquire returning in the next. `filelock` at its defaults does the same.
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any, Literal

import lockfast
from bench.harness import Finding, Setting, quartiles
from bench.peers import need

PROCESSES = 8
GUARD_S = 60.0  # seconds after which a process that does not come is given up

Kind = Literal["lockfast", "filelock"]


@dataclass(frozen=True)
class Round:
    """What eight processes did to one lock in one stretch of time."""

    hand_overs: float  # a second
    acquisitions: float  # a second
    fairness: float  # Jain's index of the processes' counts: 1 is the same for all, 1/8 is one takes all
    release_to_next: list[float]  # seconds, for each hand-over


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only contended`."""
    need("filelock")
    seconds, rounds = setting.scaled(3, 1), setting.scaled(5, 2)
    kinds: tuple[Kind, Kind] = ("lockfast", "filelock")
    seen: dict[Kind, list[Round]] = {"lockfast": [], "filelock": []}
    for turn in range(rounds):
        for kind in kinds:
            seen[kind].append(_round(kind, setting.folder / f"contended-{turn}", float(seconds)))
    ours, theirs = seen["lockfast"], seen["filelock"]
    ratios = [a.hand_overs / max(b.hand_overs, 1 / seconds) for a, b in zip(ours, theirs, strict=True)]
    fairness = [a.fairness for a in ours]
    latency = [median(a.release_to_next or [float("inf")]) * 1e3 for a in ours]
    return [
        Finding(
            "8 processes: hand-overs/s / filelock's",
            median(ratios),
            "×",
            at_least=10,
            spread=quartiles(ratios),
            detail={kind: [_plain(a) for a in rounds] for kind, rounds in seen.items()},
        ),
        Finding("8 processes: Jain index", median(fairness), "", at_least=0.95, spread=quartiles(fairness)),
        Finding("8 processes: p50 release-to-next", median(latency), "ms", at_most=1.0, spread=quartiles(latency)),
        Finding("8 processes: hand-overs/s", median(a.hand_overs for a in ours), "/s"),
        Finding("8 processes: acquisitions/s", median(a.acquisitions for a in ours), "/s"),
        Finding("filelock: hand-overs/s", median(a.hand_overs for a in theirs), "/s"),
        Finding("filelock: acquisitions/s", median(a.acquisitions for a in theirs), "/s"),
        Finding("filelock: Jain index", median(a.fairness for a in theirs), ""),
        Finding("filelock: p50 release-to-next", median(median(a.release_to_next or [0]) for a in theirs) * 1e3, "ms"),
    ]


def _plain(a: Round) -> dict[str, Any]:
    times = sorted(a.release_to_next) or [0.0]
    return {
        "hand_overs_per_s": round(a.hand_overs, 1),
        "acquisitions_per_s": round(a.acquisitions, 1),
        "jain": round(a.fairness, 4),
        "release_to_next_ms": {f"p{p}": round(times[len(times) * p // 101] * 1e3, 4) for p in (1, 25, 50, 75, 90, 99)},
    }


def _round(kind: Kind, path: Path, seconds: float) -> Round:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES + 1)
    pipes = [context.Pipe(duplex=False) for _ in range(PROCESSES)]
    workers = [context.Process(target=_compete, args=(kind, path, start, seconds, out)) for _, out in pipes]
    for worker, (_, out) in zip(workers, pipes, strict=True):
        worker.start()
        out.close()  # then a worker that dies is noticed at once
    try:
        start.wait(GUARD_S)
        notes = [_notes(pipe) for pipe, _ in pipes]
    finally:
        for worker in workers:
            worker.join(5)
            worker.kill()  # only one that did not end by itself is still there to be killed
    return judge(notes, seconds)


def _notes(pipe: Connection) -> array[float]:
    if not pipe.poll(GUARD_S):
        raise TimeoutError("a competing process did not report")
    notes = array("d")
    notes.frombytes(pipe.recv_bytes())
    return notes


def _compete(kind: Kind, path: Path, start: Barrier, seconds: float, out: Connection) -> None:
    """In a process of its own: take and give back, and note the two moments of each hold."""
    lock = _open(kind, path)
    notes = array("d")
    start.wait(GUARD_S)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with lock:
            acquired = time.monotonic()
            released = time.monotonic()
        notes.append(acquired)
        notes.append(released)
    out.send_bytes(notes.tobytes())


def _open(kind: Kind, path: Path) -> AbstractContextManager[Any]:
    if kind == "filelock":
        lock: AbstractContextManager[Any] = need("filelock").FileLock(path.with_suffix(".lock"))
        return lock
    locks = lockfast.connect(f"sqlite:///{path.with_suffix('.db')}")
    locks.inspect("bench")  # opens the file before the race begins
    return locks.lock("bench")


def judge(notes: list[array[float]], seconds: float) -> Round:
    """From each process's notes to what they mean together."""
    holds = sorted(
        (times[i], times[i + 1], process) for process, times in enumerate(notes) for i in range(0, len(times), 2)
    )
    handed = [(before, after) for before, after in pairwise(holds) if before[2] != after[2]]
    counts = [len(times) // 2 for times in notes]
    return Round(
        hand_overs=len(handed) / seconds,
        acquisitions=len(holds) / seconds,
        fairness=sum(counts) ** 2 / (len(counts) * sum(n * n for n in counts) or 1),
        release_to_next=[after[0] - before[1] for before, after in handed],
    )
