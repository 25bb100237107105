"""Threads, tasks and processes that want one lock of the table all the time, and what they note.

Decides: what counts as a hand-over: a hold by another competitor than the one before it. With more than one competitor
that is every hold of a fair lock, which the fences put in order.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import psycopg

import lockfast

PROCESSES = 4
_WARM_UP_S = 0.5  # seconds that are not counted
Notes = list[tuple[int, int, float]]  # fence, competitor, moment


@dataclass(frozen=True)
class Stretch:
    per_second: float  # hand-overs
    jain: float


def judge(notes: Notes, competitors: int, seconds: float) -> Stretch:
    holds = sorted(notes)
    handed = sum(before[1] != after[1] for before, after in pairwise(holds))
    counts = [0] * competitors
    for _, who, _ in holds:
        counts[who] += 1
    return Stretch(handed / seconds, sum(counts) ** 2 / (competitors * sum(n * n for n in counts) or 1))


def _threads(url: str, waiters: int, begin: float, until: float, first: int = 0) -> Notes:
    notes: Notes = []
    with lockfast.connect(url) as locks:

        def work(who: int) -> None:
            lock = locks.lock("contended")
            while (now := time.monotonic()) < until:
                with lock as lease:
                    now = time.monotonic()
                if begin <= now < until:
                    notes.append((lease.fence, who, now))

        competitors = [threading.Thread(target=work, args=(first + number,)) for number in range(waiters)]
        for thread in competitors:
            thread.start()
        for thread in competitors:
            thread.join()
    return notes


def _tasks(url: str, waiters: int, begin: float, until: float) -> Notes:
    notes: Notes = []

    async def work(lock: lockfast.aio.AsyncLock, who: int) -> None:
        while (now := time.monotonic()) < until:
            async with lock as lease:
                now = time.monotonic()
            if begin <= now < until:
                notes.append((lease.fence, who, now))

    async def competitors() -> None:
        async with lockfast.aio.connect(url) as locks:
            await asyncio.gather(*(work(locks.lock("contended"), number) for number in range(waiters)))

    asyncio.run(competitors())
    return notes


def _processes(url: str, waiters: int, begin: float, until: float) -> Notes:
    each = waiters // PROCESSES
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.postgres_table_competitors"])
    with context.Pool(PROCESSES) as pool:
        pool.starmap(time.sleep, [(0.01,)] * PROCESSES)  # they are there, before time begins to count
        jobs = [(url, each, begin, until, each * number) for number in range(PROCESSES)]
        return [note for notes in pool.starmap(_threads, jobs, chunksize=1) for note in notes]


WAYS: dict[str, Callable[[str, int, float, float], Notes]] = {
    "threads": _threads,
    "tasks": _tasks,
    "threads of four processes": _processes,
}


def compete(way: str, url: str, waiters: int, seconds: float) -> Stretch:
    begin = time.monotonic() + _WARM_UP_S + (1.5 if way.endswith("processes") else 0)
    return judge(WAYS[way](url, waiters, begin, begin + seconds), waiters, seconds)


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
