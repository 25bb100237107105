"""The thread or task in which a keeper works.

Decides: when it is started, until when it sleeps, when it ends, and that another takes over after an interrupt.
Leaves to the keeper: what is done each time that it is awake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockfast._reentry import start_put_off
from lockfast.engine.schedule import NEVER

if TYPE_CHECKING:
    from lockfast._worlds import Signal
    from lockfast.engine.core import Engine
    from lockfast.engine.keeper import Keeper

IDLE_S: Final = 10.0  # without leases: then the loop ends


class KeeperLoop:
    def __init__(self, engine: Engine, keeper: Keeper) -> None:
        self._engine = engine
        self._keeper = keeper
        self.wake_at = NEVER  # until when it sleeps at most; set before it looks for fresh leases again
        self.rounds = 0  # how often it has gone to sleep
        self.signal: Signal | None = None  # there is one while the loop runs, or is about to
        self.running: Signal | None = None  # the same, once the loop has begun
        self.closed = False

    def wake_by(self, at: float) -> None:
        """Be awake no later than that. Raises RuntimeError if no thread or task can be started for it."""
        if at < self.wake_at or self.signal is None:
            self.wake_at = at  # so that many short holds, each gone when the loop is awake, wake it once
            self.wake()
            standby = self._engine.standby
            if standby is not None and at < standby.wake_at:
                standby.wake_by(at)

    def overdue(self, rounds: int) -> bool:
        """The standby has found that it sleeps too long: from now on each lease is due earlier than it promised.

        False if it was awake since it went to sleep for that many times.
        """
        with self._engine.mutex:
            if self.rounds == rounds:
                self.wake_at = NEVER
            return self.rounds == rounds

    def poke(self) -> None:
        """Something was put off: start it, if the loop runs. Takes no mutex."""
        signal = self.signal
        if signal is not None:
            signal.set()

    def close(self) -> None:
        """Leases that are still kept are no longer renewed. The loop ends, as soon as no request is unanswered."""
        self.closed = True
        self.poke()

    def reset(self) -> None:
        """Its event loop was closed: it does not go on."""
        with self._engine.mutex:
            self._end()

    def go_on(self) -> None:
        """In another thread or task. Raises RuntimeError if none can be started."""
        keeper = self._keeper
        with self._engine.mutex:
            keeper.fresh.update(keeper.leases)
        if keeper.leases and not self.closed:
            self.wake_by(self._engine.now())

    def wake(self) -> None:
        """Start the loop if it does not run. Raises RuntimeError if no thread or task can be started."""
        started: Signal | None = None
        try:
            with self._engine.mutex:
                if self.signal is None and (not self.closed or self._engine.outage.unanswered):
                    self.signal = started = self._engine.world.signal()
                signal = self.signal
            if started is not None:
                self._engine.world.spawn(self._run(started), "lockfast-keeper")
            elif signal is not None:
                signal.set()
        except BaseException:  # no thread could be started, or an interrupt came
            if started is not None:
                self._call_off(started)
            raise

    def end_if_done(self) -> None:
        """After `close`: it watches over requests that are not answered, and ends with the last of them."""
        signal = self.signal
        if self.closed and signal is not None and not self._engine.outage.unanswered:
            signal.set()

    def _call_off(self, signal: Signal) -> None:
        """The loop with that signal does not begin, unless it has begun; the next lease starts another."""
        with self._engine.mutex:
            if self.signal is signal and self.running is not signal:
                self._end()

    def _begin(self, signal: Signal) -> bool:
        """False if it was called off before."""
        with self._engine.mutex:
            if self.signal is not signal:
                return False
            self.running = signal
            return True

    def _end(self) -> None:
        """The next lease starts another loop."""
        self.signal = self.running = None
        self.wake_at = NEVER

    async def _run(self, signal: Signal) -> None:
        if not self._begin(signal):
            return
        engine, keeper = self._engine, self._keeper
        busy_at = engine.now()  # when there was something to do last
        try:
            while not self.closed or self._is_needed(signal):
                start_put_off()
                now = engine.now()
                if self.closed:
                    await signal.wait(min(IDLE_S, engine.outage.poll(now) - now))
                    continue
                if keeper.leases or engine.outage.unanswered or not keeper.is_idle():
                    busy_at = now
                soonest = min(keeper.inspect(now), engine.on_lost.poll(now))
                wake_at = self._promise(now, soonest)
                wake_at = self.wake_at = min(wake_at, self.wake_at, engine.outage.poll(now))  # a later request wakes us
                if keeper.fresh:
                    continue  # it came since the inspection, when there was no need to wake us
                if engine.standby is not None and wake_at < engine.standby.wake_at:
                    engine.standby.wake_by(wake_at)
                woken = await signal.wait(min(busy_at + IDLE_S, wake_at) - engine.now())
                if woken:
                    busy_at = engine.now()
                    continue
                idle = engine.now() >= busy_at + IDLE_S and not keeper.leases
                if idle and self._retire() and not self._take_up(signal):
                    return
        except Exception as error:
            if self.signal is signal:
                self._end()
            keeper.lose_all(error)
            raise
        except BaseException as error:  # an interrupt that fell into it: another goes on
            if self.signal is signal:
                self._end()
            if error.__class__ is not GeneratorExit:  # else its event loop is gone, see `Keeper.begin_again`
                try:
                    self.go_on()
                except RuntimeError as reason:
                    keeper.lose_all(reason)
            raise

    def _promise(self, now: float, soonest: float) -> float:
        """Until when it sleeps at most."""
        with self._engine.mutex:
            self.rounds += 1
            self.wake_at = min(self.wake_at if self.wake_at > now else NEVER, soonest)
            return self.wake_at

    def _retire(self) -> bool:
        """Nothing to keep for a while: end the loop, unless a lease comes this very moment."""
        with self._engine.mutex:
            if self._keeper.is_idle() and not self._engine.outage.unanswered:
                self._keeper.clear_schedule()
                self._end()
            return self.signal is None

    def _is_needed(self, signal: Signal) -> bool:
        """After `close`: to watch over requests that are not answered. One that is sent later starts another loop."""
        with self._engine.mutex:
            if self._engine.outage.unanswered:
                return self.signal is signal
            if self.signal is signal:
                self._end()
        return self._take_up(signal)

    def _take_up(self, signal: Signal) -> bool:
        """Whether the loop goes on: something came while it ended, and counted on it, and no other has begun."""
        with self._engine.mutex:
            fresh = self._keeper.fresh and not self.closed
            wanted = self.signal is None and bool(fresh or self._engine.outage.unanswered)
            if wanted:
                self.signal = self.running = signal
            return wanted
