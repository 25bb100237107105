"""The one thread of a process that renews what is held in event loops that are blocked.

Decides: until when it sleeps, and in which order it renews.
Leaves to `loop_watch`: whether a loop is blocked, which leases are due then, and how they are renewed.

A keeper that lives in an event loop says until when it sleeps. This thread sleeps a little longer. As long as keepers
are awake in time that is all that it does, however many leases come and go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from weakref import ref

from lockfast._reentry import Mutex
from lockfast._worlds.threads import ThreadWorld
from lockfast.engine.loop_watch import LoopWatch
from lockfast.engine.schedule import NEVER
from lockfast.observe.log import logger

if TYPE_CHECKING:
    from lockfast._worlds import Signal, World
    from lockfast.engine.core import Engine

THREAD: Final = "lockfast-standby"
IDLE_S: Final = 10.0  # without a keeper that wakes up: then the thread ends. Nobody tells it that a loop was closed
HANGING_S: Final = 0.25  # that a request may always take, whatever becomes of other leases meanwhile


class Standby:
    def __init__(self, world: World) -> None:
        self.world = world
        self._watched: set[ref[Engine]] = set()  # a WeakSet cannot be copied while other threads add to it
        self.after_fork()

    def after_fork(self) -> None:
        """In the child: the thread is the parent's."""
        self._mutex = Mutex()
        self._signal: Signal | None = None  # there is one while the thread runs, or is about to
        self.wake_at = NEVER  # until when it sleeps at most; set before it looks at the loops again

    def watch(self, engine: Engine) -> LoopWatch:
        """From now on. The answer is the part of the engine that this thread uses."""
        self._watched.add(ref(engine, self._watched.discard))
        return LoopWatch(engine, self.world)

    def unwatch(self, engine: Engine) -> None:
        """It is closed. The thread ends if that was the last."""
        self._watched.discard(ref(engine))
        signal = self._signal
        if signal is not None:
            signal.set()

    def wake_by(self, at: float) -> None:
        """Look at the loops soon after that. If no thread can be started the next lease tries again."""
        self.wake_at = at
        started: Signal | None = None
        try:
            with self._mutex:
                if self._signal is None:
                    self._signal = started = self.world.signal()
                signal = self._signal
            if started is None:
                signal.set()
            else:
                self.world.spawn(self._run(started), THREAD)
        except BaseException as error:  # no thread could be started, or an interrupt came
            if started is not None:
                self._end(started)
            if not isinstance(error, RuntimeError):
                raise

    def _end(self, signal: Signal) -> None:
        """The next lease starts another thread."""
        with self._mutex:
            if self._signal is signal:
                self._signal, self.wake_at = None, NEVER

    async def _run(self, signal: Signal) -> None:
        try:
            busy_at = self.world.now()  # when there was something to wait for last
            while self._signal is signal:
                now = self.world.now()
                self.wake_at = NEVER  # what comes from here on wakes it
                soonest = await self._inspect(now)
                if soonest < NEVER:
                    busy_at = now
                if (soonest == NEVER and now >= busy_at + IDLE_S) or not self._engines():
                    if self._retire(signal):
                        return
                    continue
                self.wake_at = min(soonest, self.wake_at)
                await signal.wait(min(soonest, busy_at + IDLE_S) - self.world.now())
        finally:
            self._end(signal)

    def _retire(self, signal: Signal) -> bool:
        """False if a lease came this very moment."""
        with self._mutex:
            if self.wake_at == NEVER and self._signal is signal:
                self._signal = None
            return self._signal is not signal

    def _engines(self) -> list[Engine]:
        while True:
            try:
                return [engine for each in tuple(self._watched) if (engine := each()) is not None]
            except RuntimeError:  # the set has changed under us
                continue

    async def _inspect(self, now: float) -> float:
        """Renew what is due in loops that are blocked; when to look again. No engine is kept alive in between."""
        watches = [watch for engine in self._engines() if (watch := engine.loop_watch) is not None]
        soonest = min([watch.inspect(now) for watch in watches], default=NEVER)
        for watch in sorted((watch for watch in watches if watch.due), key=lambda watch: watch.first_deadline(now)):
            now = self.world.now()
            # A third of what is left for any lease, in any loop: no other request is sent meanwhile.
            left = min(each.first_deadline(now) for each in watches) - now
            await watch.renew(max(HANGING_S, left / 3))
            soonest = now
        return soonest


def _is_from_elsewhere(record: logging.LogRecord) -> bool:
    """What a backend logs of its store in this thread, the backend of the loop logs too: a handler that blocks here, as
    where the log itself blocks the loop, would cost leases."""
    return record.threadName != THREAD


logger.addFilter(_is_from_elsewhere)
STANDBY: Final = Standby(ThreadWorld())
