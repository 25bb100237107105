"""PostgreSQL sessions for advisory locks, blocking.

Decides: which thread reads a session, and how many there are.
Leaves to `watch`: to notice that one has ended. Leaves to `session`: what is said on
a session.
"""

from __future__ import annotations

import select
import socket
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from lockfast._reentry import NoThread, outside
from lockfast._time import boot_now
from lockfast._worlds import Clock, Signal, World
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.wire import no_connection, unavailable
from lockfast.backends.postgres_advisory.io.session import Line, Rows, Statement, dial
from lockfast.backends.postgres_advisory.io.watch import OnBroken, Watch, WatchedLine
from lockfast.backends.wakeups.turns import in_turn
from lockfast.errors import BackendUnavailable

# Times as many sessions as may wait. Beside these are those that hold what they waited for, and the first to wait for
# its lock: whoever is not in the server's queue is passed over by all who are, for as long as that is never empty.
MOST: Final = 4
IDLE: Final = 30.0  # seconds after which a session that nobody waits or holds in is closed, and a few more


class Sessions(Protocol):
    """What the backend asks of either driver."""

    endpoint: PostgresEndpoint
    holder: str  # what new sessions are called, for operators

    @property
    def ready(self) -> Line | None:
        """The main session, if there is one."""
        ...

    async def main(self, within: float) -> Line:
        """The session for everything that does not wait. Raises BackendUnavailable."""
        ...

    async def waiter(self, within: float, *, beside: bool = False) -> Line | None:
        """A session that nobody else uses; None if as many wait as may. `beside` those there may be more, see MOST."""
        ...

    def has_come(self, line: Line) -> None:
        """What was waited for in that session is held there: it does not count as one that waits any more."""
        ...

    def give_back(self, line: Line) -> bool:
        """It holds nothing any more, and nothing is under way. False if it was thrown away."""
        ...

    async def ask(self, line: Line, statement: Statement, within: float) -> Rows:
        """Raises BackendUnavailable if no answer comes in time; the statement stays under way then."""
        ...

    def send(self, line: Line, statement: Statement) -> None:
        """Without waiting for the answer; only on a session of `waiter`."""
        ...

    async def briefly(self, line: Line, seconds: float) -> None:
        """Until the statement under way is answered, or so many real seconds have passed."""
        ...

    async def hear(self, line: Line, signal: Signal, seconds: float) -> bool:
        """True once the statement under way is answered, or the signal set; False after `seconds`."""
        ...

    def drop(self, line: Line) -> None:
        """End a session; the server ends whatever it held or waited for."""
        ...

    def peek(self, line: Line) -> None:
        """Take what has arrived, without waiting for more."""
        ...

    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


class _Promise:
    """Of a session that is being opened."""

    holds = False


