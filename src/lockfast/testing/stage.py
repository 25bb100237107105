"""What a story of the contract is given: actors, time and a store, alike in every world.

Decides: how time passes, what can be asked of the store, and how a story begins and ends.
Leaves to `stage_threads`, `stage_asyncio`, `stage_simulated`: what an actor is, and how it is waited for.
Leaves to the story: who does what, and in which order.

Nothing here sleeps and hopes: time is a `FakeClock`, steps are ordered by conditions, and the limit only says how long
a broken story can hang.
"""

from __future__ import annotations

import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from inspect import isawaitable
from itertools import count
from typing import Any, ClassVar, Protocol, TypeVar

from lockfast._model import Claim, LockInfo, Mode, Terms
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.observe.events import Event
from lockfast.primitives.names import qualify
from lockfast.sync import Locks
from lockfast.testing.activity import Activity, WatchedSignal
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.clock import FakeClock
from lockfast.testing.faults import FaultyBackend

T = TypeVar("T")
R = TypeVar("R", covariant=True)  # what an actor returns
Opener = Callable[[World, Clock | None], Backend]

LIMIT_S = 60.0  # seconds after which a story that waits is a story that failed; no machine is that slow
POLL_EVERY_S = 0.0005
_real_now = time.monotonic  # a story may replace the functions of `time`


class Actor(Protocol[R]):
    """One who acts beside the story: a thread, or a task of asyncio or of a simulation."""

    @property
    def done(self) -> bool: ...

    @property
    def result_was_read(self) -> bool:
        """Its result was asked for."""
        ...

    async def result(self) -> R:
        """What it returned or raised, as soon as it is done."""
        ...

    def cancel(self) -> None:
        """Only for stories that need "cancellation"."""
        ...


