"""Redis for asyncio: one connection for all requests of an `AsyncLocks`, and one for its wake-ups.

Decides: how requests share a connection. What is asked for in one turn of the loop is written at once, and answered in
order, so that a thousand tasks cost little more than one. A cancelled request is still carried out before whatever is
asked later, so what cleans up after it does.
Leaves to `redis`: the endpoint, how a request is written, and what errors mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import hiredis
import redis
import redis.asyncio

from holdfast._model import Claim
from holdfast._time import say
from holdfast._worlds import Clock
from holdfast.drivers.datagrams import LOOK_ALL
from holdfast.drivers.redis import NAMES_IN_ONE, NOTHING, Call, Endpoint, Script, pack, pack_words
from holdfast.drivers.seats_asyncio import AsyncioSeats


class _Line(asyncio.Protocol):
    """One connection: what is written is answered in order; what nobody asked for is a message."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._reader = hiredis.Reader(notEnoughData=NOTHING)
        self._unanswered: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._heard_at = 0.0
        self.transport: Any = None
        self._connection: Any = None
        self.alive = False

    async def connect(self, within: float) -> None:
        """Raises BackendUnavailable. Cancelled, it goes on by itself and then closes: redis-py swallows cancellations."""
        handshake = self._loop.create_task(self._shake_hands(within))
        try:
            await asyncio.shield(handshake)
        except asyncio.CancelledError:
            handshake.add_done_callback(self._close_after)
            raise

    def _close_after(self, handshake: asyncio.Task[None]) -> None:
        if not handshake.cancelled():
            handshake.exception()  # nobody asks for it any more
        self.close()

    async def _shake_hands(self, within: float) -> None:
        """redis-py does it; from then on the connection is ours."""
        connection = self._endpoint.make_async(within)
        try:
            await connection.connect()
        except (redis.RedisError, OSError, TimeoutError) as error:
            transient = not isinstance(error, redis.AuthenticationError)
            raise self._endpoint.unavailable(f"cannot be connected to: {error}", transient=transient) from error
        self.transport = connection._writer.transport
        self.transport.set_protocol(self)
        self._connection = connection  # it would close what is ours now, were it dropped
        self._heard_at = self._loop.time()
        self.alive = True

    def ask(self, request: bytes, replies: int) -> list[asyncio.Future[Any]]:
        answers = [self._loop.create_future() for _ in range(replies)]
        self._unanswered.extend(answers)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(request)
        return answers

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self.alive:
            self.transport.write(b"".join(unsent))

    def silent_since(self, moment: float) -> bool:
        return self._heard_at < moment

    def message(self, message: Any) -> None:
        """Overridden where messages are expected."""

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not NOTHING:
            if not self._unanswered:
                self.message(answer)
                continue
            waiting = self._unanswered.popleft()
            if not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._let_go()
        unanswered, self._unanswered = self._unanswered, deque()
        for waiting in unanswered:
            if not waiting.done():
                waiting.set_exception(self._endpoint.unavailable(f"closed the connection: {error or 'end of stream'}"))

    def close(self) -> None:
        if self.transport is not None and not self._loop.is_closed():
            self.transport.abort()
        self._let_go()

    def _let_go(self) -> None:
        self.alive = False
        if self._connection is not None:  # it has nothing to close any more
            self._connection._reader = self._connection._writer = None
            self._connection = None


class _WakeLine(_Line):
    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, seats: AsyncioSeats) -> None:
        super().__init__(endpoint, loop)
        self._seats = seats

    def message(self, message: Any) -> None:
        if isinstance(message, list) and message[0] == b"message":
            self._seats.wake(message[2].decode())

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._seats.wake(LOOK_ALL)  # what was told meanwhile is lost


