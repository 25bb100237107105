"""PostgreSQL sessions for advisory locks, for asyncio.

Decides: how tasks share a session: their statements queue, and each is sent as soon as the one before it is answered.
The loop watches every session, so the end of one is noticed when it happens.
Leaves to `session`: what is sent on a session. Leaves to `from_outside`: which of its steps another thread takes while
the loop is blocked.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Mapping

from lockfast._refusals import closed_driver, other_event_loop
from lockfast._time import boot_now
from lockfast._worlds import Signal
from lockfast._worlds.asyncio_ import call_in, end_tasks, in_executor
from lockfast.backends.connecting.single_flight import SingleFlight
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import no_connection, unavailable
from lockfast.backends.postgres_advisory.io.driver import MAX_IDLE_S, SessionEvents, max_sessions
from lockfast.backends.postgres_advisory.io.session import (
    AdvisorySession,
    Dialled,
    Done,
    OnSession,
    PendingStatement,
    Rows,
    Statements,
    dial,
)
from lockfast.errors import BackendUnavailable


class AsyncioAdvisorySession(AdvisorySession):
    def __init__(self, dialled: Dialled, name: str, loop: asyncio.AbstractEventLoop, on_end: OnSession) -> None:
        super().__init__(dialled, name)
        self.loop = loop
        self._on_end = on_end
        self._unsent: deque[PendingStatement] = deque()
        self._urgent: deque[PendingStatement] = deque()
        self._mutex = (
            threading.RLock()
        )  # for single steps: of the loop, and of a thread that renews while it is blocked
        self._from_outside: PendingStatement | None = None  # what that thread sends, while it takes a step
        self.failed = False  # in such a step; the loop ends it
        loop.add_reader(self.socket, self.go_on)

    def submit(self, statement: PendingStatement) -> None:
        """Send it when its turn comes; never on a session whose end has arrived here."""
        with self._mutex:
            if self.in_flight is not None or self._unsent or self._urgent:
                (self._urgent if statement.urgent else self._unsent).append(statement)
                return
            self.read_ready()  # the loop may not have had its turn since the server ended the session
            if self.alive:
                self.send(statement)
            else:
                statement.finish(self._unsent_error())

    def withdraw(self, statement: PendingStatement) -> None:
        """No caller waits for it any more; if it was not sent, it never is."""
        unsent = self._urgent if statement.urgent else self._unsent
        if statement in unsent:
            unsent.remove(statement)

    def read_ready(self) -> bool:
        with self._mutex:
            return super().read_ready()

    def go_on(self) -> None:
        """Something has arrived, or was read by another thread."""
        with self._mutex:
            if self.alive and self.read_ready():
                self._send_next()

    def read_end(self) -> None:
        with self._mutex:
            super().read_end()
            self._send_next()

    def _send_next(self) -> None:
        unsent = self._urgent or self._unsent
        if unsent and self.alive and self.in_flight is None:
            self.send(unsent.popleft())

    def end(self, error: BaseException) -> None:
        with self._mutex:
            if self._from_outside is None:
                super().end(error)
            elif not self.failed:
                self.failed = True
                call_in(self.loop, self.end, error)

    def _deliver(self, answered: PendingStatement) -> None:
        if self._from_outside in (None, answered):
            super()._deliver(answered)
        else:
            call_in(self.loop, super()._deliver, answered)

    def step_from_outside(self, statement: PendingStatement) -> bool:
        """Read what has arrived, and send the statement if no other is in flight. True if there is no more to do.

        Called in a thread that is not the loop's. What it reads for callers in the loop is delivered there.
        """
        with self._mutex:
            self._from_outside = statement
            try:
                ready = statement.finished or not self.alive or self.failed or self.read_ready()
                if ready and not (statement.finished or statement.sent_at or self.failed) and self.alive:
                    self.send(statement)
                return statement.finished or not self.alive or self.failed
            finally:
                self._from_outside = None

    def _disconnect(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_reader(self.socket)
        super()._disconnect()
        unsent = [*self._urgent, *self._unsent]
        self._urgent, self._unsent = deque(), deque()
        for statement in unsent:
            statement.finish(self._unsent_error())
        self._on_end(self)

    def _unsent_error(self) -> BackendUnavailable:
        return unavailable(self.name, "ended the session before this was sent")


class AsyncioSessions:
    def __init__(self, endpoint: PostgresEndpoint, statements: Statements, events: SessionEvents) -> None:
        self.endpoint = endpoint
        self.holder = ""
        self._statements = statements
        self._events = events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._main: AsyncioAdvisorySession | None = None
        self._dialling = SingleFlight[AsyncioAdvisorySession]("lockfast-dial")
        self._opened: weakref.WeakSet[AsyncioAdvisorySession] = weakref.WeakSet()
        self._idle: list[AsyncioAdvisorySession] = []
        self._dedicated: set[AsyncioAdvisorySession] = set()  # those of `dedicated` that are in use
        self._opening = 0  # those that are to be
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None  # there is one while a session is idle

    def _belong_here(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                raise other_event_loop()
            self._loop = loop
            for session in list(self._opened):  # of a loop that is closed: no loop reads them
                session.end(ConnectionAbortedError("its event loop is closed"))
            self._reset()
        return loop

    async def _dial(self, within: float) -> AsyncioAdvisorySession:
        if self._closed:
            raise closed_driver(self.endpoint.name)
        loop = self._belong_here()
        dialling = in_executor(loop, dial, self.endpoint, self.holder, self._statements, within)
        try:
            dialled = await asyncio.shield(dialling)  # the thread goes on, and what it opens must be closed
        except asyncio.CancelledError:
            dialling.add_done_callback(_close_late)
            raise
        if self._closed:
            dialled.pgconn.finish()
            raise closed_driver(self.endpoint.name)
        session = AsyncioAdvisorySession(dialled, self.endpoint.name, loop, self._ended_there)
        self._opened.add(session)
        return session

    def _ended_there(self, session: AdvisorySession) -> None:
        if session in self._idle:
            self._idle.remove(session)
        self._events.ended(session)

    @property
    def ready(self) -> AdvisorySession | None:
        session = self._main
        return session if session is not None and session.alive and session.loop is asyncio.get_running_loop() else None

    async def main(self, within: float) -> AdvisorySession:
        if (session := self.ready) is not None:
            return session
        self._belong_here()
        return await self._dialling.run(self._dial_main, within, lambda _: no_connection(self.endpoint))

    async def _dial_main(self, within: float) -> AsyncioAdvisorySession:
        self._main = await self._dial(within)
        return self._main

    async def dedicated(self, within: float, *, beside: bool = False) -> AdvisorySession | None:
        self._belong_here()
        waits = self._opening + sum(not session.holds for session in self._dedicated)
        if self._opening + len(self._dedicated) >= max_sessions(self.endpoint):
            return None
        if waits >= self.endpoint.waiting and not beside:
            return None
        if self._idle:
            session = self._idle.pop()
        else:
            self._opening += 1
            try:
                session = await self._dial(within)
            finally:
                self._opening -= 1
        self._dedicated.add(session)
        return session

    def give_back(self, session: AdvisorySession) -> None:
        assert isinstance(session, AsyncioAdvisorySession)
        session.idle_since = boot_now()
        self._dedicated.discard(session)
        session.holds = False
        keep = session.alive and not self._closed
        if keep:
            self._idle.append(session)
            if self._timer is None:
                self._timer = session.loop.call_later(MAX_IDLE_S, self._close_idle_sessions)
        else:
            session.end(ConnectionAbortedError("closed"))

    def _close_idle_sessions(self) -> None:
        self._timer = None
        now = boot_now()
        for session in [session for session in self._idle if now - session.idle_since >= MAX_IDLE_S]:
            session.end(ConnectionAbortedError("closed"))
        if self._idle:
            oldest = min(self._idle, key=lambda session: session.idle_since)
            self._timer = oldest.loop.call_later(oldest.idle_since + MAX_IDLE_S - now, self._close_idle_sessions)

    async def execute(self, session: AdvisorySession, statement: PendingStatement, within: float) -> Rows:
        assert isinstance(session, AsyncioAdvisorySession)
        self._belong_here()
        if not session.alive:
            raise unavailable(self.endpoint.name, "ended the session")
        answered: asyncio.Future[None] = session.loop.create_future()
        statement.done = _and_then(statement.done, answered)
        until = boot_now() + within
        session.submit(statement)
        timer: asyncio.TimerHandle
        reported = False  # that it is silent

        def give_up() -> None:
            """In time, or once the session counts as silent; the statement in flight may be another one by then.

            An urgent statement waits in a silent session too: it has no other.
            """
            nonlocal timer, reported
            if statement.urgent and not reported and boot_now() >= session.silent_at:
                reported = True
                self._events.silent(session)
            left = (until if reported else min(until, session.silent_at)) - boot_now()
            if left > 0:
                timer = session.loop.call_later(left, give_up)
            else:
                _give_up(answered)

        timer = session.loop.call_later(min(until, session.silent_at) - boot_now(), give_up)
        try:
            await answered
        finally:
            timer.cancel()
            if not statement.finished:
                session.withdraw(statement)
        if not statement.finished:
            if not reported and boot_now() >= session.silent_at:
                self._events.silent(session)
            raise unavailable(self.endpoint.name, "did not answer in time")
        return statement.rows()

    async def execute_each(self, statements: Mapping[AdvisorySession, PendingStatement], within: float) -> None:
        each = [self.execute(session, statement, within) for session, statement in statements.items()]
        for outcome in await asyncio.gather(*each, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, BackendUnavailable):
                raise outcome

    def send(self, session: AdvisorySession, statement: PendingStatement) -> None:
        assert isinstance(session, AsyncioAdvisorySession)
        session.submit(statement)

    async def wait_answered(self, session: AdvisorySession, seconds: float) -> None:
        in_flight = session.in_flight
        if in_flight is not None:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            in_flight.done = _and_then(in_flight.done, answered)
            timer = answered.get_loop().call_later(seconds, _give_up, answered)
            try:
                await answered
            finally:
                timer.cancel()

    async def wait_or_signal(self, session: AdvisorySession, signal: Signal, seconds: float) -> bool:
        """The loop reads the answer, and its callback sets the signal."""
        return await signal.wait(seconds)

    def poll_once(self, session: AdvisorySession) -> None:
        """The loop would read it too, but only in its next turn."""
        if session.alive and session.in_flight is not None:
            session.read_ready()

    def lives(self, session: AdvisorySession) -> bool:
        if session.alive and session.end_arrived():
            session.read_end()
        return session.alive

    def retire(self, session: AdvisorySession) -> None:
        if self._main is session:
            self._main, session.retired = None, True

    def drop(self, session: AdvisorySession) -> None:
        session.end(ConnectionAbortedError("closed"))

    async def close(self) -> None:
        self._closed = True
        await end_tasks([self._dialling.task])
        for session in list(self._opened):
            session.end(ConnectionAbortedError("closed"))
        self._main = None
        self._idle = []
        if self._timer is not None:
            self._timer.cancel()

    def after_fork(self) -> None:
        """The sessions are the parent's; `wire` has closed our copies of their sockets."""
        for session in list(self._opened):
            session.alive = False
        self._loop = None
        self._reset()


def _and_then(first: Done | None, answered: asyncio.Future[None]) -> Done:
    def done(statement: PendingStatement) -> None:
        if first is not None:
            first(statement)
        if not answered.done():
            answered.set_result(None)

    return done


def _give_up(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)


def _close_late(dialling: asyncio.Future[Dialled]) -> None:
    if not dialling.cancelled() and dialling.exception() is None:
        dialling.result().pgconn.finish()
