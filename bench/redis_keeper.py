"""Ten thousand Redis leases held at once: what does keeping them alive cost, and do others notice?

A process of its own holds them and does nothing else: the CPU time that goes by over whole rounds of renewal, the
threads or tasks that renew, the leases lost, the memory each. A round is a third of the ttl, so at the quick ttl of
6 s the same work is done five times as often and the share is divided by that.

Meanwhile this process sends a PING every millisecond, to that server and right after it to a second one that no other
client uses, which shows what the scheduler of a busy machine does to a PING: a round's worst PING counts as far as it
is worse than the idle server's. As noise could hide something there, the server is asked too for its longest turn, in
which it serves no other client. Of both the worst round is the answer, since the bound says never: a stall of the
whole machine can miss it, and then the idle server's figures show it.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from tests.servers.server import HOST, Server

import lockfast
from bench.harness import Finding, Setting, quartiles
from lockfast._worlds.asyncio_ import background_tasks

LEASES = 10_000
TTL_S = 30.0  # what the bound is stated for
ROUNDS = 3  # of renewal that are watched
_RENEWS = "lockfast-renewal"  # the name of a thread or task that does

World = Literal["threads", "asyncio"]


class Latencies(NamedTuple):
    """What others noticed in one round, in milliseconds."""

    ping: float  # the worst
    idle_ping: float  # the worst of the server that has nothing to do
    turn: float  # the longest of the server's event loop

    @property
    def added(self) -> float:
        return max(0.0, self.ping - self.idle_ping)


class Watched(NamedTuple):
    facts: dict[str, Any]  # that the holder reports
    rounds: list[Latencies]


class _Task(NamedTuple):
    world: World
    url: str
    ttl: float
    watched: float  # seconds; 0 if only memory is asked for
    traced: bool


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_keeper`."""
    ttl = float(setting.scaled(30, 6))
    found: list[Finding] = []
    worlds: tuple[World, ...] = ("threads", "asyncio")
    for world in worlds:
        found += _findings(world, _watched(world, ttl), _traced(world))
    return found


def _findings(world: World, seen: Watched, traced: dict[str, Any]) -> list[Finding]:
    facts = seen.facts
    share = facts["cpu_per_round"] / (TTL_S / 3) * 100
    name = f"10,000 Redis leases, {world}"
    added, turns = [each.added for each in seen.rounds], [each.turn for each in seen.rounds]
    rounds = {"rounds": [each._asdict() for each in seen.rounds]}
    return [
        Finding(f"{name}: CPU at ttl 30 s", share, "% of a core", at_most=1, detail=facts),
        Finding(f"{name}: that renew", facts["renewing"], "", at_most=1),
        Finding(f"{name}: in all", facts["running"], ""),
        Finding(f"{name}: lost", facts["lost"], "", at_most=0),
        Finding(f"{name}: memory each (RSS)", facts["rss_each"] / 1024, "KB", at_most=2),
        Finding(f"{name}: memory each (traced)", traced["traced_each"] / 1024, "KB", at_most=2, detail=traced),
        Finding(f"{name}: add to the worst PING", max(added), "ms", 10, None, quartiles(added), rounds),
        Finding(f"{name}: longest turn of the server", max(turns), "ms", 10, None, quartiles(turns)),
        Finding(f"{name}: worst PING", max(each.ping for each in seen.rounds), "ms"),
        Finding(f"{name}: worst PING, idle server", max(each.idle_ping for each in seen.rounds), "ms"),
    ]


def _watched(world: World, ttl: float) -> Watched:
    with Server() as server, Server() as idle:
        job = _Task(world, server.url, ttl, ROUNDS * ttl / 3, False)
        holder, pipe = _start(job)
        try:
            began = _receive(pipe, 120)
            rounds = [_measure(server, idle, began + (n + 1) * ttl / 3) for n in range(ROUNDS)]
            facts = _receive(pipe, 120)
        finally:
            holder.join(30)
            holder.kill()
    return Watched(facts, rounds)


def _traced(world: World) -> dict[str, Any]:
    with Server() as server:
        holder, pipe = _start(_Task(world, server.url, 600.0, 0.0, True))
        try:
            facts: dict[str, Any] = _receive(pipe, 180)
            return facts
        finally:
            holder.join(30)
            holder.kill()


def _start(job: _Task) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    pipe, out = context.Pipe(duplex=False)
    holder = context.Process(target=_hold, args=(job, out))
    holder.start()
    out.close()  # then one that dies is noticed at once
    return holder, pipe


def _receive(pipe: Connection, within: float) -> Any:
    if not pipe.poll(within):
        raise TimeoutError("the keeping process did not report")
    return pipe.recv()


