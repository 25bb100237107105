"""The least that a lock on Redis can be: SET NX PX, and a script that deletes what is still ours, on a bare socket.

No library is between the bytes and the socket: what is written was made beforehand, and of what is read only the length
counts. It knows no fence, no queue, no renewal, no errors and no time limits.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable

_DELETE_IF_OURS = b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_OURS = b"0123456789abcdef0123456789abcdef"


def floor(port: int, name: bytes = b"bench:floor") -> Callable[[], None]:
    """One acquire and release on a connection of its own, which goes when this does."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def _packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
