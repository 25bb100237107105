"""PostgreSQL's lock table, 32 that want one lock all the time: how fast does it go from hand to hand?

With synchronous_commit off, so that no hand-over waits for the disk. As threads of four processes, as threads of one,
and as tasks of one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Final

import psycopg
from tests.servers.postgres import PostgresServer

import lockfast
from bench.competitors import Competitors, Opened
from bench.harness import Finding, Setting, Work, per_cycle, quartiles
from bench.postgres_table_floor import NOT_DURABLE, prepare, round_trip
from bench.rounds import Round, medians, plain, rounds_of, shown
from bench.tasks import TASKS, task_competitors
from lockfast.backends.postgres_table.io.batching import MAX_CONNECTIONS, MAX_SPARE

WAITERS, PROCESSES = 32, 4
FOUR, ONE = "threads of four processes", "threads of one process"
MAX_BATCH: Final = MAX_CONNECTIONS + MAX_SPARE + 1  # connections: one of them listens
TITLE: Final = f"PostgreSQL table, {WAITERS} waiters"


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only postgres_contended`."""
    with PostgresServer(NOT_DURABLE) as server:
        prepare(server.url)
        trip = median(per_cycle(round_trip(server.url), 300) for _ in range(5))
        seen = rounds_of(setting, (FOUR, ONE, TASKS), lambda kind, turn: _started(server.url, kind, turn))
        counted = {waiters: connections(server.url, waiters) for waiters in (2, 8, 32, 128)}
    what = "table: connections of a process in which 128 wait"
    return [
        *[found for kind in seen for found in _bounded(seen, kind)],
        Finding(what, counted[128], "", at_most=MAX_BATCH, detail={"connections": counted}),
        Finding("a round trip of SELECT 1, to read the hand-overs by", trip * 1e6, "µs"),
        *shown(TITLE, seen),
    ]


def _bounded(seen: Mapping[str, list[Round]], kind: str) -> list[Finding]:
    rounds = seen[kind]
    speeds, fairness = [a.hand_overs for a in rounds], [a.fairness for a in rounds]
    name = f"{TITLE} as {kind}"
    work = Work.of(f"{name}: hand-overs/s, steady state", "/s", medians(seen, lambda a: a.hand_overs), ours=kind)
    return [
        Finding(work.name, median(speeds), "/s", None, 1000, quartiles(speeds), plain({kind: rounds}), work),
        Finding(f"{name}: Jain index", median(fairness), "", None, 0.99, quartiles(fairness)),
    ]


def _started(url: str, kind: str, turn: int) -> Competitors:
    name = f"contended-{turn}"
    if kind == TASKS:
        return task_competitors(url, name, WAITERS)
    processes = PROCESSES if kind == FOUR else 1
    return Competitors(processes, _opened, url, kind, name, WAITERS // processes)


@contextmanager
def _opened(url: str, kind: str, name: str, threads: int) -> Iterator[Opened]:
    with lockfast.connect(url) as locks:
        yield [{kind: locks.lock(name)} for _ in range(threads)]


def connections(url: str, waiters: int) -> int:
    """How many one `Locks` has, while that many threads wait for one lock."""
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waits'"
    with lockfast.connect(url) as other, psycopg.connect(url, autocommit=True) as observer:
        with lockfast.connect(f"{url}?application_name=waits") as locks:

            def wait() -> None:
                with locks.lock("waited for"):
                    pass

            competitors = [threading.Thread(target=wait) for _ in range(waiters)]
            with other.lock("waited for"):
                for thread in competitors:
                    thread.start()
                while other.inspect("waited for").waiters < waiters:
                    time.sleep(0.01)
                (found,) = observer.execute(ours.encode()).fetchone() or (0,)
            for thread in competitors:
                thread.join()
            return int(found)
