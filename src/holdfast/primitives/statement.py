"""One `with` statement: which entry it ends, and how its end is noticed though nothing of ours was called.

Decides: that each `with` ends what it entered itself, and that a `with` cut short before its `__exit__` could begin
ends it too.
Leaves to the lock object: what entering and leaving mean.

A `with` looks `__exit__` up before it enters, keeps what it found until it is over, and calls it. So what is found is
made for that one `with`. An interrupt (KeyboardInterrupt, in the main thread) can come before the first instruction of
any Python function, of `__exit__` too. Then the `with` is over, and drops what it had found: that is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol, overload
from weakref import ref

from holdfast._reentry import drive, nothing
from holdfast.engine.core import Engine

Type = type[BaseException] | None
Error = BaseException | None
Traceback = TracebackType | None


class Entered(Protocol):
    """What a lock object's logic does with the entry of one `with`."""

    @property
    def engine(self) -> Engine: ...

    def leave(self, exc: BaseException | None, entry: Any = None) -> Coroutine[Any, Any, None]:
        """After the body; without an entry, that of the caller's last `with`."""
        ...

    def left_behind(self, entry: Any) -> None:
        """Its `with` is over. If the entry is not, have it ended soon. Takes no mutex."""
        ...


class With:
    """One `with`, from before it enters."""

    __slots__ = ("alive", "entry", "logic")

    def __init__(self, logic: Entered) -> None:
        self.logic = logic
        self.entry: Any = None  # what it entered; set in one step with the entry itself
        self.alive: _Alive | None = None  # tells whether the `with` can still call what it found; None: not looked at


class _Alive(ref):  # type: ignore[type-arg]
    """Refers to what a `with` calls in the end, and knows the `with` that this is made for."""

    __slots__ = ("statement",)
    statement: With


# By thread: the `with` that has looked `__exit__` up, and enters next.
_begun: dict[int, With] = {}


def begun(logic: object) -> With | None:
    """The `with` that enters now; None if it does so by hand, with a call of `__enter__`."""
    statement = _begun.pop(get_ident(), None)
    if statement is None or statement.logic is not logic:
        return None
    gone = statement.alive is not None and statement.alive() is None
    return None if gone else statement


class Exit:
    """`__exit__` of a lock object of the blocking world."""

    __slots__ = ()

    @overload
    def __get__(self, lock: None, cls: type) -> Callable[[Any, Type, Error, Traceback], None]: ...
    @overload
    def __get__(self, lock: Any, cls: type) -> Callable[[Type, Error, Traceback], None]: ...
    def __get__(self, lock: Any, cls: type) -> Any:
        if lock is None:
            return _leave_last  # as an `ExitStack` looks it up
        statement = _begun[get_ident()] = With(lock._logic)
        leave = partial(_leave, statement)  # not a bound method, which is gone as soon as it is called
        alive = statement.alive = _Alive(leave, _is_over)
        alive.statement = statement
        return leave


def _leave_last(self: Any, exc_type: Type, exc: Error, traceback: Traceback) -> None:
    """End the caller's last `with`."""
    drive(self._logic.leave(exc), self._logic.engine, nothing)


def _leave(statement: With, exc_type: Type, exc: Error, traceback: Traceback) -> None:
    logic = statement.logic
    drive(logic.leave(exc, statement.entry), logic.engine, nothing)
    statement.alive = None  # there is nothing left to notice


def _is_over(alive: _Alive) -> None:
    """Called in the middle of anything, as a finalizer is."""
    statement = alive.statement
    statement.alive = None
    if statement.entry is not None:
        statement.logic.left_behind(statement.entry)


class AsyncExit:
    """`__aexit__` of a lock object for asyncio, where no interrupt comes before its first instruction."""

    __slots__ = ()

    @overload
    def __get__(self, lock: None, cls: type) -> Callable[[Any, Type, Error, Traceback], Coroutine[Any, Any, None]]: ...
    @overload
    def __get__(self, lock: Any, cls: type) -> Callable[[Type, Error, Traceback], Coroutine[Any, Any, None]]: ...
    def __get__(self, lock: Any, cls: type) -> Any:
        if lock is None:
            return _leave_last_async  # as an `AsyncExitStack` looks it up
        statement = _begun[get_ident()] = With(lock._logic)
        return partial(_leave_async, statement)


async def _leave_last_async(self: Any, exc_type: Type, exc: Error, traceback: Traceback) -> None:
    """End the caller's last `async with`."""
    await self._logic.leave(exc)


def _leave_async(statement: With, exc_type: Type, exc: Error, traceback: Traceback) -> Coroutine[Any, Any, None]:
    return statement.logic.leave(exc, statement.entry)