class Stage(ABC):
    """Made anew for each story, with a namespace of its own."""

    world: ClassVar[str]
    can: ClassVar[frozenset[str]]  # what stories of this world may need
    asks: ClassVar[frozenset[str]] = frozenset()  # what a backend must be able to do to be used in it
    seeded: ClassVar[bool] = False  # a seed decides what happens first; then it is an argument

    def __init__(self, opener: Opener, url: str = "", *, real_time: bool = False) -> None:
        self.url = url  # for stories that need other processes
        self.records: Callable[[], int] = lambda: 0  # how many the store keeps, if that is known
        self.namespace = f"contract-{uuid.uuid4().hex[:12]}"
        self.clock = FakeClock()
        self._clocks = [self.clock]  # and those of clients that have one of their own
        self._opener = opener
        self._real_time = real_time
        self._opened: list[AwaitedLocks] = []
        self._others: list[Locks] = []
        self._activity = Activity(by_clock=not real_time)
        self._actors: list[Any] = []
        self._storyteller: object = None  # the thread or task that runs the story
        self._observer: AwaitedLocks | None = None
        self._before = set(threading.enumerate())

    # Who takes part

    def locks(self, *, clock: Clock | None = None, capabilities: Any = None, **options: Any) -> AwaitedLocks:
        """A client of the store, with faults of its own. Closed when the story ends.

        The store follows `stage.clock`, and so does the client unless it is given a `clock` of its own.
        """
        store_clock = None if self._real_time else self.clock
        if isinstance(clock, FakeClock):
            self._clocks.append(clock)
        made: list[FaultyBackend] = []

        def open_faulty(world: World, _: Clock | None) -> Backend:
            self._activity.watch(world)
            # The store follows the client's own clock, so there is no drift unless a story is about it.
            made.append(self._open(world, store_clock, **{"drift": 0.0, **(capabilities or {})}))
            if store_clock is not None:  # then a short time is the story's, and a busy machine must not run out of it
                made[-1].least = LIMIT_S
            return made[-1]

        options.setdefault("namespace", self.namespace)
        raw = self._connect(open_faulty, clock=clock or store_clock, **options)
        self._opened.append(AwaitedLocks(raw, made[0]))
        return self._opened[-1]

    def close_at_end(self, locks: Locks) -> None:
        """Blocking ones that the story uses beside those of the stage."""
        self._others.append(locks)

    def _open(self, world: World, clock: Clock | None, **capabilities: Any) -> FaultyBackend:
        return FaultyBackend(self._opener(world, clock), world, **capabilities)

    def claim(self, name: str, *, ttl: float = 30, mode: Mode = "exclusive", limit: int | None = None) -> Claim:
        """A claim to ask a backend's verbs for directly; a fresh one each time."""
        terms = Terms(key=qualify(self.namespace, name), name=name, holder="direct", ttl=ttl, mode=mode, limit=limit)
        return Claim(uuid.uuid4().hex, terms)

    @abstractmethod
    def _connect(self, opener: Opener, **options: Any) -> Any: ...

    @abstractmethod
    def start(self, work: Coroutine[Any, Any, T]) -> Actor[T]:
        """Let another actor do it: another thread, or another task."""

    @abstractmethod
    def alone(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the child of a fork, where no other actor is left."""

    def record(self, locks: AwaitedLocks) -> list[Event]:
        """The events of these locks from now on."""
        received: list[Event] = []
        locks.raw.events.listen(received.append)
        return received

    # What is true at the store, asked by a client that takes no part

    @property
    def observer(self) -> AwaitedLocks:
        if self._observer is None:
            self._observer = self.locks(holder="observer")
        return self._observer

    @property
    def hands_over(self) -> bool:
        """Whether a waiter is the holder once it is woken, or has to confirm first."""
        return self.observer.faults.capabilities.hands_over

    async def info(self, name: str) -> LockInfo:
        return await self.observer.inspect(name)

    async def fences(self, name: str) -> list[int]:
        """The fences of its holders now."""
        return [holder.fence for holder in (await self.info(name)).holders if holder.fence is not None]

    async def queue(self, name: str, waiters: int, *, dead: int = 0) -> None:
        """Until that many claims wait for it, and all but the `dead` ones are asleep."""

        async def so_many() -> bool:
            return (await self.info(name)).waiters == waiters

        await self.until(so_many, f"{waiters} waiters for {name!r}")
        if not self._real_time:
            await self.asleep(waiters - dead)

    async def is_free(self, name: str) -> bool:
        """It is neither held nor waited for, once the work in the background is done."""
        await self.settle()
        return await self.info(name) == LockInfo(name)

    # How time passes

    async def until(self, condition: Callable[[], Any], what: str = "the condition") -> None:
        """Until it is true; it may be awaitable. Fails after a generous limit, or with an actor."""
        limit = self._moment() + LIMIT_S
        for checks in count(1):
            answer = condition()
            if await answer if isawaitable(answer) else answer:
                return
            if self._here() is self._storyteller:
                await self._check_actors()  # if one of them failed, it is in vain to wait any longer
            if self._moment() > limit:
                raise AssertionError(f"waited in vain for {what}")
            await self._pause(checks)

    async def _check_actors(self) -> None:
        for actor in self._actors:
            if actor.done and not actor.result_was_read:
                await actor.result()

    async def settle(self) -> None:
        """Until every actor that the clock woke has done its work, in the background too."""
        await self.until(self._settled, "what is done in the background")

    async def asleep(self, waiters: int = 0) -> None:
        """Until that many waiters, and every keeper that has leases, wait for the clock to move."""

        def all_asleep() -> bool:
            keepers = sum(bool(locks.raw._logic.engine.keeper.leases) for locks in self._opened)
            return self._waiting() >= waiters and self.clock.sleepers >= waiters + keepers and self._calm()

        await self.until(all_asleep, f"{waiters} waiters and all keepers to fall asleep")

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, alarm by alarm; an actor that is woken goes back to sleep before time goes on."""
        clock, end = self.clock, self.clock.now() + seconds
        sleepers = clock.sleepers
        while (at := clock.next_alarm) is not None and at <= end:
            clock.advance_to(at)
            await self.until(lambda: clock.sleepers >= sleepers and self._calm(), "everybody to sleep again")
        clock.advance_to(end)

    async def sleep_through(self, actor: Actor[Any], at_most: float = 60.0) -> float:
        """Let time pass, alarm by alarm, until the actor is done; the answer is how much has passed."""
        clock, started, resting = self.clock, self.clock.now(), self._resting()

        def asleep_again() -> bool:
            return clock.sleepers >= sleepers and self._resting() >= resting and self._calm()

        while not actor.done:
            sleepers, at = clock.sleepers, clock.next_alarm
            assert at is not None, "no actor sleeps, and this one is not done"
            assert at <= started + at_most, f"the actor is not done after {at_most:g} seconds of the story's time"
            clock.advance_to(at)
            await self.until(lambda: actor.done or asleep_again(), "the actor to wake up, or to sleep again")
        return clock.now() - started

    async def finish(self, work: Coroutine[Any, Any, T], at_most: float = 5.0) -> T:
        """Do it to the end, letting `at_most` seconds pass while it sleeps."""
        clock, end = self.clock, self.clock.now() + at_most
        sleepers = clock.sleepers
        actor = self.start(work)

        def done() -> bool:
            at = clock.next_alarm
            asleep = clock.sleepers > sleepers and not self._under_way()
            if not actor.done and asleep and at is not None and at <= end:
                clock.advance_to(at)
            return actor.done

        await self.until(done, f"{work!r} to finish within {at_most:g} seconds of the story's time")
        return await actor.result()

    def _waiting(self) -> int:
        return sum(locks.faults.waiting for locks in self._opened)

    def _resting(self) -> int:
        """How many callers sleep: until they are woken, or before they ask again."""
        return self._waiting() + len(self._activity.pauses)

    def _settled(self) -> bool:
        """Every loss that was noticed is seen to: where no ttl ends a hold at the store, its client releases it.

        What cannot be released now, because a request hangs or pauses before its next try, is not waited for.
        """
        keepers = (locks.raw._logic.engine.keeper for locks in self._opened)
        loops = [keeper.loop.signal for keeper in keepers if keeper.loop.signal is not None and not keeper.loop.closed]
        asleep = all(isinstance(loop, WatchedSignal) and loop.waiting for loop in loops)
        stuck = sum(locks.faults.hanging for locks in self._opened) + len(self._activity.pauses)
        releasing = self._activity.in_background("lockfast-behind") + self._activity.in_background("lockfast-abandon")
        return asleep and self._calm() and releasing <= stuck

    def _calm(self) -> bool:
        """No waiter is just waking up, every keeper sleeps, and no renewal is under way, but for those that hang."""
        keepers = (locks.raw._logic.engine.keeper for locks in self._opened)
        loops = [keeper.loop.signal for keeper in keepers if keeper.leases]
        return (
            self._activity.in_background("lockfast-renewal") <= sum(locks.faults.hanging for locks in self._opened)
            and all(isinstance(loop, WatchedSignal) and loop.waiting for loop in loops)
            and not any(signal.rousing for signal in self._activity.signals)
            and not any(clock.waking for clock in self._clocks)
            and not self._under_way()
        )

    def _under_way(self) -> int:
        """How many requests the store has yet to receive or to answer, where that takes a time of its own."""
        return 0

    @abstractmethod
    def _at_work(self, name: str = "") -> int:
        """How many threads or tasks there are, or how many of that name."""

    @abstractmethod
    def _here(self) -> Any:
        """The thread or task that asks."""

    @abstractmethod
    async def breathe(self, times: int = 1) -> None:
        """Let the others do what they can do without any time passing."""

    async def step(self) -> None:
        """Let the others run for as short as can be: they may be in the middle of anything afterwards."""
        await self.breathe()

    async def for_ever(self) -> None:
        """Wait until cancelled. Only for stories that need "cancellation"."""
        raise NotImplementedError("a thread cannot be cancelled: the story needs 'cancellation'")

    def _moment(self) -> float:
        """Seconds on the clock that limits how long a broken story can hang."""
        return _real_now()

    async def _pause(self, checks: int) -> None:
        """Between two checks of a condition, of which that many were in vain. Each check costs the others time."""
        await self.breathe(min(10, 1 + checks // 10))

    def _started(self) -> set[threading.Thread]:
        """The threads that this story has started, of the library's and of its actors, and that have not ended."""
        mine = ("actor", "lockfast")
        return {thread for thread in set(threading.enumerate()) - self._before if thread.name.startswith(mine)}

    # How a story runs

    @abstractmethod
    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Run it; afterwards nothing that it started is left."""

    async def _run_story(self, story: Coroutine[Any, Any, None]) -> None:
        self._storyteller = self._here()
        try:
            await story
            await self._check_actors()
        finally:
            self._storyteller = None  # from here on only the ending matters
            await self._end_actors()
            await self._close()

    @abstractmethod
    async def _end_actors(self) -> None:
        """Stop every actor, whatever it was doing."""

    async def _close(self) -> None:
        for locks in self._opened:
            locks.faults.heal()
        for locks in self._opened:
            await locks.close()
        for other in self._others:
            other.close()
