"""PostgreSQL for asyncio: how a task connects, a connection with its statement, and the one that receives wake-ups.

Decides: how the loop goes through the steps of `wire`.
Leaves to `dispatcher`: which request goes where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from lockfast._model import Claim
from lockfast._worlds import Clock
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint, conninfo
from lockfast.backends.postgres.io.refusals import Broken, RolledBack, no_connection
from lockfast.backends.postgres.io.resolver import Names, not_found, shares
from lockfast.backends.postgres.io.stepping_asyncio import run
from lockfast.backends.postgres.io.wire import Steps, connect
from lockfast.backends.postgres_table.io.session import TableSession
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.asyncio_ import AsyncioWaiters
from lockfast.errors import BackendUnavailable


async def open_session(endpoint: PostgresEndpoint, names: Names, within: float, version: int) -> TableSession:
    """Raises BackendUnavailable."""
    now = asyncio.get_running_loop().time
    reasons: list[Exception] = []
    for params, last in shares(endpoint.hosts, now() + within, now):
        try:
            async with asyncio.timeout_at(last):
                found = await asyncio.wrap_future(names.addresses(params))
        except TimeoutError:
            reasons.append(TimeoutError(not_found(params)))
            continue
        except Broken as reason:
            reasons.append(reason)
            continue
        for one, end in shares(found, last, now):
            try:
                async with asyncio.timeout_at(end):
                    return await _open_session_at(conninfo(one), endpoint, version)
            except (TimeoutError, Broken, RolledBack) as reason:
                reasons.append(reason)
    raise no_connection(endpoint, reasons, sent=False)


async def _open_session_at(where: bytes, endpoint: PostgresEndpoint, version: int) -> TableSession:
    session = TableSession(await run(connect(where)), endpoint)
    try:
        await run(session.set_up(version))
    except BaseException:
        session.close()
        raise
    return session


class AsyncioTableConnection:
    """One connection, and the statement that is under way on it."""

    stale = False  # the loop notices at once when it ends

    def __init__(
        self,
        session: TableSession,
        loop: asyncio.AbstractEventLoop,
        finished: Callable[[AsyncioTableConnection, Any], None],
    ) -> None:
        self.session = session
        self.alive = True
        self._loop = loop
        self._finished = finished  # called with a reply or an error
        self._steps: Steps | None = None
        self._writing = False
        self._number = session.pg.socket
        loop.add_reader(self._number, self._go_on)

    def start(self, steps: Steps) -> None:
        self._steps = steps
        self._go_on()

    def _go_on(self) -> None:
        if self._steps is None:  # the server sends nothing on an idle connection, unless it has ended
            self._end(Broken("it ended while it was idle"))
            return
        try:
            _, what = next(self._steps)
            self._write(what == "w")
        except StopIteration as end:
            self._reply(end.value)
        except Broken as broken:
            self._end(broken)
        except (RolledBack, BackendUnavailable) as error:
            self._reply(error)

    def _write(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._number, self._go_on)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._number)
        self._writing = wanted

    def _reply(self, answer: Any) -> None:
        self._steps = None
        self._finished(self, answer)

    def _end(self, broken: Broken) -> None:
        self.close()
        self._finished(self, broken)

    def close(self) -> None:
        if self.alive and not self._loop.is_closed():
            self._write(False)
            self._loop.remove_reader(self._number)
        self.alive = False
        self.session.close()


async def arrives(session: TableSession, seconds: float) -> bool:
    """Whether a notification arrives within that time. Raises Broken."""

    def readable() -> Steps:
        yield session.pg.socket, "r"

    try:
        async with asyncio.timeout(seconds):
            await run(readable())
    except TimeoutError:
        return False
    return bool(session.notifications())


class AsyncioPostgresTableWakeups(AsyncioWaiters):
    """The loop itself reads the notifications."""

    def __init__(self, clock: Clock | None) -> None:
        super().__init__(clock)
        self.channel = f"lockfast_{uuid4().hex}"
        self._session: TableSession | None = None
        self._number = -1  # of its socket: libpq no longer knows it once it has closed it
        self._reader: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        return self.channel if self._session is not None else ""

    def expect(self, claim: Claim) -> str:
        self.add_waiter(claim)
        return self.address

    def attach(self, session: TableSession) -> None:
        self._session = session
        self._number = session.pg.socket
        self._reader = asyncio.get_running_loop()
        self._reader.add_reader(self._number, self._read)

    def _read(self) -> None:
        assert self._session is not None
        try:
            for claim in self._session.notifications():
                self.wake(claim)
        except Broken:
            self._detach()
            self.wake(WAKE_ALL)  # notifications since then are lost

    def _detach(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._reader is not None and not self._reader.is_closed():
            self._reader.remove_reader(self._number)
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
        self.channel = f"lockfast_{uuid4().hex}"
        self._session = None
        self.reset()
