"""PostgreSQL's advisory locks: what does acquire + release cost, and how fast does a lock go from hand to hand?

Alone: client and server share one core, so a cycle is the work of both. The floor is the bare pair of statements with
psycopg on one connection. With 32 processes: the floor is the same pair, `pg_advisory_lock` blocking at the server.
"""

from __future__ import annotations

from statistics import median

from tests.servers.postgres import PostgresServer

import lockfast
from bench.harness import Finding, Setting, Work, per_cycle, quartiles, ratio, take_turns, work_of
from bench.postgres_advisory_competitors import KINDS, advisory_competitors
from bench.postgres_advisory_peers import Cycle, bare_pair, peers
from bench.redis_server import one_core
from bench.rounds import compared, medians, plain, rounds_of, shown

PROCESSES = 32


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
    work = work_of("PostgreSQL advisory, acquire + release, one core", samples, floor="floor", peers=others)
    return [
        ratio(f"{what} / the bare pair with psycopg", samples, "lockfast", "floor", at_most=1.5, work=work),
        *[ratio(f"{peer} / {what}", samples, peer, "lockfast", at_least=1.0, work=work) for peer in others],
        Finding(what, median(samples["lockfast"]) * 1e6, "µs"),
        Finding("the bare pair with psycopg", median(samples["floor"]) * 1e6, "µs"),
    ]


def _contended(server: PostgresServer, setting: Setting) -> list[Finding]:
    seen = rounds_of(setting, KINDS, lambda kind, turn: advisory_competitors(server.url, PROCESSES))
    name = f"PostgreSQL advisory, {PROCESSES} processes, one lock"
    speed = medians(seen, lambda a: a.hand_overs)
    work = Work.of(f"{name}: hand-overs/s, steady state", "/s", speed, ours="lockfast", floor="bare")
    to_floor, spread = compared(seen, "lockfast", "bare", lambda a: a.hand_overs)
    fairness = [a.fairness for a in seen["lockfast"]]
    return [
        Finding(f"{work.name} / the floor's", to_floor, "×", None, 0.5, spread, plain(seen), work, "floor"),
        Finding(f"{name}: Jain index", median(fairness), "", None, 0.99, quartiles(fairness)),
        *shown(name, seen),
    ]
