"""Redis, uncontended: what does acquire + release cost a blocking client?

Client and server share one core, so a cycle is the work of both and nothing else: no core is woken from its sleep. The
floor is the same two round trips on a bare socket with bytes written by hand. Peers use one connected client each. We
are asked twice: with a lock object that is kept, and with a new one for each use, as `with locks.lock(name):` makes it.
"""

from __future__ import annotations

from statistics import median

from tests.servers.server import Server

import lockfast
from bench import redlock_ng
from bench.harness import Finding, Samples, Setting, per_cycle, quartiles, ratio, take_turns, work_of
from bench.redis_floor import floor
from bench.redis_peers import Cycle, blocking_peers
from bench.redis_server import one_core

NEW = "lockfast, a new lock object for each use"
_BOUNDS = {"redis-py Lock": 2.5}


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_uncontended`."""
    cycles, rounds = setting.scaled(100, 50), setting.scaled(101, 41)  # short turns: a busy moment spoils few of them
    with Server() as redis, lockfast.connect(redis.url) as locks, one_core(redis.pid):
        peers = blocking_peers(redis.port)
        contenders: dict[str, Cycle] = {"lockfast": _kept(locks), NEW: _new(locks), "floor": floor(redis.port), **peers}
        turns = {name: lambda cycle=cycle: per_cycle(cycle, cycles) for name, cycle in contenders.items()}
        with redlock_ng.redlock_ng([redis.port]) as apart:
            samples = take_turns({**turns, redlock_ng.NAME: lambda: apart(cycles)}, rounds)
    return _found(samples, [*peers, redlock_ng.NAME])


def _kept(locks: lockfast.Locks) -> Cycle:
    lock = locks.lock("bench")

    def cycle() -> None:
        with lock:
            pass

    return cycle


def _new(locks: lockfast.Locks) -> Cycle:
    def cycle() -> None:
        with locks.lock("bench"):
            pass

    return cycle


def _found(samples: Samples, peers: list[str]) -> list[Finding]:
    work = work_of("Redis, acquire + release, one core", samples, floor="floor", peers=peers)
    more = [(new - kept) * 1e6 for new, kept in zip(samples[NEW], samples["lockfast"], strict=True)]
    return [
        ratio("Redis acquire+release / bare socket", samples, "lockfast", "floor", at_most=1.7, work=work),
        *[
            ratio(f"{peer} / Redis acquire+release", samples, peer, "lockfast", at_least=_BOUNDS.get(peer), work=work)
            for peer in peers
        ],
        Finding(
            "Redis, a new lock object for each use: more than a kept one", median(more), "µs", 3, None, quartiles(more)
        ),
        *[Finding(f"Redis acquire+release: {name}", median(samples[name]) * 1e6, "µs") for name in samples],
    ]
