"""What the backend asks of either driver of advisory locks' sessions, and which driver a world has.

Decides: how many sessions there may be, and for how long an idle one is kept.
Leaves to `blocking` and `asyncio_`: everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from lockfast._worlds import Clock, Signal, World
from lockfast.backends.postgres.io.endpoint import WAITING, PostgresEndpoint
from lockfast.backends.postgres_advisory.io.session import (
    AdvisorySession,
    OnSession,
    PendingStatement,
    Rows,
    Statements,
)

# So many times `waiting`, or its default if no session may wait, is the number of sessions in all. Beside those that
# wait are those that hold, and the first that waits for its lock: a claim outside the server's queue is passed by every
# session that joins it.
_SESSIONS_PER_WAITING: Final = 4
MAX_IDLE_S: Final = 30.0  # after which a session in which no claim waits or holds is closed, and a few seconds more


def max_sessions(endpoint: PostgresEndpoint) -> int:
    """Of one `Locks`, besides the main one."""
    return (endpoint.waiting or WAITING) * _SESSIONS_PER_WAITING


class SessionEvents(NamedTuple):
    """What a driver calls for a session."""

    ended: OnSession  # everything that it held is gone
    silent: OnSession  # it has not answered for too long


class Sessions(Protocol):
    """What the backend asks of either driver."""

    endpoint: PostgresEndpoint
    holder: str  # what new sessions are called, for operators

    @property
    def ready(self) -> AdvisorySession | None:
        """The main session, if there is one."""
        ...

    async def main(self, within: float) -> AdvisorySession:
        """The session for everything that does not wait. Raises BackendUnavailable."""
        ...

    async def dedicated(self, within: float, *, beside: bool = False) -> AdvisorySession | None:
        """A session for one claim; None if as many wait as may. `beside` these, see `max_sessions`."""
        ...

    def give_back(self, session: AdvisorySession) -> None:
        """It holds nothing, and nothing is in flight."""
        ...

    async def execute(self, session: AdvisorySession, statement: PendingStatement, within: float) -> Rows:
        """Raises BackendUnavailable if no answer comes in time; the statement stays in flight then."""
        ...

    async def execute_each(self, statements: Mapping[AdvisorySession, PendingStatement], within: float) -> None:
        """Send all of them, then read the answers: one silent session costs the others nothing. Raises no error."""
        ...

    def send(self, session: AdvisorySession, statement: PendingStatement) -> None:
        """Without waiting for the answer; only on a session of `dedicated`."""
        ...

    async def wait_answered(self, session: AdvisorySession, seconds: float) -> None:
        """Wait until the statement in flight is answered, or `seconds` of real time have passed."""
        ...

    async def wait_or_signal(self, session: AdvisorySession, signal: Signal, seconds: float) -> bool:
        """True once the statement in flight is answered, or the signal set; False after `seconds`."""
        ...

    def lives(self, session: AdvisorySession) -> bool:
        """False if its end has arrived here, be it behind answers that are not read yet."""
        ...

    def retire(self, session: AdvisorySession) -> None:
        """If it is the main session, it is so no longer."""
        ...

    def drop(self, session: AdvisorySession) -> None:
        """End a session; the server ends its holds and waits."""
        ...

    def poll_once(self, session: AdvisorySession) -> None:
        """Read what has arrived, without waiting for more."""
        ...

    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


def open_sessions(
    endpoint: PostgresEndpoint, statements: Statements, world: World, clock: Clock | None, events: SessionEvents
) -> Sessions:
    """The driver for that world. Nothing is opened yet."""
    if world.blocking:
        from lockfast.backends.postgres_advisory.io.blocking import BlockingSessions

        return BlockingSessions(endpoint, statements, clock, events)
    from lockfast.backends.postgres_advisory.io.asyncio_ import AsyncioSessions

    return AsyncioSessions(endpoint, statements, events)
