"""PostgreSQL, blocking: threads share a few connections, and one thread sends what others queued meanwhile.

Decides: which thread uses which connection, whose requests it sends along, and when a connection is thrown away.
Leaves to `wire`: what is sent on a connection. Leaves to `batching`: how requests become one statement.
"""

from __future__ import annotations

import math
import select
import threading
from contextlib import suppress
from functools import partial
from typing import Any

from lockfast._model import Claim
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast.backends.connecting.turns import in_turn
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import Broken, RolledBack, no_connection, unavailable
from lockfast.backends.postgres.io.resolver import Names, each_address
from lockfast.backends.postgres.io.stepping import Late, run, run_first_ready
from lockfast.backends.postgres_table.io.batching import (
    CLEAN_UP_WITHIN_S,
    LISTEN_AGAIN_AFTER_S,
    LISTEN_WITHIN_S,
    MAX_BATCH,
    MAX_CONNECTIONS,
    MAX_SPARE,
    MAX_TRIES,
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
    statement_for,
)
from lockfast.backends.postgres_table.io.channel import NotifyChannel
from lockfast.backends.postgres_table.io.connections import (
    BlockingTableConnection,
    PostgresTableWakeups,
    TableSubscription,
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


class _PendingRequest:
    """A thread's request on its way: it waits for a connection, or for the thread that sends it along with its own."""

    __slots__ = ("answer", "connection", "gate", "home", "request", "until")

    def __init__(self, request: TableRequest, until: float) -> None:
        self.request = request
        self.until = until
        # Where its connection comes from: then it is up to this thread to ask.
        self.home: list[BlockingTableConnection | None] | None = None
        self.connection: BlockingTableConnection | None = None  # that connection, once it is made
        self.answer: Any = None  # a list of one, once it is known
        self.gate: threading.Lock | None = None  # closed while it waits


class BlockingPostgres:
    blocking = True

    def __init__(self, endpoint: PostgresEndpoint, clock: Clock | None, many: Many, version: int) -> None:
        self.endpoint = endpoint
        self.now = clock.now if clock is not None else None
        self._many = many
        self._version = version
        self._wakeups = PostgresTableWakeups(clock, None)
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._opening = threading.RLock()
        self._names = Names()
        self._channel = NotifyChannel()
        # A connection, or None for one that may be made; the used ones are at the end.
        self._free: list[BlockingTableConnection | None] = [None] * MAX_CONNECTIONS
        self._spare: list[BlockingTableConnection | None] = [None] * MAX_SPARE
        self._waiting: list[_PendingRequest] = []  # non-empty only while no connection is free
        self._others_first = False  # the last statement was of blocked requests, see `first_of`
        self._checked = False  # that the schema is there
        self._closed = False
        self._listens_at = 0.0  # not before; waiters poll until then. Never again behind a pooler

    @property
    def wakeups(self) -> PostgresTableWakeups:
        return self._wakeups

    async def ask(self, request: TableRequest, within: float) -> Any:
        return self._ask(request, within)

    def _ask(self, request: TableRequest, within: float) -> Any:
        until = boot_now() + (min(within, CLEAN_UP_WITHIN_S) if self._closed else within)
        for _ in range(MAX_TRIES):
            answer = self._carry(_PendingRequest(request, until))
            if not is_sent_again(request, answer):
                return settled(answer, closed=self._closed)
            if boot_now() >= until:
                break
        raise rolled_back_again(self.endpoint.name)

    # Who uses which connection

    def _carry(self, pending: _PendingRequest) -> Any:
        """What became of it: an answer, or an error."""
        try:
            self._queue_up(pending)
            while pending.home is None and pending.answer is None:
                self._sleep(pending)
            if pending.answer is None:
                self._lead(pending)
            return pending.answer[0]
        finally:
            self._leave(pending)

    def _queue_up(self, pending: _PendingRequest) -> None:
        with self._mutex:
            if self._closed and not pending.request.is_cleanup:
                raise closed_driver(self.endpoint.name)
            if self._free:
                pending.connection, pending.home = self._free[-1], self._free
                del self._free[-1]
            else:
                pending.gate = threading.Lock()
                pending.gate.acquire()
                self._waiting.append(pending)

    def _sleep(self, pending: _PendingRequest) -> None:
        assert pending.gate is not None
        left = pending.until - boot_now()
        if pending.gate.acquire(timeout=max(0.0, min(left, STUCK_AFTER_S))):
            return
        with self._mutex:
            if pending in self._waiting and self._spare:
                self._waiting.remove(pending)
                pending.connection, pending.home = self._spare[-1], self._spare
                del self._spare[-1]
            sent = pending not in self._waiting
        if left <= STUCK_AFTER_S and pending.home is None and pending.answer is None:
            raise unavailable(self.endpoint.name, "did not answer in time", sent=sent)

    def _leave(self, pending: _PendingRequest) -> None:
        with self._mutex:
            if pending in self._waiting:
                self._waiting.remove(pending)
            home, pending.home = pending.home, None
            if home is None:
                return
            needed = not self._closed or (self._waiting and home is self._free)
            if pending.connection is not None and needed:
                pending.connection.idle_since = boot_now()
                home.append(pending.connection)
            else:
                home.insert(0, None)
                if pending.connection is not None:
                    pending.connection.session.close()
            if self._waiting and home is self._free:
                self._hand_on(self._first_to_lead())

    def _first_to_lead(self) -> _PendingRequest:
        """The first in the queue, or the one with most time among those that share its statement: it waits for all."""
        first = first_of(self._waiting, others_first=self._others_first)
        self._others_first = first.request.blocked
        if first.request.alone:
            return first
        return max((one for one in self._waiting if may_join(one.request, first.request)), key=lambda one: one.until)

    def _hand_on(self, pending: _PendingRequest) -> None:
        pending.connection, pending.home = self._free[-1], self._free
        del self._free[-1]
        self._waiting.remove(pending)
        if pending.gate is not None:
            pending.gate.release()

    def _taken_along(self, pending: _PendingRequest) -> list[_PendingRequest]:
        if pending.request.alone or not self._waiting:
            return []
        with self._mutex:
            others = [one for one in self._waiting if may_join(one.request, pending.request)][: MAX_BATCH - 1]
            self._waiting = [one for one in self._waiting if one not in others]
            return others

    # How it is asked

    def _lead(self, pending: _PendingRequest) -> None:
        together = [pending, *self._taken_along(pending)]
        batch = [one.request for one in together]
        answers: list[Any] | None = None
        try:
            answers = self._converse(pending, batch)
        finally:
            if answers is None:
                answers = [unavailable(self.endpoint.name, "was asked by a thread that was interrupted")] * len(batch)
            for one, answer in zip(together, answers, strict=True):
                one.answer = [answer]
                if one is not pending and one.gate is not None:
                    one.gate.release()

    def _converse(self, pending: _PendingRequest, batch: list[TableRequest]) -> list[Any]:
        connection, pending.connection = pending.connection, None  # thrown away, unless it turns out well
        sent_at = math.inf
        try:
            if connection is not None and not self._can_be_used(connection, pending.until):
                connection = None
            connection = connection or self._dial(pending.until)
            statement, params = statement_for(batch, self._many)
            sent_at = boot_now()
            answer = connection.run(connection.session.execute(statement, params), pending.until)
            pending.connection = connection
            return replies_of(batch, answer, self._many)
        except (RolledBack, BackendUnavailable) as error:
            pending.connection = connection
            return failures_of(batch, error)
        except Late:
            if boot_now() - sent_at >= SILENT_S:
                self._suspect(sent_at)
            return [unavailable(self.endpoint.name, "did not answer in time")] * len(batch)
        except Broken as broken:
            return [unavailable(self.endpoint.name, broken.message)] * len(batch)
        finally:
            if pending.connection is None and connection is not None:
                connection.session.close()

    def _can_be_used(self, connection: BlockingTableConnection, until: float) -> bool:
        """Else it is closed; and if it is dead, so are all that have been idle for as long."""
        now = boot_now()
        within = probe_within(until - now) if is_suspect(connection.idle_since) else None
        if not connection.stale and within is None:
            return True
        try:
            if not connection.stale:
                connection.run(connection.session.probe(), now + (within or 0.0))
                return True
        except (Late, Broken, RolledBack, BackendUnavailable):
            self._close_idle_since(connection.idle_since)
        connection.session.close()
        return False

    def _close_idle_since(self, moment: float) -> None:
        """Those that have been idle since then, or longer, and the one for wake-ups."""
        suspects: list[BlockingTableConnection] = []
        with self._mutex:
            for home in (self._free, self._spare):
                kept = [one for one in home if one is not None and one.idle_since > moment]
                suspects += [one for one in home if one is not None and one.idle_since <= moment]
                home[:] = [*[None] * (len(home) - len(kept)), *kept]
        for connection in suspects:
            connection.session.close()
        self._wakeups.drop_inbox()

    def _suspect(self, moment: float) -> None:
        """What was sent then was never answered. Connections that have received nothing since may be dead too."""
        with self._mutex:
            for connection in (*self._free, *self._spare):
                if connection is not None and connection.idle_since <= moment:
                    connection.idle_since = LONG_AGO  # it is probed before it is used again
        self._wakeups.drop_inbox(moment)

    def _dial(self, until: float) -> BlockingTableConnection:
        """Raises BackendUnavailable."""
        connection = BlockingTableConnection(self._connect(until, 0 if self._checked else self._version))
        self._checked = True
        return connection

    def _connect(self, until: float, version: int) -> TableSession:
        reasons: list[Exception] = []
        for params, end in each_address(self._names, self.endpoint, until, reasons):
            try:
                steps = partial(open_session, self.endpoint, params, version)
                session: TableSession = run_first_ready(self.endpoint.second_tries, steps, end)
                self.endpoint.remember(params)
                return session
            except (Late, Broken, RolledBack) as reason:
                reasons.append(reason)
        raise no_connection(self.endpoint, reasons, sent=False)

    # Wake-ups

    @property
    def cannot_listen(self) -> bool:
        return not self._wakeups.address

    async def expect(self, claim: Claim, within: float) -> str:
        if self._shall_listen():
            until = boot_now() + min(LISTEN_WITHIN_S, within / 2)
            try:
                self._see_to_listening(until)
            except BackendUnavailable as error:
                if not error.transient or not self._works():
                    raise
                self._poll_from_now_on(error)
        return self._wakeups.expect(claim)

    def _shall_listen(self) -> bool:
        return not self._wakeups.address and boot_now() >= self._listens_at

    def _see_to_listening(self, until: float) -> None:
        """One thread does it, and the others wait for that."""

        def listen() -> bool:
            if self._shall_listen():
                self._listen(until)
            return True

        if not in_turn(self._opening, max(0.0, until - boot_now()), listen):
            raise no_connection(self.endpoint, sent=False)

    def _works(self) -> bool:
        """Whether there is a connection to ask on."""
        with self._mutex:
            idle = [connection for connection in (*self._free, *self._spare) if connection is not None]
            used = MAX_CONNECTIONS + MAX_SPARE - len(self._free) - len(self._spare)
            return used > 0 or any(not connection.stale for connection in idle)

    def _poll_from_now_on(self, reason: BackendUnavailable) -> None:
        first, self._listens_at = not self._listens_at, boot_now() + LISTEN_AGAIN_AFTER_S
        if first:
            warn_polling_for_now(reason)

    def _listen(self, until: float) -> None:
        if self._closed:
            raise closed_driver(self.endpoint.name)
        session, pid = self._connect(until, 0), None
        try:
            ((pid,),) = run(session.simple_query(listen(self._channel.name)), until)
            if session.pooled and not self._receives_echo(session, until):
                self._stop_listening(session, pid)
                session.close()
                self._listens_at = math.inf
                warn_cannot_listen(self.endpoint)
            else:
                run(session.simple_query(register(self.endpoint, self._channel.name)), until)
                self._wakeups.attach(TableSubscription(session, self._channel))
                self._listens_at = 0.0
                if self._closed:  # meanwhile
                    self._wakeups.close()
        except BaseException as error:
            self._stop_listening(session, pid)
            session.close()
            if isinstance(error, Late):
                raise unavailable(self.endpoint.name, "did not answer in time") from None
            if isinstance(error, Broken):
                raise unavailable(self.endpoint.name, error.message) from error
            raise

    def _stop_listening(self, session: TableSession, pid: bytes | None) -> None:
        """A pooler would keep the session for other clients, with our LISTEN."""
        if session.pooled and pid is not None:
            with suppress(Late, Broken, RolledBack, BackendUnavailable):
                run(session.stop_listening(self._channel.name, pid), boot_now() + UNLISTEN_WITHIN_S)

    def _receives_echo(self, session: TableSession, until: float) -> bool:
        """Whether notifications of other connections arrive here: not where a pooler shares our session."""
        self._ask(TableRequest(*echo(self._channel.name)), until - boot_now())
        poll = select.poll()
        poll.register(session.pg.socket, select.POLLIN)
        seconds = min(ECHO_WITHIN_S, max(0.0, (until - boot_now()) / 2))
        return bool(poll.poll(math.ceil(seconds * 1000))) and bool(session.notifications())

    # The end

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            connections = [connection for connection in (*self._free, *self._spare) if connection is not None]
            self._free[:] = [None] * len(self._free)
            self._spare[:] = [None] * len(self._spare)
        for connection in connections:
            connection.session.close()
        self._wakeups.close()

    def after_fork(self) -> None:
        """The connections are the parent's; `wire` has closed our copies of them."""
        self._wakeups.after_fork()
        self._reset()

    def __repr__(self) -> str:
        return self.endpoint.name
