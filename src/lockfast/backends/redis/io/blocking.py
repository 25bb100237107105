"""Redis, blocking: a thin request path over sockets that redis-py has connected.

Decides: which connection a thread uses, how its reply is read, and when a connection is dropped.
Leaves to `endpoints`: to connect. Leaves to `router`: which server gets a request.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hiredis

from lockfast._model import Claim
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast.backends.connecting.turns import in_turn
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import (
    NOTHING,
    RECEIVE_BYTES,
    SUSPECT_AFTER_S,
    ReplyError,
    command,
    keep_alive,
    new_channel,
    no_connection,
    refusal,
    unavailable,
)
from lockfast.backends.redis.io.router import RedisDriver
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.backends.wakeups.self_pipe import SelfPipe
from lockfast.errors import BackendUnavailable

_SILENCE_S = 1.0  # without a reply, after which the other connections to the server are dropped too
_MAX_IDLE_CONNECTIONS = 16  # for each server


class BlockingConnection:
    """One connection, on which replies come in the order of the requests."""

    def __init__(self, endpoint: RedisEndpoint, address: Address | None, within: float) -> None:
        self.name = str(address or endpoint.name)
        self._redis_py = endpoint.dial(address, within)
        self.socket: socket.socket = self._redis_py._sock
        self._tls = isinstance(self.socket, ssl.SSLSocket)
        self._timeout = -1.0
        self.late = False  # a reply did not come in time
        reader = hiredis.Reader(notEnoughData=NOTHING)
        self._send, self._receive = self.socket.sendall, self.socket.recv
        self._feed, self._gets = reader.feed, reader.gets

    def ask(self, request: bytes, within: float) -> Any:
        """One request, one reply."""
        started = boot_now()
        try:
            if within != self._timeout:
                self._limit(within)
            self._send(request)
            self._feed(self._receive(RECEIVE_BYTES))
            answer = self._gets()
        except (OSError, hiredis.HiredisError) as error:
            raise self._broken(error) from error
        # Else it was a part of the reply, or the end of the stream.
        return answer if answer is not NOTHING else self.one_reply(started + within)

    def send(self, request: bytes, within: float) -> None:
        try:
            if within != self._timeout:
                self._limit(within)
            self._send(request)
        except (OSError, hiredis.HiredisError) as error:
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
        except (OSError, hiredis.HiredisError) as error:
            raise self._broken(error) from error

    def replies(self, number: int, until: float) -> list[Any]:
        answers: list[Any] = []
        while len(answers) < number:
            answer = self._gets()
            answers.append(answer if answer is not NOTHING else self.one_reply(until))
        return answers

    def _limit(self, seconds: float) -> None:
        """The timeout of one call, with or without signals."""
        self._timeout = seconds
        self.socket.settimeout(seconds)

    def _broken(self, error: Exception) -> BackendUnavailable:
        self.late = isinstance(error, TimeoutError)
        if self.late:
            return unavailable(self.name, "did not answer in time")
        return unavailable(self.name, f"closed the connection: {error}")

    def read_all(self) -> list[Any]:
        """The messages that have arrived, on a non-blocking socket. Raises ConnectionError at the end of the stream."""
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
        connection.send(command("SUBSCRIBE", channel), within)
        (answer,) = connection.replies(1, boot_now() + within)
        if answer.__class__ is ReplyError:
            raise refusal(connection.name, answer)
        keep_alive(connection.socket)  # it is only read, so nothing else would notice a silent cut
        connection.socket.setblocking(False)
        self._self_pipe = SelfPipe(connection.socket.fileno())
        self.poll = self._self_pipe.poll
        self.notify = self._self_pipe.notify

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        if not self._self_pipe.other_is_ready(ready):
            return []
        try:
            messages = self._connection.read_all()
        except (OSError, hiredis.HiredisError):
            self.broken = True
            return [WAKE_ALL]  # wake-ups since then are lost
        return [message[2].decode(errors="replace") for message in messages if message[0] == b"message"]

    def abandon(self) -> None:
        """In the child of a fork: close our copy of the parent's connection."""
        self._connection.socket.close()
        self._self_pipe.close()

    def close(self) -> None:
        self._connection.close()
        self._self_pipe.close()


