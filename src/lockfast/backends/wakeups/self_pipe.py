"""A socket pair of our own beside an inbox's sockets, so that a thread that polls all of them can be woken from inside.

Decides: how our own notifications are distinguished from wake-ups. Leaves to each backend's inbox: its sockets.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from contextlib import suppress


class SelfPipe:
    def __init__(self, *beside: int) -> None:
        """`beside` are the file descriptors of the inbox's sockets; more may be registered at `poll` later."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._number = self._reader.fileno()
        self.poll = select.poll()  # has all of them
        for number in (*beside, self._number):
            self.poll.register(number, select.POLLIN)

    def notify(self) -> None:
        with suppress(OSError):
            self._writer.send(b"!")

    def others(self, ready: Sequence[tuple[int, int]]) -> list[int]:
        """The inbox's sockets among the ready ones. Our own notifications are read and dropped."""
        numbers = [number for number, _ in ready]
        if self._number in numbers:
            with suppress(BlockingIOError, InterruptedError):
                self._reader.recv(4096)
            numbers.remove(self._number)
        return numbers

    def other_is_ready(self, ready: Sequence[tuple[int, int]]) -> bool:
        """Whether one of the inbox's sockets is among the ready ones, as in `others`."""
        return bool(self.others(ready))

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
