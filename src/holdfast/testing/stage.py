"""What a story of the contract is told on: actors, time and a store, alike in every world.

Decides: how an actor is started and waited for, how time passes, and that nothing is left running at the end.
Leaves to the story: who does what, and in which order.

Nothing here sleeps and hopes: time is a `FakeClock`, steps are ordered by conditions, and the real clock only limits
how long a broken story can hang.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import holdfast
from holdfast import aio
from holdfast._model import Claim, LockInfo, Mode, Terms
from holdfast._worlds import Clock, Signal, World, drive
from holdfast.backends.base import Backend
from holdfast.errors import BackendUnavailable
from holdfast.observe.events import Event
from holdfast.primitives.names import qualify
from holdfast.testing.awaited import AwaitedLocks
from holdfast.testing.clock import FakeClock
from holdfast.testing.faults import ALWAYS, FaultyBackend, Verb

T = TypeVar("T")
R = TypeVar("R", covariant=True)  # what an actor returns
Opener = Callable[[World, Clock | None], Backend]

LIMIT = 10.0  # real seconds after which a story that waits is a story that failed
_BLINK = 0.0005
_VERBS: tuple[Verb, ...] = ("acquire", "wait", "renew", "release", "abandon", "inspect", "list", "break_")
_sleep = time.sleep  # a story may replace the functions of `time`
_real_now = time.monotonic


class _WatchedSignal:
    """A signal of the client's world that can tell whether whoever was woken by it has got up."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._sets = 0
        self._heard = 0
        self.waiting = False

    def set(self) -> None:
        self._sets += 1
        self._signal.set()

    async def wait(self, seconds: float | None) -> bool:
        self.waiting = True
        try:
            return await self._signal.wait(seconds)
        finally:
            self.waiting = False
            self._heard = self._sets

    @property
    def rousing(self) -> bool:
        return self.waiting and self._sets > self._heard


