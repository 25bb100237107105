"""The least that a lock on Redis can be, on a bare socket: alone, and when many want it.

Alone it is SET NX PX, and a script that deletes what is still ours. Handed on, it is a list with one element: a client
that pops it holds, and pushing it back wakes the one that waits longest.

No library is between the bytes and the socket: what is written was made beforehand, and of what is read at most the
length counts. They know no fence, no queue, no renewal, no errors and no time limits.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable

_DELETE_IF_OURS = b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_OURS = b"0123456789abcdef0123456789abcdef"


def floor(port: int, name: bytes = b"bench:floor") -> Callable[[], None]:
    """One acquire and release on a connection of its own, which goes when this does."""
    connection = _connected(port)
    sha = hashlib.sha1(_DELETE_IF_OURS, usedforsecurity=False).hexdigest().encode()
    connection.sendall(_packed(b"SCRIPT", b"LOAD", _DELETE_IF_OURS))
    connection.recv(4096)
    take = _packed(b"SET", name, _OURS, b"NX", b"PX", b"30000")
    give_back = _packed(b"EVALSHA", sha, b"1", name, _OURS)
    send, receive = connection.sendall, connection.recv

    def cycle() -> None:
        send(take)
        if len(receive(4096)) != 5:  # +OK
            raise RuntimeError("the floor's lock was not free")
        send(give_back)
        if len(receive(4096)) != 4:  # :1
            raise RuntimeError("the floor's lock was no longer its own")

    return cycle


class Token:
    """Held by the client that has the list's one element. A holder that dies takes it along for ever."""

    def __init__(self, port: int, name: str) -> None:
        key = f"{name}:token".encode()
        self._line = _connected(port)
        self._take, self._give_back = _packed(b"BLPOP", key, b"0"), _packed(b"LPUSH", key, b"1")

    @classmethod
    def mint(cls, port: int, name: str) -> None:
        cls(port, name).__exit__()

    def __enter__(self) -> None:
        self._line.sendall(self._take)
        self._line.recv(4096)

    def __exit__(self, *_: object) -> None:
        self._line.sendall(self._give_back)
        self._line.recv(4096)


def _connected(port: int) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def _packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