class AsyncioRedisWakes(AsyncioSeats):
    """The loop itself hears the subscription."""

    def __init__(self, clock: Clock | None, endpoint: Endpoint) -> None:
        super().__init__(clock)
        self._endpoint = endpoint
        self._channel = f"holdfast:wake:{uuid4().hex}"
        self._line: _WakeLine | None = None
        self._opening: asyncio.Lock | None = None

    @property
    def address(self) -> str:
        return self._channel if self._line is not None and self._line.alive else ""

    def expect(self, claim: Claim) -> str:
        self.seat(claim)
        return self.address

    async def subscribe(self, loop: asyncio.AbstractEventLoop, within: float) -> None:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self.address:
                return
            line = _WakeLine(self._endpoint, loop, self)
            await line.connect(within)
            (answer,) = line.ask(pack_words(("SUBSCRIBE", self._channel)), 1)
            async with asyncio.timeout(within):
                await answer
            self._line = line

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()
        self.wake(LOOK_ALL)

    def after_fork(self) -> None:
        self._channel = f"holdfast:wake:{uuid4().hex}"
        self._line = self._opening = None
        self.get_up()


class AsyncioRedis:
    def __init__(self, endpoint: Endpoint, clock: Clock | None) -> None:
        self.names_in_one = NAMES_IN_ONE
        self.now = clock.now if clock is not None else None
        self.wakes = AsyncioRedisWakes(clock, endpoint)
        self._endpoint = endpoint
        self._reset()

    def _reset(self) -> None:
        self._line: _Line | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def expect(self, claim: Claim, within: float) -> str:
        if not self.wakes.address:
            loop = asyncio.get_running_loop()
            self._belong_to(loop)
            await self.wakes.subscribe(loop, within)
        return self.wakes.expect(claim)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[object], within: float) -> Any:
        (answer,) = await self.run_all(script, [(keys, args)], within)
        return answer

    async def run_all(self, script: Script, calls: Sequence[Call], within: float) -> list[Any]:
        answers = await self._ask(b"".join([pack(script, keys, args) for keys, args in calls]), len(calls), within)
        for place, answer in enumerate(answers):
            if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
                keys, args = calls[place]
                (answers[place],) = await self._ask(pack(script, keys, args, whole=True), 1, within)
        return [self._endpoint.checked(answer) for answer in answers]

    async def command(self, words: Sequence[object], within: float) -> Any:
        (answer,) = await self._ask(pack_words(words), 1, within)
        return self._endpoint.checked(answer)

    async def scan(self, pattern: str, within: float) -> list[bytes]:
        found: list[bytes] = []
        cursor = b"0"
        while True:
            cursor, keys = await self.command(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000), within)
            found += keys
            if cursor == b"0":
                return found

    async def _ask(self, request: bytes, replies: int, within: float) -> list[Any]:
        line = self._line
        loop = asyncio.get_running_loop()
        if line is None or not line.alive or line._loop is not loop:
            line = await self._connected(loop, within)
        asked_at = loop.time()
        waiting = line.ask(request, replies)
        timer = loop.call_later(within, self._give_up, waiting[-1], line, asked_at, within)
        try:
            return [await answer for answer in waiting]
        finally:
            timer.cancel()

    def _give_up(self, waiting: asyncio.Future[Any], line: _Line, asked_at: float, within: float) -> None:
        if not waiting.done():
            waiting.set_exception(self._endpoint.unavailable(f"did not answer within {say(within)}"))
        if line.silent_since(asked_at):  # not a slow answer but none at all: it may be a line that leads nowhere
            line.close()

    async def _connected(self, loop: asyncio.AbstractEventLoop, within: float) -> _Line:
        if self._closed:
            raise self._endpoint.unavailable("was let go of: this AsyncLocks is closed", transient=False)
        self._belong_to(loop)
        async with self._connecting:
            if self._line is None or not self._line.alive:
                line = _Line(self._endpoint, loop)
                await line.connect(within)
                self._line = line
            return self._line

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.wakes.is_new(loop):
            self._line = None
            self._connecting = asyncio.Lock()

    async def close(self) -> None:
        self._closed = True
        self.wakes.close()
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def after_fork(self) -> None:
        """The connections are the parent's; they are forgotten."""
        self.wakes.after_fork()
        self._reset()

    def __repr__(self) -> str:
        return f"redis://{self._endpoint.name}"
