"""Where the waiting threads of one `Locks` are woken by any server of a quorum.

Decides: that one subscription at each server leads to one inbox, and what happens when one of them ends.
Leaves to `wakeups`: which thread reads it.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence

from lockfast._refusals import closed_driver
from lockfast.backends.redis.io.blocking_connection import BlockingConnection
from lockfast.backends.redis.io.resp import ProtocolError, claim_in
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.self_pipe import SelfPipe


class QuorumInbox:
    broken = False  # without any server it can still be notified

    def __init__(self, channel: str, ended: Callable[[int], None]) -> None:
        self.address = channel
        self._ended = ended  # called with the server whose subscription has ended
        self._connections: dict[int, tuple[int, BlockingConnection]] = {}  # by file number: which server's
        self._mutex = threading.Lock()  # held while a connection is added, or all are closed
        self._closed = False
        self._self_pipe = SelfPipe()
        self.poll, self.notify = self._self_pipe.poll, self._self_pipe.notify

    def subscribe(self, node: int, connection: BlockingConnection, within: float) -> None:
        """Raises BackendUnavailable."""
        try:
            connection.subscribe(self.address, within)
        except BaseException:
            connection.close()
            raise
        number = connection.socket.fileno()
        with self._mutex:
            if not self._closed:
                self._connections[number] = node, connection
                self.poll.register(number, select.POLLIN)
        if self._closed:
            connection.close()
            raise closed_driver(connection.name)
        self.notify()  # the thread that sleeps here does not poll it yet

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        claims: list[str] = []
        for number in self._self_pipe.others(ready):
            if number in self._connections:  # else it was closed meanwhile
                claims += self._read(number)
        for number in [number for number, (_, connection) in list(self._connections.items()) if connection.is_dead()]:
            claims += self._end(number)
        return claims

    def _read(self, number: int) -> list[str]:
        try:
            messages = self._connections[number][1].read_all()
        except (OSError, ProtocolError):
            return self._end(number)
        return [claim for message in messages if (claim := claim_in(message)) is not None]

    def _end(self, number: int) -> list[str]:
        node, connection = self._connections.pop(number)
        self.poll.unregister(number)
        connection.close()
        self._ended(node)
        return [WAKE_ALL]  # wake-ups that came meanwhile are lost

    def abandon(self) -> None:
        """It is the parent's: close only our copy."""
        for _, connection in self._connections.values():
            connection.socket.close()
        self._self_pipe.close()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for node, connection in connections:
            connection.close()
            self._ended(node)
        self._self_pipe.close()