class BlockingConnections:
    def __init__(self, endpoint: RedisEndpoint, clock: Clock | None) -> None:
        self._endpoint = endpoint
        self._wakeups = BlockingWakeups(clock, None)
        self._reset()

    def _reset(self) -> None:
        self._channel = new_channel(clustered=self._endpoint.clustered)
        self._idle: dict[Address | None, list[BlockingConnection]] = {}
        self._opening = threading.RLock()
        self._closed = False

    @property
    def wakeups(self) -> BlockingWakeups:
        return self._wakeups

    async def expect(self, claim: Claim, address: Address | None, within: float) -> str:
        if not self._wakeups.address:
            until = boot_now() + within
            if not in_turn(self._opening, within, lambda: self._see_to_subscription(address, until)):
                raise no_connection(self._endpoint.url_of(address), "no answer in time")
        return self._wakeups.expect(claim)

    def _see_to_subscription(self, address: Address | None, until: float) -> bool:
        if not self._wakeups.address:
            self._subscribe(address, max(0.01, until - boot_now()))
        return True

    def _subscribe(self, address: Address | None, within: float) -> None:
        connection = self._dial(address, within)
        try:
            self._wakeups.attach(BlockingSubscription(connection, self._channel, within))
        except BaseException:
            connection.close()
            raise

    def _connection_to(self, address: Address | None, within: float) -> tuple[BlockingConnection, float]:
        """A connection, and how long to wait for a reply on it: an idle one may lead nowhere by now."""
        connection: BlockingConnection | None
        try:
            connection = self._idle[address].pop()
        except LookupError:
            connection = None
        if connection is not None:
            return connection, within if within < SUSPECT_AFTER_S else SUSPECT_AFTER_S
        started = boot_now()  # not inside `except`: an error there would have the missing key as its context
        return self._dial(address, within), max(0.01, within - (boot_now() - started))

    def _dial(self, address: Address | None, within: float) -> BlockingConnection:
        if self._closed:
            raise closed_driver(self._endpoint.name)
        return BlockingConnection(self._endpoint, address, within)

    def _put_back(self, address: Address | None, connection: BlockingConnection) -> None:
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle.setdefault(address, [])
        if len(idle) < _MAX_IDLE_CONNECTIONS and not self._closed:
            idle.append(connection)
        else:
            connection.close()

    def _discard(
        self, address: Address | None, connection: BlockingConnection, error: BaseException, within: float
    ) -> None:
        """A late reply must never be taken for the reply to another request. Where one connection has ended, the idle
        ones have too; but a server that does not answer at once may just be far away.
        """
        connection.close()
        if isinstance(error, BackendUnavailable) and (within >= _SILENCE_S or not connection.late):
            self.drop(address)

    async def ask_one(self, address: Address | None, request: bytes, within: float) -> Any:
        connection, within = self._connection_to(address, within)
        try:
            answer = connection.ask(request, within)
        except BaseException as error:
            self._discard(address, connection, error, within)
            raise
        self._put_back(address, connection)
        return answer

    async def ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        return self._ask(address, request, replies, within)

    def _ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        connection, within = self._connection_to(address, within)
        until = boot_now() + within
        try:
            connection.send(request, within)
            answers = connection.replies(replies, until)
        except BaseException as error:
            self._discard(address, connection, error, within)
            raise
        self._put_back(address, connection)
        return answers

    async def ask_each(
        self, requests: Sequence[tuple[Address | None, bytes, int]], within: float
    ) -> list[list[Any] | BackendUnavailable]:
        """Servers with an idle connection are asked first: connecting to a dead one may take all of the time."""
        until = boot_now() + within
        replied: dict[Address | None, list[Any] | BackendUnavailable] = {}
        sent: list[tuple[Address | None, BlockingConnection, int]] = []
        for address, request, replies in requests:
            if self._idle.get(address):
                connection, patience = self._connection_to(address, within)
                try:
                    connection.send(request, patience)
                    sent.append((address, connection, replies))
                except BackendUnavailable as error:
                    self._discard(address, connection, error, within)
                    replied[address] = error
        suspect_at = min(until, boot_now() + SUSPECT_AFTER_S)
        for address, connection, replies in sent:
            try:
                replied[address] = connection.replies(replies, suspect_at)
                self._put_back(address, connection)
            except BackendUnavailable as error:
                self._discard(address, connection, error, within)
                replied[address] = error
        for address, request, replies in requests:
            if address not in replied:
                try:
                    replied[address] = self._ask(address, request, replies, max(0.01, until - boot_now()))
                except BackendUnavailable as error:
                    replied[address] = error
        return [replied[address] for address, _, _ in requests]

    def keeps_order(self, address: Address | None) -> bool:
        return False  # the connection of an interrupted request is closed, and the server may read another one first

    def drop(self, address: Address | None) -> None:
        for connection in self._idle.pop(address, ()):
            connection.close()

    async def close(self) -> None:
        self._closed = True
        for address in list(self._idle):
            self.drop(address)
        self._wakeups.close()

    def after_fork(self) -> None:
        """In the child: close our copies of the parent's connections."""
        for idle in self._idle.values():
            for connection in idle:
                connection.socket.close()
        self._wakeups.after_fork()
        self._reset()


def open_driver(endpoint: RedisEndpoint, world: World, clock: Clock | None, replicas: int) -> RedisDriver:
    """The driver for that world. Nothing is opened yet."""
    now = clock.now if clock is not None else None
    if world.blocking:
        return RedisDriver(endpoint, BlockingConnections(endpoint, clock), now, replicas)
    from lockfast.backends.redis.io.asyncio_ import AsyncioConnections

    return RedisDriver(endpoint, AsyncioConnections(endpoint, clock), now, replicas)
