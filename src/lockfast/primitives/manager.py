"""A manager of locks by name: acquired in one place, released in another. A thin layer over `LocksLogic`.

Decides: what it means to acquire a name that this manager already holds, and what a refusal says.
Leaves to the engine: waiting, keeping and losing.

The manager is the holder, not the thread or task. So a second acquire of what it holds extends it, and callers
that ask for one name at the same time go one after another: the second finds what the first has got.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

from lockfast._model import Busy, HolderInfo, LockInfo
from lockfast._reentry import outside
from lockfast._secrets import shown_url
from lockfast._text import shown
from lockfast._time import Seconds, length
from lockfast._worlds import Signal, World
from lockfast.backends.optional import name_on
from lockfast.engine.acquire import acquire
from lockfast.engine.lease import Lease
from lockfast.engine.request import Request
from lockfast.errors import BackendUnavailable, LeaseLost, NotHeld
from lockfast.primitives.lock import LockLogic, timed_out
from lockfast.primitives.locks import LocksLogic
from lockfast.primitives.names import LockName, valid

M = TypeVar("M")
T = TypeVar("T")

MIN_BEFORE_SWEEP: Final = 64  # leases that it remembers before it drops the ones that have ended


class LockResult(NamedTuple):
    """What became of an acquire. True if it was acquired: `if locks.acquire("x"): …`."""

    acquired: bool
    lock: LockInfo | None = None  # ours if acquired, else who holds it; waiters are counted only then
    error: str | None = None  # why it was not acquired, for people to read

    @property
    def fence(self) -> int | None:
        """The fence of what was acquired; None if it was not."""
        return self.lock.holders[0].fence if self.acquired and self.lock is not None else None

    def __bool__(self) -> bool:
        return self.acquired


class LockOptions(TypedDict, total=False):
    """The keywords of `acquire`, `lock` and `with_lock`, to be kept and passed on: `locks.acquire("x", **options)`."""

    timeout_seconds: Seconds
    blocking: bool
    blocking_timeout_seconds: Seconds | None
    metadata: Any


class ManagerLogic:
    """Everything a manager does, for both worlds."""

    def __init__(self, locks: LocksLogic) -> None:
        self.locks = locks
        self._held: dict[str, Lease] = {}  # by name: taken by `acquire`, and not known to have ended
        self._sweep_at = MIN_BEFORE_SWEEP
        self._turns = _Turns(locks.engine.world)

    @property
    def holder_id(self) -> str:
        return self.locks.engine.holder

    async def acquire(self, request: Request) -> LockResult:
        started = self.locks.engine.now()
        taken: list[Lease] = []  # by this call: what is only extended stays, should the caller not get its answer
        try:
            answer = await self._try(request, taken)
            if isinstance(answer, Busy) and request.wait != 0:
                answer = await self._wait(request, started, taken)
            if isinstance(answer, Busy):
                return await self._refused(request, answer, started)
            return LockResult(True, _info_of(answer))
        except BaseException:
            for lease in taken:
                self.locks.engine.behind(self._give_back, lease)
            raise

    async def _give_back(self, lease: Lease) -> None:
        """Release what was acquired for a caller that was interrupted. A caller that has extended it since keeps it."""

        async def release() -> bool:
            return lease._depth == 1 and await self._release(lease)

        await self._in_turn(lease.name, release)

    async def _try(self, request: Request, taken: list[Lease]) -> Lease | Busy:
        """Extend it if this manager holds it, else ask for it once."""
        name = request.terms.name
        return await self._in_turn(name, lambda: self._extend_or_ask(request, 0.0, taken))

    async def _wait(self, request: Request, started: float, taken: list[Lease]) -> Lease | Busy:
        """One caller waits in the store's queue for all callers of this manager that wait for the name."""

        def ask() -> Awaitable[Lease | Busy]:
            return self._extend_or_ask(request, self._left(request, started), taken)

        turns = self._turns_here()
        answer = await turns.run(("waiting for", request.terms.name), ask, self._left(request, started))
        if answer is None or isinstance(answer, Busy):
            return await self._try(request, taken)  # another caller of this manager may have acquired it
        return answer

    def _left(self, request: Request, started: float) -> float | None:
        return None if request.wait is None else max(0.0, started + request.wait - self.locks.engine.now())

    async def _extend_or_ask(self, request: Request, wait: float | None, taken: list[Lease]) -> Lease | Busy:
        lease = self._held.get(request.terms.name)
        if lease is not None:
            if lease._state == "releasing":
                await lease._release()  # the last try went unanswered
            if await self._extended(lease, request.terms.ttl):
                lease._count_entry(+1)  # one more caller has it
                return lease

        def adopt(lease: Lease) -> None:
            taken.append(lease)
            self._adopt(lease)

        return await acquire(self.locks.engine, request, wait, adopt)

    def _adopt(self, lease: Lease) -> None:
        # It has no owner: any caller that knows its name may release it, so no thread waits for itself.
        self._held[lease.name] = lease
        if len(self._held) > self._sweep_at:
            for ended in [lease for lease in list(self._held.values()) if not lease.held]:
                self._forget(ended)
            self._sweep_at = MIN_BEFORE_SWEEP + 2 * len(self._held)

    def _forget(self, lease: Lease) -> None:
        if self._held.get(lease.name) is lease:
            self._held.pop(lease.name, None)

    async def _extended(self, lease: Lease, seconds: Seconds) -> bool:
        try:
            await lease._extend(seconds)
        except (LeaseLost, NotHeld):
            self._forget(lease)
            return False
        return True

    async def _refused(self, request: Request, busy: Busy, started: float) -> LockResult:
        name = request.terms.name
        info = await self.locks.inspect(name)
        if info.holders:
            busy = busy._replace(holder=info.holders[0].holder)
        waited = self.locks.engine.now() - started
        return LockResult(False, info, str(timed_out(name, busy, request.wait, waited)))

    def _name(self, name: LockName) -> str:
        return valid(name_on(self.locks.engine.backend, name))

    async def extend(self, name: LockName, seconds: Seconds) -> bool:
        lease = self._held.get(self._name(name))
        can = self.locks.engine.backend.capabilities
        wanted = length(seconds, "seconds", least=can.min_ttl, most=can.max_ttl)
        return lease is not None and await self._extended(lease, wanted)

    def holds(self, name: LockName) -> bool:
        lease = self._held.get(self._name(name))
        return lease is not None and lease.held

    def count_held(self) -> int:
        return sum(lease.held for lease in list(self._held.values()))

    async def release(self, name: LockName) -> bool:
        name = self._name(name)

        async def release() -> bool:
            lease = self._held.get(name)
            return lease is not None and await self._release(lease)

        return await self._in_turn(name, release)

    async def _release(self, lease: Lease) -> bool:
        freed = await lease._release()
        self._forget(lease)  # not before: what could not be asked can be asked again
        return freed

    async def release_all(self) -> int:
        """How many were released. All are tried; then the first error is raised, if there was one."""
        released, problem = 0, None
        for name in list(self._held):
            try:
                released += await self.release(name)
            except Exception as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return released

    def scope(
        self,
        name: LockName,
        timeout_seconds: Seconds,
        blocking: bool,
        blocking_timeout_seconds: Seconds | None,
        metadata: Any,
        *,
        renew: bool = True,
    ) -> LockLogic:
        """Raises ValueError, in the words of the caller, for what makes no sense."""
        can = self.locks.engine.backend.capabilities
        ttl = length(timeout_seconds, "timeout_seconds", least=can.min_ttl, most=can.max_ttl)
        wait: float | None = None
        if blocking_timeout_seconds is not None:
            wait = length(blocking_timeout_seconds, "blocking_timeout_seconds", zero=True)
        options: dict[str, Any] = {"ttl": ttl, "wait": wait if blocking else 0.0, "renew": renew}
        return self.locks.lock(name, metadata=metadata, primitive="manager", **options)

    async def with_lock(self, scope: LockLogic, work: Callable[[], Any]) -> Any:
        """Refuses work that would go on after the lock is gone."""
        blocking = self.locks.engine.world.blocking
        if blocking and inspect.iscoroutinefunction(work):
            raise TypeError("with_lock() takes a plain function here; use lockfast.aio for coroutines")

        async def call(_: Lease) -> Any:
            with outside():
                answer = work()
            if not blocking:
                return await answer if isinstance(answer, Awaitable) else answer
            if inspect.iscoroutine(answer):
                answer.close()
                raise TypeError("the function of with_lock() returned a coroutine; use lockfast.aio for coroutines")
            return answer

        return await scope.hold(call)

    async def close(self) -> None:
        await self.locks.close()
        self._held.clear()

    async def _in_turn(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """To try or release it: that is one request, so a caller that has the turn gives it back soon."""
        answer = await self._turns_here().run(name, work, self.locks.engine.patience)
        if answer is None:
            raise BackendUnavailable(
                f"lock {name!r} was not asked for: the backend has not answered an earlier caller here", name=name
            )
        return answer

    def _turns_here(self) -> _Turns:
        if self._turns.pid != os.getpid():  # the callers that had a turn, or waited for one, are the parent's
            self._turns = _Turns(self.locks.engine.world)
        return self._turns

    def __repr__(self) -> str:
        return f"{self.locks!r}, by name: {sorted(self._held)}"


class _Turns:
    """One caller at a time for each thing, first come first served."""

    def __init__(self, world: World) -> None:
        self.pid = os.getpid()
        self._world = world
        self._mutex = threading.Lock()
        self._queues: dict[Hashable, list[Signal]] = {}  # the first in each has the turn

    async def run(self, what: Hashable, work: Callable[[], Awaitable[T]], wait: float | None) -> T | None:
        """What `work` answers, when the turn has come; None if that is not within `wait` seconds."""
        signal = self._world.signal()
        try:
            try:
                return await work() if await self._take(what, signal, wait) else None
            finally:
                self._leave(what, signal)
        except BaseException:
            self._leave(what, signal)  # again: an interrupt may have cut it short
            raise

    async def _take(self, what: Hashable, signal: Signal, wait: float | None) -> bool:
        with self._mutex:
            queue = self._queues.setdefault(what, [])
            queue.append(signal)
            if queue[0] is signal:
                return True
        return await signal.wait(wait) or queue[0] is signal

    def _leave(self, what: Hashable, signal: Signal) -> None:
        """Leave the queue; if this was the first, the next has the turn."""
        with self._mutex:
            queue = self._queues.get(what, [])
            if signal in queue:
                queue.remove(signal)
            if queue:
                queue[0].set()  # it has the turn now, or has had it before: then that changes nothing
            else:
                self._queues.pop(what, None)


def _info_of(lease: Lease) -> LockInfo:
    """From the lease, without another request: if that failed, the caller would hold a lock without knowing it."""
    facts = (lease.holder, lease.claim_id, lease.fence, lease.mode, lease.acquired_at, lease.expires_at, lease.metadata)
    return LockInfo(lease.name, (HolderInfo(*facts),))


def the_same(asked: object, made_for: object, manager: M) -> M:
    """The one manager. Raises ValueError if it was made for something else than what is asked for now."""
    if asked is None or asked is made_for or asked == made_for:
        return manager
    raise ValueError(f"the one manager was made for {_shown(made_for)}, not for {_shown(asked)}; close() it first")


def _shown(url_or_client: object) -> str:
    if url_or_client is None:
        return "the default URL"
    if not isinstance(url_or_client, str):
        return f"a {type(url_or_client).__name__}"
    return shown(shown_url(url_or_client))
