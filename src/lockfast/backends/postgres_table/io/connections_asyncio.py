"""PostgreSQL for asyncio: one connection with the statement that is under way on it, and one that receives wake-ups.

Decides: how the loop drives the steps of `wire`.
Leaves to `asyncio_`: which request goes where.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from psycopg import pq

from lockfast._model import Claim
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast.backends.connecting.arrived import has_arrived
from lockfast.backends.postgres.io.refusals import Broken, RolledBack
from lockfast.backends.postgres.io.wire import MIN_PIPELINE, Steps
from lockfast.backends.postgres_table.io.batching import Many, TableRequest, alone, statement_for
from lockfast.backends.postgres_table.io.channel import NotifyChannel
from lockfast.backends.postgres_table.io.session import TableSession
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.asyncio_ import AsyncioWaiters
from lockfast.errors import BackendUnavailable


class PendingTableRequest:
    """A task's request on its way."""

    __slots__ = ("answer", "request", "taken_back", "until")

    def __init__(self, request: TableRequest, answer: asyncio.Future[Any], until: float) -> None:
        self.request = request
        self.answer = answer
        self.until = until
        self.taken_back = False  # by a request behind it


class AsyncioTableConnection:
    """One connection, and the statement that is under way on it."""

    def __init__(
        self,
        session: TableSession,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[AsyncioTableConnection, Any], None],
    ) -> None:
        self.session = session
        self.batch: list[PendingTableRequest] = []  # those that wait for the statement that is under way
        self.since = loop.time()  # when it was sent
        self.sent_at = self.idle_since = boot_now()  # it counts the time that the machine sleeps, unlike the loop
        self.probing = False
        self.alive = True
        self._loop = loop
        self._done = done
        self._steps: Steps | None = None
        self._writing = False
        self._number = session.pg.socket
        session.takes_more = pq.version() >= MIN_PIPELINE
        loop.add_reader(self._number, self._go_on)

    def start(self, batch: list[PendingTableRequest], many: Many) -> None:
        self.batch = batch
        self._begin(self.session.execute(*statement_for([pending.request for pending in batch], many)))

    @property
    def is_answered(self) -> bool:
        """Whether something has arrived that is not read yet."""
        return has_arrived(self._number)

    def abandon_behind(self, abandon: TableRequest) -> None:
        """If the claim's request is under way here, its end follows it on the same connection.

        The server carries out both, should it go on after we have given up: otherwise the claim would be granted then.
        """
        asked = [one for one in self.batch if not one.taken_back and abandon.follows(one.request)]
        if asked and self.session.send_behind(*alone(abandon)):
            for one in asked:
                one.taken_back = True

    def probe(self) -> None:
        """Ask for any reply: it has been idle for so long that it may be dead."""
        self.probing = True
        self._begin(self.session.probe())

    def _begin(self, steps: Steps) -> None:
        self.since, self.sent_at = self._loop.time(), boot_now()
        self._steps = steps
        self._go_on()

    def _go_on(self) -> None:
        if self._steps is None:
            self._end(Broken("it ended while it was idle"))  # an idle connection receives nothing else
            return
        try:
            _, what = next(self._steps)
            self._write(what == "w")
        except StopIteration as end:
            self._finish(end.value)
        except Broken as broken:
            self._end(broken)
        except (RolledBack, BackendUnavailable) as error:
            self._finish(error)

    def _write(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._number, self._go_on)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._number)
        self._writing = wanted

    def _finish(self, answer: Any) -> None:
        self._steps = None
        self.probing = False
        if self.session.used_up:
            self.close()
        self.idle_since = boot_now()
        self._done(self, answer)

    def _end(self, broken: Broken) -> None:
        self.close()
        self._done(self, broken)

    def close(self) -> None:
        if self.alive and not self._loop.is_closed():
            self._write(False)
            self._loop.remove_reader(self._number)
        self.alive = False
        self.session.close()


class AsyncioPostgresTableWakeups(AsyncioWaiters):
    """The loop itself reads the notifications."""

    def __init__(self, clock: Clock | None) -> None:
        super().__init__(clock)
        self.channel = NotifyChannel()
        self._session: TableSession | None = None
        self._received_at = 0.0  # when it was last known to receive
        self._number = -1  # of its socket: libpq does not report it any more once it has closed it
        self._reading_loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        return self.channel.address if self._session is not None else ""

    def expect(self, claim: Claim) -> str:
        self.add_waiter(claim)
        return self.address

    def attach(self, session: TableSession) -> None:
        self._session = session
        self._received_at = boot_now()
        self._number = session.pg.socket
        self._reading_loop = asyncio.get_running_loop()
        self._reading_loop.add_reader(self._number, self._received)

    def _received(self) -> None:
        assert self._session is not None
        try:
            for payload in self._session.notifications():
                self._received_at = boot_now()
                self.wake(self.channel.read(payload))
        except Broken:
            self._detach()
            self.wake(WAKE_ALL)  # wake-ups that came meanwhile are lost

    def drop_session(self, unless_received_since: float = math.inf) -> None:
        """It may be dead: close it, and wake all waiters, which make another one."""
        if self._session is not None and self._received_at <= unless_received_since:
            if unless_received_since < math.inf and has_arrived(self._number):
                return
            self._detach()
            self.wake(WAKE_ALL)

    def _detach(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._reading_loop is not None and not self._reading_loop.is_closed():
            self._reading_loop.remove_reader(self._number)
            session.close()

    def begin_again(self) -> None:
        """In another loop."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def close(self) -> None:
        self._detach()
        self.wake(WAKE_ALL)

    def after_fork(self) -> None:
        self.channel = NotifyChannel()
        self._session = None
        self.reset()
