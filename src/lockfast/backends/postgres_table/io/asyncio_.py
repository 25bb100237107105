"""PostgreSQL for asyncio: a few connections for all requests of an `AsyncLocks`, and one for its wake-ups.

Decides: how requests share a connection. What is asked for in one turn of the loop, or while a statement is under way,
becomes one statement, so that two hundred tasks cost little more than one.
Leaves to `wire`: what is sent on a connection. Leaves to `batching`: how requests become one statement.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from lockfast._model import Claim
from lockfast._refusals import closed_driver
from lockfast._worlds import Clock
from lockfast._worlds.asyncio_ import background_task, end_tasks
from lockfast.backends.connecting.arrived import READ_AGAIN_AFTER_S
from lockfast.backends.connecting.first_ready import first_ready
from lockfast.backends.connecting.single_flight import SingleFlight
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import Broken, RolledBack, copy_of, no_connection, unavailable
from lockfast.backends.postgres.io.resolver import Names, not_found, shares
from lockfast.backends.postgres.io.stepping_asyncio import run
from lockfast.backends.postgres.io.wire import Steps
from lockfast.backends.postgres_table.io.batching import (
    BEHIND_AFTER_S,
    CLEAN_UP_WITHIN_S,
    LISTEN_AGAIN_AFTER_S,
    LISTEN_WITHIN_S,
    MAX_BATCH,
    MAX_CONNECTIONS,
    MAX_SPARE,
    MAX_TRIES,
    MIN_TO_SPLIT,
    STUCK_AFTER_S,
    UNLISTEN_WITHIN_S,
    Many,
    TableRequest,
    failures_of,
    first_of,
    is_sent_again,
    may_join,
    replies_of,
    rolled_back_again,
    settled,
)
from lockfast.backends.postgres_table.io.connections_asyncio import (
    AsyncioPostgresTableWakeups,
    AsyncioTableConnection,
    PendingTableRequest,
)
from lockfast.backends.postgres_table.io.session import (
    ECHO_WITHIN_S,
    LONG_AGO,
    SILENT_S,
    TableSession,
    echo,
    is_suspect,
    listen,
    open_session,
    probe_within,
    register,
    warn_cannot_listen,
    warn_polling_for_now,
)
from lockfast.errors import BackendUnavailable

_NEVER = float("inf")
_MIN_DIAL_S = 1.0  # that connecting may take at least, however soon the first to need it gives up


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
        self._idle: list[AsyncioTableConnection] = []
        self._busy: list[AsyncioTableConnection] = []
        self._dialling: set[asyncio.Task[None]] = set()
        self._waiting: deque[PendingTableRequest] = deque()
        self._others_first = False  # the last statement was of blocked requests, see `first_of`
        self._pumps = False  # the next turn of the loop sends what waits
        self._stuck_timer: asyncio.TimerHandle | None = None  # to see whether all connections are stuck
        self._timer: asyncio.TimerHandle | None = None
        self._late_at = _NEVER  # when the first of the unanswered may be late
        self._listening = SingleFlight[None]("lockfast-listen")
        self._checked = False  # that the schema is there
        self._closed = False
        self._listens_at = 0.0  # not before; waiters poll until then. Never again behind a pooler

    def _begin(self, *, is_cleanup: bool = False) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self.wakeups.is_new(loop):
            for connection in (*self._idle, *self._busy):
                connection.close()
            closed = self._closed
            self._reset()
            self._closed = closed
            self.wakeups.begin_again()
        if self._closed and not is_cleanup:
            raise self._closed_error()
        return loop

    def _closed_error(self) -> BackendUnavailable:
        return closed_driver(self.endpoint.name)

    async def ask(self, request: TableRequest, within: float) -> Any:
        loop = self._begin(is_cleanup=request.is_cleanup)
        until = loop.time() + (min(within, CLEAN_UP_WITHIN_S) if self._closed else within)
        for _ in range(MAX_TRIES):
            answer = await self._carried(loop, request, until)
            if not is_sent_again(request, answer):
                return settled(answer, closed=self._closed)
            if loop.time() >= until:
                break
        raise rolled_back_again(self.endpoint.name)

    def _carried(self, loop: asyncio.AbstractEventLoop, request: TableRequest, until: float) -> asyncio.Future[Any]:
        """What becomes of it, later: an answer, or an error."""
        answer = loop.create_future()
        self._waiting.append(pending := PendingTableRequest(request, answer, until))
        if request.is_cleanup and self._busy:
            loop.call_later(BEHIND_AFTER_S, self._send_behind, pending)
        if not self._pumps:
            self._pumps = True
            loop.call_soon(self._pump)
        if until < self._late_at:
            self._watch(loop, until)
        return answer

    def _watch(self, loop: asyncio.AbstractEventLoop, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._late_at = moment
        self._timer = loop.call_at(moment, self._poll)

    def _late(self, *, sent: bool) -> BackendUnavailable:
        if self._busy or self._idle:
            return unavailable(self.endpoint.name, "did not answer in time", sent=sent)
        return no_connection(self.endpoint, sent=False)

    def _poll(self) -> None:
        """One timer for all requests: few of them ever wait for long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer, self._late_at = None, _NEVER
        soonest = _NEVER
        under_way = [pending for connection in self._busy for pending in connection.batch]
        for number, pending in enumerate((*under_way, *self._waiting)):
            if pending.answer.done():
                continue
            if pending.until <= now:
                pending.answer.set_result(self._late(sent=number < len(under_way)))
            else:
                soonest = min(soonest, pending.until)
        if soonest < _NEVER:
            self._watch(loop, soonest)

    # Who uses which connection

    def _pump(self) -> None:
        """Give what waits to whichever connection is free; or see to it that there is one soon."""
        self._pumps = False
        self._give_up_the_silent()
        while self._waiting and self._waiting[0].answer.done():
            self._waiting.popleft()  # cancelled, or too late
        several = len(self._waiting) > MIN_TO_SPLIT
        while self._waiting and self._idle:
            connection = self._idle.pop()
            self._busy.append(connection)
            if not self._probe(connection):
                connection.start(self._next_batch(len(self._idle) + 1 if several else 1), self._many)
        if not (self._waiting or several):
            self._close_idle_connections()
            return
        loop = asyncio.get_running_loop()
        stuck = sum(connection.since + STUCK_AFTER_S <= loop.time() for connection in self._busy)
        if any(connection.probing for connection in self._busy):
            return  # it is soon known
        if len(self._busy) + len(self._idle) + len(self._dialling) < MAX_CONNECTIONS + min(MAX_SPARE, stuck):
            until = self._waiting[-1].until if self._waiting else 0.0
            task = background_task(loop, self._dial(until - loop.time()), "lockfast-dial")
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        if self._stuck_timer is None and self._busy:
            self._stuck_timer = loop.call_later(STUCK_AFTER_S, self._pump_again)

    def _probe(self, connection: AsyncioTableConnection) -> bool:
        """True if it has been idle for so long that it has to be probed before it is used.

        The request with most time decides for how long, so that one with little time closes no connection of others.
        """
        if not is_suspect(connection.idle_since):
            return False
        loop = asyncio.get_running_loop()
        within = probe_within(max(pending.until for pending in self._waiting) - loop.time())
        if within is None:
            return False
        connection.probe()
        if connection.probing:
            loop.call_later(within, self._end_probe, connection, connection.since)
        return True

    def _end_probe(self, connection: AsyncioTableConnection, probed_at: float) -> None:
        """If it was not answered, close the connection and all that have been idle for as long."""
        if not connection.probing or connection.since != probed_at or connection not in self._busy:
            return
        if connection.is_answered:
            loop = asyncio.get_running_loop()
            loop.call_later(READ_AGAIN_AFTER_S, self._end_probe, connection, probed_at)
            return
        self._busy.remove(connection)
        suspects = [one for one in self._idle if one.idle_since <= connection.idle_since]
        self._idle = [one for one in self._idle if one.idle_since > connection.idle_since]
        for one in (connection, *suspects):
            one.close()
        self.wakeups.drop_session()
        self._pump()

    def _give_up_the_silent(self) -> None:
        """A dead connection never answers; requests that still have time may wait there."""
        now = asyncio.get_running_loop().time() if self._busy else 0.0
        for connection in list(self._busy):
            given_up = all(pending.answer.done() for pending in connection.batch)
            if connection.since + SILENT_S <= now and given_up and not connection.is_answered:
                for waiting in self._waiting:
                    self._send_behind(waiting)
                self._busy.remove(connection)
                connection.close()
                self._suspect(connection.sent_at)

    def _send_behind(self, pending: PendingTableRequest) -> None:
        """The server does not answer, and may never do so while we are there."""
        if not pending.answer.done():
            for connection in self._busy:
                connection.abandon_behind(pending.request)

    def _suspect(self, moment: float) -> None:
        """What was sent then was never answered. Connections that have received nothing since may be dead too."""
        for connection in self._idle:
            if connection.idle_since <= moment:
                connection.idle_since = LONG_AGO  # it is probed before it is used again
        self.wakeups.drop_session(moment)

    def _pump_again(self) -> None:
        self._stuck_timer = None
        self._pump()

    def _next_batch(self, connections: int) -> list[PendingTableRequest]:
        """What to send next, with that many connections free: while the server is at one part, we are at the other."""
        most = min(MAX_BATCH, -(-len(self._waiting) // connections))
        waiting = [pending for pending in self._waiting if not pending.answer.done()]
        first = first_of(waiting, others_first=self._others_first)
        waiting.remove(first)
        self._others_first = first.request.blocked
        if first.request.alone:
            self._waiting = deque(waiting)
            return [first]
        batch, left = [first], deque[PendingTableRequest]()
        for pending in waiting:
            if len(batch) >= most or not may_join(pending.request, first.request):
                left.append(pending)
            else:
                batch.append(pending)
        self._waiting = left
        return batch

    def _done(self, connection: AsyncioTableConnection, answer: Any) -> None:
        """A statement has ended, or the connection has."""
        sent, connection.batch = connection.batch, []
        if connection in self._busy:
            self._busy.remove(connection)
        elif connection in self._idle:
            self._idle.remove(connection)
        if connection.alive and (self._waiting or not self._closed):
            self._idle.append(connection)
        else:
            connection.close()
        batch = [pending.request for pending in sent]
        if isinstance(answer, Broken):
            answers = [unavailable(self.endpoint.name, answer.message)] * len(batch)
        elif isinstance(answer, RolledBack | BackendUnavailable):
            answers = failures_of(batch, answer)
        elif not batch:
            answers = []  # it was probed
        else:
            answers = replies_of(batch, answer, self._many)
        for pending, one in zip(sent, answers, strict=True):
            if not pending.answer.done():
                pending.answer.set_result(one)
        if self._waiting and not self._pumps:
            self._pumps = True  # in a turn of its own: callers that were answered may ask for more
            asyncio.get_running_loop().call_soon(self._pump)

    # Connecting

    async def _dial(self, within: float) -> None:
        try:
            within = max(within, _MIN_DIAL_S)
            async with asyncio.timeout(within):
                session = await self._connect(within, 0 if self._checked else self._version)
        except TimeoutError:
            self._fail(no_connection(self.endpoint, sent=False))
        except BackendUnavailable as error:
            self._fail(error)
        else:
            self._checked = True
            self._idle.append(AsyncioTableConnection(session, asyncio.get_running_loop(), self._done))
            self._pump()

    def _fail(self, error: BackendUnavailable) -> None:
        """Fail the requests that wait for a connection, unless other connections are left."""
        if self._busy or self._idle:
            return
        waiting, self._waiting = self._waiting, deque()
        self._answer(waiting, error)

    def _answer(self, batch: Iterable[PendingTableRequest], error: BackendUnavailable) -> None:
        for pending in batch:
            if not pending.answer.done():
                pending.answer.set_result(error)

    async def _connect(self, within: float, version: int) -> TableSession:
        now = asyncio.get_running_loop().time
        reasons: list[Exception] = []
        for params, last in shares(self.endpoint.hosts, now() + within, now):
            try:
                async with asyncio.timeout_at(last):
                    found = await asyncio.wrap_future(self._names.addresses(params))
            except TimeoutError:
                reasons.append(TimeoutError(not_found(params)))
                continue
            except Broken as reason:
                reasons.append(reason)
                continue
            for one, end in shares(self.endpoint.in_order(found), last, now):
                try:
                    async with asyncio.timeout_at(end):
                        session = await self._first_ready(one, version, end - now())
                    self.endpoint.remember(one)
                    return session
                except (TimeoutError, Broken, RolledBack) as reason:
                    reasons.append(reason)
        raise no_connection(self.endpoint, reasons, sent=False)

    async def _first_ready(self, params: Mapping[str, str], version: int, within: float) -> TableSession:
        def connect() -> Coroutine[Any, Any, TableSession]:
            return run(open_session(self.endpoint, params, version))

        return await first_ready(self.endpoint.second_tries, connect, within, TableSession.close)

    # Wake-ups

    @property
    def cannot_listen(self) -> bool:
        return not self.wakeups.address

    async def expect(self, claim: Claim, within: float) -> str:
        loop = self._begin()
        if not self.wakeups.address and loop.time() >= self._listens_at:
            try:
                patience = min(LISTEN_WITHIN_S, within / 2)
                await self._listening.run(
                    lambda _: self._listen(max(within, _MIN_DIAL_S)), patience, self._not_listening
                )
            except BackendUnavailable as error:
                if not error.transient or not (self._busy or self._idle):
                    raise copy_of(error) from error
                self._poll_from_now_on(error)
        return self.wakeups.expect(claim)

    def _not_listening(self, reason: str) -> BackendUnavailable:
        return (
            self._closed_error() if self._closed else no_connection(self.endpoint, [TimeoutError(reason)], sent=False)
        )

    def _poll_from_now_on(self, reason: BackendUnavailable) -> None:
        first, self._listens_at = not self._listens_at, asyncio.get_running_loop().time() + LISTEN_AGAIN_AFTER_S
        if first:
            warn_polling_for_now(reason)

    async def _listen(self, within: float) -> None:
        receives = True
        try:
            async with asyncio.timeout(within):
                session, pid = await self._connect(within, 0), None
                try:
                    ((pid,),) = await run(session.simple_query(listen(self.wakeups.channel.name)))
                    if session.pooled and not await self._receives_echo(session, within):
                        receives = False
                        await self._stop_listening(session, pid)
                    else:
                        await run(session.simple_query(register(self.endpoint, self.wakeups.channel.name)))
                except BaseException:
                    await self._stop_listening(session, pid)
                    session.close()
                    raise
        except TimeoutError as error:
            raise unavailable(self.endpoint.name, "did not answer in time") from error
        except Broken as broken:
            raise unavailable(self.endpoint.name, broken.message) from broken
        if receives and not self._closed:
            self.wakeups.attach(session)
            self._listens_at = 0.0
            return
        session.close()
        if not receives:
            self._listens_at = _NEVER
            warn_cannot_listen(self.endpoint)

    async def _stop_listening(self, session: TableSession, pid: bytes | None) -> None:
        """A pooler would keep the session for other clients, with our LISTEN."""
        if session.pooled and pid is not None:
            with suppress(TimeoutError, Broken, RolledBack, BackendUnavailable):
                async with asyncio.timeout(UNLISTEN_WITHIN_S):
                    await run(session.stop_listening(self.wakeups.channel.name, pid))

    async def _receives_echo(self, session: TableSession, within: float) -> bool:
        """Whether notifications of other connections arrive here: not where a pooler gives our LISTEN to another."""
        await self.ask(TableRequest(*echo(self.wakeups.channel.name)), within)
        try:
            async with asyncio.timeout(min(ECHO_WITHIN_S, within / 2)):
                await run(_readable(session.pg.socket))
        except TimeoutError:
            return False
        return bool(session.notifications())

    # The end

    async def close(self) -> None:
        self._closed = True
        self.wakeups.close()
        for timer in (self._stuck_timer, self._timer):
            if timer is not None:
                timer.cancel()
        dialling, self._dialling = self._dialling, set()
        await end_tasks([*dialling, self._listening.task])
        busy, self._busy = (
            self._busy,
            [connection for connection in self._busy if any(one.request.is_cleanup for one in connection.batch)],
        )
        for connection in busy:
            if connection not in self._busy:
                connection.close()
                self._answer(connection.batch, self._closed_error())
        self._answer([pending for pending in self._waiting if not pending.request.is_cleanup], self._closed_error())
        self._pump()
        if self._waiting or self._busy:
            self._poll()  # until all is cleaned up

    def _close_idle_connections(self) -> None:
        if self._closed:
            for connection in self._idle:
                connection.close()
            self._idle = []

    def after_fork(self) -> None:
        """The connections are the parent's; `wire` has closed our copies of them."""
        self.wakeups.after_fork()
        self._reset()

    def __repr__(self) -> str:
        return self.endpoint.name


def _readable(number: int) -> Steps:
    yield number, "r"
