"""PostgreSQL for asyncio: a few connections for all requests of an `AsyncLocks`, and one for its wake-ups.

Decides: how the loop carries out the steps of the dispatcher. Requests of one turn of the loop, and those that come
while a statement is under way, become one statement, so that two hundred tasks cost little more than one.
Leaves to `dispatcher`: which step is next. Leaves to `batching`: how requests become one statement.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

from lockfast._model import Claim
from lockfast._worlds import Clock
from lockfast._worlds.asyncio_ import background_task, end_tasks, seen
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import Broken, copy_of, no_connection, unavailable
from lockfast.backends.postgres.io.resolver import Names
from lockfast.backends.postgres.io.stepping_asyncio import run
from lockfast.backends.postgres_table.io.batching import (
    CLEAN_UP_WITHIN_S,
    LISTEN_WITHIN_S,
    MAX_TRIES,
    STUCK_AFTER_S,
    Many,
    TableRequest,
    statement_for,
)
from lockfast.backends.postgres_table.io.connections_asyncio import (
    AsyncioPostgresTableWakeups,
    AsyncioTableConnection,
    arrives,
    open_session,
)
from lockfast.backends.postgres_table.io.dispatcher import Dispatcher, DispatchStep, PendingRequest
from lockfast.backends.postgres_table.io.session import ECHO_WITHIN_S, TableSession, echo, listen, register
from lockfast.errors import BackendUnavailable

_MIN_DIAL_S = 1.0  # however soon the first caller that needs a connection gives up


class AsyncioPostgres:
    blocking = False

    def __init__(self, endpoint: PostgresEndpoint, clock: Clock | None, many: Many, version: int) -> None:
        self.endpoint = endpoint
        self.now = clock.now if clock is not None else None
        self.wakeups = AsyncioPostgresTableWakeups(clock)
        self._many = many
        self._version = version
        self._reset()

    def _reset(self) -> None:
        self._names = Names()
        self._unchecked = self._version  # of the schema; 0 once it was seen to be there
        self._dispatcher = Dispatcher(self.endpoint, self._many, blocking=False)
        self._goes_on = False  # the next turn of the loop carries out what is next
        self._goes_on_later: asyncio.TimerHandle | None = None  # a connection may be stuck then
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_at = math.inf  # the first request that is not answered
        self._dialling: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None

    def _begin(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self.wakeups.is_new(loop):
            closed = self._dispatcher.closed
            self._dispatcher.close_all()
            self._reset()
            self._dispatcher.closed = closed
            self.wakeups.begin_again()
        return loop

    async def ask(self, request: TableRequest, within: float) -> Any:
        loop = self._begin()
        dispatcher = self._dispatcher
        until = loop.time() + (min(within, CLEAN_UP_WITHIN_S) if dispatcher.closed else within)
        for _ in range(MAX_TRIES):
            pending = PendingRequest(request, until, loop.create_future())
            dispatcher.submit(pending)
            if not self._goes_on:
                self._goes_on = True
                loop.call_soon(self._go_on)  # requests of this turn of the loop become one statement
            if until < self._expires_at:
                self._expire_at(loop, until)
            try:
                answer = await pending.answer
            except asyncio.CancelledError:
                dispatcher.withdraw(pending)
                raise
            if not isinstance(answer, Exception):
                return answer
            dispatcher.retry(request, answer, loop.time(), until)
        raise dispatcher.rolled_back_error()

    def _expire_at(self, loop: asyncio.AbstractEventLoop, moment: float) -> None:
        """One timer for all requests: few of them ever wait for long."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = moment
        self._expiry = loop.call_at(moment, self._expire) if moment < math.inf else None

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        late, soonest = self._dispatcher.overdue(loop.time())
        error = self._dispatcher.late_error()
        self._deliver((pending, error) for pending in late)
        self._expire_at(loop, soonest)

    # Steps

    def _go_on(self) -> None:
        self._goes_on = False
        loop = asyncio.get_running_loop()
        dispatcher = self._dispatcher
        dispatcher.close_silent(loop.time())
        while (step := dispatcher.next(loop.time())) is not None:
            if step.connection is None:
                task = background_task(loop, self._dial(step), "lockfast-dial")
                self._dialling.add(task)
                task.add_done_callback(self._dialling.discard)
            else:
                batch = dispatcher.batch(step)
                step.connection.start(step.connection.session.execute(*statement_for(batch, self._many)))
        if dispatcher.waiting and self._goes_on_later is None:
            self._goes_on_later = loop.call_later(STUCK_AFTER_S, self._go_on_now)

    def _go_on_now(self) -> None:
        self._goes_on_later = None
        self._go_on()

    def _finished(self, connection: AsyncioTableConnection, answer: Any) -> None:
        """A statement has ended, or the connection has."""
        self._deliver(self._dispatcher.results(connection, answer))
        self._dispatcher.finished(connection, usable=connection.alive)
        if self._dispatcher.waiting and not self._goes_on:
            self._goes_on = True  # in a turn of its own: the callers that have their answers may ask for more
            asyncio.get_running_loop().call_soon(self._go_on)

    def _deliver(self, results: Iterable[tuple[PendingRequest, Any]]) -> None:
        for pending, value in results:
            if not pending.answer.done():
                pending.answer.set_result(value)

    async def _dial(self, step: DispatchStep) -> None:
        loop = asyncio.get_running_loop()
        within = max(step.until - loop.time(), _MIN_DIAL_S)
        try:
            async with asyncio.timeout(within):
                session = await self._connect(within, self._unchecked)
        except (TimeoutError, BackendUnavailable, asyncio.CancelledError) as reason:
            error = reason if isinstance(reason, BackendUnavailable) else no_connection(self.endpoint, sent=False)
            self._deliver(self._dispatcher.not_connected(step, error, loop.time()))
            if isinstance(reason, asyncio.CancelledError):
                raise
        else:
            self._unchecked = 0
            connection = AsyncioTableConnection(session, loop, self._finished)
            self._dispatcher.connected(step, connection, loop.time())
        self._go_on()

    async def _connect(self, within: float, version: int) -> TableSession:
        return await open_session(self.endpoint, self._names, within, version)

    # Wake-ups

    @property
    def cannot_listen(self) -> bool:
        return not self.wakeups.address

    async def expect(self, claim: Claim, within: float) -> str:
        loop = self._begin()
        if self._dispatcher.closed:
            raise self._dispatcher.closed_error()
        if self.cannot_listen and self._dispatcher.should_listen(loop.time()):
            if self._listening is None or self._listening.done():
                self._listening = background_task(loop, self._listen(max(within, _MIN_DIAL_S)), "lockfast-listen")
                self._listening.add_done_callback(seen)
            try:
                await self._listens(self._listening, min(LISTEN_WITHIN_S, within / 2))
            except BackendUnavailable as error:
                self._dispatcher.cannot_listen_for_now(error, loop.time())
        return self.wakeups.expect(claim)

    async def _listens(self, listening: asyncio.Task[None], within: float) -> None:
        await asyncio.wait({listening}, timeout=within)
        if not listening.done():
            raise no_connection(self.endpoint, sent=False)
        if listening.cancelled():
            raise self._dispatcher.closed_error()
        error = listening.exception()
        if error is not None:
            raise copy_of(error) if isinstance(error, BackendUnavailable) else error

    async def _listen(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                session = await self._connect(within, 0)
                try:
                    await run(session.simple_query(listen(self.wakeups.channel)))
                    receives = not session.pooled or await self._receives_echo(session, within)
                    if receives:
                        await run(session.simple_query(register(self.endpoint, self.wakeups.channel)))
                except BaseException:
                    session.close()
                    raise
        except TimeoutError as error:
            raise unavailable(self.endpoint.name, "did not answer in time") from error
        except Broken as broken:
            raise unavailable(self.endpoint.name, broken.message) from broken
        if receives and not self._dispatcher.closed:
            self.wakeups.attach(session)
        else:
            session.close()
        self._dispatcher.listens(receives=receives)

    async def _receives_echo(self, session: TableSession, within: float) -> bool:
        """A notification sent by another connection arrives, unless a pooler gives each statement to another one."""
        await self.ask(TableRequest(*echo(self.wakeups.channel)), within)
        return await arrives(session, min(ECHO_WITHIN_S, within / 2))

    # The end

    async def close(self) -> None:
        error = self._dispatcher.closed_error()
        self._deliver((pending, error) for pending in self._dispatcher.close(drop=True))
        self.wakeups.close()
        for timer in (self._goes_on_later, self._expiry):
            if timer is not None:
                timer.cancel()
        self._goes_on_later = None
        await end_tasks([*self._dialling, self._listening])
        self._go_on()
        self._expire()  # until all is cleaned up

    def after_fork(self) -> None:
        """The connections are the parent's; `wire` has closed our copies of them."""
        self.wakeups.after_fork()
        self._reset()

    def __repr__(self) -> str:
        return self.endpoint.name
