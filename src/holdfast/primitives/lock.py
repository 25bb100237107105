"""A lock object: what it asks for, and which of its leases belongs to whom.

Decides: what entering, leaving, trying and entering again mean.
Leaves to the engine: waiting, keeping and losing. Leaves to `sync` and `aio`: how it looks from outside.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from types import FrameType

from holdfast._model import Busy
from holdfast._text import shown
from holdfast._time import Seconds, length, say
from holdfast._worlds import Guard
from holdfast.engine.acquire import Adopt, acquire
from holdfast.engine.core import Engine
from holdfast.engine.lease import Lease, Request
from holdfast.errors import AcquireTimeout, LockError, NotHeld


def wait_for(blocking: bool, timeout: Seconds | None, wait: float | None) -> float | None:
    """How long `acquire(blocking, timeout)` may wait, where `wait` is the lock's own."""
    if blocking is not True and blocking is not False:  # 5 and "no" would wait for ever
        raise ValueError(
            f"acquire(blocking) must be True or False, not {shown(blocking)}; acquire(timeout=5) waits for 5 seconds"
        )
    if not blocking:
        if timeout is not None and timeout != -1:
            raise ValueError("acquire(blocking=False) tries once, so a timeout makes no sense with it")
        return 0.0
    if timeout is None:
        return wait
    if timeout == -1:  # as threading.Lock spells it
        return None
    return length(timeout, "timeout", zero=True)


def timed_out(name: str, busy: Busy, wait: float | None, waited: float, then: str = "") -> AcquireTimeout:
    """What is raised in place of a lease; a try, with a `wait` of 0, did not wait for anything."""
    why = busy.in_words if wait == 0 else f"still {busy.in_words} after {say(waited)}"
    return AcquireTimeout(f"lock {name!r} is {why}{then}", name=name, waited=waited, holder=busy.holder)


class _Entry:
    """One acquire or one `with` that is not over yet. A lease that is entered again has several."""

    __slots__ = ("guard", "lease", "let_go", "owner")

    def __init__(self, lease: Lease, owner: object, guard: Guard | None) -> None:
        self.lease = lease
        self.owner = owner
        self.guard = guard  # over the body of a `with`; None for a plain acquire
        self.let_go = False  # the body of the `with` released it; the `with` itself is not over yet


