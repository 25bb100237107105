"""A quorum of three and of five servers, 32 that want one lock all the time: how fast does it go from hand to hand?

Once as threads of one process with four clients, once as threads of four processes with a client each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Final

from tests.servers.server import Server

import lockfast
from bench.competitors import Competitors, Opened
from bench.harness import Finding, Setting, Work, quartiles
from bench.redis_peers import LEASE_S
from bench.redlock import url_of
from bench.rounds import medians, plain, rounds_of, shown

CONTENDERS, CLIENTS = 32, 4
ONE: Final = "threads of one process with four clients"
FOUR: Final = "threads of four processes"
_PROCESSES: Final = {ONE: 1, FOUR: CLIENTS}


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redlock_contended`."""
    return [*_contended(3, setting, 1000), *_contended(5, setting, None)]


def _contended(size: int, setting: Setting, bound: float | None) -> list[Finding]:
    title = f"Redlock, {size} servers, {CONTENDERS} contenders"
    with ExitStack() as stack:
        ports = [stack.enter_context(Server()).port for _ in range(size)]
        seen = rounds_of(setting, (ONE, FOUR), lambda kind, turn: _started(ports, kind, turn))
    speeds = [a.hand_overs for a in seen[ONE]]
    work = Work.of(f"{title}: hand-overs/s, steady state", "/s", medians(seen, lambda a: a.hand_overs), ours=ONE)
    longest = [a.all_waits[-1] for a in seen[ONE]]
    return [
        Finding(work.name, median(speeds), "/s", None, bound, quartiles(speeds), plain(seen), work),
        Finding(f"{title}: the longest wait", median(longest), "s", spread=quartiles(longest)),
        *shown(title, seen),
    ]


def _started(ports: list[int], kind: str, turn: int) -> Competitors:
    processes = _PROCESSES[kind]
    clients, threads = CLIENTS // processes, CONTENDERS // processes
    return Competitors(processes, _opened, ports, kind, f"contended:{turn}", clients, threads)


@contextmanager
def _opened(ports: list[int], kind: str, name: str, clients: int, threads: int) -> Iterator[Opened]:
    with ExitStack() as stack:
        opened = [stack.enter_context(lockfast.connect(url_of(ports))) for _ in range(clients)]
        yield [{kind: opened[number % clients].lock(name, ttl=LEASE_S)} for number in range(threads)]
