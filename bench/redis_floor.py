"""The least that a lock on Redis can be, on a bare socket: alone, and when many want it.

Alone it is SET NX PX, and a script that deletes what is still ours. Handed on, it is a key with its holder and a list
of those that wait: a release makes the first of them the holder.

No library is between the bytes and the socket: what is written was made beforehand, and of what is read at most the
length counts. They know no fence, no queue, no renewal, no errors and no time limits.
"""

from __future__ import annotations

import hashlib
import socket
import uuid
from collections.abc import Callable

DELETE_IF_OURS = b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
OURS = b"0123456789abcdef0123456789abcdef"
_JOIN = b"""
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0"""
_PASS_ON = b"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local next = redis.call('LPOP', KEYS[2])
if not next then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], next, 'PX', 30000)
return redis.call('PUBLISH', next, '1')"""


def floor(port: int, name: bytes = b"bench:floor") -> Callable[[], None]:
    """One acquire and release on a connection of its own, which goes when this does."""
    connection = connected(port)
    sha = script_sha(DELETE_IF_OURS)
    connection.sendall(packed(b"SCRIPT", b"LOAD", DELETE_IF_OURS))
    connection.recv(4096)
    take = packed(b"SET", name, OURS, b"NX", b"PX", b"30000")
    give_back = packed(b"EVALSHA", sha, b"1", name, OURS)
    send, receive = connection.sendall, connection.recv

    def cycle() -> None:
        send(take)
        if len(receive(4096)) != 5:  # +OK
            raise RuntimeError("the floor's lock was not free")
        send(give_back)
        if len(receive(4096)) != 4:  # :1
            raise RuntimeError("the floor's lock was no longer its own")

    return cycle


class Queue:
    """One lock with a queue, for one competitor. A release makes the next waiter the holder and publishes that to it.

    So a cycle is two requests, and a hand-over is one message. A waiter that dies stays in the queue.
    """

    def __init__(self, port: int, name: str) -> None:
        self._port, self._own = port, uuid.uuid4().hex.encode()
        keys = [f"{name}:{part}".encode() for part in ("holder", "queue")]
        self._take, self._give_back = (_evalsha(script, keys, self._own) for script in (_JOIN, _PASS_ON))
        self._requests: socket.socket | None = None

    def _open(self) -> socket.socket:
        self._requests, self._wakeups = connected(self._port), connected(self._port)
        for script in (_JOIN, _PASS_ON):
            self._requests.sendall(packed(b"SCRIPT", b"LOAD", script))
            self._requests.recv(4096)
        self._wakeups.sendall(packed(b"SUBSCRIBE", self._own))
        self._wakeups.recv(4096)
        return self._requests

    def __enter__(self) -> None:
        requests = self._requests or self._open()
        requests.sendall(self._take)
        if requests.recv(4096) != b":1\r\n":
            self._wakeups.recv(4096)

    def __exit__(self, *_: object) -> None:
        assert self._requests is not None
        self._requests.sendall(self._give_back)
        self._requests.recv(4096)


def _evalsha(script: bytes, keys: list[bytes], *words: bytes) -> bytes:
    return packed(b"EVALSHA", script_sha(script), b"%d" % len(keys), *keys, *words)


def script_sha(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


def connected(port: int) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