class BlockingSessions:
    def __init__(self, endpoint: PostgresEndpoint, prepare: str, clock: Clock | None, on_broken: OnBroken) -> None:
        self.endpoint = endpoint
        self.holder = ""
        self._prepare = prepare
        self._clock = clock
        self._on_broken = on_broken
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._opening = threading.RLock()
        self._main: WatchedLine | None = None
        self._lines: weakref.WeakSet[WatchedLine] = weakref.WeakSet()
        self._idle: list[WatchedLine] = []
        # Sessions of `waiter` that are in use, or promises of such. Weak: an interrupt may keep one from its owner.
        self._given: weakref.WeakSet[WatchedLine | _Promise] = weakref.WeakSet()
        self._closed = False
        self._watch: Watch | None = None

    def _dial(self, within: float) -> WatchedLine:
        self._must_be_open()
        dialled = dial(self.endpoint, self.holder, self._prepare, within)
        with self._mutex:
            if self._watch is None:
                self._watch = Watch(IDLE / 3, weakref.WeakMethod(self._tidy))
                weakref.finalize(self, self._watch.close)
        try:
            line = WatchedLine(dialled, self.endpoint.name, self._watch, self._broke)
        except NoThread:
            dialled.pgconn.finish()
            raise
        with self._mutex:
            self._lines.add(line)
            closed = self._closed
        if closed:  # meanwhile
            _end(line)
            self._watch.close()  # it may have been made after the close
            self._must_be_open()
        return line

    def _must_be_open(self) -> None:
        if self._closed:
            raise BackendUnavailable.closed(self.endpoint.name, transient=False)

    def _broke(self, line: Line) -> None:
        with self._mutex:
            if line in self._idle:
                self._idle.remove(line)
        self._on_broken(line)

    @property
    def ready(self) -> Line | None:
        line = self._main
        return line if line is not None and line.alive else None

    async def main(self, within: float) -> Line:
        if (line := self.ready) is not None:
            return line
        found = in_turn(self._opening, within, partial(self._open_main, boot_now() + within))
        if found is None:
            raise no_connection(self.endpoint)
        return found

    def _open_main(self, until: float) -> Line:
        if self._main is None or not self._main.alive:
            self._main = self._dial(max(0.01, until - boot_now()))
        return self._main

    async def waiter(self, within: float, *, beside: bool = False) -> Line | None:
        waiting = self.endpoint.waiting
        promise = _Promise()  # gone when this ends, whatever happens
        with self._mutex:
            given = list(self._given)
            waits = sum(not one.holds for one in given)
            if len(given) >= waiting * MOST or (waits >= waiting and not beside):
                return None
            if self._idle:
                line = self._idle.pop()
                self._given.add(line)
                return line
            self._given.add(promise)
        line = self._dial(within)
        with self._mutex:
            self._given.add(line)
            self._given.discard(promise)
        return line

    def has_come(self, line: Line) -> None:
        line.holds = True

    def give_back(self, line: Line) -> bool:
        assert isinstance(line, WatchedLine)
        line.idle_since = boot_now()
        with self._mutex:
            self._given.discard(line)
            line.holds = False
            keep = line.alive and not self._closed
            if keep:
                self._idle.append(line)
        if not keep:
            _end(line)
        return keep

    def _tidy(self) -> None:
        """Now and then, by the thread that watches."""
        now = boot_now()
        with self._mutex:
            old = [line for line in self._idle if now - line.idle_since > IDLE]
            self._idle = [line for line in self._idle if line not in old]
        for line in old:
            _end(line)

    async def ask(self, line: Line, statement: Statement, within: float) -> Rows:
        assert isinstance(line, WatchedLine)
        until = boot_now() + within
        first, ask = (line.turn, self._ask) if statement.urgent else (line.crowd, self._ask_in_turn)
        if not in_turn(first, within, partial(ask, line, statement, until)):
            raise unavailable(self.endpoint.name, "did not answer in time")
        return statement.rows()

    def _ask_in_turn(self, line: WatchedLine, statement: Statement, until: float) -> bool:
        work = partial(self._ask, line, statement, until)
        return bool(in_turn(line.turn, max(0.01, until - boot_now()), work))

    def _ask(self, line: WatchedLine, statement: Statement, until: float) -> bool:
        if line.flight is not None:
            self._finish(line, until)
        elif line.alive:
            line.heed()  # the thread that watches may not have noticed yet that the server ended the session
        if not line.alive:
            raise unavailable(self.endpoint.name, "ended the session")
        line.begin(statement)
        if line.flight is not None:
            self._finish(line, until)
        return True

    def _finish(self, line: WatchedLine, until: float) -> None:
        while line.flight is not None and line.alive:
            if not line.poll.poll(max(0.0, (until - boot_now()) * 1000)):
                raise unavailable(self.endpoint.name, "did not answer in time")
            line.heed()

    def send(self, line: Line, statement: Statement) -> None:
        assert isinstance(line, WatchedLine)
        with line.turn:
            line.begin(statement)

    async def briefly(self, line: Line, seconds: float) -> None:
        self._hear(line, seconds)

    async def hear(self, line: Line, signal: Signal, seconds: float) -> bool:
        if self._clock is not None:
            self.peek(line)
            return self._hear_by(self._clock, line, seconds)
        return self._hear(line, seconds)

    def _hear(self, line: Line, seconds: float) -> bool:
        assert isinstance(line, WatchedLine)
        until = boot_now() + seconds
        flight = line.flight
        poll = select.poll()  # of our own: whoever closes hears the same answer
        poll.register(line.socket, select.POLLIN)
        while flight is not None and line.alive and line.flight is flight:
            with outside():
                ready = poll.poll(max(0.0, (until - boot_now()) * 1000))
            if not ready:
                return False
            with line.turn:
                self._heed(line, flight)
        return True

    def _hear_by(self, clock: Clock, line: Line, seconds: float) -> bool:
        """A test moves the clock: it rings a bell beside the session."""
        assert isinstance(line, WatchedLine)
        bell, hand = socket.socketpair()
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        poll.register(line.socket, select.POLLIN)
        cancel = clock.alarm(clock.deadline(seconds), lambda: _ring(hand))
        try:
            while (flight := line.flight) is not None and line.alive:
                with outside():
                    ready = [number for number, _ in poll.poll()]
                if bell.fileno() in ready:
                    return False
                with line.turn:
                    self._heed(line, flight)
            return True
        finally:
            cancel()
            bell.close()
            hand.close()

    def _heed(self, line: WatchedLine, flight: Statement) -> None:
        """Unless another thread was faster."""
        if line.alive and line.flight is flight:
            line.heed()

    def peek(self, line: Line) -> None:
        assert isinstance(line, WatchedLine)
        with line.turn:
            if line.alive and line.flight is not None and line.poll.poll(0):
                line.heed()

    def drop(self, line: Line) -> None:
        assert isinstance(line, WatchedLine)
        _end(line)

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            lines = list(self._lines)
            self._idle, self._main = [], None
            watch = self._watch
        for line in lines:
            _end(line)
        if watch is not None:
            watch.close()

    def after_fork(self) -> None:
        """The sessions are the parent's; `wire` has closed our copies of their sockets."""
        for line in list(self._lines):
            line.alive = False
        self._reset()


def _ring(hand: socket.socket) -> None:
    with suppress(OSError):
        hand.send(b"!")


def _end(line: WatchedLine) -> None:
    with line.turn:
        line.broken(ConnectionAbortedError("let go of"))


def open_sessions(
    endpoint: PostgresEndpoint, prepare: str, world: World, clock: Clock | None, on_broken: OnBroken
) -> Sessions:
    """The driver for that world. Nothing is opened yet."""
    if world.blocking:
        return BlockingSessions(endpoint, prepare, clock, on_broken)
    from lockfast.backends.postgres_advisory.io.asyncio_ import AsyncioSessions

    return AsyncioSessions(endpoint, prepare, on_broken)