class LockLogic:
    """Everything a lock object does, for both worlds."""

    __slots__ = ("_current", "engine", "request")

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine = engine
        self.request = request
        # Oldest first. One object may be shared by threads or tasks, and a lost lease stands beside its successor
        # until its own `with` is left.
        self._current: list[_Entry] = []

    async def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> Lease | None:
        """The lease, or None if it was not to be had in time."""
        answer = await self._take(wait_for(blocking, timeout, self.request.wait), self._adopt)
        if answer.__class__ is Busy:  # not isinstance(): nothing is called between the grant and the caller
            return None
        return answer  # type: ignore[return-value]

    def _take(self, wait: float | None, adopt: Adopt) -> Awaitable[Lease | Busy]:
        engine, request = self.engine, self.request
        if engine.closed:
            engine.must_be_open()
        if request.reentrant:
            inner = self._enter_again(adopt)
            if inner is not None:
                return _ready(inner)
        if request.terms.holder is not engine.holder and not request.named:  # this object came through a fork
            request = self.request = request._replace(terms=request.terms._replace(holder=engine.holder))
        return acquire(engine, request, wait, adopt)

    def _adopt(self, lease: Lease) -> None:
        self._enrol(lease, self.engine.world.owner(), None)

    def _adopt_to_enter(self, body: FrameType, lease: Lease) -> None:
        world = self.engine.world
        owner = world.owner()
        guard = world.guard(owner)
        if lease._guard is None:
            lease._enter(guard, body)
        self._enrol(lease, owner, guard)

    def _enrol(self, lease: Lease, owner: object, guard: Guard | None) -> None:
        lease._owner = owner
        lease._home = self
        if self.request.reentrant:
            self.engine.entered[owner, self.request.terms.key] = lease
        self._current.append(_Entry(lease, owner, guard))

    def _enter_again(self, adopt: Adopt) -> Lease | None:
        lease = self.engine.entered.get((self.engine.world.owner(), self.request.terms.key))
        if lease is None:
            return None
        if not lease.held and lease._guard is None:
            self.engine.keeper.notice(lease)
            return None  # lost, and no body runs under it: ask afresh
        lease._check()  # inside its `with`, what was lost cannot be entered again
        lease._depth += 1
        adopt(lease)
        return lease

    async def enter(self, body: FrameType) -> Lease:
        """The lease for the body of a `with` in that call. Raises AcquireTimeout: the body never runs without it."""
        started = self.engine.now()
        answer = await self._take(self.request.wait, partial(self._adopt_to_enter, body))
        if answer.__class__ is Busy:
            request = self.request
            raise timed_out(request.terms.name, answer, request.wait, self.engine.now() - started)
        return answer  # type: ignore[return-value]

    async def __aenter__(self) -> Lease:
        return await self.enter(sys._getframe(1))

    async def __aexit__(self, _: object, exc: BaseException | None, __: object) -> None:
        await self.leave(exc)

    async def leave(self, exc: BaseException | None) -> None:
        """After the body. Raises LeaseLost if the lease was lost and nothing else went wrong."""
        entry = None
        try:
            entry = self._find(entered=True)
            if entry is None:
                return
            lease, guard = entry.lease, entry.guard
            if lease._guard is guard:
                lease._enter(None, None)
            ours = guard.close(None if exc is None else type(exc)) if guard is not None else False
            if exc is None and lease._depth == 1 and not entry.let_go:  # as `_end` would, with no frame in between
                with suppress(LockError):
                    await self.engine.release(lease)
                self._forget(entry)
            else:
                await self._end(entry, exc)
            if lease._state == "lost":
                lost = lease._not_held()
                if exc is None or ours:
                    raise lost from exc
                exc.add_note(f"also: {lost}")
        except Exception:
            raise
        except BaseException:  # an interrupt of the blocking world: what it cut short is done before it goes on
            entry = entry or self._find(entered=True)
            if entry is not None:
                await self._end(entry, None)
            raise

    async def _end(self, entry: _Entry, exc: BaseException | None) -> None:
        engine, lease = self.engine, entry.lease
        # A coroutine that is being closed can await nothing, and may be closed in the middle of anything.
        closing = exc.__class__ is GeneratorExit and not engine.world.blocking
        if entry.let_go:
            pass  # the body did that
        elif lease._depth > 1:
            lease._depth -= 1
            entry.let_go = True
            if not closing:
                engine.keeper.notice(lease)
        elif closing:
            engine.behind(engine.release, lease)
        else:
            try:
                await engine.release(lease)
            except LockError as error:
                # The body ran under the lock, and the lock ends by itself: not worth spoiling its result.
                if exc is not None:
                    exc.add_note(f"also: {error}")
        self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        entry.let_go = True
        if entry in self._current:
            self._current.remove(entry)

    async def release(self) -> None:
        """Let go of what the caller last acquired through this object; if that is nothing, of what anybody did.

        Raises NotHeld if there is nothing, LeaseLost if it was lost; nobody else's hold is touched.
        """
        entry = self._find(entered=False)
        if entry is None:
            name = self.request.terms.name
            raise NotHeld(f"lock {name!r} is not held through this object; nothing was released", name=name)
        freed = await entry.lease._release_once()
        self._let_go(entry)
        if not freed:
            raise entry.lease._not_held()

    def let_go_of(self, lease: Lease) -> None:
        """One acquire of it is over."""
        for entry in self._current[::-1]:
            if entry.lease is lease and not entry.let_go:
                self._let_go(entry)
                return

    def _let_go(self, entry: _Entry) -> None:
        entry.let_go = True
        if entry.guard is None:  # else it stays until its `with` is left, which then ends nobody else's hold
            self._current.remove(entry)

    def drop(self, lease: Lease) -> None:
        """It never reached anybody."""
        self._current[:] = [entry for entry in self._current if entry.lease is not lease]

    async def locked(self) -> bool:
        """Whether anybody holds it, here or elsewhere."""
        self.engine.must_be_open()
        info = await self.engine.once(lambda: self.engine.backend.inspect(self.request.terms.key))
        return info.locked

    def _find(self, *, entered: bool) -> _Entry | None:
        """The caller's last `with`, or else last entry that is not let go of; if there is none, anybody's."""
        current = self._current
        if len(current) == 1:
            entry = current[0]
            return None if ((entry.guard is None) if entered else entry.let_go) else entry
        owner = self.engine.world.owner()
        found = None
        for entry in current[::-1]:
            if (entry.guard is None) if entered else entry.let_go:
                continue
            if entry.owner is owner:
                return entry
            found = found or entry
        return found

    def __repr__(self) -> str:
        terms = self.request.terms
        leases = [entry.lease for entry in self._current]
        return f"{terms.name!r} ttl={say(terms.ttl)} {terms.mode}, leases here: {leases!r}"


async def _ready(lease: Lease) -> Lease:
    return lease
