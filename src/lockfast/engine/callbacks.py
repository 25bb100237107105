"""Code of the user's that is called in the background, where it holds up nothing but itself.

Decides: in which thread or task `on_lost` is called, and listeners of what happens in the background.
Leaves to the keeper: to notice a call that hangs. Leaves to `observe`: what becomes of an error in a listener.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from lockfast._reentry import outside
from lockfast.engine.lease import Lease
from lockfast.engine.request import Request
from lockfast.observe.events import Event
from lockfast.observe.log import logger

if TYPE_CHECKING:
    from lockfast._worlds import Signal
    from lockfast.engine.core import Engine

NEVER: Final = float("inf")
HANGING_S: Final = 0.25  # after which a call that is not over no longer holds up the others
MAX_EVENTS: Final = 10_000  # events that wait for a listener; of more than that the oldest are dropped


class Callback:
    """`on_lost` of one acquire: called in the context of that acquire, once, and only if its caller has the lease.

    `handed_out` is set by the thread that acquires, `lost` by the one that notices the loss: in any order, or at once.
    """

    __slots__ = ("_on_lost", "_unclaimed", "context", "handed_out", "lost")

    def __init__(self, on_lost: Callable[[Any], object]) -> None:
        self._on_lost = on_lost
        self._unclaimed = [None]  # empty once a thread has undertaken to have it called
        self.context = copy_context()
        self.handed_out = False
        self.lost = False

    def is_due(self) -> bool:
        """True for one of the two threads: the one that comes last, or either."""
        if not (self.handed_out and self.lost):
            return False
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def __call__(self, lease: Lease) -> object:
        return self.context.run(self._on_lost, lease)


class OnLost:
    """Calls `on_lost` of each lost lease: in turn, but one that hangs does not hold up the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lost: deque[Lease] = deque()  # leases whose `on_lost` is to be called
        self._callers: dict[object, set[object]] = {}  # each with the threads or tasks that it is
        self._began_at = 0.0  # when one of them last began with a call
        self._over: list[Signal] = []  # of the callers that wait until all calls are over

    def prepare(self, request: Request, adopt: Callable[[Lease], None]) -> tuple[Request, Callable[[Lease], None]]:
        """For one acquire with an `on_lost`. The loss of a lease that never reaches `adopt` is not reported."""
        assert request.on_lost is not None
        callback, engine = Callback(request.on_lost), self._engine

        def hand_out(lease: Lease) -> None:
            callback.handed_out = True
            if callback.is_due():  # it was lost meanwhile
                engine.on_lost._call_soon(lease)  # of now: a fork has another
            adopt(lease)

        return request.but(on_lost=callback), hand_out

    def lost(self, lease: Lease) -> None:
        """Call its `on_lost` soon, if its caller has it, or when it does."""
        callback = lease._request.on_lost
        assert isinstance(callback, Callback)
        callback.lost = True
        if callback.is_due():
            self._call_soon(lease)

    def _call_soon(self, lease: Lease) -> None:
        self._lost.append(lease)
        poll_at = self.poll(self._engine.now())
        if poll_at < NEVER:
            with suppress(RuntimeError):  # no thread can be started: then what hangs holds up the others
                self._engine.keeper.loop.wake_by(poll_at)

    def poll(self, now: float) -> float:
        """Start a caller if there is none, or the last call hangs; when to poll again."""
        if not self._lost:
            return NEVER
        caller = object()
        try:
            with self._engine.mutex:
                start = bool(self._lost) and (not self._callers or self._began_at + HANGING_S <= now)
                if start:
                    self._callers[caller] = set()
                    self._began_at = now
            if start:
                self._engine.world.spawn(self._call_all(caller), "lockfast-on-lost")
        except BaseException as error:
            self._callers.pop(caller, None)  # should it run all the same, another beside it does no harm
            if not isinstance(error, RuntimeError):
                raise  # else no thread can be started just now: the keeper polls again
        return self._began_at + HANGING_S if self._lost else NEVER

    @property
    def calling(self) -> bool:
        """Whether a call is under way or still to be made."""
        return bool(self._lost or self._callers)

    def begin_again(self) -> None:
        """In a new event loop: the callers of the old one never go on."""
        self._callers = {}
        self.poll(self._engine.now())

    async def all_called(self, within: float) -> None:
        """Until every call is over, or that time has passed. Within a call it does not wait."""
        engine = self._engine
        until = engine.now() + within
        signal = engine.world.signal()
        with engine.mutex:
            if any(engine.world.owner() in owners for owners in self._callers.values()):
                return
            self._over.append(signal)
        while self.calling:
            poll_at = self.poll(engine.now())
            if self._lost and not self._callers:  # no thread can be started, as at the end of a process
                await self._call_all(object())
                return
            if await signal.wait(min(poll_at, until) - engine.now()) or engine.now() >= until:
                return

    async def _call_all(self, caller: object) -> None:
        self._callers[caller] = {self._engine.world.owner()}
        try:
            while (lease := self._next(caller)) is not None:
                await self._call(lease, caller)
        except BaseException:
            self._callers.pop(caller, None)
            raise

    def _next(self, caller: object) -> Lease | None:
        """None is the end of the caller: the next lease starts another."""
        over: list[Signal] = []
        with self._engine.mutex:
            lease = self._lost.popleft() if self._lost else None
            self._began_at = self._engine.now()
            if lease is None:
                self._callers.pop(caller, None)
                if not self._callers:
                    over, self._over = self._over, []
        for signal in over:
            signal.set()
        return lease

    async def _call(self, lease: Lease, caller: object) -> None:
        callback = lease._request.on_lost
        assert isinstance(callback, Callback)
        try:
            with outside():
                answer = callback(lease)
            if isinstance(answer, Awaitable):
                await self._engine.world.beside(answer, self._callers[caller].add, callback.context)
        except BaseException as error:
            if not isinstance(error, Exception) and not self._engine.world.blocking:
                raise  # the task is cancelled; in a thread, an exit means nothing
            logger.exception("on_lost of lock %r failed", lease.name)


