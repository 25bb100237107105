"""PostgreSQL sessions for advisory locks, blocking.

Decides: which thread reads a session, and how many sessions there are.
Leaves to `watch`: to notice that one has ended. Leaves to `session`: what is sent on a session.
"""

from __future__ import annotations

import select
import socket
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from lockfast._reentry import NoThread, outside
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock, Signal
from lockfast.backends.connecting.turns import in_turn
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import no_connection, unavailable
from lockfast.backends.postgres.io.resolver import shares
from lockfast.backends.postgres_advisory.io.driver import MAX_IDLE_S, SessionEvents, max_sessions
from lockfast.backends.postgres_advisory.io.session import AdvisorySession, PendingStatement, Rows, Statements, dial
from lockfast.backends.postgres_advisory.io.watch import SessionWatch, WatchedSession
from lockfast.errors import BackendUnavailable


class _Opening:
    """Stands for a session that is being opened."""

    holds = False


class BlockingSessions:
    def __init__(
        self, endpoint: PostgresEndpoint, statements: Statements, clock: Clock | None, events: SessionEvents
    ) -> None:
        self.endpoint = endpoint
        self.holder = ""
        self._statements = statements
        self._clock = clock
        self._events = events
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._opening = threading.RLock()
        self._main: WatchedSession | None = None
        self._opened: weakref.WeakSet[WatchedSession] = weakref.WeakSet()
        self._idle: list[WatchedSession] = []
        # Sessions of `dedicated` that are in use or being opened. Weak: an interrupt may keep one from its owner.
        self._dedicated: weakref.WeakSet[WatchedSession | _Opening] = weakref.WeakSet()
        self._closed = False
        self._watch: SessionWatch | None = None

    def _dial(self, within: float) -> WatchedSession:
        self._must_be_open()
        dialled = dial(self.endpoint, self.holder, self._statements, within)
        with self._mutex:
            if self._watch is None:
                self._watch = SessionWatch(MAX_IDLE_S / 3, weakref.WeakMethod(self._close_idle_sessions))
                weakref.finalize(self, self._watch.close)
        try:
            session = WatchedSession(dialled, self.endpoint.name, self._watch, self._ended_there)
        except NoThread:
            dialled.pgconn.finish()
            raise
        with self._mutex:
            self._opened.add(session)
            closed = self._closed
        if closed:  # meanwhile
            _end(session)
            self._watch.close()  # it may have been made after the close
            self._must_be_open()
        return session

    def _must_be_open(self) -> None:
        if self._closed:
            raise closed_driver(self.endpoint.name)

    def _ended_there(self, session: AdvisorySession) -> None:
        with self._mutex:
            if session in self._idle:
                self._idle.remove(session)
        self._events.ended(session)

    @property
    def ready(self) -> AdvisorySession | None:
        session = self._main
        return session if session is not None and session.alive else None

    async def main(self, within: float) -> AdvisorySession:
        if (session := self.ready) is not None:
            return session
        found = in_turn(self._opening, within, partial(self._open_main, boot_now() + within))
        if found is None:
            raise no_connection(self.endpoint)
        return found

    def _open_main(self, until: float) -> AdvisorySession:
        if self._main is None or not self._main.alive:
            self._main = self._dial(max(0.01, until - boot_now()))
        return self._main

    async def dedicated(self, within: float, *, beside: bool = False) -> AdvisorySession | None:
        waiting = self.endpoint.waiting
        opening = _Opening()  # gone when this ends, whatever happens
        with self._mutex:
            given = list(self._dedicated)
            waits = sum(not one.holds for one in given)
            if len(given) >= max_sessions(self.endpoint) or (waits >= waiting and not beside):
                return None
            if self._idle:
                session = self._idle.pop()
                self._dedicated.add(session)
                return session
            self._dedicated.add(opening)
        session = self._dial(within)
        with self._mutex:
            self._dedicated.add(session)
            self._dedicated.discard(opening)
        return session

    def give_back(self, session: AdvisorySession) -> None:
        assert isinstance(session, WatchedSession)
        session.idle_since = boot_now()
        with self._mutex:
            self._dedicated.discard(session)
            session.holds = False
            keep = session.alive and not self._closed
            if keep:
                self._idle.append(session)
        if not keep:
            _end(session)

    def _close_idle_sessions(self) -> None:
        """Called now and then by the thread that watches."""
        now = boot_now()
        with self._mutex:
            old = [session for session in self._idle if now - session.idle_since > MAX_IDLE_S]
            self._idle = [session for session in self._idle if session not in old]
        for session in old:
            _end(session)

    async def execute(self, session: AdvisorySession, statement: PendingStatement, within: float) -> Rows:
        self._ask(session, statement, boot_now() + within)
        return statement.rows()

    def _ask(self, session: AdvisorySession, statement: PendingStatement, until: float) -> None:
        """Raises BackendUnavailable if no answer comes in time."""
        assert isinstance(session, WatchedSession)
        first, execute = (session.turn, self._execute) if statement.urgent else (session.queue, self._execute_in_turn)
        if not in_turn(first, max(0.01, until - boot_now()), partial(execute, session, statement, until)):
            raise unavailable(self.endpoint.name, "did not answer in time")

    def _execute_in_turn(self, session: WatchedSession, statement: PendingStatement, until: float) -> bool:
        work = partial(self._execute, session, statement, until)
        return bool(in_turn(session.turn, max(0.01, until - boot_now()), work))

    def _execute(self, session: WatchedSession, statement: PendingStatement, until: float) -> bool:
        if session.in_flight is not None:
            self._finish(session, until, statement.urgent)
        elif session.alive:
            session.read_ready()  # the thread that watches may not have noticed yet that the server ended the session
        if not session.alive:
            raise unavailable(self.endpoint.name, "ended the session")
        session.send(statement)
        if session.in_flight is not None:
            self._finish(session, until, statement.urgent)
        return True

    async def execute_each(self, statements: Mapping[AdvisorySession, PendingStatement], within: float) -> None:
        until = boot_now() + within
        unsent = [
            (session, statement) for session, statement in statements.items() if not self._sent(session, statement)
        ]
        for (session, statement), end in shares(unsent, until, boot_now):  # another statement is in flight there
            with suppress(BackendUnavailable):
                self._ask(session, statement, end)
        for session, statement in statements.items():
            with suppress(BackendUnavailable):
                self._collect(session, statement, until)

    def _sent(self, session: AdvisorySession, statement: PendingStatement) -> bool:
        """False if it is not sent, because the session is in use."""
        assert isinstance(session, WatchedSession)
        return bool(in_turn(session.turn, 0.0, partial(self._send_if_idle, session, statement)))

    def _send_if_idle(self, session: WatchedSession, statement: PendingStatement) -> bool:
        if session.in_flight is None and session.alive:
            session.read_ready()  # as in `_execute`
            if session.alive:
                session.send(statement)
        return bool(statement.sent_at) or not session.alive

    def _collect(self, session: AdvisorySession, statement: PendingStatement, until: float) -> None:
        """Read the answer, unless another thread has, or does. Raises BackendUnavailable."""
        assert isinstance(session, WatchedSession)

        def finish() -> None:
            if session.in_flight is statement:
                self._finish(session, until, statement.urgent)

        if statement.sent_at and not statement.finished:
            in_turn(session.turn, max(0.01, until - boot_now()), finish)

    def _finish(self, session: WatchedSession, until: float, urgent: bool) -> None:
        """Read the answer that is due. An urgent statement waits for it in a silent session too: it has no other."""
        reported = False  # that it is silent
        while session.in_flight is not None and session.alive:
            limit = until if reported else min(until, session.silent_at)
            if session.poll.poll(max(0.0, (limit - boot_now()) * 1000)):
                session.read_ready()
                continue
            if not reported and boot_now() >= session.silent_at:
                self._events.silent(session)
                reported = True
            if not urgent or boot_now() >= until:
                raise unavailable(self.endpoint.name, "did not answer in time")

    def send(self, session: AdvisorySession, statement: PendingStatement) -> None:
        assert isinstance(session, WatchedSession)
        with session.turn:
            session.send(statement)

    async def wait_answered(self, session: AdvisorySession, seconds: float) -> None:
        self._wait(session, seconds)

    async def wait_or_signal(self, session: AdvisorySession, signal: Signal, seconds: float) -> bool:
        if self._clock is not None:
            self.poll_once(session)
            return self._wait_by(self._clock, session, seconds)
        return self._wait(session, seconds)

    def _wait(self, session: AdvisorySession, seconds: float) -> bool:
        assert isinstance(session, WatchedSession)
        until = boot_now() + seconds
        in_flight = session.in_flight
        poll = select.poll()  # of our own: a thread that closes may read the same answer
        poll.register(session.socket, select.POLLIN)
        while in_flight is not None and session.alive and session.in_flight is in_flight:
            with outside():
                ready = poll.poll(max(0.0, (until - boot_now()) * 1000))
            if not ready:
                return False
            with session.turn:
                self._read_ready(session, in_flight)
        return True

    def _wait_by(self, clock: Clock, session: AdvisorySession, seconds: float) -> bool:
        """For tests that move the clock."""
        assert isinstance(session, WatchedSession)
        wake_reader, wake_writer = socket.socketpair()
        poll = select.poll()
        poll.register(wake_reader, select.POLLIN)
        poll.register(session.socket, select.POLLIN)
        cancel = clock.alarm(clock.deadline(seconds), lambda: _wake(wake_writer))
        try:
            while (in_flight := session.in_flight) is not None and session.alive:
                with outside():
                    ready = [number for number, _ in poll.poll()]
                if wake_reader.fileno() in ready:
                    return False
                with session.turn:
                    self._read_ready(session, in_flight)
            return True
        finally:
            cancel()
            wake_reader.close()
            wake_writer.close()

    def _read_ready(self, session: WatchedSession, in_flight: PendingStatement) -> None:
        """Unless another thread has read the answer."""
        if session.alive and session.in_flight is in_flight:
            session.read_ready()

    def poll_once(self, session: AdvisorySession) -> None:
        assert isinstance(session, WatchedSession)
        with session.turn:
            if session.alive and session.in_flight is not None and session.poll.poll(0):
                session.read_ready()

    def lives(self, session: AdvisorySession) -> bool:
        assert isinstance(session, WatchedSession)
        if session.alive and session.end_arrived():
            with session.turn:
                if session.alive:
                    session.read_end()
        return session.alive

    def retire(self, session: AdvisorySession) -> None:
        with self._mutex:
            if self._main is session:
                self._main, session.retired = None, True

    def drop(self, session: AdvisorySession) -> None:
        assert isinstance(session, WatchedSession)
        _end(session)

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            sessions = list(self._opened)
            self._idle, self._main = [], None
            watch = self._watch
        for session in sessions:
            _end(session)
        if watch is not None:
            watch.close()

    def after_fork(self) -> None:
        """The sessions are the parent's; `wire` has closed our copies of their sockets."""
        for session in list(self._opened):
            session.alive = False
        self._reset()


def _wake(wake_writer: socket.socket) -> None:
    with suppress(OSError):
        wake_writer.send(b"!")


def _end(session: WatchedSession) -> None:
    with session.turn:
        session.end(ConnectionAbortedError("closed"))
