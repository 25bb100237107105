"""Where the waiting threads of one `Locks` are woken by any server of a quorum.

Decides: that one subscription at each server leads to one inbox, and what happens when one of them ends.
Leaves to `wakeups`: which thread reads it.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import hiredis

from lockfast._refusals import closed_driver
from lockfast.backends.redis.io.blocking import BlockingConnection
from lockfast.backends.redis.io.resp import ReplyError, command, keep_alive, refusal
from lockfast.backends.wakeups import WAKE_ALL


class QuorumInbox:
    broken = False  # without any server it can still be notified

    def __init__(self, channel: str, ended: Callable[[int], None]) -> None:
        self.address = channel
        self._ended = ended  # called with the server whose subscription has ended
        self._connections: dict[int, tuple[int, BlockingConnection]] = {}  # by file number: which server's
        self._mutex = threading.Lock()  # held while a connection is added, or all are closed
        self._closed = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.poll = select.poll()
        self.poll.register(self._reader, select.POLLIN)

    def subscribe(self, node: int, connection: BlockingConnection, within: float) -> None:
        """Raises BackendUnavailable."""
        try:
            answer = connection.ask(command("SUBSCRIBE", self.address), within)
            if answer.__class__ is ReplyError:
                raise refusal(connection.name, answer)
        except BaseException:
            connection.close()
            raise
        keep_alive(connection.socket)  # it is only ever read: a cut that no packet reports would go unnoticed
        connection.socket.setblocking(False)
        number = connection.socket.fileno()
        with self._mutex:
            if not self._closed:
                self._connections[number] = node, connection
                self.poll.register(number, select.POLLIN)
        if self._closed:
            connection.close()
            raise closed_driver(connection.name)
        self.notify()  # the thread that sleeps here does not poll it yet

    def notify(self) -> None:
        with suppress(OSError):
            self._writer.send(b"!")

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        claims: list[str] = []
        for number, _ in ready:
            if number in self._connections:
                claims += self._read(number)
            else:
                with suppress(BlockingIOError, InterruptedError):
                    self._reader.recv(4096)
        return claims

    def _read(self, number: int) -> list[str]:
        node, connection = self._connections[number]
        try:
            messages = connection.read_all()
        except (OSError, hiredis.HiredisError):
            del self._connections[number]
            self.poll.unregister(number)
            connection.close()
            self._ended(node)
            return [WAKE_ALL]  # wake-ups that came meanwhile are lost
        return [message[2].decode(errors="replace") for message in messages if message[0] == b"message"]

    def abandon(self) -> None:
        """It is the parent's: close only our copy."""
        for _, connection in self._connections.values():
            connection.socket.close()
        self._reader.close()
        self._writer.close()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for node, connection in connections:
            connection.close()
            self._ended(node)
        self._reader.close()
        self._writer.close()