def _measure(server: Server, idle: Server, until: float) -> Latencies:
    """One PING a millisecond to either, up to that moment."""
    server.command("CONFIG", "RESETSTAT")
    ping, idle_ping = _slowest(server.port, idle.port, until)
    turn = re.search(rb"eventloop_duration_max:(\d+)", server.command("INFO", "debug"))
    return Latencies(ping * 1e3, idle_ping * 1e3, int(turn[1]) / 1e3 if turn else 0.0)


def _slowest(port: int, idle: int, until: float) -> tuple[float, float]:
    lines = [socket.create_connection((HOST, each)) for each in (port, idle)]
    slowest = [0.0, 0.0]
    while (now := time.monotonic()) < until:
        for number, line in enumerate(lines):
            started = time.perf_counter()
            line.sendall(b"PING\r\n")
            line.recv(64)
            slowest[number] = max(slowest[number], time.perf_counter() - started)
        time.sleep(max(0.0, now + 0.001 - time.monotonic()))
    for line in lines:
        line.close()
    return slowest[0], slowest[1]


def _hold(job: _Task, out: Connection) -> None:
    """In a process of its own."""
    facts = asyncio.run(_hold_in_asyncio(job, out)) if job.world == "asyncio" else _hold_in_threads(job, out)
    out.send(facts)
    out.close()
    os._exit(0)  # releasing ten thousand leases one by one at exit is no part of the question


def _hold_in_threads(job: _Task, out: Connection) -> dict[str, Any]:
    locks = lockfast.connect(job.url)
    with locks.lock("warm-up"):
        pass
    before = _memory(job.traced)
    taken = [(lock, lock.acquire()) for lock in (locks.lock(f"lease:{i}", ttl=job.ttl) for i in range(LEASES))]
    facts = _each(job, before)
    if job.watched:
        watch = _Watch(job)
        time.sleep(watch.begin(out))
        while watch.goes_on():
            watch.see(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
            time.sleep(0.05)
        facts |= watch.facts()
        facts["lost"] = _lost([lease for _, lease in taken], len(locks.list("lease:")))
    return facts


async def _hold_in_asyncio(job: _Task, out: Connection) -> dict[str, Any]:
    locks = lockfast.aio.connect(job.url)
    async with locks.lock("warm-up"):
        pass
    before = _memory(job.traced)
    taken = [(lock, await lock.acquire()) for lock in (locks.lock(f"lease:{i}", ttl=job.ttl) for i in range(LEASES))]
    facts = _each(job, before)
    if job.watched:
        watch, own = _Watch(job), asyncio.current_task()
        await asyncio.sleep(watch.begin(out))
        while watch.goes_on():
            watch.see(task.get_name() for task in asyncio.all_tasks() | background_tasks() if task is not own)
            await asyncio.sleep(0.05)
        facts |= watch.facts()
        facts["lost"] = _lost([lease for _, lease in taken], len(await locks.list("lease:")))
    return facts


def _lost(leases: Iterable[Any], recorded: int) -> int:
    """What the holder knows of, or what the server no longer has: whichever is more."""
    return max(sum(lease is None or not lease.held for lease in leases), LEASES - recorded)


class _Watch:
    """CPU, and who runs, over some rounds of renewal; sampled rarely, so that measuring does not count."""

    def __init__(self, job: _Task) -> None:
        self._round, self._length = job.ttl / 3, job.watched
        self._running = self._renewing = 0

    def begin(self, out: Connection) -> float:
        """How long to sleep first: what the first round sets up is not what keeping costs."""
        self._began = time.monotonic() + self._round * 1.1
        self._used: float | None = None
        out.send(self._began)
        return self._began - time.monotonic()

    def goes_on(self) -> bool:
        if self._used is None:
            self._used = time.process_time()
        return time.monotonic() < self._began + self._length

    def see(self, names: Iterable[str]) -> None:
        seen = list(names)
        self._running = max(self._running, len(seen))
        self._renewing = max(self._renewing, seen.count(_RENEWS))

    def facts(self) -> dict[str, Any]:
        cpu = time.process_time() - (self._used or 0.0)
        lasted = time.monotonic() - self._began
        return {
            "cpu_seconds": round(cpu, 4),
            "window_seconds": round(lasted, 3),
            "cpu_per_round": cpu / (lasted / self._round),
            "running": self._running,
            "renewing": self._renewing,
        }


def _each(job: _Task, before: int) -> dict[str, Any]:
    each = round((_memory(job.traced) - before) / LEASES, 1)
    return {"ttl": job.ttl, "leases": LEASES, ("traced_each" if job.traced else "rss_each"): each}


def _memory(traced: bool) -> int:
    gc.collect()
    if traced:
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        return tracemalloc.get_traced_memory()[0]
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
