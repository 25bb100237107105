"""PostgreSQL's lock table: what does acquire + release cost, how many locks can one process take a second, and how fast
does a lock go from hand to hand?

Alone and durable: each commit waits for the disk, for us and for the floor, which is two bare functions that upsert and
delete one row. Two hundred tasks on distinct locks: against one statement for each request. 32 that want one lock: with
synchronous_commit off, as threads and tasks of one process, and spread over four processes.
"""

from __future__ import annotations

import asyncio
from statistics import median

from tests.servers.postgres import PostgresServer

import lockfast
from bench.harness import Finding, Samples, Setting, per_cycle, quartiles, ratio, take_turns
from bench.postgres_advisory_peers import Cycle, peers
from bench.postgres_table_competitors import WAYS, Stretch, compete, connections
from bench.postgres_table_floor import bare_functions, distributed_pg_lock, one_by_one, prepare, round_trip
from bench.redis_server import one_core
from lockfast.backends.postgres_table.io.batching import MAX_CONNECTIONS, MAX_SPARE

TASKS = 200
WAITERS = 32
MAX_BATCH = MAX_CONNECTIONS + MAX_SPARE + 1  # connections: one of them listens
_ROOM = {"max_connections": "200", "shared_buffers": "128MB", "max_wal_size": "1GB"}
_DURABLE = {**_ROOM, "fsync": "on"}


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only postgres_table`."""
    with PostgresServer(_DURABLE) as server:
        prepare(server.url)
        found = [*_alone(server, setting), *_many_tasks(server, setting)]
    with PostgresServer({**_ROOM, "synchronous_commit": "off"}) as server:
        prepare(server.url)
        return [*found, *_contended(server, setting)]


def _alone(server: PostgresServer, setting: Setting) -> list[Finding]:
    rounds = setting.scaled(201, 41)
    with lockfast.connect(server.url) as locks, one_core(server.pid):
        lock = locks.lock("bench")

        def ours() -> None:
            lock.acquire()
            lock.release()

        others = {**distributed_pg_lock(server.url), **peers(server.url)}
        two: dict[str, Cycle] = {"lockfast": ours, "floor": bare_functions(server.url)}
        samples = _measured(two, 4, rounds)  # short turns: the disk has its moods
        beside = _measured({"lockfast": ours, **others}, 10, rounds // 5)
    what = "table acquire+release, durable"
    return [
        ratio(f"{what} / two bare durable functions", samples, "lockfast", "floor", at_most=1.3),
        *[ratio(f"{_described(peer)} / {what}", beside, peer, "lockfast") for peer in others],
        Finding(what, median(samples["lockfast"]) * 1e6, "µs"),
        Finding("two bare durable functions", median(samples["floor"]) * 1e6, "µs"),
    ]


def _measured(contenders: dict[str, Cycle], cycles: int, rounds: int) -> Samples:
    turns = {name: lambda cycle=cycle: per_cycle(cycle, cycles) for name, cycle in contenders.items()}
    return take_turns(turns, rounds)


def _described(peer: str) -> str:
    return peer if peer == "distributed-pg-lock" else f"{peer} (advisory: nothing is kept)"


def _many_tasks(server: PostgresServer, setting: Setting) -> list[Finding]:
    rounds = setting.scaled(7, 3)

    async def measured() -> Samples:
        async with lockfast.aio.connect(server.url) as locks, one_by_one(server.url, 1) as alone:
            async with one_by_one(server.url, 10) as ten:
                mine = [locks.lock(f"bench-{number}") for number in range(TASKS)]

                async def ours(number: int) -> None:
                    async with mine[number]:
                        pass

                contenders = {"lockfast": (ours, 20), "one connection": (alone, 2), "a pool of ten": (ten, 2)}
                samples: Samples = {name: [] for name in contenders}
                for turn in range(rounds + 1):
                    for name, (cycle, times) in contenders.items():
                        seconds = await _together(cycle, times)
                        if turn:  # the first only warms up
                            samples[name].append(seconds)
                return samples

    samples = asyncio.run(measured())
    what = f"table, {TASKS} tasks: cycles/s / one statement per request"
    return [
        ratio(f"{what}, one connection", samples, "one connection", "lockfast", at_least=10),
        ratio(f"{what}, a pool of ten", samples, "a pool of ten", "lockfast"),
        *[Finding(f"table, {TASKS} tasks: {name}", 1 / median(samples[name]), "cycles/s") for name in samples],
    ]


async def _together(cycle: object, times: int) -> float:
    """Seconds a cycle, while all tasks are at it."""
    loop = asyncio.get_running_loop()

    async def repeat(number: int) -> None:
        for _ in range(times):
            await cycle(number)  # type: ignore[operator]

    started = loop.time()
    await asyncio.gather(*(repeat(number) for number in range(TASKS)))
    return (loop.time() - started) / times / TASKS


def _contended(server: PostgresServer, setting: Setting) -> list[Finding]:
    seconds, rounds = float(setting.scaled(3, 1)), setting.scaled(5, 2)
    seen: dict[str, list[Stretch]] = {way: [] for way in WAYS}
    trips: list[float] = []
    for _ in range(rounds):
        trips.append(per_cycle(round_trip(server.url), 300))
        for way in WAYS:
            seen[way].append(compete(way, server.url, WAITERS, seconds))
    found = []
    for way, stretches in seen.items():
        speeds, jains = [one.per_second for one in stretches], [one.jain for one in stretches]
        name = f"table, {WAITERS} {way}"
        found += [
            Finding(f"{name}: hand-overs/s", median(speeds), "/s", None, 1000, quartiles(speeds)),
            Finding(f"{name}: Jain index", median(jains), "", None, 0.99, quartiles(jains)),
        ]
    counted = {waiters: connections(server.url, waiters) for waiters in (2, 8, 32, 128)}
    what = "table: connections of a process in which 128 wait"
    found.append(Finding("a round trip of SELECT 1 meanwhile, to read the hand-overs by", median(trips) * 1e6, "µs"))
    return [*found, Finding(what, counted[128], "", at_most=MAX_BATCH, detail={"connections": counted})]
