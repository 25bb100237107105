"""Memory: what does a lease cost beside a bare lock of the standard library?

The floor is `with lock: pass` on `threading.Lock` and `async with` on `asyncio.Lock`. Neither knows expiry, fences,
owners or fairness, so this is what all of these cost where there is nothing to send. The same with a listener of its
events shows what these cost, and that nothing is paid where nobody listens.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from statistics import median
from typing import Any

import lockfast
from bench.harness import Finding, Samples, Setting, Work, quartiles, ratio, take_turns


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only memory`."""
    cycles, rounds = setting.scaled(5_000, 2_000), setting.scaled(41, 11)
    with lockfast.connect("memory://bench") as locks:
        lock, bare = locks.lock("bench"), threading.Lock()
        samples = take_turns(
            {"lockfast": lambda: _enter(lock, cycles), "threading.Lock": lambda: _enter(bare, 10 * cycles)}, rounds
        )
    with lockfast.connect("memory://bench") as locks, lockfast.connect("memory://bench-observed") as observed:
        observed.events.listen(lambda _: None)
        silent, listened = locks.lock("bench"), observed.lock("bench")
        events = take_turns(
            {"lockfast": lambda: _enter(silent, cycles), "lockfast, a listener": lambda: _enter(listened, cycles)},
            rounds,
        )
    with asyncio.Runner() as runner:
        alocks = lockfast.aio.connect("memory://bench")
        alock, abare = alocks.lock("bench-aio"), asyncio.Lock()
        asamples = take_turns(
            {
                "lockfast.aio": lambda: runner.run(_enter_async(alock, cycles)),
                "asyncio.Lock": lambda: runner.run(_enter_async(abare, 5 * cycles)),
            },
            rounds,
        )
        runner.run(alocks.close())
    work = _work("memory, `with lock: pass`", samples, "lockfast", "threading.Lock")
    awork = _work("memory, `async with lock: pass`", asamples, "lockfast.aio", "asyncio.Lock")
    engine = [seconds * 1e6 for seconds in samples["lockfast"]]
    return [
        Finding("the engine alone: `with lock` on memory", median(engine), "µs", 7, None, quartiles(engine), work=work),
        ratio("memory `with lock` / threading.Lock", samples, "lockfast", "threading.Lock", at_most=60, work=work),
        ratio("memory `with lock`, a listener / nobody listens", events, "lockfast, a listener", "lockfast"),
        ratio(
            "memory `async with lock` / asyncio.Lock", asamples, "lockfast.aio", "asyncio.Lock", at_most=40, work=awork
        ),
    ]


def _work(name: str, samples: Samples, ours: str, floor: str) -> Work:
    return Work.of(name, "µs", {who: median(taken) * 1e6 for who, taken in samples.items()}, ours=ours, floor=floor)


def _enter(lock: AbstractContextManager[Any], cycles: int) -> float:
    started = time.perf_counter()
    for _ in range(cycles):
        with lock:
            pass
    return (time.perf_counter() - started) / cycles


async def _enter_async(lock: AbstractAsyncContextManager[Any], cycles: int) -> float:
    started = time.perf_counter()
    for _ in range(cycles):
        async with lock:
            pass
    return (time.perf_counter() - started) / cycles
