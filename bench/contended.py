"""SQLite, eight processes want one lock all the time: how fast does it go from hand to hand, and how fairly?

`filelock` at its defaults does the same. There is no floor: nothing in the kernel hands a file's lock over in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import lockfast
from bench.competitors import Competitors, Opened
from bench.harness import Finding, Setting, Work, quartiles
from bench.peers import need
from bench.rounds import Round, compared, medians, percentile, plain, rounds_of, shown

PROCESSES = 8
OURS, PEER = "lockfast", "filelock"
WORK: Final = "SQLite, 8 processes, one lock: hand-overs/s, steady state"


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only contended`."""
    need(PEER)
    seen = rounds_of(setting, (OURS, PEER), lambda kind, turn: _started(setting.folder / f"contended-{turn}"))
    return [*_bounded(seen), *shown("SQLite, 8 processes", seen)]


def _started(path: Path) -> Competitors:
    return Competitors(PROCESSES, _opened, path, preload=(PEER,))


@contextmanager
def _opened(path: Path) -> Iterator[Opened]:
    with lockfast.connect(f"sqlite:///{path.with_suffix('.db')}") as locks:
        yield [{OURS: locks.lock("bench"), PEER: need(PEER).FileLock(path.with_suffix(".lock"))}]


def _bounded(seen: Mapping[str, list[Round]]) -> list[Finding]:
    ours = seen[OURS]
    speed = medians(seen, lambda a: a.hand_overs)
    work = Work.of(WORK, "/s", speed, ours=OURS, peers=[PEER])
    ratio, spread = compared(seen, OURS, PEER, lambda a: max(a.hand_overs, 0.1))
    fairness = [a.fairness for a in ours]
    latency = [percentile(a.release_to_next, 50) * 1e3 for a in ours]
    own = quartiles([a.hand_overs for a in ours])
    return [
        Finding(WORK, speed[OURS], "/s", None, 4000, own, plain(seen), work),
        Finding("8 processes: hand-overs/s / filelock's", ratio, "×", None, 10, spread, work=work, against=PEER),
        Finding("SQLite, 8 processes: Jain index", median(fairness), "", None, 0.95, quartiles(fairness)),
        Finding("SQLite, 8 processes: p50 release-to-next", median(latency), "ms", 1.0, None, quartiles(latency)),
    ]
