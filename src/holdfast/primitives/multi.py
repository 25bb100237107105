"""Several names as one: taken in one order, all or nothing, and lost together.

Decides: the order (by key, the same for every caller, so that no two can wait for each other), how one `wait` is
shared between the names, and that the loss of one ends the others.
Leaves to the engine: each single lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from holdfast._model import Busy
from holdfast._time import Seconds, say
from holdfast._worlds import Guard
from holdfast.engine.acquire import acquire
from holdfast.engine.core import Engine
from holdfast.engine.lease import Lease, Request
from holdfast.errors import AcquireTimeout, LockError, NotHeld
from holdfast.primitives.lock import wait_for


class _OneGuard:
    """Over the one body that several leases protect: only the first loss interrupts it."""

    __slots__ = ("_guard", "_interrupted")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._interrupted = False

    def interrupt(self) -> None:
        if not self._interrupted:
            self._interrupted = True
            self._guard.interrupt()

    def close(self, exc_type: type[BaseException] | None) -> bool:
        return self._guard.close(exc_type)


class MultiLease:
    """One lease over several names. It is held while all of them are, and lost as soon as one is."""

    __slots__ = ("_engine", "_guard", "_leases", "_on_lost", "_owner")

    def __init__(self, engine: Engine, on_lost: Callable[[Any], object] | None) -> None:
        self._engine = engine
        self._on_lost = on_lost
        self._leases: list[Lease] = []  # in the order in which they were taken
        self._guard: Guard | None = None
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
        """The lease of each name, to look at."""
        return {lease.name: lease for lease in self._leases}

    @property
    def holder(self) -> str:
        """Who holds it, as others are told when they ask."""
        return self._engine.holder

    @property
    def ttl(self) -> float:
        """How long each renewal lasts, in seconds."""
        return min(lease.ttl for lease in self._leases)

    @property
    def expires_at(self) -> float:
        """Wall-clock time at which the first of them ends unless renewed, for people to read."""
        return min(lease.expires_at for lease in self._leases)

    @property
    def held(self) -> bool:
        """True while nobody else can hold any of the names."""
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
        for lease in sorted(self._leases, key=lambda lease: not lease.lost):
            lease.check()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._leases!r}>"

    # What changes it

    def _adopt(self, lease: Lease) -> None:
        lease._owner = self._owner
        self._leases.append(lease)

    async def _extend(self, ttl: Seconds | None) -> bool:
        self.check()
        for lease in self._leases:
            await lease._extend(ttl)
        return True

    async def _release(self) -> bool:
        """The last taken first. Every one is let go of, whatever becomes of the others."""
        freed, error = True, None
        for lease in reversed(self._leases):
            try:
                freed = await self._engine.release(lease) and freed
            except LockError as problem:
                error = problem
        if error is not None:
            raise error
        return freed

    async def _undo(self, closing: bool) -> None:
        """It never reached anybody."""
        for lease in reversed(self._leases):
            if closing and not self._engine.world.blocking:
                self._engine.behind(self._engine.release, lease)
            else:
                with suppress(LockError):
                    await self._engine.release(lease)

    async def _one_is_lost(self, _: Lease) -> None:
        """Then none is worth keeping."""
        with suppress(LockError):
            await self._release()
        on_lost, self._on_lost = self._on_lost, None  # told once, though others may be lost too
        if on_lost is not None:
            answer = on_lost(self)
            if isinstance(answer, Awaitable):
                await answer


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
        return answer if isinstance(answer, MultiLease) else None

    async def enter(self) -> MultiLease:
        started = self.engine.now()
        answer = await self._take(self._wait, _OneGuard(self.engine.world.guard()))
        if isinstance(answer, MultiLease):
            return answer
        name, busy = answer
        waited = self.engine.now() - started
        held_by = f"held by {busy.holder!r}" if busy.holder else "not free"
        raise AcquireTimeout(
            f"lock {name!r} is still {held_by} after {say(waited)}; none of {self.names} is kept",
            name=name,
            waited=waited,
            holder=busy.holder,
        )

    async def _take(self, wait: float | None, guard: Guard | None) -> MultiLease | tuple[str, Busy]:
        engine = self.engine
        engine.must_be_open()
        multi = self._lease_type(engine, self._on_lost)
        give_up_at = None if wait is None else engine.now() + wait
        closing = False
        try:
            for request in self._requests:
                asked = request._replace(terms=request.terms._replace(holder=engine.holder), on_lost=multi._one_is_lost)
                left = None if give_up_at is None else max(0.0, give_up_at - engine.now())
                answer = await acquire(engine, asked, left, multi._adopt)
                if isinstance(answer, Busy):
                    await multi._undo(closing)
                    return request.terms.name, answer
            self._believe(multi, guard)
            return multi
        except BaseException as error:
            await multi._undo(isinstance(error, GeneratorExit))
            raise

    def _believe(self, multi: MultiLease, guard: Guard | None) -> None:
        multi._guard = guard
        for lease in multi._leases:
            lease._guard = guard
        multi.check()  # an early one may have been lost while a later one was waited for
        self._current.append(multi)

    async def leave(self, exc: BaseException | None) -> None:
        """After the body. Raises LeaseLost if one was lost and nothing else went wrong."""
        multi = self._find(entered=True)
        if multi is None:
            return
        guard, multi._guard = multi._guard, None
        for lease in multi._leases:
            lease._guard = None
        ours = guard.close(None if exc is None else type(exc)) if guard is not None else False
        try:
            await self._end(multi, exc)
        finally:
            self._current.remove(multi)
        lost = next((lease for lease in multi._leases if lease._state == "lost"), None)
        if lost is not None:
            if exc is None or ours:
                raise lost._not_held() from exc
            exc.add_note(f"also: {lost._not_held()}")

    async def _end(self, multi: MultiLease, exc: BaseException | None) -> None:
        if isinstance(exc, GeneratorExit) and not self.engine.world.blocking:
            await multi._undo(closing=True)
            return
        try:
            await multi._release()
        except LockError as error:
            if exc is not None:
                exc.add_note(f"also: {error}")

    async def release(self) -> None:
        """Let go of what was last acquired through this object. Raises NotHeld if there is nothing."""
        multi = self._find(entered=False)
        if multi is None:
            raise NotHeld(f"{self.names} are not held through this object; nothing was released")
        if multi._guard is None:
            self._current.remove(multi)
        if not await multi._release():
            multi.check()

    async def locked(self) -> bool:
        """Whether anybody holds one of the names."""
        self.engine.must_be_open()
        for request in self._requests:
            if (await self.engine.backend.inspect(request.terms.key)).locked:
                return True
        return False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(request.terms.name for request in self._requests)

    def _find(self, *, entered: bool) -> MultiLease | None:
        """The caller's last one, or else anybody's."""
        owner = self.engine.world.owner()
        fitting = [multi for multi in self._current if (multi._guard is not None) == entered] or (
            [] if entered else self._current
        )
        mine = [multi for multi in fitting if multi._owner is owner]
        return (mine or fitting or [None])[-1]  # type: ignore[list-item]

    def __repr__(self) -> str:
        return f"{self.names!r}, leases here: {self._current!r}"
