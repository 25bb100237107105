"""What the clients of a story are doing just now: their signals, pauses and work in the background.

Decides: when a waiter sleeps, and when one that was woken is running again.
Leaves to `stage`: whether the story may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any

from lockfast._worlds import Signal, World
from lockfast.testing.clock import falls_asleep


def _awake() -> bool:
    return False


def _asleep() -> bool:
    return True


class WatchedSignal:
    """A signal of the client's world that knows whether the waiter which it woke is running again."""

    def __init__(self, signal: Signal, *, by_clock: bool) -> None:
        self._signal = signal
        self._by_clock = by_clock  # one that waits for some time sets an alarm at the story's clock
        self._sets = 0
        self._received = 0
        self._sleeps: Callable[[], bool] = _awake

    @property
    def waiting(self) -> bool:
        """Whether a waiter sleeps here that the clock has yet to wake."""
        return self._sleeps()

    def set(self) -> None:
        self._sets += 1
        self._signal.set()

    async def wait(self, seconds: float | None) -> bool:
        if seconds is None or not self._by_clock:
            self._sleeps = _asleep
        else:
            falls_asleep.set(self._falls_asleep)
        try:
            return await self._signal.wait(seconds)
        finally:
            falls_asleep.set(None)
            self._sleeps = _awake
            self._received = self._sets

    def _falls_asleep(self, sleeps: Callable[[], bool]) -> None:
        self._sleeps = sleeps

    @property
    def rousing(self) -> bool:
        return self.waiting and self._sets > self._received


class Activity:
    """Of all clients of one story."""

    def __init__(self, *, by_clock: bool) -> None:
        self.signals: list[WatchedSignal] = []
        self.pauses: set[object] = set()  # one for each caller that pauses before it asks again
        self._by_clock = by_clock
        self._background: list[tuple[str, Coroutine[Any, Any, None]]] = []  # with its name, from when it is spawned

    def watch(self, world: World) -> None:
        """Know from now on what happens in a client's world."""
        make, pause, spawn = world.signal, world.pause, world.spawn

        def watched() -> Signal:
            signal = WatchedSignal(make(), by_clock=self._by_clock)
            self.signals.append(signal)
            return signal

        async def counted(seconds: float) -> None:
            token = object()
            self.pauses.add(token)
            try:
                await pause(seconds)
            finally:
                self.pauses.discard(token)

        def spawned(work: Coroutine[Any, Any, None], name: str) -> None:
            self._background.append((name, work))
            spawn(work, name)

        world.spawn = spawned  # type: ignore[method-assign]
        world.signal = watched  # type: ignore[method-assign]
        world.pause = counted  # type: ignore[method-assign]

    def in_background(self, name: str) -> int:
        """How many pieces of work of that name run in the background, or are about to."""
        return sum(one == name and getcoroutinestate(work) != CORO_CLOSED for one, work in list(self._background))
