"""Redis, blocking: a thin request path over redis-py's connections, and errors in our own words.

Decides: how a request is written and its reply read, when a connection is thrown away, what the server's errors mean.
Leaves to redis-py: URLs, TLS, passwords and the handshake. Nothing is ever repeated here: the engine does that, with
the same claim.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import hiredis
import redis

from holdfast._model import Claim
from holdfast._time import boot_now
from holdfast._worlds import Clock, World
from holdfast.drivers.datagrams import LOOK_ALL
from holdfast.drivers.wakes import BlockingWakes, Wakes
from holdfast.errors import BackendUnavailable

NAMES_IN_ONE = 100  # names that one script renews; a server does nothing else meanwhile
_IDLE = 16  # connections that are kept for later
_RECEIVE = 65536

Call = tuple[Sequence[str], Sequence[object]]  # keys and arguments


class Script(NamedTuple):
    name: str
    source: bytes
    sha: bytes


class RedisDriver(Protocol):
    """What the backend asks of either driver."""

    names_in_one: int
    now: Callable[[], float] | None  # a test's clock, which the server is told

    @property
    def wakes(self) -> Wakes: ...
    async def expect(self, claim: Claim, within: float) -> str:
        """As `wakes.expect`, but makes the connection that wake-ups arrive by, if there is none."""
        ...

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[object], within: float) -> Any: ...
    async def run_all(self, script: Script, calls: Sequence[Call], within: float) -> list[Any]: ...
    async def command(self, words: Sequence[object], within: float) -> Any: ...
    async def scan(self, pattern: str, within: float) -> list[bytes]: ...
    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Endpoint:
    """Where the server is, and how redis-py connects to it."""

    def __init__(self, url_or_client: object) -> None:
        pool = (
            redis.ConnectionPool.from_url(url_or_client)
            if isinstance(url_or_client, str)
            else url_or_client.connection_pool  # type: ignore[attr-defined]
        )
        self._class = pool.connection_class
        kwargs = dict(pool.connection_kwargs)
        kwargs.update(protocol=2, decode_responses=False, socket_timeout=None, health_check_interval=0)
        for unwanted in ("retry", "retry_on_timeout", "retry_on_error", "maint_notifications_config"):
            kwargs.pop(unwanted, None)
        self._kwargs = kwargs
        host, port = kwargs.get("host", "localhost"), kwargs.get("port", 6379)
        self.name = kwargs.get("path") or f"{host}:{port}"

    def connect(self, within: float) -> Any:
        """A connection after its handshake. Raises BackendUnavailable."""
        connection = self._class(**{**self._kwargs, "socket_connect_timeout": within, "socket_timeout": within})
        try:
            connection.connect()
        except (redis.RedisError, OSError) as error:
            transient = not isinstance(error, redis.AuthenticationError)
            raise self.unavailable(f"cannot be connected to: {error}", transient=transient) from error
        return connection

    def unavailable(self, what: str, *, transient: bool = True) -> BackendUnavailable:
        return BackendUnavailable(f"the lock server {self.name!r} {what}", transient=transient)

    def checked(self, answer: Any) -> Any:
        """The reply itself, unless it is an error."""
        if isinstance(answer, Exception):
            text = str(answer)
            transient = not text.startswith(("NOAUTH", "WRONGPASS", "NOPERM", "ERR", "WRONGTYPE"))
            raise self.unavailable(f"refuses: {text}", transient=transient)
        return answer

    def make_async(self, within: float) -> Any:
        """A connection of redis-py's for asyncio, not connected yet."""
        from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection

        name = self._class.__name__
        kinds = {"SSLConnection": SSLConnection, "UnixDomainSocketConnection": UnixDomainSocketConnection}
        kind: Any = kinds.get(name, Connection)
        return kind(**{**self._kwargs, "socket_connect_timeout": within, "socket_timeout": within})


def pack(script: Script, keys: Sequence[str], args: Sequence[object], *, whole: bool = False) -> bytes:
    """An EVALSHA, or an EVAL with the script's whole text."""
    how = ("EVAL", script.source) if whole else ("EVALSHA", script.sha)
    packed: bytes = hiredis.pack_command((*how, len(keys), *keys, *map(_plain, args)))
    return packed


def pack_words(words: Sequence[object]) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(map(_plain, words)))
    return packed


def _plain(value: object) -> Any:
    return value if isinstance(value, str | bytes) else str(value)


class _Line:
    """One connection of our own: what is written is answered in order."""

    def __init__(self, endpoint: Endpoint, within: float) -> None:
        self._endpoint = endpoint
        self._connection = endpoint.connect(within)
        self.socket: socket.socket = self._connection._sock
        self._reader = hiredis.Reader(notEnoughData=NOTHING)

    def ask(self, request: bytes, replies: int, until: float) -> list[Any]:
        answers: list[Any] = []
        try:
            self.socket.settimeout(max(0.001, until - boot_now()))
            self.socket.sendall(request)
            while len(answers) < replies:
                answer = self._reader.gets()
                if answer is NOTHING:
                    self.socket.settimeout(max(0.001, until - boot_now()))
                    self.receive()
                else:
                    answers.append(answer)
        except TimeoutError as error:
            raise self._endpoint.unavailable("did not answer in time") from error
        except OSError as error:
            raise self._endpoint.unavailable(f"closed the connection: {error}") from error
        return answers

    def receive(self) -> None:
        data = self.socket.recv(_RECEIVE)
        if not data:
            raise ConnectionResetError("end of stream")
        self._reader.feed(data)

    def next_message(self) -> Any:
        """What has arrived already, or `NOTHING`."""
        return self._reader.gets()

    def close(self) -> None:
        with suppress(OSError):
            self._connection.disconnect()


