"""A socket pair of our own beside an inbox's socket, so that a thread that polls both can be woken from inside.

Decides: how our own notifications are distinguished from wake-ups. Leaves to each backend's inbox: its socket.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from contextlib import suppress


class SelfPipe:
    def __init__(self, beside: int) -> None:
        """`beside` is the file descriptor of the inbox's socket."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._number = self._reader.fileno()
        self.poll = select.poll()  # has both
        self.poll.register(beside, select.POLLIN)
        self.poll.register(self._reader, select.POLLIN)

    def notify(self) -> None:
        with suppress(OSError):
            self._writer.send(b"!")

    def other_is_ready(self, ready: Sequence[tuple[int, int]]) -> bool:
        """Whether the inbox's socket is among the ready ones. Our own notifications are read and dropped."""
        numbers = [number for number, _ in ready]
        if self._number in numbers:
            with suppress(BlockingIOError):
                self._reader.recv(4096)
            numbers.remove(self._number)
        return bool(numbers)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
