"""Where the waiting threads of one `Locks` are woken by any server of a quorum.

Decides: that one subscription at each server leads to one mailbox, and what happens when one of them ends.
Leaves to `wakeups`: which thread reads it.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import hiredis

from lockfast._time import boot_now
from lockfast.backends.redis.io.blocking import BlockingConnection
from lockfast.backends.redis.io.resp import ReplyError, command, keep_alive, refusal
from lockfast.backends.wakeups import WAKE_ALL


class QuorumInbox:
    broken = False  # without any server it is still there to be rung

    def __init__(self, channel: str, ended: Callable[[int], None]) -> None:
        self.address = channel
        self._ended = ended  # told which server's subscription has ended
        self._lines: dict[int, tuple[int, BlockingConnection]] = {}  # by file number: which server's
        self._self_pipe, self._hand = socket.socketpair()
        self._self_pipe.setblocking(False)
        self._hand.setblocking(False)
        self.poll = select.poll()
        self.poll.register(self._self_pipe, select.POLLIN)

    def subscribe(self, node: int, line: BlockingConnection, within: float) -> None:
        """Raises BackendUnavailable."""
        try:
            line.send(command("SUBSCRIBE", self.address), within)
            (answer,) = line.replies(1, boot_now() + within)
            if answer.__class__ is ReplyError:
                raise refusal(line.name, answer)
        except BaseException:
            line.close()
            raise
        keep_alive(line.socket)  # it is only ever read: of a cut that nobody tells it would never know
        line.socket.setblocking(False)
        number = line.socket.fileno()
        self._lines[number] = node, line
        self.poll.register(number, select.POLLIN)
        self.notify()  # whoever sleeps here does not know of it yet

    def notify(self) -> None:
        with suppress(OSError):
            self._hand.send(b"!")

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        claims: list[str] = []
        for number, _ in ready:
            if number in self._lines:
                claims += self._read(number)
            else:
                with suppress(BlockingIOError, InterruptedError):
                    self._self_pipe.recv(4096)
        return claims

    def _read(self, number: int) -> list[str]:
        node, line = self._lines[number]
        try:
            messages = line.read_all()
        except (OSError, hiredis.HiredisError):
            del self._lines[number]
            self.poll.unregister(number)
            line.close()
            self._ended(node)
            return [WAKE_ALL]  # what was told meanwhile is lost
        return [message[2].decode(errors="replace") for message in messages if message[0] == b"message"]

    def abandon(self) -> None:
        """It is the parent's: close only our copy."""
        for _, line in self._lines.values():
            line.socket.close()
        self._self_pipe.close()
        self._hand.close()

    def close(self) -> None:
        for node, line in self._lines.values():
            line.close()
            self._ended(node)
        self._lines.clear()
        self._self_pipe.close()
        self._hand.close()
