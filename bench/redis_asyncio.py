"""Redis in asyncio: what does acquire + release cost one task, and how many can a thousand tasks do in a second?

One task takes one lock again and again, sharing a core with the server, as in `redis_uncontended`; once more where the
kernel likes to run them, when both sides of the ratio also wait for a core to wake up. The thousand tasks
take a lock each, all different, so nobody waits for anybody: the question is what a process can ask of one server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from tests.servers.server import Server

from bench import redis_async_peers as peers
from bench.harness import Finding, Samples, Setting, ratio, take_turns
from bench.peers import need
from bench.redis_async_peers import Cycle, Opener
from bench.redis_peers import left_out
from bench.redis_server import one_core

TASKS = 1000
_ONE: dict[str, Opener] = {
    "holdfast": peers.ours,
    "redis-py Lock": peers.redis_py,
    "coredis": peers.coredis,
    "aioredlock": peers.aioredlock,
}
_APART = {name: _ONE[name] for name in ("holdfast", "redis-py Lock")}
_MANY = {**_ONE, "redis-py Lock, pool of 100": peers.redis_py_100}


def run(setting: Setting) -> list[Finding]:
    """Findings for `python -m bench --only redis_asyncio`."""
    with Server() as redis:
        with one_core(redis.pid):
            one = _measured(redis.port, _ONE, 1, setting.scaled(100, 50), setting.scaled(61, 31))
        apart = _measured(redis.port, _APART, 1, setting.scaled(100, 50), setting.scaled(61, 31))
        many = _measured(redis.port, _MANY, TASKS, 4, setting.scaled(9, 3))
    return [
        *[
            ratio(f"asyncio, one task: {name} / holdfast", one, name, "holdfast", at_least=_bound(name, 2.5))
            for name in one
            if name not in ("holdfast", "holdfast, uvloop")
        ],
        ratio("asyncio, one task, not on one core: redis-py Lock / holdfast", apart, "redis-py Lock", "holdfast"),
        *[Finding(f"asyncio, one task: {name}", median(one[name]) * 1e6, "µs") for name in _own(one)],
        *[
            ratio(f"1,000 tasks: holdfast's cycles/s / {name}'s", many, name, "holdfast", at_least=_bound(name, 15))
            for name in many
            if name not in ("holdfast", "holdfast, uvloop")
        ],
        *[Finding(f"1,000 tasks: {name}", 1 / median(many[name]), "cycles/s") for name in many],
    ]


def _bound(name: str, bound: float) -> float | None:
    return bound if name.startswith("redis-py Lock") else None


def _own(samples: Samples) -> list[str]:
    return [name for name in samples if name.startswith("holdfast")]


def _measured(port: int, openers: dict[str, Opener], tasks: int, cycles: int, rounds: int) -> Samples:
    """Seconds a cycle. Each contender has a loop of its own, which stands still while the others have their turn."""
    with ExitStack() as stack:
        contenders = {}
        for name, opener, new_loop in _entrants(openers):
            runner = stack.enter_context(asyncio.Runner(loop_factory=new_loop))
            try:
                contender = _Contender(runner, opener, port, tasks)
                stack.callback(contender.close)
                contender(1)
            except Exception as error:
                left_out(name, error)
                continue
            contenders[name] = contender
        return take_turns({name: (lambda c=c: c(cycles)) for name, c in contenders.items()}, rounds)  # type: ignore[misc]


def _entrants(openers: dict[str, Opener]) -> list[tuple[str, Opener, Callable[[], asyncio.AbstractEventLoop]]]:
    found = [(name, opener, asyncio.new_event_loop) for name, opener in openers.items()]
    try:
        found.append(("holdfast, uvloop", openers["holdfast"], need("uvloop").new_event_loop))
    except Exception as error:
        left_out("uvloop", error)
    return found


class _Contender:
    """A client with a lock for each task, in a loop that runs only when it is its turn."""

    def __init__(self, runner: asyncio.Runner, opener: Opener, port: int, tasks: int) -> None:
        self._runner = runner
        self._tasks = tasks
        self._cycles: list[Cycle] = []
        runner.run(self._open(opener, port))

    async def _open(self, opener: Opener, port: int) -> None:
        self._over = asyncio.Event()
        opened = asyncio.Event()
        self._life = asyncio.create_task(self._live(opener, port, opened))
        await asyncio.wait([self._life, asyncio.create_task(opened.wait())], return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            self._life.result()

    async def _live(self, opener: Opener, port: int, opened: asyncio.Event) -> None:
        """Some clients must be closed by the task that opened them, so one task does both."""
        async with opener(port, self._tasks) as make:
            self._cycles = [make(f"bench:{opener.__name__}:{number}") for number in range(self._tasks)]
            opened.set()
            await self._over.wait()

    def __call__(self, times: int) -> float:
        return self._runner.run(self._turn(times))

    async def _turn(self, times: int) -> float:
        started = time.perf_counter()
        if self._tasks == 1:
            await _repeat(self._cycles[0], times)
        else:
            await asyncio.gather(*[_repeat(cycle, times) for cycle in self._cycles])
        return (time.perf_counter() - started) / times / self._tasks

    def close(self) -> None:
        self._over.set()
        self._runner.run(asyncio.wait_for(self._life, 10))


async def _repeat(cycle: Cycle, times: int) -> None:
    for _ in range(times):
        await cycle()
