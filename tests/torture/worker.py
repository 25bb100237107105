"""A process that takes locks until its standard input ends: `python -m tests.torture.worker JSON`. See `Settings`.

Decides: how many actors there are, and what else counts as unexpected: an error that no caller sees, a thread that is
left at the end.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import uvloop

import lockfast
from lockfast._reentry import run_to_end
from lockfast.testing.awaited import AwaitedLocks
from tests.servers.processes import count_open_files
from tests.torture.actors import Actor, Surroundings
from tests.torture.jobs import Interrupt, jobs_for
from tests.torture.journal import Journal
from tests.torture.plants import PLANTS

ACTORS = 4
_SAMPLE_EVERY_S = 2.0
_MAX_END_S = 10.0  # for a thread of the library, after its `Locks` was closed


class Settings(NamedTuple):
    """What a worker is started with."""

    url: str
    world: str  # threads, asyncio or uvloop
    seed: int
    journal: str
    plant: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012 - of `connect`; never changed


class Worker:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self.journal = PLANTS[settings.plant](Path(settings.journal))
        _report_everything(self.journal)

    def run(self) -> None:
        threading.Thread(target=self._read_orders, name="orders", daemon=True).start()
        threading.Thread(target=self._sample, name="sample", daemon=True).start()
        self.journal.write("began", wall=time.time())
        if self._settings.world == "threads":
            # An interrupt may come between the call of a coroutine function and its first step: then nothing was done.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            self._run_threads()
        else:
            loop = uvloop.new_event_loop if self._settings.world == "uvloop" else asyncio.new_event_loop
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(self._run_tasks())
        self.journal.write("ended", threads=_threads_left())

    # The two worlds

    def _run_threads(self) -> None:
        url, options = self._settings.url, self._settings.options

        async def rest(seconds: float) -> None:
            self._stop.wait(seconds)

        with lockfast.connect(url, **options) as locks, lockfast.DistributedLock(url, **options) as manager:
            actors = self._actors("threads", locks, manager, rest)
            threads = [threading.Thread(target=run_to_end, args=(self._act(actor),)) for actor in actors[1:]]
            for thread in threads:
                thread.start()
            run_to_end(self._act(actors[0]))
            for thread in threads:
                thread.join()

    async def _run_tasks(self) -> None:
        url, options = self._settings.url, self._settings.options
        asyncio.get_running_loop().set_exception_handler(self._in_loop)
        async with (
            lockfast.aio.connect(url, **options) as locks,
            lockfast.aio.DistributedLock(url, **options) as manager,
        ):
            actors = self._actors("asyncio", locks, manager, asyncio.sleep)
            await asyncio.gather(*map(self._act, actors))

    async def _act(self, actor: Actor) -> None:
        await actor.act(jobs_for(actor))

    def _actors(self, world: str, locks: Any, manager: Any, rest: Callable[[float], Any]) -> list[Actor]:
        facade = AwaitedLocks(locks, locks._logic.engine.backend)
        can = locks._logic.engine.backend.capabilities
        around = Surroundings(world, facade, manager, can, self.journal, rest, self._stop.is_set)
        seed = self._settings.seed
        return [Actor(around, Random(f"{seed} {number}"), first=number == 0) for number in range(ACTORS)]

    # Beside the work

    def _read_orders(self) -> None:
        sys.stdin.read()
        self._stop.set()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_EVERY_S):
            self.journal.write("sample", threads=threading.active_count(), files=count_open_files(os.getpid()))

    def _in_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.journal.write("unexpected", style="event loop", error=context["message"], trace=repr(context))


def _threads_left() -> list[str]:
    """Of the library, a while after it was closed. One that ends may have started another just before."""
    while left := _threads_of_the_library():
        left[0].join(_MAX_END_S)
        if left[0].is_alive():
            break
    return [thread.name for thread in left]


def _threads_of_the_library() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lockfast")]


def _report_everything(journal: Journal) -> None:
    """Errors that no caller sees are findings too."""

    def report(style: str, error: BaseException | None) -> None:
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        journal.write("unexpected", style=style, error=repr(error), trace=trace)

    threading.excepthook = lambda args: report("thread", args.exc_value)
    sys.unraisablehook = lambda args: None if args.exc_type is Interrupt else report("finalizer", args.exc_value)
    logging.getLogger().addHandler(_Log(journal))
    faulthandler.register(signal.SIGUSR1)


class _Log(logging.Handler):
    """Warnings of servers that are gone are as they should be; an error is of a callback, or of the event loop."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.ERROR)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.write("unexpected", style="log", error=record.getMessage(), trace=self.format(record))


if __name__ == "__main__":
    Worker(Settings(**json.loads(sys.argv[1]))).run()
