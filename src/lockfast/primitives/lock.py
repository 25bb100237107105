"""A lock object: what it asks for, and which of its leases belongs to which caller.

Decides: what entering, leaving, trying and entering again mean.
Leaves to the engine: waiting, keeping and losing. Leaves to `sync` and `aio`: the public methods.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any, NoReturn, TypeVar

from lockfast._model import Busy
from lockfast._text import shown
from lockfast._time import Seconds, format_duration, length
from lockfast._worlds import Guard
from lockfast.backends.optional import holders_of
from lockfast.engine.acquire import acquire
from lockfast.engine.core import Engine
from lockfast.engine.lease import Lease
from lockfast.engine.request import Refused, Request, call_of
from lockfast.errors import AcquireTimeout, LockError, NotHeld
from lockfast.primitives.statement import With, statement_of

T = TypeVar("T")


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
    why = busy.in_words if wait == 0 else f"still {busy.in_words} after {format_duration(waited)}"
    return AcquireTimeout(f"lock {name!r} is {why}{then}", name=name, waited=waited, holder=busy.holder)


def no_lease(_: Request, __: Busy, ___: float) -> Any:
    """What a try that was refused gives."""
    return None


def no_body(request: Request, busy: Busy, waited: float) -> NoReturn:
    """A body never runs without the lease."""
    raise timed_out(request.terms.name, busy, request.wait, waited)


class Entry:
    """One acquire or one `with` that is not over yet. A lease that is entered again has several."""

    # No `__eq__` or `__hash__`: a lookup in a dict calls nothing.
    __slots__ = ("_body", "_logic", "_statement", "guard", "lease", "owner", "released")

    lease: Lease  # this and the next two from `adopt` on
    owner: object
    guard: Guard | None  # over the body of a `with`; None for a plain acquire

    def __init__(self, logic: LockLogic, body: FrameType | None, statement: With | None) -> None:
        self._logic = logic
        self._body = body
        self._statement = statement
        self.released = False  # the body of the `with` released it; the `with` itself is not over yet

    def adopt(self, lease: Lease, entries: int = 0) -> None:
        """It is the caller's from now on. In a `with` it has a body."""
        logic, body, statement = self._logic, self._body, self._statement
        engine = logic.engine
        self.owner = owner = engine.world.owner()
        self.guard = guard = engine.world.guard(owner) if body is not None else None
        self.lease = lease
        call = call_of(body)
        # Nothing else is called from here on, so no interrupt falls in between: all of it is done, or nothing.
        self._body = self._statement = None  # which would keep this and the call alive
        lease._adopt(owner, logic, guard, call, entries)
        if logic.request.reentrant:
            engine.entered[owner, logic.request.terms.key] = lease
        if statement is not None:
            statement.entry = self
        logic._current[self] = None