class BackgroundEvents:
    """Emits what the background does, in order. In a thread of its own, since a listener or a log may block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: deque[Event] = deque()
        self._dropped = 0  # since the last one that was emitted
        self._emitter_is_due = False  # from when that is spawned until all are emitted
        self._emitter: object = None  # the thread or task that does
        self._over: list[Signal] = []  # of the callers that wait until all are emitted

    def emit(self, event: Event) -> None:
        start = False
        try:
            with self._engine.mutex:
                self._pending.append(event)
                if len(self._pending) > MAX_EVENTS:
                    self._pending.popleft()
                    self._dropped += 1
                start = not self._emitter_is_due
                self._emitter_is_due = True
            if start:
                self._engine.world.spawn(self._emit_all(), "lockfast-events")
        except BaseException as error:
            if start:
                self._emitter_is_due = False  # should it run all the same, another beside it does no harm
            if not isinstance(error, RuntimeError):
                raise  # else no thread can be started: it is emitted along with the next event, or at the end

    def begin_again(self) -> None:
        """In a new event loop: the task of the old one never goes on."""
        self._emitter_is_due = False

    @property
    def emitting(self) -> bool:
        """Whether an event is being emitted, or is still to be."""
        return self._emitter_is_due or bool(self._pending)

    async def all_emitted(self, within: float) -> None:
        """Until all are emitted, or that time has passed. Within a listener it does not wait."""
        signal = self._engine.world.signal()
        with self._engine.mutex:
            if not self.emitting or self._emitter is self._engine.world.owner():
                return
            start = not self._emitter_is_due  # no thread could be started for it
            self._emitter_is_due = True
            if not start:
                self._over.append(signal)
        await (self._emit_all() if start else signal.wait(within))

    async def _emit_all(self) -> None:
        self._emitter = self._engine.world.owner()
        while True:
            with self._engine.mutex:
                if not self._pending:
                    self._emitter_is_due, self._emitter = False, None
                    while self._over:
                        self._over.pop().set()
                    return
                event = self._pending.popleft()
                dropped, self._dropped = self._dropped, 0
            if dropped:
                logger.warning("a listener or a log handler hung: %d events were dropped", dropped)
            self._engine.events.emit(event)
