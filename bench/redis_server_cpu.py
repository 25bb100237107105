"""Redis: how much of the server's time does an uncontended acquire + release take?

From INFO commandstats: the microseconds of the commands that clients sent, which is one script for each of ours, and
SET and a script for the floor. What a script calls is part of the script's own time and not added again. Parsing and
writing replies are not in it: they are the same few bytes for both.
"""

from __future__ import annotations

from statistics import median

from tests.servers.server import Server

import lockfast
from bench.harness import Finding, Samples, Setting, ratio, take_turns, work_of
from bench.redis_floor import floor
from bench.redis_peers import Cycle, held
from bench.redis_server import counted, one_core

_OURS = ("evalsha",)
_FLOOR = ("set", "evalsha")


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_server_cpu`."""
    cycles, rounds = setting.scaled(1000, 500), setting.scaled(31, 11)
    with Server() as redis, lockfast.connect(redis.url) as locks, one_core(redis.pid):
        cycle = held(locks.lock("bench"))
        cycle()  # the server has the scripts from here on
        bare = floor(redis.port)
        samples = take_turns(
            {
                "lockfast": lambda: _server_time(redis.port, cycle, _OURS, cycles),
                "floor": lambda: _server_time(redis.port, bare, _FLOOR, cycles),
            },
            rounds,
        )
    work = work_of("Redis, the server's time for a cycle", samples, floor="floor")
    return [
        ratio("server CPU of a cycle / SET and compare-and-delete", samples, "lockfast", "floor", at_most=3, work=work),
        *[_each(name, samples) for name in samples],
    ]


def _each(name: str, samples: Samples) -> Finding:
    return Finding(f"server CPU of a cycle: {name}", median(samples[name]) * 1e6, "µs")


def _server_time(port: int, cycle: Cycle, commands: tuple[str, ...], cycles: int) -> float:
    def work() -> None:
        for _ in range(cycles):
            cycle()

    counts = counted(port, work)
    if "eval" in counts or sum(counts[name].calls for name in commands) != 2 * cycles:
        raise RuntimeError("a cycle was not the two commands that are counted")
    return sum(counts[name].microseconds for name in commands) / cycles / 1e6
