"""PostgreSQL, blocking: one connection that a thread asks on, and one that receives wake-ups.

Decides: how a thread goes through the steps of `wire`.
Leaves to `blocking`: which thread uses which connection.
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Any

from lockfast._time import boot_now
from lockfast.backends.connecting.arrived import has_arrived
from lockfast.backends.postgres.io.refusals import Broken
from lockfast.backends.postgres.io.stepping import run
from lockfast.backends.postgres.io.wire import Steps
from lockfast.backends.postgres_table.io.channel import NotifyChannel
from lockfast.backends.postgres_table.io.session import TableSession
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.backends.wakeups.self_pipe import SelfPipe


class BlockingTableConnection:
    def __init__(self, session: TableSession) -> None:
        self.session = session
        self.idle_since = 0.0
        self._poll = select.poll()
        self._poll.register(session.pg.socket, select.POLLIN)

    def run(self, steps: Steps, until: float) -> Any:
        return run(steps, until, self._poll)

    @property
    def stale(self) -> bool:
        """An idle connection receives nothing, unless it has ended."""
        return bool(self._poll.poll(0))


class TableSubscription:
    """The inbox of the waiters: a connection that listens, and a self-pipe to wake the thread that polls it."""

    def __init__(self, session: TableSession, channel: NotifyChannel) -> None:
        self.address = channel.address
        self._channel = channel
        self.broken = False
        self.received_at = boot_now()  # when it was last known to receive
        self._session = session
        self._self_pipe = SelfPipe(session.pg.socket)
        self.poll = self._self_pipe.poll
        self.notify = self._self_pipe.notify

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        if not self._self_pipe.other_is_ready(ready):
            return []
        try:
            self.received_at = boot_now()
            return [self._channel.read(payload) for payload in self._session.notifications()]
        except Broken:
            self.broken = True
            return [WAKE_ALL]  # wake-ups that came meanwhile are lost

    def has_received(self, since: float) -> bool:
        """Since that moment, or just now: it may only not be read yet."""
        return self.received_at > since or (since < math.inf and has_arrived(self._session.pg.socket))

    def abandon(self) -> None:
        """It is the parent's. `wire` has closed our copy of the connection."""
        self._self_pipe.close()

    def close(self) -> None:
        self._session.close()
        self._self_pipe.close()


class PostgresTableWakeups(BlockingWakeups):
    def drop_inbox(self, unless_received_since: float = math.inf) -> None:
        """The connection may be dead: close it, and wake all waiters, which make another one."""
        with self._mutex:
            if isinstance(self._inbox, TableSubscription) and not self._inbox.has_received(unless_received_since):
                self._inbox.broken = True
                self._mark(WAKE_ALL)
                if self._leader is None:
                    self._close_inbox()
                else:
                    self._notify()  # the leader closes it

    def wake(self, claim: str) -> None:
        """Most waiters are woken by our own releases, and are not the leader, which polls the inbox."""
        with self._mutex:
            self._mark(claim)
            if self._leader == claim:
                self._notify()