NOTHING = object()


class _WakeLine:
    """The mailbox of the waiters: a subscription, and a pair of sockets to ring our own bell with."""

    def __init__(self, endpoint: Endpoint, channel: str, within: float) -> None:
        self.address = channel
        self._line = _Line(endpoint, within)
        self._line.ask(pack_words(("SUBSCRIBE", channel)), 1, boot_now() + within)
        self._line.socket.setblocking(False)
        self._bell, self._hand = socket.socketpair()
        self._bell.setblocking(False)
        self._hand.setblocking(False)
        self.broken = False

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return self._line.socket, self._bell

    def ring(self) -> None:
        with suppress(OSError):
            self._hand.send(b"!")

    def read(self) -> list[str]:
        with suppress(BlockingIOError):
            self._bell.recv(4096)
        claims = []
        try:
            while True:
                self._line.receive()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.broken = True
            claims.append(LOOK_ALL)  # what was told meanwhile is lost
        while (message := self._line.next_message()) is not NOTHING:
            if isinstance(message, list) and message[0] == b"message":
                claims.append(message[2].decode())
        return claims

    def close(self) -> None:
        self._line.close()
        self._bell.close()
        self._hand.close()


class BlockingRedis:
    def __init__(self, endpoint: Endpoint, clock: Clock | None) -> None:
        self.names_in_one = NAMES_IN_ONE
        self.now = clock.now if clock is not None else None
        self._endpoint = endpoint
        self._channel = f"holdfast:wake:{uuid4().hex}"
        self._wakes = BlockingWakes(clock, None)
        self._reset()

    def _reset(self) -> None:
        self._idle: list[_Line] = []
        self._opening = threading.Lock()
        self._closed = False

    @property
    def wakes(self) -> BlockingWakes:
        return self._wakes

    async def expect(self, claim: Claim, within: float) -> str:
        if not self._wakes.address:
            with self._opening:
                if not self._wakes.address:
                    self._wakes.move_in(_WakeLine(self._endpoint, self._channel, within))
        return self._wakes.expect(claim)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[object], within: float) -> Any:
        return self._run_all(script, [(keys, args)], within)[0]

    async def run_all(self, script: Script, calls: Sequence[Call], within: float) -> list[Any]:
        return self._run_all(script, calls, within)

    def _run_all(self, script: Script, calls: Sequence[Call], within: float) -> list[Any]:
        request = b"".join([pack(script, keys, args) for keys, args in calls])
        answers = self._ask(request, len(calls), within)
        for place, answer in enumerate(answers):
            if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
                keys, args = calls[place]
                answers[place] = self._ask(pack(script, keys, args, whole=True), 1, within)[0]
        return [self._endpoint.checked(answer) for answer in answers]

    async def command(self, words: Sequence[object], within: float) -> Any:
        return self._endpoint.checked(self._ask(pack_words(words), 1, within)[0])

    async def scan(self, pattern: str, within: float) -> list[bytes]:
        found: list[bytes] = []
        cursor = b"0"
        while True:
            cursor, keys = await self.command(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000), within)
            found += keys
            if cursor == b"0":
                return found

    def _ask(self, request: bytes, replies: int, within: float) -> list[Any]:
        if self._closed:
            raise self._endpoint.unavailable("was let go of: this Locks is closed", transient=False)
        until = boot_now() + within
        try:
            line = self._idle.pop()
        except IndexError:
            line = _Line(self._endpoint, within)
        try:
            answers = line.ask(request, replies, until)
        except BaseException:
            line.close()  # a late reply must never be taken for another's
            raise
        if len(self._idle) < _IDLE and not self._closed:
            self._idle.append(line)
        else:
            line.close()
        return answers

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        self._wakes.close()

    def after_fork(self) -> None:
        """The connections are the parent's; only our copies of them are closed."""
        for line in self._idle:
            line.socket.close()
        self._channel = f"holdfast:wake:{uuid4().hex}"
        self._wakes.after_fork()
        self._reset()

    def __repr__(self) -> str:
        return f"redis://{self._endpoint.name}"


def open_driver(url_or_client: object, world: World, clock: Clock | None) -> RedisDriver:
    """The driver for that world. Nothing is opened yet."""
    endpoint = Endpoint(url_or_client)
    if world.blocking:
        return BlockingRedis(endpoint, clock)
    from holdfast.drivers.redis_asyncio import AsyncioRedis

    return AsyncioRedis(endpoint, clock)
