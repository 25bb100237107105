"""PostgreSQL's lock table: what does acquire + release cost, and how many locks can one process take a second?

Alone and durable: each commit waits for the disk, for us and for the floor, which is two bare functions that upsert and
delete one row. Two hundred tasks on distinct locks: against one statement for each request.
"""

from __future__ import annotations

import asyncio
from statistics import median

from tests.servers.postgres import PostgresServer

import lockfast
from bench.harness import Finding, Samples, Setting, per_cycle, ratio, take_turns, work_of
from bench.postgres_advisory_peers import Cycle, peers
from bench.postgres_table_floor import DURABLE, bare_functions, distributed_pg_lock, one_by_one, prepare
from bench.redis_server import one_core

TASKS = 200
ALONE, TEN = "one statement each, one connection", "one statement each, a pool of ten"
KEEPS = "distributed-pg-lock"  # the peer that keeps its locks in a table too


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only postgres_table`."""
    with PostgresServer(DURABLE) as server:
        prepare(server.url)
        return [*_alone(server, setting), *_many_tasks(server, setting)]


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
    stored = {"lockfast": samples["lockfast"], "floor": samples["floor"], **{peer: beside[peer] for peer in others}}
    work = work_of("PostgreSQL table, acquire + release, durable", stored, floor="floor", peers=[KEEPS])
    return [
        ratio(f"{what} / two bare durable functions", samples, "lockfast", "floor", at_most=1.3, work=work),
        *[ratio(f"{_described(peer)} / {what}", beside, peer, "lockfast") for peer in others],
        Finding(what, median(samples["lockfast"]) * 1e6, "µs"),
        Finding("two bare durable functions", median(samples["floor"]) * 1e6, "µs"),
    ]


def _measured(contenders: dict[str, Cycle], cycles: int, rounds: int) -> Samples:
    turns = {name: lambda cycle=cycle: per_cycle(cycle, cycles) for name, cycle in contenders.items()}
    return take_turns(turns, rounds)


def _described(peer: str) -> str:
    return peer if peer == KEEPS else f"{peer} (advisory: nothing is kept)"


def _many_tasks(server: PostgresServer, setting: Setting) -> list[Finding]:
    rounds = setting.scaled(7, 3)

    async def measured() -> Samples:
        async with lockfast.aio.connect(server.url) as locks, one_by_one(server.url, 1) as alone:
            async with one_by_one(server.url, 10) as ten:
                mine = [locks.lock(f"bench-{number}") for number in range(TASKS)]

                async def ours(number: int) -> None:
                    async with mine[number]:
                        pass

                contenders = {"lockfast": (ours, 20), ALONE: (alone, 2), TEN: (ten, 2)}
                samples: Samples = {name: [] for name in contenders}
                for turn in range(rounds + 1):
                    for name, (cycle, times) in contenders.items():
                        seconds = await _together(cycle, times)
                        if turn:  # the first only warms up
                            samples[name].append(seconds)
                return samples

    samples = asyncio.run(measured())
    what = f"table, {TASKS} tasks: cycles/s / one statement per request"
    work = work_of(
        f"PostgreSQL table, {TASKS} tasks on distinct locks", samples, floor="", peers=[ALONE, TEN], rate=True
    )
    return [
        ratio(f"{what}, one connection", samples, ALONE, "lockfast", at_least=10, work=work),
        ratio(f"{what}, a pool of ten", samples, TEN, "lockfast"),
        *[Finding(f"table, {TASKS} tasks: {name}", 1 / median(samples[name]), "cycles/s") for name in samples],
    ]


async def _together(cycle: object, times: int) -> float:
    """Seconds a cycle, while all tasks work."""
    loop = asyncio.get_running_loop()

    async def repeat(number: int) -> None:
        for _ in range(times):
            await cycle(number)  # type: ignore[operator]

    started = loop.time()
    await asyncio.gather(*(repeat(number) for number in range(TASKS)))
    return (loop.time() - started) / times / TASKS
