"""A bell of our own beside a mailbox's socket, so that a thread that sleeps at both can be made to look up.

Decides: what rings, and how it is told from what arrives. Leaves to each technology's mailbox: the socket beside it.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from contextlib import suppress


class SelfPipe:
    def __init__(self, beside: int) -> None:
        """`beside` is the number of the socket that wake-ups arrive at."""
        self._bell, self._hand = socket.socketpair()
        self._bell.setblocking(False)
        self._hand.setblocking(False)
        self._number = self._bell.fileno()
        self.poll = select.poll()  # of both
        self.poll.register(beside, select.POLLIN)
        self.poll.register(self._bell, select.POLLIN)

    def ring(self) -> None:
        with suppress(OSError):
            self._hand.send(b"!")

    def heard_besides(self, ready: Sequence[tuple[int, int]]) -> bool:
        """Whether the other socket is among those that `poll` found; the bell is silent from here on."""
        numbers = [number for number, _ in ready]
        if self._number in numbers:
            with suppress(BlockingIOError):
                self._bell.recv(4096)
            numbers.remove(self._number)
        return bool(numbers)

    def close(self) -> None:
        self._bell.close()
        self._hand.close()
