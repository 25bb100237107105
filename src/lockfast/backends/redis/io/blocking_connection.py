"""One blocking connection to Redis: a thin request path over a socket that redis-py has connected.

Decides: how a request is written, how its reply is read, and how the messages of a subscription are.
Leaves to `blocking`: which connection a thread uses, and when one is dropped. Leaves to `endpoints`: to connect.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from os import write
from typing import Any

from lockfast._time import boot_now
from lockfast.backends.connecting.arrived import has_arrived
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import (
    NOTHING,
    PING,
    PONG_WITHIN_S,
    QUIET_S,
    RECEIVE_BYTES,
    ProtocolError,
    ReplyError,
    command,
    keep_alive,
    new_reader,
    refusal,
    unavailable,
)
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.self_pipe import SelfPipe
from lockfast.errors import BackendUnavailable


class BlockingConnection:
    """One connection, on which replies come in the order of the requests."""

    def __init__(self, endpoint: RedisEndpoint, address: Address | None, within: float) -> None:
        self.name = str(address or endpoint.name)
        self.asked_at = boot_now()  # when the last request was sent; until then, when the connection was made
        self._redis_py = endpoint.dial(address, within)
        self.socket: socket.socket = self._redis_py._sock
        self._tls = isinstance(self.socket, ssl.SSLSocket)
        self._timeout = -1.0
        self.late = False  # a reply did not come in time
        self._received_at = self.asked_at  # of a subscription
        reader = new_reader()
        self._send, self._receive = self.socket.sendall, self.socket.recv
        self._number = -1 if self._tls else self.socket.fileno()
        self._feed, self._gets = reader.feed, reader.gets

    def ask(self, request: bytes, within: float) -> Any:
        """One request, one reply."""
        self.asked_at = started = boot_now()
        try:
            if within != self._timeout:
                self._limit(within)
            if self._number >= 0:
                # As `_send`, which asks the kernel first whether there is room: nearly always there is.
                try:
                    written = write(self._number, request)
                except BlockingIOError:
                    written = 0
                if written < len(request):
                    self._send(request[written:])
            else:
                self._send(request)
            self._feed(self._receive(RECEIVE_BYTES))
            answer = self._gets()
        except (OSError, ProtocolError) as error:
            raise self._broken(error) from error
        # Else it was a part of the reply, or the end of the stream.
        return answer if answer is not NOTHING else self.one_reply(started + within)

    def send(self, request: bytes, within: float) -> None:
        self.asked_at = boot_now()
        try:
            if within != self._timeout:
                self._limit(within)
            self._send(request)
        except (OSError, ProtocolError) as error:
            raise self._broken(error) from error

    def one_reply(self, until: float) -> Any:
        """The next reply."""
        try:
            while True:
                self._limit(max(0.001, until - boot_now()))
                data = self._receive(RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError("end of stream")
                self._feed(data)
                answer = self._gets()
                if answer is not NOTHING:
                    return answer
        except (OSError, ProtocolError) as error:
            raise self._broken(error) from error

    def read_replies(self, answers: list[Any], number: int, until: float) -> None:
        """Until there are `number` replies. If one is late, those before it are there, and reading can go on."""
        while len(answers) < number:
            answer = self._gets()
            answers.append(answer if answer is not NOTHING else self.one_reply(until))

    def _limit(self, seconds: float) -> None:
        """The timeout of one call, with or without signals."""
        self._timeout = seconds
        self.socket.settimeout(seconds)

    def _broken(self, error: Exception) -> BackendUnavailable:
        self.late = isinstance(error, TimeoutError)
        if self.late:
            return unavailable(self.name, "did not answer in time")
        return unavailable(self.name, f"closed the connection: {error}")

    def subscribe(self, channel: str, within: float) -> None:
        """From now on it is only read, and never waited for."""
        answer = self.ask(command("SUBSCRIBE", channel), within)
        if answer.__class__ is ReplyError:
            raise refusal(self.name, answer)
        keep_alive(self.socket)  # nothing else would notice a silent cut
        self.socket.setblocking(False)
        self._received_at = boot_now()

    def is_dead(self) -> bool:
        """Whether nothing has arrived for a while, not even a sign of life that was asked for. A proxy may answer the
        probes of the kernel and still have lost the way to the server."""
        now = boot_now()
        if now - self._received_at < QUIET_S:
            return False
        if self.asked_at > self._received_at:
            return now - self.asked_at > PONG_WITHIN_S and not has_arrived(self.socket.fileno())
        self.asked_at = now
        try:
            self._send(PING)
        except OSError:
            return True
        return False

    def read_all(self) -> list[Any]:
        """The messages that have arrived, on a non-blocking socket. Raises ConnectionError at the end of the stream."""
        self._received_at = boot_now()
        while True:
            try:
                data = self._receive(RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
                break
            if not data:
                raise ConnectionResetError("end of stream")
            self._feed(data)
            if len(data) < RECEIVE_BYTES and not self._tls:
                break  # nothing more has arrived
        messages = []
        while (message := self._gets()) is not NOTHING:
            messages.append(message)
        return messages

    def close(self) -> None:
        with suppress(OSError):
            self._redis_py.disconnect()


class BlockingSubscription:
    """The inbox of the waiters: a subscription, and a self-pipe to wake the thread that polls it."""

    def __init__(self, connection: BlockingConnection, channel: str, within: float) -> None:
        self.address = channel
        self.broken = False
        self._connection = connection
        connection.subscribe(channel, within)
        self._self_pipe = SelfPipe(connection.socket.fileno())
        self._number = connection.socket.fileno()
        self.poll = self._self_pipe.poll
        self.notify = self._self_pipe.notify

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        if (len(ready) != 1 or ready[0][0] != self._number) and not self._self_pipe.other_is_ready(ready):
            self.broken = self._connection.is_dead()
            return [WAKE_ALL] if self.broken else []
        try:
            messages = self._connection.read_all()
        except (OSError, ProtocolError):
            self.broken = True
            return [WAKE_ALL]  # wake-ups since then are lost
        wake_ups = []
        for message in messages:
            if message.__class__ is list and message[0] == b"message":  # else it is a sign of life
                wake_ups.append(message[2].decode(errors="replace"))
        return wake_ups

    def end(self) -> None:
        """From any thread: the one that polls finds the end of the stream, and wakes all waiters."""
        with suppress(OSError):
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """In the child of a fork: close our copy of the parent's connection."""
        self._connection.socket.close()
        self._self_pipe.close()

    def close(self) -> None:
        self._connection.close()
        self._self_pipe.close()
