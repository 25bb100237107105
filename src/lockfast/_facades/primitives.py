"""Every primitive but the lock, in both worlds: flat, one line a method. All logic is in `primitives`."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from types import CoroutineType
from typing import Any, TypeVar, cast, overload

from lockfast._facades.lock import AsyncLease, AsyncLock, Lease, Lock
from lockfast._model import HolderInfo
from lockfast._reentry import drive, nothing
from lockfast._time import Seconds
from lockfast._values import Allowance
from lockfast.primitives import multi
from lockfast.primitives.cell import CellLogic, Versioned
from lockfast.primitives.election import ElectionLogic, Leadership
from lockfast.primitives.limiter import LimiterLogic
from lockfast.primitives.rwlock import RWLockLogic
from lockfast.primitives.statement import AsyncExits, Exits, begun

T = TypeVar("T")
Elected = Callable[[Lease], T]
AsyncElected = Callable[[AsyncLease], Awaitable[T] | T]


class RWLock:
    """Many readers or one writer, first come first served."""

    __slots__ = ("_logic",)

    def __init__(self, logic: RWLockLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    def read(self) -> Lock:
        """To enter beside other readers. Waits for writers that came before, and lets none that came later by."""
        return Lock(self._logic.read())

    def write(self) -> Lock:
        """To enter alone. `lease.downgrade()` turns a held write lease into a read lease without a gap."""
        return Lock(self._logic.write())

    def __repr__(self) -> str:
        return f"<RWLock {self._logic!r}>"


class AsyncRWLock:
    """Many readers or one writer, first come first served."""

    __slots__ = ("_logic",)

    def __init__(self, logic: RWLockLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    def read(self) -> AsyncLock:
        """To enter beside other readers. Waits for writers that came before, and lets none that came later by."""
        return AsyncLock(self._logic.read())

    def write(self) -> AsyncLock:
        """To enter alone. `lease.downgrade()` turns a held write lease into a read lease without a gap."""
        return AsyncLock(self._logic.write())

    def __repr__(self) -> str:
        return f"<AsyncRWLock {self._logic!r}>"


class MultiLease(multi.MultiLease):
    """One lease over several names: held while all are, lost as soon as one is. See `lockfast.primitives.multi`."""

    __slots__ = ()

    def extend(self, ttl: Seconds | None = None) -> None:
        """Hold all of them for at least `ttl` seconds from now. Raises LeaseLost if one is no longer ours."""
        drive(self._extend(ttl))

    def release(self) -> bool:
        """True if all were held until now. Every one is released, even if another one fails."""
        return drive(self._release(), self._engine, self._is_held)


class AsyncMultiLease(multi.MultiLease):
    """One lease over several names: held while all are, lost as soon as one is. See `lockfast.primitives.multi`."""

    __slots__ = ()

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Hold all of them for at least `ttl` seconds from now. Raises LeaseLost if one is no longer ours."""
        await self._extend(ttl)

    async def release(self) -> bool:
        """True if all were held until now. Every one is released, even if another one fails."""
        return await self._release()


class MultiLock(Exits):
    """Several names taken as one, all or nothing."""

    __slots__ = ("_logic",)

    def __init__(self, logic: multi.MultiLogic) -> None:
        self._logic = logic

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order in which they are taken, whatever order they were given in."""
        return self._logic.names

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> MultiLease | None:
        """One lease over all names, or None if one of them timed out; then none is kept."""
        return drive(self._logic.acquire(blocking, timeout))  # type: ignore[return-value]

    def release(self) -> None:
        """Release what was last acquired through this object. Raises NotHeld if there is nothing."""
        drive(self._logic.release(), self._logic.engine, nothing)

    def locked(self) -> bool:
        """Whether one of the names is held."""
        return drive(self._logic.locked())

    def __enter__(self) -> MultiLease:
        return drive(self._logic.enter(sys._getframe(1), begun(self._logic, sys._getframe(1))))  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<MultiLock {self._logic!r}>"


class AsyncMultiLock(AsyncExits):
    """Several names taken as one, all or nothing."""

    __slots__ = ("_logic",)

    def __init__(self, logic: multi.MultiLogic) -> None:
        self._logic = logic

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order in which they are taken, whatever order they were given in."""
        return self._logic.names

    async def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> AsyncMultiLease | None:
        """One lease over all names, or None if one of them timed out; then none is kept."""
        return cast("AsyncMultiLease | None", await self._logic.acquire(blocking, timeout))

    async def release(self) -> None:
        """Release what was last acquired through this object. Raises NotHeld if there is nothing."""
        await self._logic.release()

    async def locked(self) -> bool:
        """Whether one of the names is held."""
        return await self._logic.locked()

    def __aenter__(self) -> CoroutineType[Any, Any, AsyncMultiLease]:
        return self._logic.enter(sys._getframe(1), begun(self._logic, sys._getframe(1)))  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<AsyncMultiLock {self._logic!r}>"


