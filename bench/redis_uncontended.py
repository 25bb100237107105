"""Redis, uncontended: what does acquire + release cost a blocking client?

Client and server share one core, so a cycle is the work of both and nothing else: no core is woken from its sleep. The
floor is the same two round trips on a bare socket with bytes written by hand. Peers use one connected client each.
"""

from __future__ import annotations

from statistics import median

from tests.servers.server import Server

import lockfast
from bench.harness import Finding, Setting, per_cycle, ratio, take_turns
from bench.redis_floor import floor
from bench.redis_peers import Cycle, blocking_peers, held
from bench.redis_server import one_core


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_uncontended`."""
    cycles, rounds = setting.scaled(100, 50), setting.scaled(101, 41)  # short turns: a busy moment spoils few of them
    with Server() as redis, lockfast.connect(redis.url) as locks, one_core(redis.pid):
        peers = blocking_peers(redis.port)
        contenders: dict[str, Cycle] = {
            "lockfast": held(locks.lock("bench")),
            "floor": floor(redis.port),
            **peers,
        }
        samples = take_turns(
            {name: lambda cycle=cycle: per_cycle(cycle, cycles) for name, cycle in contenders.items()},  # type: ignore[misc]
            rounds,
        )
    return [
        ratio("Redis acquire+release / bare socket", samples, "lockfast", "floor", at_most=1.8),
        *[ratio(f"{peer} / Redis acquire+release", samples, peer, "lockfast", at_least=_bound(peer)) for peer in peers],
        Finding("Redis acquire+release", median(samples["lockfast"]) * 1e6, "µs"),
        Finding("the bare socket", median(samples["floor"]) * 1e6, "µs"),
    ]


def _bound(peer: str) -> float | None:
    return 2.5 if peer == "redis-py Lock" else None
