"""Redis in asyncio: what does acquire + release cost one task, and how many can a thousand tasks do in a second?

One task takes one lock again and again, sharing a core with the server, as in `redis_uncontended`; once more where the
kernel likes to run them, when both sides of the ratio also wait for a core to wake up. The thousand tasks
take a lock each, all different, so none waits for another: the question is what one process can ask of one server. They
are asked in asyncio's own loop and in uvloop, us, redis-py and the floor alike.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import median

from tests.servers.server import Server

from bench import redis_async_peers as peers
from bench.harness import Finding, Samples, Setting, Work, ratio, take_turns, work_of
from bench.peers import need
from bench.redis_async_floor import floor
from bench.redis_async_peers import Cycle, Opener
from bench.redis_peers import skip_peer
from bench.redis_server import one_core

TASKS = 1000
GUARD_S = 60.0  # seconds after which a process that does not report is given up
_ONE: dict[str, Opener] = {
    "lockfast": peers.ours,
    "redis-py Lock": peers.redis_py,
    "coredis": peers.coredis,
    "aioredlock": peers.aioredlock,
}
OURS, PEER, FLOOR = "lockfast", "redis-py Lock", "floor"
_MUST_RUN = (OURS, PEER, FLOOR)  # without these a bound would be missing, and nothing would say so
_APART = {name: _ONE[name] for name in (OURS, PEER)}
_MANY = {**_ONE, "redis-py Lock, pool of 100": peers.redis_py_100, FLOOR: floor}
_LOOPS = ("", ", uvloop")  # what follows a contender's name in each loop


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_asyncio`."""
    with Server() as redis:
        with one_core(redis.pid):
            one = _measured(redis.port, _ONE, 1, setting.scaled(100, 50), setting.scaled(61, 31))
        apart = _measured(redis.port, _APART, 1, setting.scaled(100, 50), setting.scaled(61, 31))
        many = _measured(redis.port, _MANY, TASKS, 4, setting.scaled(9, 3))
    return [*_of_one(one, apart), *[found for loop in _LOOPS for found in _of_many(many, loop)], *_each(many)]


def _of_one(one: Samples, apart: Samples) -> list[Finding]:
    others = [name for name in one if not name.startswith(OURS)]
    work = work_of("Redis, one asyncio task, one core", one, peers=others)
    return [
        *[
            ratio(
                f"asyncio, one task: {name} / {OURS}",
                one,
                name,
                OURS,
                at_least=2.5 if name == PEER else None,
                work=work,
            )
            for name in others
        ],
        ratio(f"asyncio, one task, not on one core: {PEER} / {OURS}", apart, PEER, OURS),
        *[Finding(f"asyncio, one task: {name}", median(one[name]) * 1e6, "µs") for name in one if name not in others],
    ]


def _of_many(many: Samples, loop: str) -> list[Finding]:
    ours, bare, named = f"{OURS}{loop}", f"{FLOOR}{loop}", f"{TASKS:,} tasks{loop}"
    others = [
        name for name in many if name.split(", ")[0] not in (OURS, FLOOR) and name.endswith(", uvloop") == bool(loop)
    ]
    rates = {name: 1 / median(values) for name, values in many.items()}
    work = Work.of(
        f"Redis, {TASKS:,} asyncio tasks{loop}, distinct locks", "cycles/s", rates, ours=ours, floor=bare, peers=others
    )
    return [
        ratio(f"{named}: {OURS}'s cycles/s / {FLOOR}'s", many, bare, ours, at_least=0.4, work=work),
        *[
            ratio(f"{named}: {OURS}'s cycles/s / {name}'s", many, name, ours, at_least=_bound(name, 15), work=work)
            for name in others
        ],
    ]


def _bound(name: str, bound: float) -> float | None:
    return bound if name.startswith(PEER) else None


def _each(many: Samples) -> list[Finding]:
    return [Finding(f"{TASKS:,} tasks: {name}", 1 / median(many[name]), "cycles/s") for name in many]


def _measured(port: int, openers: dict[str, Opener], tasks: int, cycles: int, rounds: int) -> Samples:
    """Seconds a cycle."""
    in_uvloop = [(f"{name}, uvloop", openers[name]) for name in _MUST_RUN if name in openers]
    with ExitStack() as stack:
        contenders = {}
        for name, opener in [*openers.items(), *in_uvloop]:
            try:
                contender = _Contender(opener, port, tasks, "uvloop" if name.endswith("uvloop") else "asyncio")
                contenders[name] = stack.enter_context(contender)
            except Exception as error:
                if name.split(",")[0] in _MUST_RUN:
                    raise
                skip_peer(name, error)
        return take_turns({name: (lambda c=c: c.turn(cycles)) for name, c in contenders.items()}, rounds)  # type: ignore[misc]


class _Contender:
    """A process of its own with a client and a lock for each task. It stands still until its turn, so that none pays
    for what another has opened: with a thousand connections, every collection of garbage takes its time."""

    def __init__(self, opener: Opener, port: int, tasks: int, loop: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_contend, args=(opener, port, tasks, loop, there))
        self._process.start()
        there.close()  # then a process that dies is noticed at once

    def __enter__(self) -> _Contender:
        try:
            self.turn(1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def turn(self, times: int) -> float:
        self._pipe.send(times)
        if not self._pipe.poll(GUARD_S):
            raise TimeoutError("a contender did not report")
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return float(answer)

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.kill()  # only one that did not end by itself is still there to be killed


def _contend(opener: Opener, port: int, tasks: int, loop: str, pipe: Connection) -> None:
    try:
        new_loop = need("uvloop").new_event_loop if loop == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_take_turns(opener, port, tasks, pipe))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


async def _take_turns(opener: Opener, port: int, tasks: int, pipe: Connection) -> None:
    async with opener(port, tasks) as make:
        cycles = [make(f"bench:{opener.__name__}:{number}") for number in range(tasks)]
        while True:
            try:
                times = pipe.recv()
            except EOFError:
                return
            pipe.send(await _turn(cycles, times))


async def _turn(cycles: list[Cycle], times: int) -> float:
    started = time.perf_counter()
    if len(cycles) == 1:
        await _repeat(cycles[0], times)
    else:
        await asyncio.gather(*[_repeat(cycle, times) for cycle in cycles])
    return (time.perf_counter() - started) / times / len(cycles)


async def _repeat(cycle: Cycle, times: int) -> None:
    for _ in range(times):
        await cycle()
