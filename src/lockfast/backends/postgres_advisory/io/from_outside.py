"""The sessions of an event loop that is blocked, as another thread uses them to renew what they hold.

Decides: how that thread waits for answers. Leaves to `asyncio_`: what is done in a step, and how steps exclude those of
the loop, which may go on at any moment.
"""

from __future__ import annotations

import select
from collections.abc import Mapping
from typing import Final

from lockfast._time import boot_now
from lockfast._worlds.asyncio_ import call_in
from lockfast.backends.postgres_advisory.io.asyncio_ import AsyncioAdvisorySession
from lockfast.backends.postgres_advisory.io.session import AdvisorySession, PendingStatement

READ_BY_LOOP_S: Final = 0.05  # between two checks whether the loop goes on, and has read the answer itself


class SessionsFromOutside:
    async def execute_each(self, statements: Mapping[AdvisorySession, PendingStatement], within: float) -> None:
        """As `Sessions.execute_each`. Never suspends."""
        until = boot_now() + within
        while left := [session for session, statement in statements.items() if not _step(session, statement)]:
            seconds = until - boot_now()
            if seconds <= 0:
                break
            _wait_readable(left, min(seconds, READ_BY_LOOP_S))
        for session in statements:
            assert isinstance(session, AsyncioAdvisorySession)
            call_in(session.loop, session.go_on)  # what callers there want sent

    def lives(self, session: AdvisorySession) -> bool:
        """False if it has failed, or its end has arrived here."""
        assert isinstance(session, AsyncioAdvisorySession)
        return session.alive and not session.failed and not session.end_arrived()


def _step(session: AdvisorySession, statement: PendingStatement) -> bool:
    assert isinstance(session, AsyncioAdvisorySession)
    return session.step_from_outside(statement)


def _wait_readable(sessions: list[AdvisorySession], seconds: float) -> None:
    poll = select.poll()
    for session in sessions:
        poll.register(session.socket, select.POLLIN)
    poll.poll(seconds * 1000)
