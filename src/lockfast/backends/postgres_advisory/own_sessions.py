"""Claims that wait in a session of their own, and claims that wait for such a session.

Decides: when a claim joins and leaves the server's queue, and which unqueued claim is woken next.
Leaves to `holds`: the order of the unqueued. Leaves to the driver: how many sessions there are.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Final

from lockfast._bounded import BoundedSet
from lockfast._model import EXCLUSIVE
from lockfast._time import boot_now
from lockfast._worlds import World
from lockfast.backends.postgres.io.refusals import unavailable
from lockfast.backends.postgres_advisory.holds import AdvisoryHold, Holds
from lockfast.backends.postgres_advisory.io.driver import Sessions
from lockfast.backends.postgres_advisory.io.session import (
    AdvisorySession,
    Params,
    PendingStatement,
    Rows,
    StatementCancelled,
)
from lockfast.backends.postgres_advisory.renewals import keep_for
from lockfast.errors import BackendUnavailable

UNCONTENDED_WITHIN_S: Final = 0.001  # in which a lock that no other session wants is granted


async def execute(sessions: Sessions, session: AdvisorySession, name: bytes, params: Params, until: float) -> Rows:
    """Raises BackendUnavailable."""
    statement = PendingStatement(name, params)
    return await sessions.execute(session, statement, max(0.01, until - boot_now()))


class OwnSessions:
    """The sessions of one `Locks` in which one claim waits or holds."""

    def __init__(self, world: World, sessions: Sessions, holds: Holds, contended: BoundedSet[int]) -> None:
        self._world = world
        self._sessions = sessions
        self._holds = holds
        self._contended = contended

    def has_queued_sibling(self, hold: AdvisoryHold) -> bool:
        """Whether a claim of this `Locks` is in the server's queue; it wakes the next unqueued waiter."""
        return any(other.state == "waits" for other in self._holds.of(hold.key.number))

    async def enqueue(self, hold: AdvisoryHold, until: float) -> None:
        """Wait in a session of its own; unqueued, if all are taken, or if none may wait."""
        if hold.signal is None:
            hold.signal = self._world.signal()
        alone = not self.has_queued_sibling(hold)
        if not self._holds.is_next(hold, alone=alone) or not self._sessions.endpoint.waiting:
            return
        try:
            session = await self.own_session(hold, until, beside=alone)
        except BackendUnavailable as error:
            if not error.transient:
                raise
            session = None  # the server is full, or slow; the main session has answered that the lock is held
        if session is None:
            return
        hold.state, hold.session = "waits", session
        name = b"lf_lock_exclusive" if hold.mode == EXCLUSIVE else b"lf_lock_shared"
        statement = PendingStatement(name, hold.key, partial(self._on_wait_answered, hold))
        statement.answer_within = inf
        self._sessions.send(session, statement)
        self.leave_unqueued(hold)  # not before: the next waiter must come after it at the server too

    def _on_wait_answered(self, hold: AdvisoryHold, statement: PendingStatement) -> None:
        """The server has granted it, or cancelled the wait."""
        if hold.state != "waits":
            return
        if statement.error is None:
            self.granted(hold, statement.answer)
            self._contended.keep(hold.key.number, boot_now() - statement.sent_at > UNCONTENDED_WITHIN_S)
        else:
            hold.state = "in_doubt"
        hold.wake()

    async def try_shared(self, hold: AdvisoryHold, until: float) -> bool:
        """In a session of its own. False if all are taken."""
        session = await self.own_session(hold, until, beside=True)
        if session is None:
            return False
        hold.asked_in(session)
        statement = PendingStatement(b"lf_try_shared", hold.key, partial(self._on_try_answered, hold))
        try:
            await self._sessions.execute(session, statement, max(0.01, until - boot_now()))
        except BaseException:
            if hold.state == "asked":
                self._sessions.drop(session)  # with what it may be granted; its end resets the claim
            raise
        if hold.state == "asked":
            self.leave_session(hold)
        return hold.state == "held"

    def _on_try_answered(self, hold: AdvisoryHold, statement: PendingStatement) -> None:
        if statement.error is None and statement.answer[0][0] is not None:
            self.granted(hold, statement.answer)

    async def dequeue(self, hold: AdvisoryHold, until: float) -> None:
        """Leave the server's queue. Should it be granted meanwhile, it is unlocked."""
        session = hold.session
        try:
            self._holds.leave(hold)
            main = await self._sessions.main(max(0.01, until - boot_now()))
            await self._cancel(session, main, until)
            await self._free_all(session, until)
        except BaseException as error:
            self._sessions.drop(session)  # the server ends its holds and waits
            if not isinstance(error, BackendUnavailable):
                raise
        finally:
            self.give_back(session)

    async def _cancel(self, session: AdvisorySession, main: AdvisorySession, until: float) -> None:
        """Repeated: the server ignores a cancellation that comes before the statement has begun there."""
        pause = UNCONTENDED_WITHIN_S
        while session.in_flight is not None and session.alive:
            if boot_now() >= until:
                raise unavailable(self._sessions.endpoint.name, "does not cancel in time")
            await execute(self._sessions, main, b"lf_cancel", (session.pid,), until)
            await self._sessions.wait_answered(session, pause)
            pause *= 2

    async def _free_all(self, session: AdvisorySession, until: float) -> None:
        for _ in range(3):
            try:
                await execute(self._sessions, session, b"lf_free_all", (), until)
                return
            except StatementCancelled:  # the cancellation came late, and hit this statement
                continue
        raise unavailable(self._sessions.endpoint.name, "cancels everything")

    async def own_session(self, hold: AdvisoryHold, until: float, *, beside: bool) -> AdvisorySession | None:
        """A session for this claim alone; None if all are taken."""
        session = await self._sessions.dedicated(max(0.01, until - boot_now()), beside=beside)
        if session is not None:
            try:
                await self.keep(session, hold.claim.terms.ttl, until)
            except BaseException:
                self._sessions.drop(session)
                self.give_back(session)
                raise
        return session

    async def keep(self, session: AdvisorySession, ttl: float, until: float) -> None:
        """Make the server keep a silent session for longer than its holder believes without an answer."""
        if ttl > session.longest_ttl:
            await self._sessions.execute(session, keep_for(session, ttl), max(0.01, until - boot_now()))

    def granted(self, hold: AdvisoryHold, rows: Rows) -> None:
        """It is held in its own session, which counts no longer as one that waits."""
        hold.granted(rows[0][0] or b"0")
        hold.session.holds = True
        self.wake_unqueued()

    def leave_session(self, hold: AdvisoryHold) -> None:
        """It holds nothing there, and nothing is in flight."""
        session, in_main = hold.session, hold.in_main
        hold.reset()
        if not in_main:
            self.give_back(session)

    def give_back(self, session: AdvisorySession) -> None:
        self._sessions.give_back(session)
        self.wake_unqueued()

    def leave_unqueued(self, hold: AdvisoryHold) -> None:
        """It has a session. There may be one for the next unqueued waiter too."""
        if self._holds.unqueued.pop(hold.claim.id, None) is not None:
            self.wake_unqueued()

    def wake_unqueued(self, number: int | None = None) -> None:
        """Wake the first claim that waits for a session; of those for `number`, if given."""
        if self._holds.unqueued:
            with self._holds.mutex:
                those = (one for one in self._holds.unqueued.values() if number in (None, one.key.number))
                first = next(those, None)
            if first is not None:
                first.wake()
