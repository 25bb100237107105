"""PostgreSQL sessions for advisory locks, for asyncio.

Decides: how tasks share a session: what they ask waits in line, and is sent as soon as the answer before it is there.
The loop watches every session, so the end of one is noticed when it happens.
Leaves to `session`: what is said on a session.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable

from lockfast._time import boot_now
from lockfast._worlds import Signal
from lockfast._worlds.asyncio_ import end_tasks, in_executor
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.wire import no_connection, unavailable
from lockfast.backends.postgres_advisory.io.blocking import IDLE, MOST
from lockfast.backends.postgres_advisory.io.session import Dialled, Line, Rows, Statement, dial
from lockfast.backends.postgres_advisory.io.watch import OnBroken
from lockfast.backends.wakeups.single_flight import SingleFlight
from lockfast.errors import BackendUnavailable


class _Line(Line):
    def __init__(self, dialled: Dialled, name: str, loop: asyncio.AbstractEventLoop, on_broken: OnBroken) -> None:
        super().__init__(dialled, name)
        self.loop = loop
        self._on_broken = on_broken
        self._unsent: deque[Statement] = deque()
        self._urgent: deque[Statement] = deque()
        loop.add_reader(self.socket, self._readable)

    def put(self, statement: Statement) -> None:
        """Send it as soon as its turn has come; never on a session whose end has arrived here."""
        if self.flight is not None or self._unsent or self._urgent:
            (self._urgent if statement.urgent else self._unsent).append(statement)
            return
        self.heed()  # the loop may not have had its turn since the server ended the session
        if self.alive:
            self.begin(statement)
        else:
            statement.finish(self._unsent_error())

    def withdraw(self, statement: Statement) -> None:
        """Nobody waits for it any more; if it was not sent, it never is."""
        unsent = self._urgent if statement.urgent else self._unsent
        if statement in unsent:
            unsent.remove(statement)

    def _readable(self) -> None:
        if self.heed() and self.alive and self.flight is None:
            unsent = self._urgent or self._unsent
            if unsent:
                self.begin(unsent.popleft())

    def let_go(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_reader(self.socket)
        super().let_go()
        unsent = [*self._urgent, *self._unsent]
        self._urgent, self._unsent = deque(), deque()
        for statement in unsent:
            statement.finish(self._unsent_error())
        self._on_broken(self)

    def _unsent_error(self) -> BackendUnavailable:
        return unavailable(self.name, "ended the session before this was sent")


class AsyncioSessions:
    def __init__(self, endpoint: PostgresEndpoint, prepare: str, on_broken: OnBroken) -> None:
        self.endpoint = endpoint
        self.holder = ""
        self._prepare = prepare
        self._on_broken = on_broken
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._main: _Line | None = None
        self._dialling = SingleFlight[_Line]("lockfast-dial")
        self._lines: weakref.WeakSet[_Line] = weakref.WeakSet()
        self._idle: list[_Line] = []
        self._given = 0  # sessions of `waiter` that are in use or being opened
        self._holding = 0  # those of them that hold what was waited for
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None  # there is one while a session is idle

    def _belong_here(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this AsyncLocks belongs to another event loop; connect once in each loop")
            self._loop = loop
            for line in list(self._lines):  # of a loop that is closed: nobody reads them any more
                line.broken(ConnectionAbortedError("its event loop is closed"))
            self._reset()
        return loop

    async def _dial(self, within: float) -> _Line:
        if self._closed:
            raise BackendUnavailable.closed(self.endpoint.name, transient=False)
        loop = self._belong_here()
        dialling = in_executor(loop, dial, self.endpoint, self.holder, self._prepare, within)
        try:
            dialled = await asyncio.shield(dialling)  # the thread goes on: what it opens must be closed
        except asyncio.CancelledError:
            dialling.add_done_callback(_hang_up)
            raise
        if self._closed:
            dialled.pgconn.finish()
            raise BackendUnavailable.closed(self.endpoint.name, transient=False)
        line = _Line(dialled, self.endpoint.name, loop, self._broke)
        self._lines.add(line)
        return line

    def _broke(self, line: Line) -> None:
        if line in self._idle:
            self._idle.remove(line)
        self._on_broken(line)

    @property
    def ready(self) -> Line | None:
        line = self._main
        return line if line is not None and line.alive and line.loop is asyncio.get_running_loop() else None

    async def main(self, within: float) -> Line:
        if (line := self.ready) is not None:
            return line
        self._belong_here()
        return await self._dialling.run(self._dial_main, within, lambda _: no_connection(self.endpoint))

    async def _dial_main(self, within: float) -> _Line:
        self._main = await self._dial(within)
        return self._main

    async def waiter(self, within: float, *, beside: bool = False) -> Line | None:
        self._belong_here()
        waiting = self.endpoint.waiting
        waits = self._given - self._holding
        if self._given >= waiting * MOST or (waits >= waiting and not beside):
            return None
        self._given += 1
        if self._idle:
            return self._idle.pop()
        try:
            return await self._dial(within)
        except BaseException:
            self._given -= 1
            raise

    def has_come(self, line: Line) -> None:
        self._holding += not line.holds
        line.holds = True

    def give_back(self, line: Line) -> bool:
        assert isinstance(line, _Line)
        line.idle_since = boot_now()
        self._given -= 1
        self._holding -= line.holds
        line.holds = False
        keep = line.alive and not self._closed
        if keep:
            self._idle.append(line)
            if self._timer is None:
                self._timer = line.loop.call_later(IDLE, self._tidy)
        else:
            line.broken(ConnectionAbortedError("let go of"))
        return keep

    def _tidy(self) -> None:
        self._timer = None
        now = boot_now()
        for line in [line for line in self._idle if now - line.idle_since >= IDLE]:
            line.broken(ConnectionAbortedError("let go of"))
        if self._idle:
            oldest = min(self._idle, key=lambda line: line.idle_since)
            self._timer = oldest.loop.call_later(oldest.idle_since + IDLE - now, self._tidy)

    async def ask(self, line: Line, statement: Statement, within: float) -> Rows:
        assert isinstance(line, _Line)
        self._belong_here()
        if not line.alive:
            raise unavailable(self.endpoint.name, "ended the session")
        answered: asyncio.Future[None] = line.loop.create_future()
        statement.done = _and_then(statement.done, answered)
        line.put(statement)
        timer = line.loop.call_later(within, _give_up, answered)
        try:
            await answered
        finally:
            timer.cancel()
            if not statement.finished:
                line.withdraw(statement)
        if not statement.finished:
            raise unavailable(self.endpoint.name, "did not answer in time")
        return statement.rows()

    def send(self, line: Line, statement: Statement) -> None:
        assert isinstance(line, _Line)
        line.put(statement)

    async def briefly(self, line: Line, seconds: float) -> None:
        flight = line.flight
        if flight is not None:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            flight.done = _and_then(flight.done, answered)
            timer = answered.get_loop().call_later(seconds, _give_up, answered)
            try:
                await answered
            finally:
                timer.cancel()

    async def hear(self, line: Line, signal: Signal, seconds: float) -> bool:
        """The loop reads; whoever hears of the answer sets the signal."""
        return await signal.wait(seconds)

    def peek(self, line: Line) -> None:
        """The loop has read it, or will; but whoever asks now should not have to wait for a turn of the loop."""
        if line.alive and line.flight is not None:
            line.heed()

    def drop(self, line: Line) -> None:
        line.broken(ConnectionAbortedError("let go of"))

    async def close(self) -> None:
        self._closed = True
        await end_tasks([self._dialling.task])
        for line in list(self._lines):
            line.broken(ConnectionAbortedError("let go of"))
        self._main = None
        self._idle = []
        if self._timer is not None:
            self._timer.cancel()

    def after_fork(self) -> None:
        """The sessions are the parent's; `wire` has closed our copies of their sockets."""
        for line in list(self._lines):
            line.alive = False
        self._loop = None
        self._reset()


def _and_then(first: Callable[[Statement], None] | None, answered: asyncio.Future[None]) -> Callable[[Statement], None]:
    def done(statement: Statement) -> None:
        if first is not None:
            first(statement)
        if not answered.done():
            answered.set_result(None)

    return done


def _give_up(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)


def _hang_up(dialling: asyncio.Future[Dialled]) -> None:
    if not dialling.cancelled() and dialling.exception() is None:
        dialling.result().pgconn.finish()
