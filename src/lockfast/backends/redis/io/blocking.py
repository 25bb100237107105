"""Redis, blocking: a thin request path over sockets that redis-py has connected.

Decides: which connection a thread uses, how its reply is read, and when a connection is thrown away.
Leaves to `endpoints`: to connect. Leaves to `router`: which server is asked.
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
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast.backends.redis.io.endpoints import Address, Place
from lockfast.backends.redis.io.resp import (
    NOTHING,
    PATIENT,
    RECEIVE,
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
from lockfast.backends.wakeups.turns import in_turn
from lockfast.errors import BackendUnavailable

_SILENT = 1.0  # seconds without an answer after which the other connections are not trusted either
_IDLE = 16  # connections that are kept for later, for each server


class _Line:
    """One connection of our own: what is written is answered in order."""

    def __init__(self, place: Place, address: Address | None, within: float) -> None:
        self.name = str(address or place.name)
        self._connection = place.dial(address, within)
        self.socket: socket.socket = self._connection._sock
        self._tls = isinstance(self.socket, ssl.SSLSocket)
        self._timeout = -1.0
        self.late = False  # it was given up because an answer did not come
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
            self._feed(self._receive(RECEIVE))
            answer = self._gets()
        except (OSError, hiredis.HiredisError) as error:
            raise self._broken(error) from error
        # Else it was a part of it, or the end of the stream.
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
                data = self._receive(RECEIVE)
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
        """How long one call may take, interrupted by signals or not."""
        self._timeout = seconds
        self.socket.settimeout(seconds)

    def _broken(self, error: Exception) -> BackendUnavailable:
        self.late = isinstance(error, TimeoutError)
        if self.late:
            return unavailable(self.name, "did not answer in time")
        return unavailable(self.name, f"closed the connection: {error}")

    def read_all(self) -> list[Any]:
        """What has arrived; for a socket that does not block. Raises ConnectionError at the end."""
        while True:
            try:
                data = self._receive(RECEIVE)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
                break
            if not data:
                raise ConnectionResetError("end of stream")
            self._feed(data)
            if len(data) < RECEIVE and not self._tls:
                break  # that was all
        messages = []
        while (message := self._gets()) is not NOTHING:
            messages.append(message)
        return messages

    def close(self) -> None:
        with suppress(OSError):
            self._connection.disconnect()


class _WakeLine:
    """The mailbox of the waiters: a subscription, and a pair of sockets to ring our own bell with."""

    def __init__(self, line: _Line, channel: str, within: float) -> None:
        self.address = channel
        self.broken = False
        self._line = line
        line.send(command("SUBSCRIBE", channel), within)
        (answer,) = line.replies(1, boot_now() + within)
        if answer.__class__ is ReplyError:
            raise refusal(line.name, answer)
        keep_alive(line.socket)  # it is only ever read: of a cut that nobody tells it would never know
        line.socket.setblocking(False)
        self._bell = SelfPipe(line.socket.fileno())
        self.poll = self._bell.poll
        self.ring = self._bell.ring

    def read(self, ready: Sequence[tuple[int, int]]) -> list[str]:
        if not self._bell.heard_besides(ready):
            return []
        try:
            messages = self._line.read_all()
        except (OSError, hiredis.HiredisError):
            self.broken = True
            return [WAKE_ALL]  # what was told meanwhile is lost
        return [message[2].decode(errors="replace") for message in messages if message[0] == b"message"]

    def abandon(self) -> None:
        """It is the parent's: close only our copy."""
        self._line.socket.close()
        self._bell.close()

    def close(self) -> None:
        self._line.close()
        self._bell.close()


