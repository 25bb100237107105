"""How an advisory lock is acquired, and in which queue a waiter stands.

Decides: in which session a claim is asked for, and what the answer means.
Leaves to `backend`: everything after the grant. Leaves to `holds`: what a session may be asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Final

from lockfast._bounded import BoundedSet
from lockfast._model import EXCLUSIVE, SHARED, Busy, Claim, Grant, Terms, poll_after
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import unavailable
from lockfast.backends.postgres_advisory.holds import AdvisoryHold, Holds
from lockfast.backends.postgres_advisory.inspection import ahead_of, blocker_of
from lockfast.backends.postgres_advisory.io.driver import SessionEvents, open_sessions
from lockfast.backends.postgres_advisory.io.session import (
    RATE_MARGIN,
    AdvisorySession,
    OnSession,
    Params,
    PendingStatement,
    Rows,
    short,
)
from lockfast.backends.postgres_advisory.keys import halves, key_of
from lockfast.backends.postgres_advisory.own_sessions import OwnSessions, execute
from lockfast.backends.postgres_advisory.silence import Silence
from lockfast.backends.postgres_advisory.statements import STATEMENTS, PgLock, read
from lockfast.errors import BackendUnavailable

FIRST_POLL_S: Final = 0.1  # until a waiter inspects who holds the lock
UNQUEUED_POLL_S: Final = 0.25  # between the polls of a waiter that has no session to wait in
NOTICED_WITHIN_S: Final = 1.0  # until a grant has been read here, on a busy machine too
MAX_CONTENDED: Final = 4096  # names


class Acquiring:
    def __init__(self, endpoint: PostgresEndpoint, world: World, clock: Clock | None) -> None:
        self._endpoint = endpoint
        self._world = world
        self._holds = Holds(endpoint.name)
        self._contended = BoundedSet[int](MAX_CONTENDED)  # numbers for which a try would be in vain
        events = SessionEvents(partial(_report, _weak(self._ended)), partial(_report, _weak(self._silent)))
        self._sessions = open_sessions(endpoint, STATEMENTS, world, clock, events)
        self._silence = Silence(self._sessions, self._holds)
        self._own = OwnSessions(world, self._sessions, self._holds, self._contended)

    def _ended(self, session: AdvisorySession) -> None:
        raise NotImplementedError

    def _silent(self, session: AdvisorySession) -> None:
        self._silence.on_silent(session)

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        key, ready = key_of(claim.terms.key), self._sessions.ready
        hold = None
        if ready is not None and _is_usual(claim.terms, ready) and key.number not in self._contended:
            hold = self._holds.enter_alone(claim, key, ready)  # the fast path
            if hold is not None and await self._try_in(ready, b"lf_try_exclusive", hold, within):
                self._must_live(ready)
                hold.answered = True
                return hold.grant
        until = boot_now() + within
        answer = await self._acquire(claim, hold, enqueue, until)
        if isinstance(answer, Grant):
            await self._confirm(claim, until)
        return answer

    async def _acquire(self, claim: Claim, tried: AdvisoryHold | None, enqueue: bool, until: float) -> Grant | Busy:
        """The slow path: the name is contended, or the claim was asked for before."""
        self._sessions.holder = claim.terms.holder
        main = await self._sessions.main(max(0.01, until - boot_now()))
        if not main.named:
            await self._execute(main, b"lf_name", (short(claim.terms.holder).encode(),), until)
            main.named = True
        await self._own.keep(main, claim.terms.ttl, until)
        hold = self._holds.by_id.get(claim.id)
        if hold is not None and hold.state == "held" and hold.answered and not await self._still_held(hold, until):
            return await self._acquire(claim, None, enqueue, until)
        if hold is None:
            hold = self._holds.enter(claim)
        elif hold is not tried:
            before = hold.session
            await self._settle(hold, main, until)
            if before is not None:
                self._silence.close_if_unused(before)
        if hold.state == "held":
            if claim.terms.mode == SHARED and hold.mode == EXCLUSIVE:
                await self._share(hold, until)
            return hold.grant
        if hold.state == "new":
            in_vain = enqueue and not hold.polls and hold.key.number in self._contended
            if not (in_vain or hold is tried) and await self._try(hold, main, until):
                self._own.leave_unqueued(hold)
                return hold.grant
            if not enqueue:
                self._holds.leave(hold)
                return await self._busy(hold, main, until)
            await self._own.enqueue(hold, until)
            if in_vain and hold.session is not None and self._holds.known_holder(hold) is None:
                await self._sessions.wait_answered(hold.session, min(NOTICED_WITHIN_S, until - boot_now()))
                if hold.fence:
                    return hold.grant
        return await self._busy(hold, main, until)

    async def _confirm(self, claim: Claim, until: float) -> None:
        """The holder believes from now on. The server may have received nothing since the wait began."""
        hold = self._holds.by_id.get(claim.id)
        if hold is None:
            raise unavailable(self._endpoint.name, "ended the session")
        session = hold.session
        if boot_now() - session.proven_at > session.kept - claim.terms.ttl * RATE_MARGIN:
            await self._execute(session, b"lf_ping", (), until)
        self._must_live(session)
        hold.renewed(claim.terms.ttl)
        hold.answered = True

    def _must_live(self, session: AdvisorySession) -> None:
        """Checked last before a grant counts: this process may have been stopped since, or its loop been blocked."""
        if not self._sessions.lives(session):
            raise unavailable(self._endpoint.name, "ended the session")

    async def _still_held(self, hold: AdvisoryHold, until: float) -> bool:
        """Whether the session that holds it is alive. The server may have ended it, and that is not read yet."""
        session = hold.session
        try:
            await self._execute(session, b"lf_ping", (), until)
        except BackendUnavailable:
            if session.alive:
                raise
            return False
        return True

    async def _settle(self, hold: AdvisoryHold, main: AdvisorySession, until: float) -> None:
        """It was asked for before: find out how that ended."""
        if hold.state == "waits":
            self._sessions.poll_once(hold.session)
        if hold.state == "asked" or hold.freeing:
            await self._execute(hold.session or main, b"lf_ping", (), until)  # what was sent before is answered first
        if hold.state == "asked":  # an interrupt came before it was sent
            self._own.leave_session(hold)
        if hold.state == "in_doubt" and hold.in_main:
            await self._undo(hold, until)
        elif hold.state == "in_doubt":
            await self._settle_by_inspection(hold, until)

    async def _undo(self, hold: AdvisoryHold, until: float) -> None:
        """A try ended in an error: whatever it left in the main session is unlocked."""
        while (await self._execute(hold.session, b"lf_undo", hold.key, until))[0][0] == b"t":
            pass
        hold.reset()

    async def _settle_by_inspection(self, hold: AdvisoryHold, until: float) -> None:
        """The server cancelled the wait; the lock may have been granted just before."""
        session = hold.session
        seen = read(await self._execute(session, b"lf_inspect", halves(hold.key.number), until))
        if any(one.pid == session.pid and one.granted for one in seen):
            rows = await self._execute(session, b"lf_tag", hold.key, until)
            self._own.granted(hold, rows)
        else:
            self._own.leave_session(hold)

    async def _try(self, hold: AdvisoryHold, main: AdvisorySession, until: float) -> bool:
        """Without waiting: in the main session, or beside it if that shares the number."""
        if self._holds.unqueued_before(hold):
            return False
        if self._holds.into_main(hold, main):
            name = b"lf_try_exclusive" if hold.mode == EXCLUSIVE else b"lf_try_shared"
            return await self._try_in(main, name, hold, max(0.01, until - boot_now()))
        return (
            hold.mode == SHARED and self._holds.known_holder(hold) is None and await self._own.try_shared(hold, until)
        )

    async def _try_in(self, main: AdvisorySession, name: bytes, hold: AdvisoryHold, within: float) -> bool:
        statement = PendingStatement(name, hold.key, hold.on_try_answered)
        try:
            await self._sessions.execute(main, statement, within)
        finally:
            if not statement.sent_at:
                hold.reset()
        return hold.state == "held"

    async def _busy(self, hold: AdvisoryHold, main: AdvisorySession, until: float) -> Grant | Busy:
        self._contended.add(hold.key.number)
        hold.polls += 1
        if hold.state == "new" and (before := self._holds.unqueued_before(hold)):
            return Busy(before, poll_after(before), self._holds.known_holder(hold))  # it is woken when its turn comes
        if hold.state == "ended" or hold.polls > 1:
            seen = read(await self._execute(main, b"lf_inspect", halves(hold.key.number), until))
            if await self._is_granted(hold, seen, until):
                return hold.grant
            self._silence.drop_if_unanswered(hold, seen)
            holder = blocker_of(hold, seen, self._holds.in_this_process)
            ahead = ahead_of(hold, seen)
            if hold.state == "new" and not self._own.has_queued_sibling(hold):
                return Busy(ahead, UNQUEUED_POLL_S, holder)
            return Busy(ahead, poll_after(max(1, ahead)), holder)
        others = (other for holds in self._holds.neighbours() for other in holds.of(hold.key.number))
        ahead = sum(other.state == "waits" and other is not hold for other in others)  # as far as this process knows
        return Busy(ahead, FIRST_POLL_S, self._holds.known_holder(hold))

    async def _is_granted(self, hold: AdvisoryHold, seen: Sequence[PgLock], until: float) -> bool:
        """If no holder excludes it, the grant is on its way: wait for that."""
        session = hold.session
        holders = [one for one in seen if one.granted and session is not None and one.pid != session.pid]
        if session is not None and not any(hold.mode == EXCLUSIVE or not one.shared for one in holders):
            await self._sessions.wait_answered(session, min(NOTICED_WITHIN_S, until - boot_now()))
        return hold.fence > 0

    async def wait(self, claim: Claim, seconds: float) -> bool:
        hold = self._holds.by_id.get(claim.id)
        if hold is None or hold.state in ("held", "in_doubt"):
            return True
        session, signal = hold.session, hold.signal
        assert signal is not None  # set when it was enqueued
        if hold.state == "waits" and session is not None:
            return await self._sessions.wait_or_signal(session, signal, seconds)
        return await signal.wait(seconds)

    async def _share(self, hold: AdvisoryHold, until: float) -> None:
        """From exclusive to shared, in one statement, so that no other session is granted it in between."""

        def shared(statement: PendingStatement) -> None:
            hold.freeing = False
            if statement.error is None:
                hold.mode = SHARED

        hold.freeing = True
        statement = PendingStatement(b"lf_share", hold.key[:1], shared)
        try:
            await self._sessions.execute(hold.session, statement, max(0.01, until - boot_now()))
        finally:
            if not statement.sent_at:
                hold.freeing = False

    async def _execute(self, session: AdvisorySession, name: bytes, params: Params, until: float) -> Rows:
        return await execute(self._sessions, session, name, params, until)


def _is_usual(terms: Terms, main: AdvisorySession) -> bool:
    """Whether it can be tried in the main session without preparation."""
    return terms.mode == EXCLUSIVE and main.named and terms.ttl <= main.longest_ttl


def _weak(method: OnSession) -> weakref.WeakMethod[OnSession]:
    """The threads of the driver keep no `Locks` alive."""
    return weakref.WeakMethod(method)


def _report(to: weakref.WeakMethod[OnSession], session: AdvisorySession) -> None:
    method = to()
    if method is not None:
        method(session)
