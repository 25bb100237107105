"""PostgreSQL's advisory locks: what does acquire + release cost, and how fast does a lock go from hand to hand?

Alone: client and server share one core, so a cycle is the work of both. The floor is the bare pair of statements with
psycopg on one connection. With 32 processes: the floor is the same pair, `pg_advisory_lock` blocking at the server; a
hand-over is a hold whose competitor is not the one before it.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from tests.servers.postgres import PostgresServer

import lockfast
from bench.harness import Finding, Setting, per_cycle, quartiles, ratio, take_turns
from bench.postgres_advisory_competitors import KINDS, Kind, advisory_competitors
from bench.postgres_advisory_peers import Cycle, bare_pair, peers
from bench.redis_contended import Round, judge
from bench.redis_server import one_core

PROCESSES = 32
_WARM_UP_S = 0.5  # seconds of a stretch that only warms up


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only postgres_advisory`."""
    with PostgresServer({"max_connections": "200"}) as server:
        return [*_alone(server, setting), *_contended(server, setting)]


def _alone(server: PostgresServer, setting: Setting) -> list[Finding]:
    cycles, rounds = setting.scaled(100, 50), setting.scaled(61, 21)
    url = server.url.replace("postgresql:", "postgresql+advisory:")
    with lockfast.connect(url) as locks, one_core(server.pid):
        lock = locks.lock("bench")

        def ours() -> None:
            lock.acquire()
            lock.release()

        others = peers(server.url)
        contenders: dict[str, Cycle] = {"lockfast": ours, "floor": bare_pair(server.url), **others}
        samples = take_turns(
            {name: lambda cycle=cycle: per_cycle(cycle, cycles) for name, cycle in contenders.items()},  # type: ignore[misc]
            rounds,
        )
    what = "advisory acquire+release"
    return [
        ratio(f"{what} / the bare pair with psycopg", samples, "lockfast", "floor", at_most=1.5),
        *[ratio(f"{peer} / {what}", samples, peer, "lockfast", at_least=1.0) for peer in others],
        Finding(what, median(samples["lockfast"]) * 1e6, "µs"),
        Finding("the bare pair with psycopg", median(samples["floor"]) * 1e6, "µs"),
    ]


def _contended(server: PostgresServer, setting: Setting) -> list[Finding]:
    seconds, rounds = float(setting.scaled(3, 1)), setting.scaled(5, 2)
    seen: dict[Kind, list[Round]] = {kind: [] for kind in KINDS}
    with advisory_competitors(server.url, PROCESSES) as competitors:
        for kind in KINDS:
            competitors.compete(kind, _WARM_UP_S)
        for turn in range(rounds):
            for kind in KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)]:
                seen[kind].append(judge(*competitors.compete(kind, seconds)))
    ours, floor = seen["lockfast"], seen["bare"]
    slower = [b.hand_overs / a.hand_overs for a, b in zip(ours, floor, strict=True)]
    fairness = [a.fairness for a in ours]
    detail: dict[str, Any] = {kind: [a.plain() for a in rounds_of] for kind, rounds_of in seen.items()}
    name = "advisory, 32 processes"
    return [
        Finding(f"{name}: bare hand-overs/s / ours", median(slower), "×", 2.0, None, quartiles(slower), detail),
        Finding(f"{name}: Jain index", median(fairness), "", None, 0.99, quartiles(fairness)),
        *[Finding(f"{name}: {kind} hand-overs/s", median(a.hand_overs for a in seen[kind]), "/s") for kind in KINDS],
        *[Finding(f"{name}: {kind} p99 wait", median(a.wait(99) for a in seen[kind]) * 1e3, "ms") for kind in KINDS],
    ]