class LockLogic:
    """Everything a lock object does, for both worlds."""

    __slots__ = ("_current", "engine", "request")

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine = engine
        self.request = request
        # Oldest first. One object may be shared by threads or tasks, and a lost lease stands beside its successor
        # until its own `with` is left.
        self._current: dict[Entry, None] = {}

    @property
    def name(self) -> str:
        return self.request.terms.name

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> Coroutine[Any, Any, Lease | None]:
        """The lease, or None if it timed out."""
        wait = self.request.wait
        if blocking is not True or timeout is not None:
            wait = wait_for(blocking, timeout, wait)
        entry = Entry(self, None, None)
        if self.request.reentrant or self.engine.order is not None:  # which both ask which task runs: the one to come
            return self._enter_again_or_ask(wait, entry, no_lease)
        return self._ask(wait, entry, no_lease)

    def enter(self, body: FrameType, statement: With | None = None) -> Coroutine[Any, Any, Lease]:
        """The lease for the body of a `with` in that call. Raises AcquireTimeout: the body never runs without it."""
        entry = Entry(self, body, statement)
        if self.request.reentrant:
            return self._enter_again_or_ask(self.request.wait, entry, no_body)
        return self._ask(self.request.wait, entry, no_body)

    async def _enter_again_or_ask(self, wait: float | None, entry: Entry, refused: Refused) -> Any:
        lease = self._enter_again(entry) if self.request.reentrant else None
        if lease is None:
            lease = await self._ask(wait, entry, refused)
        return lease

    def _ask(self, wait: float | None, entry: Entry, refused: Refused) -> Coroutine[Any, Any, Any]:
        engine, request = self.engine, self.request
        if engine.closed:
            engine.must_be_open()
        if request.terms.holder is not engine.holder and not request.named:  # this object came through a fork
            request = self.request = request.but(terms=request.terms._replace(holder=engine.holder))
        return acquire(engine, request, wait, entry.adopt, refused)

    def _enter_again(self, entry: Entry) -> Lease | None:
        """The lease that the caller has already, if it may be entered again."""
        self.engine.must_be_open()
        lease = self.engine.entered.get((self.engine.world.owner(), self.request.terms.key))
        if lease is None:
            return None
        if not lease.held and lease._guard is None:
            self.engine.keeper.notice(lease)
            return None  # lost, and no body runs under it: acquire it anew
        lease._check()  # inside its `with`, what was lost cannot be entered again
        entry.adopt(lease, entries=1)
        return lease

    async def hold(self, work: Callable[[Lease], Awaitable[T]]) -> T:
        """What `work` returns, run under the lock. For lockfast's own code: a `with` of the user's has a statement."""
        statement = statement_of(self)
        try:
            lease = await self.enter(sys._getframe(), statement)
            try:
                answer = await work(lease)
            except BaseException as error:
                await self.leave(error, statement.entry)
                raise
            await self.leave(None, statement.entry)
            return answer
        finally:
            if self.engine.world.blocking and statement.entry in self._current:
                self.left_behind(statement.entry)  # an interrupt fell into the start of `leave`

    async def leave(self, exc: BaseException | None, entry: Entry | None = None) -> None:
        """After the body. Raises LeaseLost if the lease was lost and nothing else went wrong."""
        try:
            entry = entry or self._find(entered=True)
            if entry is None:
                return
            lease, guard = entry.lease, entry.guard
            if lease._guard is guard:
                lease._enter(None, None)
            ours = guard.close(None if exc is None else type(exc)) if guard is not None else False
            if exc is None and lease._depth == 1 and not entry.released:  # as `_end` would, with no frame in between
                try:  # noqa: SIM105  (`suppress` costs three calls)
                    await self.engine.release(lease)
                except LockError:
                    pass
                entry.released = True  # as `_forget` does
                self._current.pop(entry, None)
            else:
                await self._end(entry, exc)
            if lease._state == "lost":
                lost = lease._not_held()
                if exc is None or ours:
                    raise lost from exc
                exc.add_note(f"also: {lost}")
        except Exception:
            raise
        except BaseException:  # an interrupt of the blocking world: finish what it cut short, then raise it
            entry = entry or self._find(entered=True)
            if entry is not None:
                await self._end(entry, None)
            raise

    def left_behind(self, entry: Entry) -> None:
        """Its `with` is over. If its entry is not, end that soon. Takes no mutex."""
        if entry not in self._current:
            return
        lease = entry.lease
        if lease._guard is entry.guard:
            lease._enter(None, None)  # no body runs under it any more, so no caller waits for itself
        if lease._depth > 1 and not entry.released:
            lease._count_entry(-1)  # in one step with the next line, see `Entry.adopt`
            entry.released = True
        if entry.released:
            self._forget(entry)
        else:
            self.engine.forget_entry(lease)  # at once: its owner must not enter again what is about to end
            self.engine.put_off(self._end(entry, None))

    async def _end(self, entry: Entry, exc: BaseException | None) -> None:
        engine, lease = self.engine, entry.lease
        # A coroutine that is being closed can await nothing, and may be closed in the middle of anything.
        closing = exc.__class__ is GeneratorExit and not engine.world.blocking
        if entry.released:
            pass  # the body did that
        elif lease._depth > 1:
            lease._count_entry(-1)
            entry.released = True
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

    def _forget(self, entry: Entry) -> None:
        entry.released = True
        self._current.pop(entry, None)

    async def release(self) -> None:
        """Release what the caller last acquired through this object; if that is nothing, what another caller did.

        Raises NotHeld if there is nothing, LeaseLost if it was lost; no other hold is touched.
        """
        entry = self._find(entered=False)
        if entry is None:
            name = self.request.terms.name
            raise NotHeld(f"lock {name!r} is not held through this object; nothing was released", name=name)
        lease = entry.lease
        # As `_release` would, with no frame in between.
        freed = self._leave_once(entry) if lease._depth > 1 else await self.engine.release(lease)
        self._mark_released(entry)
        if not freed:
            raise lease._not_held()

    async def release_last(self, lease: Lease) -> bool:
        """Undo one entering of it; the last one ends it."""
        entry = next(
            (entry for entry in list(self._current)[::-1] if entry.lease is lease and not entry.released), None
        )
        return await (self.engine.release(lease) if entry is None else self._release(entry))

    async def _release(self, entry: Entry) -> bool:
        freed = self._leave_once(entry) if entry.lease._depth > 1 else await self.engine.release(entry.lease)
        self._mark_released(entry)
        return freed

    def _leave_once(self, entry: Entry) -> bool:
        """Whether the lease is held on: it was entered more than once."""
        lease = entry.lease
        lease._count_entry(-1)  # in one step with the next line, see `Entry.adopt`
        entry.released = True
        return lease.held

    def mark_released(self, lease: Lease) -> None:
        """One acquire of it is over."""
        for entry in list(self._current)[::-1]:
            if entry.lease is lease and not entry.released:
                self._mark_released(entry)
                return

    def _mark_released(self, entry: Entry) -> None:
        entry.released = True
        if entry.guard is None:  # else it stays until its `with` is left, which then ends no other hold
            self._current.pop(entry, None)

    def drop(self, lease: Lease) -> None:
        """No caller has got it."""
        for entry in [entry for entry in list(self._current) if entry.lease is lease]:
            self._forget(entry)

    async def locked(self) -> bool:
        """Whether it is held, here or elsewhere."""
        self.engine.must_be_open()
        info = await self.engine.once(partial(holders_of, self.engine.backend, self.request.terms.key))
        return info.locked

    def _find(self, *, entered: bool) -> Entry | None:
        """The caller's last `with`, or else its last entry that is not released; if there is none, another caller's."""
        entries = list(self._current)
        if len(entries) == 1:  # most objects have one caller: then it does not matter whose it is
            only = entries[0]
            return None if ((only.guard is None) if entered else only.released) else only
        owner = self.engine.world.owner()
        found = None
        for entry in entries[::-1]:
            if (entry.guard is None) if entered else entry.released:
                continue
            if entry.owner is owner:
                return entry
            found = found or entry
        return found

    def __repr__(self) -> str:
        terms = self.request.terms
        leases = [entry.lease for entry in list(self._current)]
        return f"{terms.name!r} ttl={format_duration(terms.ttl)} {terms.mode}, leases here: {leases!r}"
