"""One `with` statement: which entry it ends, and how its end is noticed even if its `__exit__` never ran.

Decides: that each `with` ends what it entered itself, and that a `with` cut short before its `__exit__` could begin
ends it too.
Leaves to the lock object: what entering and leaving mean.

A `with` looks `__exit__` up before it enters, keeps what it found until it is over, and calls it. So what is found is
made for that one `with`. An interrupt (KeyboardInterrupt, in the main thread) can come before the first instruction of
any Python function, of `__exit__` too. Then the `with` is over, and drops what it had found: that is noticed.

Code can look `__exit__` up without a `with`, and keep it. So only a lock that is entered by the same instruction, or
right after it, counts as entered by the `with` that has looked it up. All else ends the caller's last entry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import partial
from threading import get_ident
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import ref

from lockfast._reentry import drive, nothing
from lockfast.engine.core import Engine

Type = type[BaseException] | None
Error = BaseException | None
Traceback = TracebackType | None

# Bytes of code from where a `with` looks `__exit__` up to where it enters: one instruction up to Python 3.13, a few in
# 3.14. To look it up by its name takes more.
MAX_DISTANCE_BYTES: Final = 16


class Entered(Protocol):
    """What a lock object's logic does with the entry of one `with`."""

    @property
    def engine(self) -> Engine: ...

    def leave(self, exc: BaseException | None, entry: Any = None) -> Coroutine[Any, Any, None]:
        """After the body; without an entry, that of the caller's last `with`."""
        ...

    def left_behind(self, entry: Any) -> None:
        """Its `with` is over. If its entry is not, end that soon. Takes no mutex."""
        ...


class With:
    """One `with`, from before it enters. No `__init__`, which takes as long as all the rest: see `statement_of`."""

    __slots__ = ("alive", "entry", "logic")
    logic: Entered
    entry: Any  # what it entered; set in one step with the entry itself
    alive: _Alive | None  # once it has begun to enter


def statement_of(logic: Entered) -> With:
    """One that has not entered yet."""
    statement = With()
    statement.logic = logic
    statement.entry = statement.alive = None
    return statement


class _Alive(ref):  # type: ignore[type-arg]
    """Refers to what a `with` calls in the end. Once that `with` has begun to enter, nothing outside refers to this:
    see the test of collected cycles."""

    __slots__ = ("statement",)
    statement: With  # from then on; before, it would keep the lock object alive


# By thread: what was found last, by which call (its number, so that it is not kept alive), and at which instruction of
# its code. What was found refers to a `With`, and a `with` that enters next is that one.
_found: dict[int, tuple[ref[partial[Any]], int, CodeType, int]] = {}


def _find(logic: Entered, leave: Callable[..., Any], call: FrameType) -> partial[Any]:
    """For the `with` of that call, which looks its exit up."""
    statement = With()  # as `statement_of`, with no call in between
    statement.logic = logic
    statement.entry = statement.alive = None
    found = partial(leave, statement)  # no bound method: that is gone when it is called
    refers = _Alive(found, _is_over) if leave is _leave else ref(found)
    _found[get_ident()] = refers, id(call), call.f_code, call.f_lasti
    return found


def begun(logic: Entered, call: FrameType) -> With | None:
    """The `with` of that call, if it enters now; None if `__enter__` is called in another way."""
    thread = get_ident()
    last = _found.get(thread)
    if last is None:
        return None
    refers, number, code, offset = last
    if number != id(call) or code is not call.f_code or not 0 <= call.f_lasti - offset <= MAX_DISTANCE_BYTES:
        return None  # another call, or another instruction, has found it
    found = refers()
    if found is None:
        return None
    statement: With = found.args[0]
    if statement.logic is not logic:
        return None
    if refers.__class__ is _Alive:
        del _found[thread]
        refers.statement = statement
        statement.alive = refers
    return statement


class _Exit:
    """As a `with` looks its exit up.

    In asyncio no interrupt comes before the first instruction of an exit: the first Ctrl-C cancels the main task.
    """

    __slots__ = ("_leave", "_leave_last")

    def __init__(self, leave: Callable[..., Any], leave_last: Callable[..., Any]) -> None:
        self._leave = leave
        self._leave_last = leave_last

    def __get__(self, lock: Any, cls: type) -> Any:
        if lock is None:
            return self._leave_last  # as an `ExitStack` looks it up
        return _find(lock._logic, self._leave, sys._getframe(1))


def _leave_last(self: Any, exc_type: Type, exc: Error, traceback: Traceback) -> None:
    """End the caller's last `with`."""
    drive(self._logic.leave(exc), self._logic.engine, nothing)


def _leave(statement: With, exc_type: Type, exc: Error, traceback: Traceback) -> None:
    logic = statement.logic
    drive(logic.leave(exc, statement.entry), logic.engine, nothing)
    statement.entry = statement.alive = None  # there is nothing left to notice, and nothing to end if called again


def _is_over(alive: _Alive) -> None:
    """Called in the middle of anything, as a finalizer is."""
    statement = getattr(alive, "statement", None)
    if statement is None:  # it never began to enter
        return
    entry, statement.entry, statement.alive = statement.entry, None, None
    if entry is not None:
        statement.logic.left_behind(entry)


async def _leave_last_async(self: Any, exc_type: Type, exc: Error, traceback: Traceback) -> None:
    """End the caller's last `async with`."""
    await self._logic.leave(exc)


def _leave_async(statement: With, exc_type: Type, exc: Error, traceback: Traceback) -> Coroutine[Any, Any, None]:
    entry, statement.entry = statement.entry, None
    return statement.logic.leave(exc, entry)


class Exits:
    """`__exit__` of a lock object of the blocking world."""

    __slots__ = ()
    if TYPE_CHECKING:

        def __exit__(self, exc_type: Type, exc: Error, traceback: Traceback) -> None: ...

    else:
        __exit__ = _Exit(_leave, _leave_last)


class AsyncExits:
    """`__aexit__` of a lock object for asyncio."""

    __slots__ = ()
    if TYPE_CHECKING:

        async def __aexit__(self, exc_type: Type, exc: Error, traceback: Traceback) -> None: ...

    else:
        __aexit__ = _Exit(_leave_async, _leave_last_async)
