"""Which request goes next, with which others, on which connection. Pure: no thread, task, socket or clock.

Decides: who is sent next and in which batch, when to connect, what becomes of each request when a statement or a
connection ends, when a silent connection is given up, and when to listen for wake-ups.
Leaves to the drivers of either world: to carry that out, to deliver results, and to wait.

In the blocking world the thread of one request, the leader, carries out a step: it connects, or it sends the batch and
waits for the reply. In asyncio the loop does so, and a connection that is made belongs to no request.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol, TypeAlias

from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres.io.refusals import Broken, RolledBack, copy_of, no_connection, unavailable
from lockfast.backends.postgres_table.io.batching import (
    LISTEN_AGAIN_AFTER_S,
    MAX_BATCH,
    MAX_CONNECTIONS,
    MAX_SPARE,
    MIN_TO_SPLIT,
    STUCK_AFTER_S,
    Many,
    Retry,
    TableRequest,
    failures_of,
    may_join,
    replies_of,
)
from lockfast.backends.postgres_table.io.session import warn_cannot_listen, warn_polling_for_now
from lockfast.errors import BackendUnavailable

SILENT_AFTER_S: Final = 1.0  # a connection without a reply is closed then, if all of its callers have given up


class PendingRequest:
    """A request on its way, until its caller has a result or gives up."""

    __slots__ = ("answer", "gate", "request", "step", "until")

    def __init__(self, request: TableRequest, until: float, answer: Any) -> None:
        self.request = request
        self.until = until
        self.answer = answer  # where the driver puts the result: a future, or a list that is empty until then
        self.step: DispatchStep | None = None  # that its thread has to carry out
        self.gate: Any = None  # where its thread sleeps


class DispatchStep:
    """Send a batch on a connection; or make a connection, if there is none yet."""

    __slots__ = ("batch", "connection", "leader", "since", "until")

    def __init__(self, leader: PendingRequest | None, connection: Any, since: float, until: float) -> None:
        self.leader = leader
        self.connection = connection
        self.since = since
        self.until = until  # of the leader
        self.batch = [] if leader is None else [leader]


Results: TypeAlias = list[tuple[PendingRequest, Any]]  # for each a reply, an error, or Retry


class TableConnection(Protocol):
    @property
    def stale(self) -> bool: ...  # whether it has ended while it was idle
    def close(self) -> None: ...


class Dispatcher:
    def __init__(self, endpoint: PostgresEndpoint, many: Many, *, blocking: bool) -> None:
        self.closed = False
        self.waiting: list[PendingRequest] = []  # for a connection
        self._endpoint = endpoint
        self._many = many
        self._blocking = blocking
        self._idle: list[TableConnection] = []  # the one that was used last is at the end
        self._busy: dict[TableConnection, DispatchStep] = {}
        self._dials: list[DispatchStep] = []
        self._unblocked_first = False  # alternates: each request that is blocked may keep its connection for a while
        self._large = False  # the last batch was worth dividing between two connections
        self._listen_at = 0.0  # not before; waiters poll until then. Never, behind a pooler

    # What comes next

    def submit(self, pending: PendingRequest) -> bool:
        """Whether there may be a step now. Raises BackendUnavailable once closed, except for what cleans up."""
        if self.closed and not pending.request.is_cleanup:
            raise self.closed_error()
        self.waiting.append(pending)
        return bool(self._idle) or len(self._busy) + len(self._dials) < MAX_CONNECTIONS

    def withdraw(self, pending: PendingRequest) -> None:
        """Its caller gives up."""
        if pending in self.waiting:
            self.waiting.remove(pending)

    def next(self, now: float) -> DispatchStep | None:
        """What to do next; to be called again until there is nothing.

        An interrupt comes after a call: so nothing is called between the first and the last change.
        """
        while self.waiting and self._idle:
            connection = self._idle[-1]
            if connection.stale:
                self._idle.remove(connection)
                connection.close()
                continue
            leader = self._leader()
            place = self.waiting.index(leader)
            step = DispatchStep(leader, connection, now, leader.until)
            if self._blocking:
                leader.step = step
            self._busy[connection] = step
            del self._idle[-1], self.waiting[place]
            return step
        if (self.waiting or (self._large and not self._blocking)) and self._may_dial(now):
            return self._dial(now)
        return None

    def _dial(self, now: float) -> DispatchStep:
        self._large = False
        if not self._blocking:
            until = max((one.until for one in self.waiting), default=now)
            self._dials.append(step := DispatchStep(None, None, now, until))
            return step
        leader = max(self.waiting, key=lambda one: one.until)
        place = self.waiting.index(leader)
        leader.step = step = DispatchStep(leader, None, now, leader.until)
        self._dials = [*self._dials, step]
        del self.waiting[place]  # until it is connected: its thread cannot lead another batch meanwhile
        return step

    def _leader(self) -> PendingRequest:
        """The first; or, where it has to wait for all that join it, the one of them with most time."""
        first = self.waiting[0]
        if self._unblocked_first and first.request.blocked:
            first = next((one for one in self.waiting if not one.request.blocked), first)
        self._unblocked_first = first.request.blocked
        if not self._blocking or len(self.waiting) == 1 or first.request.alone:
            return first
        return max((one for one in self.waiting if may_join(one.request, first.request)), key=lambda one: one.until)

    def _may_dial(self, now: float) -> bool:
        """One at a time, unless that one takes long. Connections that are stuck make room for spare ones."""
        if self._dials and now < self._dials[-1].since + STUCK_AFTER_S:
            return False
        there, room = len(self._busy) + len(self._idle) + len(self._dials), MAX_CONNECTIONS
        if there >= room and self.waiting:
            for step in self._busy.values():  # the oldest is the first
                if now < step.since + STUCK_AFTER_S or room == MAX_CONNECTIONS + MAX_SPARE:
                    break
                room += 1
        return there < room

    def batch(self, step: DispatchStep) -> list[TableRequest]:
        """What to send: the leader, and all that may join it now; or a share, if more connections are idle."""
        leader, batch = step.batch[0].request, step.batch
        if self.waiting and not leader.alone:
            shares = len(self._idle) + 1 if len(self.waiting) >= MIN_TO_SPLIT else 1
            most = min(MAX_BATCH, -(-(len(self.waiting) + 1) // shares))
            left: list[PendingRequest] = []
            for one in self.waiting:
                (batch if len(batch) < most and may_join(one.request, leader) else left).append(one)
            self.waiting = left
        self._large = len(batch) > MIN_TO_SPLIT
        return [one.request for one in batch]

    # What became of it

    def connected(self, step: DispatchStep, connection: TableConnection, now: float) -> None:
        """Its leader goes on to send, if it has one; else the connection is there for all."""
        place = self._dials.index(step)
        if step.leader is not None:
            step.since = now
            step.connection = connection
            self._busy[connection] = step
        elif self.waiting or not self.closed:
            self._idle.append(connection)
        else:
            connection.close()
        del self._dials[place]

    def not_connected(self, step: DispatchStep, error: BackendUnavailable, now: float) -> Results:
        """Requests fail unless there are other connections; if only the leader's time was up, others may try."""
        if step not in self._dials:
            return []
        self._dials.remove(step)
        failed = step.batch
        if not failed or now < step.until:
            if self.works:
                self.waiting[:0] = failed
                return []
            failed = failed + self.waiting
            self.waiting = []
        return [(one, error) for one in failed]

    def results(self, connection: TableConnection, answer: Any) -> Results:
        """What to deliver to each request of its batch, if it has one. `answer` is a reply or an error."""
        step = self._busy.get(connection)
        if step is None:
            return []
        requests = [one.request for one in step.batch]
        if isinstance(answer, Broken):
            answer = unavailable(self._endpoint.name, answer.message)
        if isinstance(answer, Exception):
            return list(zip(step.batch, failures_of(requests, answer), strict=True))
        return list(zip(step.batch, replies_of(requests, answer, self._many), strict=True))

    def finished(self, connection: TableConnection, *, usable: bool) -> None:
        """After its results were delivered: callers that have theirs may ask for more, and join the next batch."""
        if self._busy.pop(connection, None) is not None and usable and (self.waiting or not self.closed):
            self._idle.append(connection)
            return
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()

    def retry(self, request: TableRequest, error: Exception, now: float, until: float) -> None:
        """Prepares the next try. Raises the error if there is none."""
        if isinstance(error, Retry):
            error.prepare(request)
        elif not isinstance(error, RolledBack):
            raise copy_of(error, last=self.closed) if isinstance(error, BackendUnavailable) else error
        if now >= until:
            raise self.rolled_back_error()

    def rolled_back_error(self) -> BackendUnavailable:
        return unavailable(self._endpoint.name, "rolled it back again and again, because of concurrent transactions")

    # When to give up

    @property
    def works(self) -> bool:
        """Whether there is a connection to the server."""
        return bool(self._busy) or any(not connection.stale for connection in self._idle)

    def overdue(self, now: float) -> tuple[list[PendingRequest], float]:
        """The requests whose time is up, and when that of the next one is."""
        batches = [self.waiting, *(step.batch for step in self._busy.values())]
        pending = [one for batch in batches for one in batch if not one.answer.done()]
        self.waiting = [one for one in self.waiting if one.until > now]
        soonest = min((one.until for one in pending if one.until > now), default=math.inf)
        return [one for one in pending if one.until <= now], soonest

    def close_silent(self, now: float) -> None:
        for connection, step in list(self._busy.items()):
            if step.since + SILENT_AFTER_S <= now and all(one.answer.done() for one in step.batch):
                del self._busy[connection]
                connection.close()

    def late_error(self) -> BackendUnavailable:
        if self.works:
            return unavailable(self._endpoint.name, "did not answer in time")
        return no_connection(self._endpoint, sent=False)

    # When to listen

    def should_listen(self, now: float) -> bool:
        return now >= self._listen_at

    def listens(self, *, receives: bool) -> None:
        self._listen_at = 0.0 if receives else math.inf
        if not receives:
            warn_cannot_listen(self._endpoint)

    def cannot_listen_for_now(self, error: BackendUnavailable, now: float) -> None:
        """Waiters poll for a while. Raises the error if nothing else works either."""
        if not error.transient or not self.works:
            raise error
        if not self._listen_at:
            warn_polling_for_now(error)
        self._listen_at = now + LISTEN_AGAIN_AFTER_S

    # The end

    def close(self, *, drop: bool = False) -> list[PendingRequest]:
        """Only what cleans up is sent from now on. With `drop`, dials end, and the requests that are returned."""
        self.closed = True
        ending, self._idle = self._idle, []
        dropped: list[PendingRequest] = []
        if drop:
            self._dials = []
            dropped = [one for one in self.waiting if not one.request.is_cleanup]
            self.waiting = [one for one in self.waiting if one.request.is_cleanup]
            for connection, step in list(self._busy.items()):
                if not any(one.request.is_cleanup for one in step.batch):
                    dropped += step.batch
                    ending.append(connection)
                    del self._busy[connection]
        for connection in ending:
            connection.close()
        return dropped

    def close_all(self) -> None:
        for connection in (*self._idle, *self._busy):
            connection.close()

    def closed_error(self) -> BackendUnavailable:
        return BackendUnavailable.closed(self._endpoint.name, transient=False)
