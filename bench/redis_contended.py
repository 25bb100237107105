"""Redis, many processes want one lock all the time: how fast does it go from hand to hand, how long does one wait?

The floor is a queue on bare sockets, whose release grants the next waiter and publishes to it. Commands are what the
clients sent, counted in stretches of their own by a connection that the server reports everything to; what a script
calls by itself is part of the one command that ran the script. A peer's client has no time limit here: it waits for
the lock and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Final, get_args

from tests.servers.server import Server

from bench.competitors import Competitors
from bench.harness import Finding, Setting, Work, quartiles
from bench.redis_competitors import Kind, redis_competitors
from bench.redis_server import Monitor
from bench.rounds import Round, compared, judge, medians, percentile, plain, rounds_of, shown

PROCESSES = 32
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
OURS, FLOOR, PEER = KINDS[:3]
TITLE: Final = "Redis, 32 processes, one lock"
_WARM_UP_S = 0.5  # seconds of a stretch that only warms up


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_contended`."""
    with Server() as redis:
        seen = rounds_of(
            setting, KINDS, lambda kind, turn: redis_competitors(redis.port, PROCESSES, f"bench:{kind}:{turn}")
        )
        with redis_competitors(redis.port, PROCESSES, "bench:commands") as competitors:
            commands = [_commands(redis.port, competitors, OURS, n, n) for n in (2, 8, PROCESSES)]
            peers = [_commands(redis.port, competitors, kind, PROCESSES, PROCESSES) for kind in KINDS[1:]]
        with redis_competitors(redis.port, 8, "bench:threads", threads=16) as competitors:
            commands.append(_commands(redis.port, competitors, OURS, 8, 8 * 16))
    return [*_bounded(seen), *commands, *shown(TITLE, seen), *peers]


def _commands(port: int, competitors: Competitors, kind: Kind, processes: int, waiters: int) -> Finding:
    competitors.compete(kind, _WARM_UP_S, processes)
    with Monitor(port) as monitor:
        each = judge(*competitors.compete(kind, 1.0, processes), start_up_s=0.0)
    value = monitor.commands.total() / max(each.handed, 1)
    detail = {"commands": dict(monitor.commands), "hand_overs": each.handed, **each.plain()}
    what = f"Redis, {waiters} contenders: commands per hand-over" + (f", {kind}" if kind != OURS else "")
    return Finding(what, value, "", at_most=4 if kind == OURS else None, detail=detail)


def _bounded(seen: Mapping[str, list[Round]]) -> list[Finding]:
    def worked(name: str, unit: str, figure: Callable[[Round], float]) -> Work:
        return Work.of(f"{TITLE}: {name}", unit, medians(seen, figure), ours=OURS, floor=FLOOR, peers=KINDS[2:])

    speed = worked("hand-overs/s, steady state", "/s", _speed)
    latency = worked("release to next acquire, p50", "µs", _latency)
    waits = worked("p99 of the wait, start-up included", "ms", lambda a: percentile(a.all_waits, 99) * 1e3)
    to_floor, spread = compared(seen, OURS, FLOOR, _speed)
    to_peer, peer_spread = compared(seen, OURS, PEER, _speed)
    slower, slower_spread = compared(seen, OURS, FLOOR, _latency)
    fairness = [a.fairness for a in seen[OURS]]
    tails = [a.all_waits_p99_to_mean for a in seen[OURS]]
    return [
        Finding(f"{speed.name} / the floor's", to_floor, "×", None, 0.5, spread, plain(seen), speed, "floor"),
        Finding(f"{speed.name} / {PEER}'s", to_peer, "×", None, 2, peer_spread, work=speed, against=PEER),
        Finding(f"{TITLE}: Jain index", median(fairness), "", None, 0.99, quartiles(fairness)),
        Finding(f"{latency.name} / the floor's", slower, "×", 2, None, slower_spread, work=latency, against="floor"),
        Finding(
            f"{waits.name} / the mean wait",
            median(tails),
            "×",
            3,
            None,
            quartiles(tails),
            work=waits,
            against="mean wait",
        ),
    ]


def _speed(a: Round) -> float:
    return a.hand_overs


def _latency(a: Round) -> float:
    return percentile(a.release_to_next, 50) * 1e6
