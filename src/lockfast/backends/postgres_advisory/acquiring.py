"""How an advisory lock is acquired, and in which queue a waiter stands.

Decides: in which session a claim is asked for, and what the answer means.
Leaves to `backend`: everything after the grant. Leaves to `holds`: what a session may be asked for.
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from lockfast._bounded import BoundedSet
from lockfast._model import EXCLUSIVE, SHARED, Busy, Claim, Grant, Terms, poll_after
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.wire import unavailable
from lockfast.backends.postgres_advisory.holds import AdvisoryHold, Holds, fences_of, refuse_hash_collision
from lockfast.backends.postgres_advisory.io.blocking import open_sessions
from lockfast.backends.postgres_advisory.io.session import (
    RATE_MARGIN,
    AdvisorySession,
    Params,
    PendingStatement,
    Rows,
    StatementCancelled,
    keeping,
    kept_for,
    short,
)
from lockfast.backends.postgres_advisory.keys import halves, integer_in, is_tag_of, key_of
from lockfast.backends.postgres_advisory.statements import PREPARE, PgLock, read
from lockfast.errors import BackendUnavailable

FIRST_POLL_S: Final = 0.1  # until a waiter inspects who holds the lock
UNQUEUED_POLL_S: Final = 0.25  # between the polls of a waiter that has no session to wait in
NOTICED_WITHIN_S: Final = 1.0  # until a grant has been read here, on a busy machine too
UNCONTENDED_WITHIN_S: Final = 0.001  # in which a lock that no other session wants is granted
MAX_CONTENDED: Final = 4096  # names

_living: weakref.WeakSet[Acquiring] = weakref.WeakSet()  # of this process


class Acquiring:
    def __init__(self, endpoint: PostgresEndpoint, world: World, clock: Clock | None) -> None:
        self._endpoint = endpoint
        self._world = world
        self._holds = Holds(fences_of(endpoint.name))
        self._contended = BoundedSet[int](MAX_CONTENDED)  # numbers for which a try would be in vain
        ended: weakref.WeakMethod[Callable[[AdvisorySession], None]] = weakref.WeakMethod(self._ended)
        self._sessions = open_sessions(endpoint, PREPARE, world, clock, partial(_report_end, ended))
        _living.add(self)

    def _ended(self, session: AdvisorySession) -> None:
        raise NotImplementedError

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        key, ready = key_of(claim.terms.key), self._sessions.ready
        hold = None
        if ready is not None and _is_usual(claim.terms, ready) and key.number not in self._contended:
            hold = self._holds.enter_alone(claim, key, ready)  # the fast path
            if hold is not None and await self._try_in(ready, b"lf_try_exclusive", hold, within):
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
        await self._keep(main, claim.terms.ttl, until)
        hold = self._holds.by_id.get(claim.id)
        if hold is not None and hold.state == "held" and hold.answered and not await self._still_held(hold, until):
            return await self._acquire(claim, None, enqueue, until)
        if hold is None:
            hold = self._holds.enter(claim)
        elif hold is not tried:
            await self._settle(hold, main, until)
        if hold.state == "held":
            if claim.terms.mode == SHARED and hold.mode == EXCLUSIVE:
                await self._share(hold, until)
            return hold.grant
        if hold.state == "new":
            in_vain = enqueue and not hold.polls and hold.key.number in self._contended
            if not (in_vain or hold is tried) and await self._try(hold, main, until):
                self._leave_unqueued(hold)
                return hold.grant
            if not enqueue:
                self._holds.leave(hold)
                return await self._busy(hold, main, until)
            await self._enqueue(hold, until)
            if in_vain and hold.session is not None and self._known_holder(hold) is None:
                await self._sessions.wait_answered(hold.session, min(NOTICED_WITHIN_S, until - boot_now()))
                if hold.fence:
                    return hold.grant
        return await self._busy(hold, main, until)

    async def _keep(self, session: AdvisorySession, ttl: float, until: float, *, urgent: bool = False) -> None:
        """Make the server keep a silent session for longer than its holder believes without an answer."""
        if ttl > session.longest_ttl:
            settings = keeping(seconds := kept_for(ttl))
            params = settings["tcp_user_timeout"], settings["tcp_keepalives_interval"]
            await self._execute(session, b"lf_keep", params, until, urgent=urgent)
            session.keeps(max(seconds, session.kept))

    async def _confirm(self, claim: Claim, until: float) -> None:
        """The holder believes from now on. The server may have heard nothing of the session since the wait began."""
        hold = self._holds.by_id.get(claim.id)
        if hold is None:
            raise unavailable(self._endpoint.name, "ended the session")
        session = hold.session
        if boot_now() - session.proven_at > session.kept - claim.terms.ttl * RATE_MARGIN:
            await self._execute(session, b"lf_ping", (), until)
        hold.renewed(claim.terms.ttl)
        hold.answered = True

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
            await self._execute(
                hold.session or main, b"lf_ping", (), until
            )  # whatever was sent before is answered first
        if hold.state == "asked":  # an interrupt came before it was sent
            self._leave_session(hold)
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
            self._granted_there(hold, rows)
        else:
            self._leave_session(hold)

    async def _try(self, hold: AdvisoryHold, main: AdvisorySession, until: float) -> bool:
        """Without waiting: in the main session, or beside it if that shares the number."""
        if self._holds.unqueued_before(hold):
            return False
        if self._holds.into_main(hold, main):
            name = b"lf_try_exclusive" if hold.mode == EXCLUSIVE else b"lf_try_shared"
            return await self._try_in(main, name, hold, max(0.01, until - boot_now()))
        return hold.mode == SHARED and self._known_holder(hold) is None and await self._try_beside(hold, until)

    async def _try_in(self, main: AdvisorySession, name: bytes, hold: AdvisoryHold, within: float) -> bool:
        statement = PendingStatement(name, hold.key, hold.on_try_answered)
        try:
            await self._sessions.execute(main, statement, within)
        finally:
            if not statement.sent_at:
                hold.reset()
        return hold.state == "held"

    async def _try_beside(self, hold: AdvisoryHold, until: float) -> bool:
        """In a session of its own. False if all are taken."""
        session = await self._own_session(hold, until, beside=True)
        if session is None:
            return False
        hold.asked_in(session)
        statement = PendingStatement(b"lf_try_shared", hold.key, partial(self._on_try_beside_answered, hold))
        try:
            await self._sessions.execute(session, statement, max(0.01, until - boot_now()))
        except BaseException:
            if hold.state == "asked":
                self._sessions.drop(session)  # with what it may be granted; `_ended` resets the claim
            raise
        if hold.state == "asked":
            self._leave_session(hold)
        return hold.state == "held"

    def _on_try_beside_answered(self, hold: AdvisoryHold, statement: PendingStatement) -> None:
        if statement.error is None and statement.answer[0][0] is not None:
            self._granted_there(hold, statement.answer)

    def _leave_session(self, hold: AdvisoryHold) -> None:
        """It holds nothing there, and nothing is in flight."""
        session, in_main = hold.session, hold.in_main
        hold.reset()
        if not in_main:
            self._give_back(session)

    async def _own_session(self, hold: AdvisoryHold, until: float, *, beside: bool) -> AdvisorySession | None:
        """A session for this claim alone; None if all are taken."""
        session = await self._sessions.dedicated(max(0.01, until - boot_now()), beside=beside)
        if session is not None:
            try:
                await self._keep(session, hold.claim.terms.ttl, until)
            except BaseException:
                self._sessions.drop(session)
                self._give_back(session)
                raise
        return session

    async def _enqueue(self, hold: AdvisoryHold, until: float) -> None:
        """Wait in a session of its own; unqueued, if all are taken."""
        if hold.signal is None:
            hold.signal = self._world.signal()
        alone = not self._has_queued_sibling(hold)
        if not self._holds.is_next(hold, alone=alone):
            return
        try:
            session = await self._own_session(hold, until, beside=alone)
        except BackendUnavailable as error:
            if not error.transient:
                raise
            session = None  # the server is full, or slow; the main session has answered that the lock is held
        if session is None:
            return
        hold.state, hold.session = "waits", session
        name = b"lf_lock_exclusive" if hold.mode == EXCLUSIVE else b"lf_lock_shared"
        statement = PendingStatement(name, hold.key, partial(self._on_wait_answered, hold))
        self._sessions.send(session, statement)
        self._leave_unqueued(hold)  # not before: the next waiter must come after it at the server too

    def _leave_unqueued(self, hold: AdvisoryHold) -> None:
        """It has a session. There may be one for the next unqueued waiter too."""
        if self._holds.unqueued.pop(hold.claim.id, None) is not None:
            self._wake_unqueued()

    def _on_wait_answered(self, hold: AdvisoryHold, statement: PendingStatement) -> None:
        """The server has granted it, or given the wait up."""
        if hold.state != "waits":
            return
        if statement.error is None:
            self._granted_there(hold, statement.answer)
            self._contended.keep(hold.key.number, boot_now() - statement.sent_at > UNCONTENDED_WITHIN_S)
        else:
            hold.state = "in_doubt"
        hold.wake()

    def _granted_there(self, hold: AdvisoryHold, rows: Rows) -> None:
        """It is held in its own session, which counts no longer as one that waits."""
        hold.granted(rows[0][0] or b"0")
        self._sessions.mark_holding(hold.session)
        self._wake_unqueued()

    async def _busy(self, hold: AdvisoryHold, main: AdvisorySession, until: float) -> Grant | Busy:
        self._contended.add(hold.key.number)
        hold.polls += 1
        if hold.state == "new" and (before := self._holds.unqueued_before(hold)):
            return Busy(before, poll_after(before), self._known_holder(hold))  # it is woken when its turn comes
        if hold.state == "ended" or hold.polls > 1:
            seen = read(await self._execute(main, b"lf_inspect", halves(hold.key.number), until))
            if await self._is_granted(hold, seen, until):
                return hold.grant
            holder = self._blocker(hold, seen)
            ahead = self._ahead(hold, seen)
            if hold.state == "new" and not self._has_queued_sibling(hold):
                return Busy(ahead, UNQUEUED_POLL_S, holder)
            return Busy(ahead, poll_after(max(1, ahead)), holder)
        others = (other for backend in self._same_server() for other in backend._holds.of(hold.key.number))
        ahead = sum(other.state == "waits" and other is not hold for other in others)  # as far as this process knows
        return Busy(ahead, FIRST_POLL_S, self._known_holder(hold))

    async def _is_granted(self, hold: AdvisoryHold, seen: Sequence[PgLock], until: float) -> bool:
        """If no holder excludes it, the grant is on its way: wait for that."""
        session = hold.session
        holders = [one for one in seen if one.granted and session is not None and one.pid != session.pid]
        if session is not None and not any(hold.mode == EXCLUSIVE or not one.shared for one in holders):
            await self._sessions.wait_answered(session, min(NOTICED_WITHIN_S, until - boot_now()))
        return hold.fence > 0

    def _known_holder(self, hold: AdvisoryHold) -> str | None:
        """Who holds it, if that is a claim of this process."""
        for backend in self._same_server():
            for other in backend._holds.of(hold.key.number):
                if other.state == "held" and EXCLUSIVE in (hold.mode, other.mode):
                    return other.claim.terms.holder
        return None

    def _ahead(self, hold: AdvisoryHold, seen: Sequence[PgLock]) -> int:
        """How many sessions are before it in the server's queue."""
        queue = [one.pid for one in seen if not one.granted]
        pid = hold.session.pid if hold.session is not None else 0
        return queue.index(pid) if pid in queue else len(queue)

    def _has_queued_sibling(self, hold: AdvisoryHold) -> bool:
        """Whether a claim of this `Locks` is in the server's queue; it wakes the next unqueued waiter."""
        return any(other.state == "waits" for other in self._holds.of(hold.key.number))

    def _blocker(self, hold: AdvisoryHold, seen: Sequence[PgLock]) -> str | None:
        """Who holds it. Raises Unsupported if that is another name with the same number; the claim goes on waiting."""
        for one in seen:
            if one.granted:
                here = [other for other in self._in_this_process(one.pid, one.number) if other.state == "held"]
                if here and here[0].key == hold.key:
                    return here[0].claim.terms.holder
                tags = [tag for tag, _ in one.tags if is_tag_of(tag, hold.key.number)]
                if tags and hold.key.tag not in tags and integer_in(hold.claim.terms.key) is None:
                    refuse_hash_collision(hold.claim.terms.name, f"another lock, held by {one.application!r}")
                return one.application or f"pid {one.pid}"
        return None

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

    def _give_back(self, session: AdvisorySession) -> None:
        self._sessions.give_back(session)
        self._wake_unqueued()

    def _wake_unqueued(self, number: int | None = None) -> None:
        """Wake the first claim that waits for a session; of those for `number`, if given."""
        if self._holds.unqueued:
            with self._holds.mutex:
                those = (one for one in self._holds.unqueued.values() if number in (None, one.key.number))
                first = next(those, None)
            if first is not None:
                first.wake()

    async def _dequeue(self, hold: AdvisoryHold, until: float) -> None:
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
            self._give_back(session)

    async def _cancel(self, session: AdvisorySession, main: AdvisorySession, until: float) -> None:
        """Repeated: the server ignores a cancellation that comes before the statement has begun there."""
        pause = UNCONTENDED_WITHIN_S
        while session.in_flight is not None and session.alive:
            if boot_now() >= until:
                raise unavailable(self._endpoint.name, "does not cancel in time")
            await self._execute(main, b"lf_cancel", (session.pid,), until)
            await self._sessions.wait_answered(session, pause)
            pause *= 2

    async def _free_all(self, session: AdvisorySession, until: float) -> None:
        for _ in range(3):
            try:
                await self._execute(session, b"lf_free_all", (), until)
                return
            except StatementCancelled:  # the cancellation came late, and hit this statement
                continue
        raise unavailable(self._endpoint.name, "cancels everything")

    # What this process knows

    def holds_in(self, pid: int, number: int) -> builtins.list[AdvisoryHold]:
        """The claims of this `Locks` for that number in that session."""
        return [one for one in self._holds.of(number) if one.session is not None and one.session.pid == pid]

    def _in_this_process(self, pid: int, number: int) -> builtins.list[AdvisoryHold]:
        """The claims of this process for it."""
        return [hold for backend in self._same_server() for hold in backend.holds_in(pid, number)]

    def _same_server(self) -> builtins.list[Acquiring]:
        return [backend for backend in list(_living) if backend._endpoint.name == self._endpoint.name]

    async def _execute(
        self, session: AdvisorySession, name: bytes, params: Params, until: float, *, urgent: bool = False
    ) -> Rows:
        statement = PendingStatement(name, params)
        statement.urgent = urgent
        return await self._sessions.execute(session, statement, max(0.01, until - boot_now()))


def _is_usual(terms: Terms, main: AdvisorySession) -> bool:
    """Whether it can be tried in the main session without preparation."""
    return terms.mode == EXCLUSIVE and main.named and terms.ttl <= main.longest_ttl


def _report_end(ended: weakref.WeakMethod[Callable[[AdvisorySession], None]], session: AdvisorySession) -> None:
    """Weak: the threads of the driver keep no `Locks` alive."""
    method = ended()
    if method is not None:
        method(session)