class Election(Exits):
    """One candidate for the lead of a name; a context manager: leader for its block."""

    __slots__ = ("_logic",)

    def __init__(self, logic: ElectionLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    @property
    def candidate(self) -> str:
        """The holder that this one campaigns as: what `leader()` and `candidates()` show of it."""
        return self._logic.candidate

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads. From the clock: right after a pause of any length, too."""
        return self._logic.is_leader

    @property
    def term(self) -> int | None:
        """The fence of this candidate's term while it leads: a number that only ever grows. None otherwise."""
        return self._logic.term

    def campaign(self, timeout: Seconds | None = None) -> Lease | None:
        """Wait to be elected: the lease of the term, or None after `timeout`, by default the election's `wait`."""
        return drive(self._logic.campaign(timeout))  # type: ignore[return-value]

    def resign(self) -> bool:
        """Step down; the next candidate is elected. False if this one does not lead."""
        return drive(self._logic.resign(), self._logic.engine, self._logic.leads)

    def hand_over(self, to: str) -> None:
        """Step down in favour of the candidate of that name, before candidates that wait longer.

        Raises NotHeld if this one does not lead, and LockError if no such candidate waits; the leader then stays.
        """
        drive(self._logic.hand_over(to))

    def leader(self) -> HolderInfo | None:
        """Who leads now; `.holder` is its name and `.fence` its term. None while the place is vacant."""
        return drive(self._logic.leader())

    def candidates(self) -> tuple[str, ...]:
        """Who waits to be elected, the next one first."""
        return drive(self._logic.candidates())

    def run(
        self,
        on_elected: Elected[T],
        on_lost: Callable[[Lease], object] | None = None,
    ) -> T:
        """Campaign, and call `on_elected(lease)` once elected; after a loss begin again.

        Returns what `on_elected` returned, having resigned. `on_lost(lease)` is called at each loss, in another thread.
        """
        return drive(self._logic.run(on_elected, on_lost))  # type: ignore[no-any-return]

    def observe(self) -> Generator[Leadership]:
        """Who leads now and each change from then on, vacancies too, as they happen. Ends with the `Locks`.

        Close the iterator, or leave the loop over it, when you have seen enough.
        """
        observer = self._logic.observer()
        try:
            try:
                while (change := drive(observer.next())) is not None:
                    yield change
            finally:
                drive(observer.close(), self._logic.engine, nothing)
        finally:
            observer.left_behind()

    def __enter__(self) -> Lease:
        return drive(self._logic.enter(sys._getframe(1), begun(self._logic, sys._getframe(1))))  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<Election {self._logic!r}>"


class AsyncElection(AsyncExits):
    """One candidate for the lead of a name; a context manager: leader for its block."""

    __slots__ = ("_logic",)

    def __init__(self, logic: ElectionLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    @property
    def candidate(self) -> str:
        """The holder that this one campaigns as: what `leader()` and `candidates()` show of it."""
        return self._logic.candidate

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads. From the clock: right after a pause of any length, too."""
        return self._logic.is_leader

    @property
    def term(self) -> int | None:
        """The fence of this candidate's term while it leads: a number that only ever grows. None otherwise."""
        return self._logic.term

    async def campaign(self, timeout: Seconds | None = None) -> AsyncLease | None:
        """Wait to be elected: the lease of the term, or None after `timeout`, by default the election's `wait`."""
        return cast("AsyncLease | None", await self._logic.campaign(timeout))

    async def resign(self) -> bool:
        """Step down; the next candidate is elected. False if this one does not lead."""
        return await self._logic.resign()

    async def hand_over(self, to: str) -> None:
        """Step down in favour of the candidate of that name, before candidates that wait longer.

        Raises NotHeld if this one does not lead, and LockError if no such candidate waits; the leader then stays.
        """
        await self._logic.hand_over(to)

    async def leader(self) -> HolderInfo | None:
        """Who leads now; `.holder` is its name and `.fence` its term. None while the place is vacant."""
        return await self._logic.leader()

    async def candidates(self) -> tuple[str, ...]:
        """Who waits to be elected, the next one first."""
        return await self._logic.candidates()

    @overload
    async def run(
        self,
        on_elected: Callable[[AsyncLease], Awaitable[T]],
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> T: ...
    @overload
    async def run(
        self, on_elected: Callable[[AsyncLease], T], on_lost: Callable[[AsyncLease], object] | None = None
    ) -> T: ...
    async def run(
        self,
        on_elected: AsyncElected[T],
        on_lost: Callable[[AsyncLease], object] | None = None,
    ) -> T:
        """Campaign, and call `on_elected(lease)` once elected; after a loss begin again.

        Returns what `on_elected` returned, having resigned. `on_lost(lease)` is called at each loss, and
        awaited if it can be.
        """
        return await self._logic.run(on_elected, on_lost)  # type: ignore[no-any-return]

    async def observe(self) -> AsyncGenerator[Leadership]:
        """Who leads now and each change from then on, vacancies too, as they happen. Ends with the `AsyncLocks`.

        Close it (`aclosing`), or leave the loop over it, when you have seen enough.
        """
        observer = self._logic.observer()
        try:
            while (change := await observer.next()) is not None:
                yield change
        finally:
            await observer.close()

    def __aenter__(self) -> CoroutineType[Any, Any, AsyncLease]:
        return self._logic.enter(sys._getframe(1), begun(self._logic, sys._getframe(1)))  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<AsyncElection {self._logic!r}>"


class Limiter:
    """So many permits in the long run, and up to `burst` at once after a rest."""

    __slots__ = ("_logic",)

    def __init__(self, logic: LimiterLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    def try_acquire(self, cost: int = 1) -> Allowance:
        """Take `cost` permits if there are enough now. Never waits."""
        return drive(self._logic.try_acquire(cost))

    def acquire(self, cost: int = 1, timeout: Seconds | None = None) -> Allowance:
        """Wait for `cost` permits, first come first served.

        Not allowed, and nothing taken, if there are not enough within `timeout` seconds: check the answer.
        """
        return drive(self._logic.acquire(cost, timeout))

    def __repr__(self) -> str:
        return f"<Limiter {self._logic!r}>"


class AsyncLimiter:
    """So many permits in the long run, and up to `burst` at once after a rest."""

    __slots__ = ("_logic",)

    def __init__(self, logic: LimiterLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    async def try_acquire(self, cost: int = 1) -> Allowance:
        """Take `cost` permits if there are enough now. Never waits."""
        return await self._logic.try_acquire(cost)

    async def acquire(self, cost: int = 1, timeout: Seconds | None = None) -> Allowance:
        """Wait for `cost` permits, first come first served.

        Not allowed, and nothing taken, if there are not enough within `timeout` seconds: check the answer.
        """
        return await self._logic.acquire(cost, timeout)

    def __repr__(self) -> str:
        return f"<AsyncLimiter {self._logic!r}>"


class Cell:
    """A JSON value with a version, for optimistic locking, and a check of fences."""

    __slots__ = ("_logic",)

    def __init__(self, logic: CellLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    def read(self) -> Versioned:
        """`value, version`; None and 0 if nothing is there."""
        return drive(self._logic.read())

    def write(self, value: Any, *, if_version: int | None = None, fence: int | None = None) -> int:
        """Write it and return its version.

        With `if_version` only over that version (0: only if nothing is there), else Conflict is raised. With `fence`
        only if no higher fence was ever seen, else StaleFence is raised. Nothing is changed then.
        """
        return drive(self._logic.write(value, if_version, fence))

    def update(
        self, change: Callable[[Any], Any], *, wait: Seconds | None = None, fence: int | None = None
    ) -> Versioned:
        """Write `change(value)`, read and tried again as often as others write in between; what is there now.

        Raises Conflict if that goes on for `wait` seconds; None goes on for ever.
        """
        return drive(self._logic.update(change, wait, fence))

    def delete(self, *, if_version: int | None = None) -> None:
        """Forget the value and the fences. What is written there later has a higher version all the same."""
        drive(self._logic.delete(if_version))

    def __repr__(self) -> str:
        return f"<Cell {self._logic!r}>"


class AsyncCell:
    """A JSON value with a version, for optimistic locking, and a check of fences."""

    __slots__ = ("_logic",)

    def __init__(self, logic: CellLogic) -> None:
        self._logic = logic

    @property
    def name(self) -> str:
        """The name that it was made with, without its namespace."""
        return self._logic.name

    async def read(self) -> Versioned:
        """`value, version`; None and 0 if nothing is there."""
        return await self._logic.read()

    async def write(self, value: Any, *, if_version: int | None = None, fence: int | None = None) -> int:
        """Write it and return its version.

        With `if_version` only over that version (0: only if nothing is there), else Conflict is raised. With `fence`
        only if no higher fence was ever seen, else StaleFence is raised. Nothing is changed then.
        """
        return await self._logic.write(value, if_version, fence)

    async def update(
        self, change: Callable[[Any], Any], *, wait: Seconds | None = None, fence: int | None = None
    ) -> Versioned:
        """Write `change(value)`, read and tried again as often as others write in between; what is there now.

        Raises Conflict if that goes on for `wait` seconds; None goes on for ever. `change` may be a coroutine function.
        """
        return await self._logic.update(change, wait, fence)

    async def delete(self, *, if_version: int | None = None) -> None:
        """Forget the value and the fences. What is written there later has a higher version all the same."""
        await self._logic.delete(if_version)

    def __repr__(self) -> str:
        return f"<AsyncCell {self._logic!r}>"
