"""Whether the event loop of an engine is blocked, and what is renewed from outside meanwhile.

Decides: from when a loop counts as blocked, which leases are renewed then, through which backend, and what is logged.
Leaves to `renewing`: the requests, and what an answer means. Leaves to `standby`: the thread, and when it looks.

A loop is not blocked because a server is slow: what counts is whether the keeper in it was awake. A lease that was due
in a loop where it was not is renewed from outside after a quarter of what was left then: at half of its ttl if it is
renewed after a third. From then on, until the keeper is awake, all leases of the loop are renewed when they are due.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from traceback import StackSummary
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockfast._model import Renewal
from lockfast._reentry import run_to_end
from lockfast._refusals import closed_locks
from lockfast._time import format_duration
from lockfast._worlds import RunsInLoop, World
from lockfast.backends.base import Backend
from lockfast.backends.optional import RenewsFromOutside
from lockfast.engine.schedule import NEVER, RenewalState
from lockfast.errors import Unsupported
from lockfast.observe.log import logger

if TYPE_CHECKING:
    from lockfast.engine.core import Engine
    from lockfast.engine.lease import Lease

T = TypeVar("T")
LATE_S: Final = 0.005  # that a keeper may be late before its leases are looked at one by one
KEEP_S: Final = 60.0  # after the last renewal: then the blocking backend is closed
MAX_FRAMES: Final = 20  # of the stack in the log, the innermost


class LoopWatch:
    """Used by the thread of the standby, but for its last methods."""

    def __init__(self, engine: Engine, world: World) -> None:
        self._engine = engine
        self._world = world  # of the standby
        self.due: list[RenewalState] = []  # to be renewed now
        self._overdue_since: float | None = None  # when the keeper was to be awake; None if it was
        self._rounds = 0  # of the keeper, when that was found
        self._blocked = False  # for so long that its leases are renewed from outside
        self._warned = False
        self._refused = ""  # why there is no backend that could renew them
        self._twin: Backend | None = None  # of the same store, for this thread
        self._used_at = 0.0
        self._in_use = False

    # What is due

    def inspect(self, now: float) -> float:
        """Find out what is `due`; when to look again."""
        self.due = []
        loop = self._engine.keeper.loop
        if self._engine.closed or loop.signal is None or self._is_over():
            self._is_awake()
            return self._close_unused(now)
        if self._overdue_since is None:
            rounds, promised = loop.rounds, loop.wake_at
            if now < promised + LATE_S:
                return min(promised + LATE_S, self._close_unused(now))
            self._rounds, self._overdue_since = rounds, promised
        if not loop.overdue(self._rounds):
            self._is_awake()
            return min(loop.wake_at + LATE_S, self._close_unused(now))
        leases = [lease for lease in list(self._engine.keeper.leases.values()) if self._is_kept(lease, now)]
        next_at = self._find_due(leases, now)
        return next_at if self.due else min(next_at, self._warn(leases, now))  # it says what came of a renewal

    def _is_over(self) -> bool:
        """Nothing that ran in its loop ever goes on."""
        world = self._engine.world
        return isinstance(world, RunsInLoop) and world.is_over()

    def _is_awake(self) -> None:
        self._overdue_since = None
        self._blocked = self._warned = False

    def _is_kept(self, lease: Lease, now: float) -> bool:
        return lease._state == "held" and now < lease._deadline and lease._request.renew

    def _find_due(self, leases: list[Lease], now: float) -> float:
        """When the first is due that is not yet."""
        states = [self._engine.keeper.state_of(lease) for lease in leases]
        states = [state for state in states if now < state.renew_until]
        if not self._blocked:
            first = min(
                (state.renew_at + (state.lease._deadline - state.renew_at) / 4 for state in states), default=NEVER
            )
            if now < first:
                return first
            self._blocked = True
        if not self._refused:
            self.due = [state for state in states if now >= state.renewable_at]
        return min((state.renew_at for state in states if now < state.renewable_at), default=NEVER)

    def first_deadline(self, now: float) -> float:
        """Of all that is kept in its loop."""
        leases = list(self._engine.keeper.leases.values())
        return min((lease._deadline for lease in leases if self._is_kept(lease, now)), default=NEVER)

    # Renewal

    async def renew(self, at_most: float) -> None:
        """What is due, in requests that take at most that many seconds each."""
        size = self._engine.backend.capabilities.renew_batch
        for start in range(0, len(self.due), size):
            batch = self.due[start : start + size]
            await self._engine.keeper.renewals.renew_with(self._ask, batch, behind=True, at_most=at_most)

    async def _ask(self, batch: Sequence[Renewal], within: float) -> Sequence[bool | None]:
        backend = self._engine.backend
        if isinstance(backend, RenewsFromOutside):
            return await self._in_thread(backend.renew_from_outside(batch, within=within))
        self._in_use = True
        try:
            return await self._in_thread(self._open().renew(batch, within=within))
        finally:
            self._in_use = False
            self._used_at = self._world.now()
            if self._engine.closed:
                self.close()

    async def _in_thread(self, request: Coroutine[Any, Any, T]) -> T:
        """Raises RuntimeError if it suspends, as a backend does that is for event loops only."""
        return run_to_end(request) if self._world.blocking else await request

    def _open(self) -> Backend:
        """The same store, for this thread. Raises Unsupported if the backend has nothing of that kind."""
        engine = self._engine
        with engine.mutex:
            if self._twin is not None:
                return self._twin
        if engine.open_twin is None or not engine.backend.capabilities.expires:
            raise self._refuse("only its own connections can renew what they hold")
        twin = engine.open_twin()
        if twin.store_id != engine.backend.store_id:
            raise self._refuse("it is another store each time that it is opened")
        with engine.mutex:
            if not engine.closed:
                self._twin = twin
                return twin
        run_to_end(twin.close())
        raise closed_locks()

    def _refuse(self, why: str) -> Unsupported:
        self._refused = f"{self._engine.backend!r}: {why}"
        return Unsupported(self._refused)

    def _close_unused(self, now: float) -> float:
        """Close the blocking backend once it was not used for a while; when to look at it again."""
        if self._twin is None:
            return NEVER
        if now < self._used_at + KEEP_S:
            return self._used_at + KEEP_S
        self.close()
        return NEVER

    # The log

    def _warn(self, leases: list[Lease], now: float) -> float:
        """Once for each time that the loop is blocked for a third of a ttl; when to look again."""
        lease = min(leases, key=lambda lease: lease._ttl, default=None)
        world, since = self._engine.world, self._overdue_since
        if lease is None or since is None or self._warned or not isinstance(world, RunsInLoop):
            return NEVER
        if now < since + lease._ttl / 3:
            return since + lease._ttl / 3
        self._warned = True
        warning = _warning(lease, now - since, world.stack_of_loop(MAX_FRAMES), self._refused)
        with suppress(RuntimeError):  # no thread can be started
            self._world.spawn(warning, "lockfast-standby-log")
        return NEVER

    # Called from other threads too

    def close(self) -> None:
        """The blocking backend, if there is one. One that is in use is closed after that."""
        with self._engine.mutex:
            twin, self._twin = (self._twin, None) if not self._in_use else (None, self._twin)
        if twin is not None:
            run_to_end(twin.close())

    def before_fork(self) -> None:
        if self._twin is not None:
            self._twin.before_fork()

    def after_fork(self, *, child: bool) -> None:
        if self._twin is not None:
            self._twin.after_fork(child=child)


async def _warning(lease: Lease, seconds: float, stack: StackSummary, refused: str) -> None:
    """In a thread of its own: a log may block, and what blocks the loop may be the log."""
    failure = refused or lease._engine.keeper.why_not_renewed(lease)
    logger.warning(
        "the event loop that holds lock %r (ttl %s) %s for %s; %s%s",
        lease.name,
        format_duration(lease.ttl),
        "has been blocked" if stack else "has not run",
        format_duration(seconds),
        f"it cannot be renewed from outside: {failure}" if failure else "it is renewed by another thread meanwhile",
        f". What blocks it, and belongs into asyncio.to_thread():\n{''.join(stack.format()).rstrip()}" if stack else "",
        extra={"lock_kind": "loop_blocked", "lock_name": lease.name},
    )