class Actor(Protocol[R]):
    """Somebody who acts beside the story: a thread, or a task."""

    @property
    def done(self) -> bool: ...

    @property
    def heard(self) -> bool:
        """Somebody asked for the result."""
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

    def __init__(self, opener: Opener, url: str = "", *, real_time: bool = False) -> None:
        self.url = url  # for stories that need other processes
        self.records: Callable[[], int] = lambda: 0  # how many the store keeps, if that can be told
        self.namespace = f"contract-{uuid.uuid4().hex[:12]}"
        self.clock = FakeClock()
        self._opener = opener
        self._real_time = real_time
        self._opened: list[AwaitedLocks] = []
        self._signals: list[_WatchedSignal] = []
        self._actors: list[Any] = []
        self._teller: object = None  # the thread or task that tells the story
        self._observer: AwaitedLocks | None = None

    # Who takes part

    def locks(self, *, clock: Clock | None = None, capabilities: Any = None, **options: Any) -> AwaitedLocks:
        """A client of the store, with faults of its own. Closed when the story ends.

        The store follows `stage.clock`, and so does the client unless it is given a `clock` of its own.
        """
        store_clock = None if self._real_time else self.clock
        made: list[FaultyBackend] = []

        def open_faulty(world: World, _: Clock | None) -> Backend:
            self._watch(world)
            made.append(FaultyBackend(self._opener(world, store_clock), world, **(capabilities or {})))
            return made[-1]

        options.setdefault("namespace", self.namespace)
        raw = self._connect(open_faulty, clock=clock or store_clock, **options)
        self._opened.append(AwaitedLocks(raw, made[0]))
        return self._opened[-1]

    def _watch(self, world: World) -> None:
        make = world.signal

        def watched() -> Signal:
            signal = _WatchedSignal(make())
            self._signals.append(signal)
            return signal

        world.signal = watched  # type: ignore[method-assign]

    def claim(self, name: str, *, ttl: float = 30, mode: Mode = "exclusive", limit: int | None = None) -> Claim:
        """A claim to ask a backend's verbs for directly; a fresh one each time."""
        terms = Terms(key=qualify(self.namespace, name), name=name, holder="direct", ttl=ttl, mode=mode, limit=limit)
        return Claim(uuid.uuid4().hex, terms)

    @abstractmethod
    def _connect(self, opener: Opener, **options: Any) -> Any: ...

    @abstractmethod
    def start(self, work: Coroutine[Any, Any, T]) -> Actor[T]:
        """Let somebody else do it: another thread, or another task."""

    @abstractmethod
    def alone(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the child of a fork, where nobody else is left."""

    def record(self, locks: AwaitedLocks) -> list[Event]:
        """What is told of these locks from now on."""
        heard: list[Event] = []
        locks.raw.events.listen(heard.append)
        return heard

    # What is true at the store, asked by somebody who takes no part

    @property
    def observer(self) -> AwaitedLocks:
        if self._observer is None:
            self._observer = self.locks(holder="observer")
        return self._observer

    async def info(self, name: str) -> LockInfo:
        return await self.observer.inspect(name)

    async def fences(self, name: str) -> list[int]:
        """The fences of those who hold it now."""
        return [holder.fence for holder in (await self.info(name)).holders]

    async def queue(self, name: str, waiters: int, *, dead: int = 0) -> None:
        """Until so many wait for it, and all but the `dead` ones are asleep."""

        async def so_many() -> bool:
            return (await self.info(name)).waiters == waiters

        await self.until(so_many, f"{waiters} waiters for {name!r}")
        if not self._real_time:
            await self.asleep(waiters - dead)

    async def is_free(self, name: str) -> bool:
        """Nobody holds it and nobody waits for it."""
        return await self.info(name) == LockInfo(name)

    # How time passes

    async def until(self, condition: Callable[[], Any], what: str = "the condition") -> None:
        """Until it is true; it may be awaitable. Fails after a generous limit of real time, or with an actor."""
        limit = _real_now() + LIMIT
        while True:
            answer = condition()
            if await answer if isawaitable(answer) else answer:
                return
            if self._here() is self._teller:
                await self._hear_actors()  # if one of them failed, it is in vain to wait any longer
            if _real_now() > limit:
                raise AssertionError(f"waited {LIMIT:g} real seconds in vain for {what}")
            await self.breathe()

    async def _hear_actors(self) -> None:
        for actor in self._actors:
            if actor.done and not actor.heard:
                await actor.result()

    async def asleep(self, waiters: int = 0) -> None:
        """Until so many waiters, and every keeper that has leases, wait for the clock to move."""

        def all_asleep() -> bool:
            keepers = sum(bool(locks.raw._logic.engine.keeper.leases) for locks in self._opened)
            return self._waiting() >= waiters and self.clock.sleepers >= waiters + keepers and self._calm()

        await self.until(all_asleep, f"{waiters} waiters and all keepers to fall asleep")

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, alarm by alarm; whoever is woken goes back to sleep before it goes on."""
        clock, end = self.clock, self.clock.now() + seconds
        sleepers = clock.sleepers
        while (at := clock.next_alarm) is not None and at <= end:
            clock.advance_to(at)
            await self.until(lambda: clock.sleepers >= sleepers and self._calm(), "everybody to sleep again")
        clock.advance_to(end)

    async def sleep_through(self, actor: Actor[Any], at_most: float = 60.0) -> float:
        """Let time pass, alarm by alarm, until the actor is done; the answer is how much has passed."""
        clock, started, waiting = self.clock, self.clock.now(), self._waiting()

        def asleep_again() -> bool:
            return clock.sleepers >= sleepers and self._waiting() >= waiting and self._calm()

        while not actor.done:
            sleepers, at = clock.sleepers, clock.next_alarm
            assert at is not None, "nobody sleeps, and the actor is not done"
            assert at <= started + at_most, f"the actor is not done after {at_most:g} seconds of the story's time"
            clock.advance_to(at)
            await self.until(lambda: actor.done or asleep_again(), "the actor to get up, or to sleep again")
        return clock.now() - started

    async def finish(self, work: Coroutine[Any, Any, T], at_most: float = 5.0) -> T:
        """Do it to the end, letting time pass, `at_most` so much, while it sleeps."""
        clock, end = self.clock, self.clock.now() + at_most
        sleepers = clock.sleepers
        actor = self.start(work)

        def done() -> bool:
            at = clock.next_alarm
            if not actor.done and clock.sleepers > sleepers and at is not None and at <= end:
                clock.advance_to(at)
            return actor.done

        await self.until(done, f"{work!r} to finish within {at_most:g} seconds of the story's time")
        return await actor.result()

    def _waiting(self) -> int:
        return sum(locks.faults.waiting for locks in self._opened)

    def _calm(self) -> bool:
        """Nobody is just getting up, every keeper sleeps, and no renewal is under way, but for those that hang."""
        keepers = (locks.raw._logic.engine.keeper for locks in self._opened)
        loops = [keeper._signal for keeper in keepers if keeper.leases]
        return (
            self._at_work("holdfast-renewal") <= sum(locks.faults.hanging for locks in self._opened)
            and all(isinstance(loop, _WatchedSignal) and loop.waiting for loop in loops)
            and not any(signal.rousing for signal in self._signals)
        )

    @abstractmethod
    def _at_work(self, name: str) -> int: ...

    @abstractmethod
    def _here(self) -> object: ...

    @abstractmethod
    async def breathe(self) -> None:
        """Let the others run for a moment."""

    # How a story is told

    @abstractmethod
    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Tell it; afterwards nothing that it started is left."""

    async def _close(self) -> None:
        for locks in self._opened:
            locks.faults.heal()
        for locks in self._opened:
            await locks.close()


class _ThreadActor(Generic[T]):
    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._answer: T | None = None
        self._error: BaseException | None = None
        self.heard = False  # somebody asked for the result
        self.thread = threading.Thread(target=self._act, args=(work,), name="actor", daemon=True)
        self.thread.start()

    def _act(self, work: Coroutine[Any, Any, T]) -> None:
        try:
            self._answer = drive(work)
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self.thread.is_alive()

    async def result(self) -> T:
        self.thread.join(LIMIT)
        assert self.done, f"an actor did not finish within {LIMIT:g} real seconds"
        self.heard = True
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]

    def cancel(self) -> None:
        raise NotImplementedError("a thread cannot be cancelled: the story needs 'cancellation'")


class ThreadStage(Stage):
    """The blocking facade; an actor is a thread."""

    world = "threads"
    can = frozenset({"blocking"})

    def __init__(self, opener: Opener, url: str = "", *, real_time: bool = False) -> None:
        super().__init__(opener, url, real_time=real_time)
        self._before = set(threading.enumerate())

    def _connect(self, opener: Opener, **options: Any) -> holdfast.Locks:
        return holdfast.connect(opener, **options)

    def start(self, work: Coroutine[Any, Any, T]) -> Actor[T]:
        actor = _ThreadActor(work)
        self._actors.append(actor)
        return actor

    def alone(self, work: Coroutine[Any, Any, T]) -> T:
        return drive(work)

    def _at_work(self, name: str) -> int:
        return sum(thread.name == name for thread in threading.enumerate())

    def _here(self) -> object:
        return threading.current_thread()

    async def breathe(self) -> None:
        _sleep(_BLINK)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self._teller = self._here()
        try:
            drive(story)
            drive(self._hear_actors())
        finally:
            self._teller = None  # from here on only the ending matters
            self._end_actors()
            drive(self._close())
            drive(self.until(self._all_ended, f"these threads to end: {self._started()}"))

    def _end_actors(self) -> None:
        """Whoever still waits is refused at its next request, and time goes on until everybody asked."""
        if all(actor.done for actor in self._actors):
            return
        for locks in self._opened:
            locks.faults.heal()
            for verb in _VERBS:
                locks.faults.lose_request(verb, ALWAYS, BackendUnavailable("the story is over", transient=False))
        drive(self.until(lambda: self._all_ended(self._actors_threads()), "the actors to end"))

    def _actors_threads(self) -> set[threading.Thread]:
        return {actor.thread for actor in self._actors}

    def _all_ended(self, threads: set[threading.Thread] | None = None) -> bool:
        at = self.clock.next_alarm
        if at is not None:
            self.clock.advance_to(at)
        return not any(thread.is_alive() for thread in (threads or self._started()))

    def _started(self) -> set[threading.Thread]:
        mine = ("actor", "holdfast")
        return {thread for thread in set(threading.enumerate()) - self._before if thread.name.startswith(mine)}


class _TaskActor(Generic[T]):
    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.heard = False
        self.task = asyncio.get_running_loop().create_task(work)

    @property
    def done(self) -> bool:
        return self.task.done()

    async def result(self) -> T:
        await asyncio.wait({self.task}, timeout=LIMIT)
        assert self.done, f"an actor did not finish within {LIMIT:g} real seconds"
        self.heard = True
        return self.task.result()

    def cancel(self) -> None:
        self.heard = True
        self.task.cancel()


class AsyncioStage(Stage):
    """The facade for asyncio; an actor is a task."""

    world = "asyncio"
    can = frozenset({"cancellation"})

    def __init__(self, opener: Opener, url: str = "", *, real_time: bool = False) -> None:
        super().__init__(opener, url, real_time=real_time)
        self._blocking: list[holdfast.Locks] = []

    def _connect(self, opener: Opener, **options: Any) -> aio.AsyncLocks:
        return aio.connect(opener, **options)

    def blocking_locks(self) -> holdfast.Locks:
        """A client of the other world on the same store. It blocks the loop, so let it never wait."""
        locks = holdfast.connect(
            lambda world, _: self._opener(world, self.clock), clock=self.clock, namespace=self.namespace
        )
        self._blocking.append(locks)
        return locks

    def start(self, work: Coroutine[Any, Any, T]) -> Actor[T]:
        actor = _TaskActor(work)
        self._actors.append(actor)
        return actor

    def alone(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def _at_work(self, name: str) -> int:
        return sum(task.get_name() == name for task in asyncio.all_tasks())

    def _here(self) -> object:
        return asyncio.current_task()

    async def breathe(self) -> None:
        await asyncio.sleep(_BLINK)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.run(self._tell(story))

    async def _tell(self, story: Awaitable[None]) -> None:
        self._teller = self._here()
        try:
            await story
            await self._hear_actors()
        finally:
            self._teller = None  # from here on only the ending matters
            for actor in self._actors:
                actor.cancel()
            for locks in self._opened:
                locks.faults.heal()
            if self._actors:
                await asyncio.wait({actor.task for actor in self._actors}, timeout=LIMIT)
            await self._close()
            for blocking in self._blocking:
                blocking.close()