class BlockingWires:
    def __init__(self, place: Place, clock: Clock | None) -> None:
        self._place = place
        self._wakeups = BlockingWakeups(clock, None)
        self._reset()

    def _reset(self) -> None:
        self._channel = new_channel(clustered=self._place.clustered)
        self._idle: dict[Address | None, list[_Line]] = {}
        self._opening = threading.RLock()
        self._closed = False

    @property
    def wakeups(self) -> BlockingWakeups:
        return self._wakeups

    async def expect(self, claim: Claim, address: Address | None, within: float) -> str:
        if not self._wakeups.address:
            until = boot_now() + within
            if not in_turn(self._opening, within, lambda: self._see_to_subscription(address, until)):
                raise no_connection(self._place.url_of(address), "no answer in time")
        return self._wakeups.expect(claim)

    def _see_to_subscription(self, address: Address | None, until: float) -> bool:
        if not self._wakeups.address:
            self._subscribe(address, max(0.01, until - boot_now()))
        return True

    def _subscribe(self, address: Address | None, within: float) -> None:
        line = self._dial(address, within)
        try:
            self._wakeups.attach(_WakeLine(line, self._channel, within))
        except BaseException:
            line.close()
            raise

    def _line_to(self, address: Address | None, within: float) -> tuple[_Line, float]:
        """A connection, and how long to wait on it for an answer: one that used to work may lead nowhere by now."""
        line: _Line | None
        try:
            line = self._idle[address].pop()
        except LookupError:
            line = None
        if line is not None:
            return line, within if within < PATIENT else PATIENT
        started = boot_now()  # not inside `except`: an error in there would seem to come of the missing key
        return self._dial(address, within), max(0.01, within - (boot_now() - started))

    def _dial(self, address: Address | None, within: float) -> _Line:
        if self._closed:
            raise unavailable(self._place.name, "was let go of: this Locks is closed", transient=False)
        return _Line(self._place, address, within)

    def _put_back(self, address: Address | None, line: _Line) -> None:
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle.setdefault(address, [])
        if len(idle) < _IDLE and not self._closed:
            idle.append(line)
        else:
            line.close()

    def _throw_away(self, address: Address | None, line: _Line, error: BaseException, within: float) -> None:
        """A late reply must never be taken for another's. Where one connection has ended, the idle ones have too; but
        a server that does not answer at once may just be far away.
        """
        line.close()
        if isinstance(error, BackendUnavailable) and (within >= _SILENT or not line.late):
            self.drop(address)

    async def ask_one(self, address: Address | None, request: bytes, within: float) -> Any:
        line, within = self._line_to(address, within)
        try:
            answer = line.ask(request, within)
        except BaseException as error:
            self._throw_away(address, line, error, within)
            raise
        self._put_back(address, line)
        return answer

    async def ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        return self._ask(address, request, replies, within)

    def _ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        line, within = self._line_to(address, within)
        until = boot_now() + within
        try:
            line.send(request, within)
            answers = line.replies(replies, until)
        except BaseException as error:
            self._throw_away(address, line, error, within)
            raise
        self._put_back(address, line)
        return answers

    async def ask_each(
        self, requests: Sequence[tuple[Address | None, bytes, int]], within: float
    ) -> list[list[Any] | BackendUnavailable]:
        """Those that there is a connection to are asked first: one that is gone may take all the time there is."""
        until = boot_now() + within
        heard: dict[Address | None, list[Any] | BackendUnavailable] = {}
        sent: list[tuple[Address | None, _Line, int]] = []
        for address, request, replies in requests:
            if self._idle.get(address):
                line, patience = self._line_to(address, within)
                try:
                    line.send(request, patience)
                    sent.append((address, line, replies))
                except BackendUnavailable as error:
                    self._throw_away(address, line, error, within)
                    heard[address] = error
        patient_until = min(until, boot_now() + PATIENT)
        for address, line, replies in sent:
            try:
                heard[address] = line.replies(replies, patient_until)
                self._put_back(address, line)
            except BackendUnavailable as error:
                self._throw_away(address, line, error, within)
                heard[address] = error
        for address, request, replies in requests:
            if address not in heard:
                try:
                    heard[address] = self._ask(address, request, replies, max(0.01, until - boot_now()))
                except BackendUnavailable as error:
                    heard[address] = error
        return [heard[address] for address, _, _ in requests]

    def drop(self, address: Address | None) -> None:
        for line in self._idle.pop(address, ()):
            line.close()

    async def close(self) -> None:
        self._closed = True
        for address in list(self._idle):
            self.drop(address)
        self._wakeups.close()

    def after_fork(self) -> None:
        """The connections are the parent's; only our copies of them are closed."""
        for idle in self._idle.values():
            for line in idle:
                line.socket.close()
        self._wakeups.after_fork()
        self._reset()


def open_driver(place: Place, world: World, clock: Clock | None, replicas: int) -> RedisDriver:
    """The driver for that world. Nothing is opened yet."""
    now = clock.now if clock is not None else None
    if world.blocking:
        return RedisDriver(place, BlockingWires(place, clock), now, replicas)
    from lockfast.backends.redis.io.asyncio_ import AsyncioWires

    return RedisDriver(place, AsyncioWires(place, clock), now, replicas)
