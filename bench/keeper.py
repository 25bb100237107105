"""Ten thousand SQLite leases held at once: what does keeping them alive cost?

Measured in a process of its own, which does nothing else: the CPU time that goes by over whole rounds of renewal,
the most threads seen at once (those that ask the store, and in all), the leases that were lost, and the memory that
each lease and its lock object take. A round is a third of the ttl, so at the quick ttl of 6 s the same work is done
five times as often and the share is divided by that.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
import tracemalloc
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lockfast
from bench.harness import Finding, Setting

LEASES = 10_000
TTL_S = 30.0  # what the bound is stated for


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only keeper`."""
    ttl = float(setting.scaled(30, 6))
    window = ttl / 3 * 2 * 1.1  # two rounds of renewal, and what they spill over
    kept = _apart(setting.folder / "keeper.db", ttl, window, False)
    traced = _apart(setting.folder / "keeper-traced.db", 600.0, 0.0, True)
    share = kept["cpu_per_round"] / (TTL_S / 3) * 100
    return [
        Finding("10,000 leases: CPU at ttl 30 s", share, "% of a core", at_most=2, detail=kept),
        Finding("10,000 leases: threads that renew", kept["renewing"], "", at_most=1),
        Finding("10,000 leases: threads in all", kept["threads"], ""),
        Finding("10,000 leases: lost", kept["lost"], "", at_most=0),
        Finding("10,000 leases: memory each (RSS)", kept["rss_each"] / 1024, "KB", at_most=2),
        Finding("10,000 leases: memory each (traced)", traced["traced_each"] / 1024, "KB", at_most=2, detail=traced),
    ]


def _apart(file: Path, ttl: float, window: float, traced: bool) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    pipe, out = context.Pipe(duplex=False)
    worker = context.Process(target=_keep, args=(file, ttl, window, traced, out))
    worker.start()
    out.close()  # then a worker that dies is noticed at once
    try:
        if not pipe.poll(window + 120):
            raise TimeoutError("the keeping process did not report")
        answer: dict[str, Any] = pipe.recv()
        return answer
    finally:
        worker.join(30)
        worker.kill()


def _keep(file: Path, ttl: float, window: float, traced: bool, out: Connection) -> None:
    locks = lockfast.connect(f"sqlite:///{file}")
    with locks.lock("warm-up"):
        pass
    before = _memory(traced)
    taken = [(lock, lock.acquire()) for lock in (locks.lock(f"lease:{i}", ttl=ttl) for i in range(LEASES))]
    each = (_memory(traced) - before) / LEASES
    answer: dict[str, Any] = {"ttl": ttl, "leases": LEASES, ("traced_each" if traced else "rss_each"): round(each, 1)}
    if window:
        answer |= _watch(ttl, window)
        answer["lost"] = sum(lease is None or not lease.held for _, lease in taken) + LEASES - len(locks.list("lease:"))
    out.send(answer)
    out.close()
    os._exit(0)  # releasing ten thousand leases one by one at exit is no part of the question


def _watch(ttl: float, window: float) -> dict[str, Any]:
    """CPU and threads over the window; sampled rarely, so that watching does not count."""
    time.sleep(ttl / 3 * 1.1)  # the first round is over: what it sets up is not what keeping costs
    threads = renewing = 0
    used, until = time.process_time(), time.monotonic() + window
    started = time.monotonic()
    while time.monotonic() < until:
        time.sleep(0.02 if ttl < TTL_S else 0.05)
        names = [thread.name for thread in threading.enumerate()]
        threads = max(threads, len(names) - 1)  # the main thread only watches
        renewing = max(renewing, names.count("lockfast-renewal"))
    cpu, lasted = time.process_time() - used, time.monotonic() - started
    return {
        "cpu_seconds": round(cpu, 4),
        "window_seconds": round(lasted, 3),
        "cpu_per_round": cpu / (lasted / (ttl / 3)),
        "threads": threads,
        "renewing": renewing,
    }


def _memory(traced: bool) -> int:
    gc.collect()
    if traced:
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        return tracemalloc.get_traced_memory()[0]
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
