"""A backend that fails on demand: what a network, a crash or a pause does to the one behind it.

Decides: what becomes of a request on its way there, and of the reply on its way back.
Leaves to the backend behind it: what the verbs do.

    locks = lockfast.connect(lambda world, clock: FaultyBackend(open_backend(url, world, clock), world))

Faults are planned for a verb by its name, and used up in the order in which they were planned.
"""

from __future__ import annotations

import builtins
import math
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from lockfast._model import Busy, Claim, Grant, LockInfo, Observation, Renewal
from lockfast._values import Booked, Rate, Stored, Write, Written
from lockfast._worlds import Signal, World
from lockfast.backends.base import Backend
from lockfast.backends.optional import LossListener, RenewsFromOutside, ReportsLosses, holders_of
from lockfast.errors import BackendUnavailable

T = TypeVar("T")
Verb = Literal[
    "acquire",
    "wait",
    "renew",
    "release",
    "abandon",
    "observe",
    "inspect",
    "list",
    "break_",
    "throttle",
    "unthrottle",
    "read",
    "write",
]
VERBS: tuple[Verb, ...] = get_args(Verb)
ALWAYS = math.inf


class _Fault(NamedTuple):
    after_effect: bool
    error: BaseException | None  # None: hang until `resume`


class FaultyBackend:
    def __init__(self, inner: Backend, world: World, **capabilities: Any) -> None:
        """`capabilities` are declared in place of the inner backend's own, e.g. `drift=0.01`."""
        self.inner = inner
        self.calls: Counter[str] = Counter()  # by verb, whatever became of them
        self.waiting = 0  # calls of `wait` that have not returned
        self.on_the_way = 0  # requests that the store has yet to receive or to answer
        self.loses_wakeups = False  # no wake-up arrives; a waiter finds out by itself, if at all
        self.least = 0.0  # real seconds that the store gets for an answer at least, however little is left of `within`
        # A verb that can hang can be cancelled while it does, so it is not instant any more.
        self.capabilities = inner.capabilities._replace(**{"instant": False, **capabilities})
        self._world = world
        self._mutex = threading.Lock()
        self._plans: dict[str, deque[tuple[_Fault, float]]] = {}  # with how many times each is left
        self._hanging: list[Signal] = []
        if isinstance(inner, RenewsFromOutside):
            self.renew_from_outside = partial(self._renew_from_outside, inner)
        self._resumed = 0  # how often: a call that drew its fault before the last time does not begin to hang after it

    @property
    def store_id(self) -> str:
        return self.inner.store_id

    @property
    def on_loss(self) -> LossListener | None:
        """Losses that the inner backend notices by itself are reported as without faults."""
        return self.inner.on_loss if isinstance(self.inner, ReportsLosses) else None

    @on_loss.setter
    def on_loss(self, listener: LossListener | None) -> None:
        if isinstance(self.inner, ReportsLosses):
            self.inner.on_loss = listener

    # What shall go wrong

    def lose_request(self, verb: Verb, times: float = 1, error: BaseException | None = None) -> None:
        """The request never arrives: nothing happens there, and here BackendUnavailable (or `error`) is raised."""
        self._plan(verb, _Fault(False, error or BackendUnavailable(f"the request to {verb} was lost")), times)

    def lose_reply(self, verb: Verb, times: float = 1, error: BaseException | None = None) -> None:
        """What was asked happens, and here BackendUnavailable (or `error`) is raised all the same."""
        self._plan(verb, _Fault(True, error or BackendUnavailable(f"the reply to {verb} was lost")), times)

    def hang_request(self, verb: Verb, times: float = 1) -> None:
        """The request is on its way until `resume`, longer than `within` if need be; then it takes effect."""
        self._plan(verb, _Fault(False, None), times)

    def hang_reply(self, verb: Verb, times: float = 1) -> None:
        """What was asked happens at once; the reply is on its way until `resume`."""
        self._plan(verb, _Fault(True, None), times)

    def resume(self) -> None:
        """Whatever hangs goes on."""
        with self._mutex:
            hanging, self._hanging = self._hanging, []
            self._resumed += 1
        for signal in hanging:
            signal.set()

    def heal(self) -> None:
        """No more faults: plans are forgotten, wake-ups arrive, and whatever hangs goes on."""
        with self._mutex:
            self._plans.clear()
        self.loses_wakeups = False
        self.resume()

    @property
    def hanging(self) -> int:
        """How many calls are on their way now."""
        with self._mutex:
            return len(self._hanging)

    def _plan(self, verb: Verb, fault: _Fault, times: float) -> None:
        with self._mutex:
            self._plans.setdefault(verb, deque()).append((fault, times))

    # How it goes wrong

    def _next(self, verb: Verb) -> tuple[_Fault | None, int]:
        with self._mutex:
            self.calls[verb] += 1
            plan = self._plans.get(verb)
            if not plan:
                return None, self._resumed
            fault, times = plan.popleft()
            if times > 1:
                plan.appendleft((fault, times - 1))
            return fault, self._resumed

    async def _through(self, verb: Verb, ask: Callable[[], Awaitable[T]]) -> T:
        fault, resumed = self._next(verb)
        if fault is not None and not fault.after_effect:
            await self._strike(fault, resumed)
        answer = await (ask() if verb == "wait" else self._ask(ask))
        if fault is not None and fault.after_effect:
            await self._strike(fault, resumed)
        return answer

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        self._count_on_the_way(1)
        try:
            return await ask()
        finally:
            self._count_on_the_way(-1)

    def _count_on_the_way(self, change: int) -> None:
        with self._mutex:
            self.on_the_way += change

    async def _strike(self, fault: _Fault, resumed: int) -> None:
        if fault.error is not None:
            raise fault.error
        signal = self._world.signal()
        with self._mutex:
            if self._resumed != resumed:
                return
            self._hanging.append(signal)
        try:
            await signal.wait(None)
        finally:
            with self._mutex:
                if signal in self._hanging:  # it was cancelled
                    self._hanging.remove(signal)

    # The verbs

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        return await self._through(
            "acquire", lambda: self.inner.acquire(claim, enqueue=enqueue, within=max(within, self.least))
        )

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        self._count_waiting(1)
        try:
            return await self._through("wait", lambda: self._wait(claim, seconds))
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, change: int) -> None:
        with self._mutex:
            self.waiting += change

    async def _wait(self, claim: Claim, seconds: float) -> bool | Grant:
        if not self.loses_wakeups:
            return await self.inner.wait(claim, seconds)
        await self._world.pause(seconds)
        return False

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        return await self._through("renew", lambda: self.inner.renew(batch, within=max(within, self.least)))

    async def _renew_from_outside(
        self, inner: RenewsFromOutside, batch: Sequence[Renewal], *, within: float
    ) -> Sequence[bool | None]:
        return await self._through("renew", lambda: inner.renew_from_outside(batch, within=max(within, self.least)))

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        return await self._through(
            "release",
            lambda: self.inner.release(claim, linger=linger, within=max(within, self.least), successor=successor),
        )

    async def abandon(self, claim: Claim, *, within: float) -> None:
        await self._through("abandon", lambda: self.inner.abandon(claim, within=max(within, self.least)))

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        return await self._through(
            "observe", lambda: self.inner.observe(claim, after=after, within=max(within, self.least))
        )

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        return await self._through("inspect", lambda: self.inner.inspect(key, within=max(within, self.least)))

    async def inspect_holders(self, key: str, *, within: float) -> LockInfo:
        return await self._through("inspect", lambda: holders_of(self.inner, key, within=max(within, self.least)))

    async def list(self, prefix: str, *, within: float) -> builtins.list[LockInfo]:
        return await self._through("list", lambda: self.inner.list(prefix, within=max(within, self.least)))

    async def break_(self, key: str, *, within: float) -> LockInfo:
        return await self._through("break_", lambda: self.inner.break_(key, within=max(within, self.least)))

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        return await self._through(
            "throttle",
            lambda: self.inner.throttle(key, rate, cost=cost, patience=patience, within=max(within, self.least)),
        )

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        await self._through(
            "unthrottle",
            lambda: self.inner.unthrottle(key, rate, cost=cost, until=until, within=max(within, self.least)),
        )

    async def read(self, key: str, *, within: float) -> Stored:
        return await self._through("read", lambda: self.inner.read(key, within=max(within, self.least)))

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        return await self._through("write", lambda: self.inner.write(key, write, within=max(within, self.least)))

    async def close(self) -> None:
        await self.inner.close()

    def before_fork(self) -> None:
        self.inner.before_fork()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._mutex = threading.Lock()
            self._hanging = []
        self.inner.after_fork(child=child)
