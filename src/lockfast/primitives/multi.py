"""Several names as one: taken in one order, all or nothing, and lost together.

Decides: the order (by key, the same for every caller, so that no two can wait for each other), how one `wait` is
shared between the names, and that the loss of one ends the others.
Leaves to the engine: each single lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Final

from lockfast._model import Busy, Claim
from lockfast._reentry import Mutex
from lockfast._time import FOREVER, Seconds
from lockfast._worlds import Guard
from lockfast.backends.optional import holders_of
from lockfast.engine.acquire import acquire
from lockfast.engine.core import Engine
from lockfast.engine.lease import Lease
from lockfast.engine.request import Request, Unique, call_of
from lockfast.errors import LockError, NotHeld
from lockfast.primitives.lock import timed_out, wait_for
from lockfast.primitives.statement import With

INTERRUPTED_WITHIN_S: Final = 1.0  # to give back what was taken, before an interrupt or a cancellation goes on
Missed = tuple[str, Busy]  # the name that timed out, and who holds it


class _OneGuard:
    """Over the one body that several leases protect: only the first loss interrupts it."""

    __slots__ = ("_guard", "_interrupted", "_mutex")

    def __init__(self, guard: Guard, mutex: Mutex) -> None:
        self._guard = guard
        self._mutex = mutex
        self._interrupted = False

    def interrupt(self) -> None:
        with self._mutex:
            before, self._interrupted = self._interrupted, True
        if not before:
            self._guard.interrupt()

    def close(self, exc_type: type[BaseException] | None) -> bool:
        return self._guard.close(exc_type)


class MultiLease(Unique):
    """One lease over several names. It is held while all of them are, and lost as soon as one is."""

    __slots__ = ("_engine", "_guard", "_home", "_leases", "_on_lost", "_owner")

    def __init__(self, engine: Engine, on_lost: Callable[[Any], object] | None) -> None:
        self._engine = engine
        self._on_lost = on_lost
        self._leases: list[Lease] = []  # in the order in which they were taken
        self._home: MultiLogic | None = None  # the lock object that it was taken through, once it has all of them
        self._guard: Guard | None = None  # over the body of the `with` that it protects
        self._owner: object = engine.world.owner()

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they were taken."""
        return tuple(lease.name for lease in self._leases)

    @property
    def fence(self) -> dict[str, int]:
        """The fence of each name. Hand each to whatever that name protects."""
        return {lease.name: lease.fence for lease in self._leases}

    @property
    def leases(self) -> dict[str, Lease]:
        """The lease of each name."""
        return {lease.name: lease for lease in self._leases}

    @property
    def holder(self) -> str:
        """Who holds it, as others see it."""
        return self._engine.holder

    @property
    def metadata(self) -> Any:
        """What was given to `all(…, metadata=)`, as others see it with each name."""
        return self._leases[0].metadata

    @property
    def ttl(self) -> float:
        """How long each renewal lasts, in seconds."""
        return min(lease.ttl for lease in self._leases)

    @property
    def acquired_at(self) -> float:
        """Wall-clock time of the last grant, from which on all are held, by the server's clock, for people to read."""
        return max(lease.acquired_at for lease in self._leases)

    @property
    def expires_at(self) -> float:
        """Wall-clock time at which the first of them ends unless renewed, for people to read."""
        return min(lease.expires_at for lease in self._leases)

    @property
    def held(self) -> bool:
        """True while no other holder can have any of the names."""
        return all(lease.held for lease in self._leases)

    @property
    def lost(self) -> bool:
        """True once one of them ended while it was still wanted. Never becomes False again."""
        return any(lease.lost for lease in self._leases)

    @property
    def remaining(self) -> float:
        """Seconds for which all are certainly held; 0 if they are not."""
        return min(lease.remaining for lease in self._leases)

    def check(self) -> None:
        """Raises LeaseLost if one was lost, NotHeld if they were released."""
        for lease in self._lost_first():
            lease.check()

    def _check(self) -> None:
        """The same in the middle of an operation."""
        for lease in self._lost_first():
            lease._check()

    def _is_held(self) -> bool:
        return self.held

    def _lost_first(self) -> list[Lease]:
        return sorted(self._leases, key=lambda lease: not lease.lost)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._leases!r}>"

    # What changes it

    def _adopt(self, lease: Lease) -> None:
        lease._adopt(self._owner, None, None, None)
        self._leases.append(lease)

    async def _extend(self, ttl: Seconds | None) -> None:
        self._check()
        for lease in self._leases:
            await lease._extend(ttl)

    async def _release(self) -> bool:
        freed = await self._end()
        if self._home is not None:
            self._home.mark_released(self)
        return freed

    async def _end(self, behind: bool = False, until: float = FOREVER) -> bool:
        """End every one of them, the last taken first, even if another one fails.

        `behind` means in the background, for where nothing can be awaited. A release is repeated for as long as the
        engine's patience lasts, and not longer than `until`. A backend that did not answer once is not
        waited for again: the rest is then done in the background too. An interrupt or a cancellation is raised after
        all were tried.
        """
        engine = self._engine
        freed, problem = True, None
        for lease in self._leases[::-1]:
            if behind:
                engine.behind(engine.release, lease)
                continue
            try:
                freed = await engine.release(lease, until=until) and freed
            except BaseException as error:
                behind = isinstance(error, LockError | GeneratorExit)
                problem = error if problem is None or isinstance(problem, LockError) else problem
        if problem is not None:
            raise problem
        return freed

    def _one_is_lost(self, _: Lease) -> object:
        """Then the others are released. What `on_lost` returns is awaited by the caller, not in a task."""
        self._engine.behind(type(self)._end, self)  # not here: a backend that hangs must not delay on_lost
        if self._home is None:
            return None  # no caller has got it
        on_lost, self._on_lost = self._on_lost, None  # called once, though others may be lost too
        return None if on_lost is None else on_lost(self)


