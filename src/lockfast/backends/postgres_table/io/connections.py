"""PostgreSQL, blocking: how a thread connects, the connection that it sends on, and the one that receives wake-ups.

Decides: how a thread goes through the steps of `wire`.
Leaves to `dispatcher`: which thread uses which connection.
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Any

from lockfast._time import boot_now
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint, conninfo
from lockfast.backends.postgres.io.refusals import Broken, RolledBack, no_connection
from lockfast.backends.postgres.io.resolver import Names, each_address
from lockfast.backends.postgres.io.stepping import Late, run
from lockfast.backends.postgres.io.wire import Steps, connect
from lockfast.backends.postgres_table.io.session import TableSession
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.backends.wakeups.self_pipe import SelfPipe


def open_session(endpoint: PostgresEndpoint, names: Names, until: float, version: int) -> TableSession:
    """Raises BackendUnavailable."""
    reasons: list[Exception] = []
    for params, end in each_address(names, endpoint.hosts, until, reasons):
        try:
            session = TableSession(run(connect(conninfo(params)), end), endpoint)
            try:
                run(session.set_up(version), end)
            except BaseException:
                session.close()
                raise
            return session
        except (Late, Broken, RolledBack) as reason:
            reasons.append(reason)
    raise no_connection(endpoint, reasons, sent=False)


class BlockingTableConnection:
    def __init__(self, session: TableSession) -> None:
        self.session = session
        self.close = session.close
        self._poll = select.poll()
        self._poll.register(session.pg.socket, select.POLLIN)

    def run(self, steps: Steps, until: float) -> Any:
        return run(steps, until, self._poll)

    @property
    def stale(self) -> bool:
        """The server sends nothing on an idle connection, unless it has ended."""
        return bool(self._poll.poll(0))


class TableSubscription:
    """The inbox of the waiters: a connection that listens, and a pipe by which this process wakes them itself."""

    def __init__(self, session: TableSession, channel: str) -> None:
        self.address = channel
        self.broken = False
        self._session = session
        self._self_pipe = SelfPipe(session.pg.socket)
        self.poll = self._self_pipe.poll
        self.notify = self._self_pipe.notify

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        if not self._self_pipe.other_is_ready(ready):
            return []
        try:
            return self._session.notifications()
        except Broken:
            self.broken = True
            return [WAKE_ALL]  # notifications since then are lost

    def abandon(self) -> None:
        """It is the parent's. `wire` has closed our copy of the connection."""
        self._self_pipe.close()

    def close(self) -> None:
        self._session.close()
        self._self_pipe.close()


def arrives(session: TableSession, seconds: float) -> bool:
    """Whether a notification arrives within that time. Raises Broken."""
    poll = select.poll()
    poll.register(session.pg.socket, select.POLLIN)
    return bool(poll.poll(math.ceil(seconds * 1000))) and bool(session.notifications())


def seconds_until(moment: float) -> float:
    return max(0.0, moment - boot_now())


class PostgresTableWakeups(BlockingWakeups):
    def wake(self, claim: str) -> None:
        """Our own releases wake most waiters, and few of those are the leader that sleeps at the inbox."""
        with self._mutex:
            self._mark(claim)
            if self._leader == claim:
                self._notify()
