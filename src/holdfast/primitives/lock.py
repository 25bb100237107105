"""A lock object: what it asks for, and which of its leases belongs to whom.

Decides: what entering, leaving, trying and entering again mean.
Leaves to the engine: waiting, keeping and losing. Leaves to `sync` and `aio`: how it looks from outside.
"""

from __future__ import annotations

from collections.abc import Awaitable

from holdfast._model import Busy
from holdfast._time import Seconds, length, say
from holdfast.engine.acquire import Adopt, acquire
from holdfast.engine.core import Engine
from holdfast.engine.lease import Lease, Request
from holdfast.errors import AcquireTimeout, LockError, NotHeld


class LockLogic:
    """Everything a lock object does, for both worlds."""

    __slots__ = ("_current", "engine", "request")

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine = engine
        self.request = request
        # Leases taken through this object and not let go of yet, oldest first. One object may be shared by
        # threads or tasks, and a lost lease stands beside its successor until its own `with` is left.
        self._current: list[Lease] = []

    async def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> Lease | None:
        """The lease, or None if it was not to be had in time."""
        answer = await self._take(self._wait_for(blocking, timeout), self._adopt)
        if answer.__class__ is Busy:  # not isinstance(): nothing is called between the grant and the caller
            return None
        return answer  # type: ignore[return-value]

    def _wait_for(self, blocking: bool, timeout: Seconds | None) -> float | None:
        if not blocking:
            if timeout is not None and timeout != -1:
                raise ValueError("acquire(blocking=False) tries once, so a timeout makes no sense with it")
            return 0.0
        if timeout is None:
            return self.request.wait
        if timeout == -1:  # as threading.Lock spells it
            return None
        return length(timeout, "timeout", zero=True)

    def _take(self, wait: float | None, adopt: Adopt) -> Awaitable[Lease | Busy]:
        engine, request = self.engine, self.request
        if engine.closed:
            engine.must_be_open()
        if request.reentrant:
            inner = self._enter_again()
            if inner is not None:
                return _ready(inner)
        if request.terms.holder is not engine.holder:  # this object came through a fork
            request = self.request = request._replace(terms=request.terms._replace(holder=engine.holder))
        return acquire(engine, request, wait, adopt)

    def _adopt(self, lease: Lease) -> None:
        lease._owner = owner = self.engine.world.owner()
        if self.request.reentrant:
            self.engine.entered[owner, self.request.terms.key] = lease
        lease._home = self._current
        self._current.append(lease)

    def _adopt_to_enter(self, lease: Lease) -> None:
        lease._guard = self.engine.world.guard()
        self._adopt(lease)

    def _enter_again(self) -> Lease | None:
        lease = self.engine.entered.get((self.engine.world.owner(), self.request.terms.key))
        if lease is None:
            return None
        if not lease.held and lease._guard is None:
            self.engine.keeper.notice(lease)
            return None  # lost, and no body runs under it: ask afresh
        lease.check()  # inside its `with`, what was lost cannot be entered again
        lease._depth += 1
        self._current.append(lease)
        return lease

    async def enter(self) -> Lease:
        """The lease for the body of a `with`. Raises AcquireTimeout: the body never runs without it."""
        started = self.engine.now()
        answer = await self._take(self.request.wait, self._adopt_to_enter)
        if answer.__class__ is Busy:
            raise self._timed_out(answer.holder, self.engine.now() - started)
        return answer  # type: ignore[return-value]

    def _timed_out(self, holder: str | None, waited: float) -> AcquireTimeout:
        name = self.request.terms.name
        held_by = f"held by {holder!r}" if holder else "not free"
        text = f"lock {name!r} is still {held_by} after {say(waited)}"
        return AcquireTimeout(text, name=name, waited=waited, holder=holder)

    async def leave(self, exc: BaseException | None) -> None:
        """After the body. Raises LeaseLost if the lease was lost and nothing else went wrong."""
        lease = self._find(entered=True)
        if lease is None:
            return  # the body let go of it
        self._current.remove(lease)
        if lease._depth > 1:
            lease._depth -= 1
            return
        engine = self.engine
        guard, lease._guard = lease._guard, None
        ours = guard.close(type(exc) if exc is not None else None) if guard is not None else False
        if exc.__class__ is GeneratorExit and not engine.world.blocking:
            engine.behind(engine.release, lease)  # the coroutine is being closed: nothing can be awaited in it any more
            return
        try:
            await engine.release(lease)
        except LockError as error:
            # The body ran under the lock, and the lock ends by itself: not worth spoiling its result.
            if exc is not None:
                exc.add_note(f"also: {error}")
        if lease._state == "lost":
            lost = lease._not_held()
            if exc is None or ours:
                raise lost from exc
            exc.add_note(f"also: {lost}")

    async def release(self) -> None:
        """Let go of what the caller last acquired through this object; if that is nothing, of what anybody did.

        Raises NotHeld if there is nothing, LeaseLost if it was lost; nobody else's hold is touched.
        """
        lease = self._find(entered=False)
        if lease is None:
            name = self.request.terms.name
            raise NotHeld(f"lock {name!r} is not held through this object; nothing was released", name=name)
        if not await lease._release():
            raise lease._not_held()

    async def locked(self) -> bool:
        """Whether anybody holds it, here or elsewhere."""
        self.engine.must_be_open()
        info = await self.engine.backend.inspect(self.request.terms.key)
        return info.locked

    def _find(self, *, entered: bool) -> Lease | None:
        """The last that the caller took; if there is none, the last that anybody took."""
        owner = self.engine.world.owner()
        found = None
        for lease in reversed(self._current):
            if entered and lease._guard is None:
                continue
            if lease._owner is owner:
                return lease
            found = found or lease
        return found

    def __repr__(self) -> str:
        terms = self.request.terms
        return f"{terms.name!r} ttl={say(terms.ttl)} {terms.mode}, leases here: {self._current!r}"


async def _ready(lease: Lease) -> Lease:
    return lease