class MultiLogic:
    """What `locks.all` gives: everything a lock object does, over several names."""

    __slots__ = ("_current", "_lease_type", "_on_lost", "_requests", "_wait", "engine")

    def __init__(
        self,
        engine: Engine,
        lease_type: type[MultiLease],
        requests: Sequence[Request],
        on_lost: Callable[[Any], object] | None,
    ) -> None:
        self.engine = engine
        self._lease_type = lease_type
        self._requests = sorted(requests, key=lambda request: request.terms.key)
        self._wait = requests[0].wait  # one for all of them together
        self._on_lost = on_lost
        self._current: list[MultiLease] = []  # oldest first

    async def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> MultiLease | None:
        answer = await self._take(wait_for(blocking, timeout, self._wait), None)
        if answer.__class__ is tuple:  # not isinstance(): nothing is called between the grant and the caller
            return None
        return answer  # type: ignore[return-value]

    async def enter(self, body: FrameType, statement: With | None = None) -> MultiLease:
        started = self.engine.now()
        answer = await self._take(self._wait, body, statement)
        if answer.__class__ is tuple:
            then = f"; none of {self.names} is kept"
            raise timed_out(*answer, self._wait, self.engine.now() - started, then)
        return answer  # type: ignore[return-value]

    async def _take(
        self, wait: float | None, body: FrameType | None, statement: With | None = None
    ) -> MultiLease | Missed:
        engine = self.engine
        engine.must_be_open()
        if wait is None:  # before it waits for an earlier name, perhaps for long
            for request in self._requests:
                engine.must_not_wait_for_itself(Claim("", request.terms))
        give_up_at = FOREVER if wait is None else engine.now() + wait
        while True:
            multi = self._lease_type(engine, self._on_lost)
            try:
                missed = await self._take_each(multi, give_up_at)
                if missed is None and self._hand_out(multi, body, statement):
                    return multi
                await self._give_back(multi)
            except BaseException as error:
                await self._give_back(multi, error)
                raise
            if missed is None and engine.now() >= give_up_at:
                missed = next(lease.name for lease in multi._leases if lease.lost), Busy(0, 0.0)
            if missed is not None:
                return missed  # else an early one was lost while a later one was waited for: begin again

    async def _take_each(self, multi: MultiLease, give_up_at: float) -> Missed | None:
        engine = self.engine
        for request in self._requests:
            asked = request.but(terms=request.terms._replace(holder=engine.holder), on_lost=multi._one_is_lost)
            left = None if give_up_at == FOREVER else max(0.0, give_up_at - engine.now())
            answer = await acquire(engine, asked, left, multi._adopt)
            if isinstance(answer, Busy):
                return request.terms.name, answer
            if multi.lost:
                break
        return None

    def _hand_out(self, multi: MultiLease, body: FrameType | None, statement: With | None) -> bool:
        """It is the caller's from now on, unless one of them is lost already. Inside a `with` it has a body."""
        engine = self.engine
        guard = _OneGuard(engine.world.guard(engine.world.owner()), engine.mutex) if body is not None else None
        for lease in multi._leases:
            engine.keeper.notice(lease)
        with engine.mutex:  # no lease changes its state meanwhile: a loss before is not reported, one after is
            if any(lease._state != "held" for lease in multi._leases):
                return False
            multi._home = self
            multi._guard = guard
            for lease in multi._leases:
                lease._enter(guard, call_of(body))
            if statement is not None:
                statement.entry = multi
            self._current.append(multi)
        return True

    async def _give_back(self, multi: MultiLease, error: BaseException | None = None) -> None:
        """No caller has got it. A backend that does not answer is not waited for: the background gives it back."""
        engine = self.engine
        brief = error is None or isinstance(error, LockError)  # else it was interrupted or cancelled
        await self._undo(multi, error, engine.now() + (engine.briefly if brief else INTERRUPTED_WITHIN_S))
        for lease in multi._leases:
            if lease._state == "releasing":
                engine.unfinished.add(lease._claim)

    async def _undo(self, multi: MultiLease, error: BaseException | None = None, until: float = FOREVER) -> None:
        """Leave nothing behind; after a GeneratorExit nothing can be awaited."""
        engine = self.engine
        multi._guard = None
        self.mark_released(multi)
        closing = isinstance(error, GeneratorExit) and not engine.world.blocking
        with suppress(LockError):
            await multi._end(behind=closing, until=until)

    async def leave(self, exc: BaseException | None, multi: MultiLease | None = None) -> None:
        """After the body. Raises LeaseLost if one was lost and nothing else went wrong."""
        try:
            multi = multi or self._find(entered=True)
            if multi is None:
                return
            ours = self._close_guard(multi, exc)
            await self._end(multi, exc)
            lost = next((lease for lease in multi._leases if lease._state == "lost"), None)
            if lost is not None:
                if exc is None or ours:
                    raise lost._not_held() from exc
                exc.add_note(f"also: {lost._not_held()}")
        except Exception:
            raise
        except BaseException as interrupt:  # finish what it cut short, then raise it
            multi = multi or self._find(entered=True)
            if multi is not None:
                await self._undo(multi, interrupt)
            raise

    def left_behind(self, multi: MultiLease) -> None:
        """Its `with` is over. If it is not, it is ended soon. Takes no mutex."""
        if multi in self._current:
            self._close_guard(multi, None)  # no body runs under it any more, so no caller waits for itself
            self.engine.put_off(self._undo(multi))

    def _close_guard(self, multi: MultiLease, exc: BaseException | None) -> bool:
        """The body is over. True if it was ended by the loss and by nothing else."""
        guard = multi._guard
        for lease in multi._leases:
            lease._enter(None, None)
        return guard is not None and guard.close(None if exc is None else type(exc))

    async def _end(self, multi: MultiLease, exc: BaseException | None) -> None:
        if isinstance(exc, GeneratorExit):
            await self._undo(multi, exc)
            return
        try:
            await multi._end()
        except LockError as error:
            # The body ran under the locks, and they end by themselves: not worth spoiling its result.
            if exc is not None:
                exc.add_note(f"also: {error}")
        multi._guard = None
        self.mark_released(multi)

    async def release(self) -> None:
        """Release what was last acquired through this object. Raises NotHeld if there is nothing."""
        multi = self._find(entered=False)
        if multi is None:
            raise NotHeld(f"{self.names} are not held through this object; nothing was released")
        if not await multi._release():
            multi._check()

    def mark_released(self, multi: MultiLease) -> None:
        """It is over; but inside a `with` it stays until that is left, which then ends no other lease."""
        if multi._guard is None:
            with suppress(ValueError):
                self._current.remove(multi)

    async def locked(self) -> bool:
        """Whether one of the names is held."""
        self.engine.must_be_open()
        for request in self._requests:
            if (await self.engine.once(partial(holders_of, self.engine.backend, request.terms.key))).locked:
                return True
        return False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(request.terms.name for request in self._requests)

    def _find(self, *, entered: bool) -> MultiLease | None:
        """The caller's last one, or else another caller's."""
        owner = self.engine.world.owner()
        fitting = [multi for multi in self._current if multi._guard is not None or not entered]
        mine = [multi for multi in fitting if multi._owner is owner]
        return (mine or fitting or [None])[-1]  # type: ignore[list-item]

    def __repr__(self) -> str:
        return f"{self.names!r}, leases here: {self._current!r}"
