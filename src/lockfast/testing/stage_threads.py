"""The stage in the world of threads: the blocking facade, and a thread for each actor.

Decides: that a story runs in the caller's thread, and that every thread it started has ended with it.
Leaves to `stage`: how time passes, and what is true at the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine
from typing import Any, ClassVar, Generic, TypeVar

import lockfast
from lockfast._reentry import run_to_end
from lockfast.errors import BackendUnavailable
from lockfast.testing.faults import ALWAYS, VERBS
from lockfast.testing.stage import LIMIT_S, POLL_EVERY_S, Actor, Opener, Stage

T = TypeVar("T")

HOLD_UP_S = 0.2  # real seconds that requests on their way hold up the clock at most: some of them wait for it to move

_sleep, _real_now = time.sleep, time.monotonic  # a story may replace the functions of `time`


class _ThreadActor(Generic[T]):
    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._answer: T | None = None
        self._error: BaseException | None = None
        self.result_was_read = False
        self.thread = threading.Thread(target=self._act, args=(work,), name="actor", daemon=True)
        self.thread.start()

    def _act(self, work: Coroutine[Any, Any, T]) -> None:
        try:
            self._answer = run_to_end(work)
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self.thread.is_alive()

    async def result(self) -> T:
        self.thread.join(LIMIT_S)
        assert self.done, f"an actor did not finish within {LIMIT_S:g} real seconds"
        self.result_was_read = True
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]

    def cancel(self) -> None:
        raise NotImplementedError("a thread cannot be cancelled: the story needs 'cancellation'")


class ThreadStage(Stage):
    """The blocking facade; an actor is a thread."""

    world = "threads"
    can = frozenset({"blocking", "real clock", "fork", "processes"})
    give_way_s: ClassVar[float] = 0.0  # real seconds for the thread that an alarm woke, before the clock moves on

    def __init__(self, opener: Opener, url: str = "", *, real_time: bool = False) -> None:
        super().__init__(opener, url, real_time=real_time)
        self.clock._before_moving = self._let_answers_come

    def _let_answers_come(self) -> None:
        """A store that is given the time receives it in the order in which it passed."""
        if self.give_way_s:
            _sleep(self.give_way_s)
        until = _real_now() + HOLD_UP_S
        while any(locks.faults.on_the_way for locks in self._opened) and _real_now() < until:
            _sleep(POLL_EVERY_S)

    def _connect(self, opener: Opener, **options: Any) -> lockfast.Locks:
        return lockfast.connect(opener, **options)

    def start(self, work: Coroutine[Any, Any, T]) -> Actor[T]:
        actor = _ThreadActor(work)
        self._actors.append(actor)
        return actor

    def alone(self, work: Coroutine[Any, Any, T]) -> T:
        return run_to_end(work)

    def _at_work(self, name: str = "") -> int:
        return sum(name in ("", thread.name) for thread in threading.enumerate())

    def _here(self) -> threading.Thread:
        return threading.current_thread()

    async def breathe(self, times: int = 1) -> None:
        _sleep(POLL_EVERY_S * times)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        try:
            run_to_end(self._run_story(story))
        finally:
            run_to_end(self.until(self._all_ended, f"these threads to end: {self._started()}"))

    async def _end_actors(self) -> None:
        """An actor that still waits is refused at its next request, and time goes on until all have asked."""
        if all(actor.done for actor in self._actors):
            return
        for locks in self._opened:
            locks.faults.heal()
            for verb in VERBS:
                locks.faults.lose_request(verb, ALWAYS, BackendUnavailable("the story is over", transient=False))
        await self.until(lambda: self._all_ended(self._actors_threads()), "the actors to end")

    def _actors_threads(self) -> set[threading.Thread]:
        return {actor.thread for actor in self._actors}

    def _all_ended(self, threads: set[threading.Thread] | None = None) -> bool:
        at = self.clock.next_alarm
        if at is not None:
            self.clock.advance_to(at)
        return not any(thread.is_alive() for thread in (threads or self._started()))
