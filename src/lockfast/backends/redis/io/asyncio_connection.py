"""A connection to a Redis server in an event loop, once redis-py has connected it.

Decides: how requests share a connection. All requests of one turn of the loop are written together, and replies come in
their order, so that a thousand tasks cost little more than one. A cancelled request is still carried out before every
later one, so the request that cleans up after it comes after it.
Leaves to `endpoints`: to connect.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import (
    NOTHING,
    RECEIVE_BYTES,
    SUSPECT_AFTER_S,
    ProtocolError,
    new_reader,
    suspect_after,
    unavailable,
)

NEVER: Final = float("inf")
_PATIENT_S = 3 * SUSPECT_AFTER_S  # requests with more time than that all count as late after the same time
_SILENCE_S = 1.0  # without any reply while replies are due, after which the connection is closed
_CLOSE_WITHIN_S = 0.5


def _future_maker(loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.Future[Any]]:
    """What asyncio's own loops do in `create_future`, with no call in between; other loops may do otherwise."""
    usual = getattr(loop.create_future, "__func__", None) is asyncio.BaseEventLoop.create_future
    return partial(asyncio.Future, loop=loop) if usual else loop.create_future


def _clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """What asyncio's own loops do in `time`, in the same way."""
    usual = getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time
    return time.monotonic if usual else loop.time


class _SeveralReplies:
    """Stands in for a future until all replies have come; the real future gets the list of them."""

    __slots__ = ("_missing", "_replies", "answer")

    def __init__(self, answer: asyncio.Future[list[Any]], replies: int) -> None:
        self.answer = answer
        self._missing = replies
        self._replies: list[Any] = []

    def done(self) -> bool:
        return self.answer.done()

    def set_result(self, reply: Any) -> None:
        self._replies.append(reply)
        self._missing -= 1
        if not self._missing:
            self.answer.set_result(self._replies)

    def set_exception(self, error: BaseException) -> None:
        self.answer.set_exception(error)


# What waits for a reply, the time of the request, and the time at which it is given up:
_Unanswered = tuple[asyncio.Future[Any] | _SeveralReplies, float, float]


class AsyncioConnection(asyncio.BufferedProtocol):
    """One connection. Replies come in the order of the requests; anything else that arrives is a message."""

    def __init__(self, endpoint: RedisEndpoint, address: Address | None, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._address = address
        self._name = str(address or endpoint.name)
        self.loop = loop
        self._future = _future_maker(loop)
        self._time = _clock_of(loop)
        reader = new_reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._received = memoryview(bytearray(RECEIVE_BYTES))  # which each read fills anew; TLS fills it slice by slice
        self._unanswered: deque[_Unanswered] = deque()
        self._unsent: list[bytes] = []
        self._received_at = 0.0
        self._check_at = NEVER  # when the first of the unanswered may be late, which `_check` decides
        self._timer: asyncio.TimerHandle | None = None
        self._writer: Any = None
        self._transport: Any = None
        self._gone = asyncio.Event()
        # After how many seconds without any reply `on_silence` is called, where the first one is due within that many:
        self._silence_limit: Callable[[float], float] = lambda _: _SILENCE_S
        self.alive = False

    async def connect(self, within: float) -> None:
        """redis-py does the handshake; from then on the connection is ours. Raises BackendUnavailable."""
        redis_py = await self._endpoint.dial_async(self._address, within)
        reader, self._writer = redis_py._reader, redis_py._writer  # the writer is kept: it closes what has no reference
        redis_py._reader = redis_py._writer = None  # so that redis-py closes nothing, not even at the interpreter's end
        self._transport = self._writer.transport
        self._transport.pause_reading()  # uvloop asks for the way to read when reading begins
        self._transport.set_protocol(self)
        self._transport.resume_reading()
        self._received_at = self._time()
        self.alive = True
        if self._transport.is_closing() or reader.at_eof():  # which was reported to redis-py only
            self.close()
            raise unavailable(self._name, "closed the connection after the handshake", sent=False)

    @property
    def socket(self) -> Any:
        return self._transport.get_extra_info("socket")

    def ask(self, request: bytes, within: float) -> asyncio.Future[Any]:
        """A future of the reply, which may be an error reply, or of BackendUnavailable."""
        answer, now, unanswered, unsent = self._future(), self._time(), self._unanswered, self._unsent
        # What `_send` does, with no call in between: nearly all requests come this way.
        check_at = now + (SUSPECT_AFTER_S if within > _PATIENT_S else suspect_after(within))
        if check_at < self._check_at:
            self._watch(check_at)
        try:
            alone = not unanswered
            unanswered.append((answer, now, now + within))
            if unsent:
                unsent.append(request)
            elif alone:
                self._write(request)
            else:
                self._flush_soon(request)
        except BaseException:  # an interrupt: it may be sent or not, and no reply must be taken for another one's
            self.close()
            raise
        if not self.alive:
            self._fail("closed the connection")
        return answer

    def ask_several(self, request: bytes, replies: int, within: float) -> asyncio.Future[list[Any]]:
        several = _SeveralReplies(self._future(), replies)
        now = self._time()
        self._send(request, [(several, now, now + within)] * replies, now + suspect_after(within))
        if not self.alive:
            self._fail("closed the connection")
        return several.answer

    def _send(self, request: bytes, replies: Sequence[_Unanswered], check_at: float) -> None:
        """The only request is written at once, and so a turn of the loop earlier; those beside others together."""
        if check_at < self._check_at:
            self._watch(check_at)
        try:
            alone = not self._unanswered
            self._unanswered.extend(replies)
            if alone:
                self._write(request)
            elif self._unsent:
                self._unsent.append(request)
            else:
                self._flush_soon(request)
        except BaseException:  # as in `ask`
            self.close()
            raise

    def _flush_soon(self, request: bytes) -> None:
        self._unsent.append(request)
        self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._write(b"".join(unsent))

    def _write(self, requests: bytes) -> None:
        if self.alive:
            with suppress(RuntimeError):  # uvloop's: it is closed, and `connection_lost` is about to come
                self._transport.write(requests)

    # Replies that do not come

    def _watch(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._check_at = moment
        self._timer = self.loop.call_at(moment, self._check)

    def _check(self) -> None:
        """One timer serves all requests: few of them ever wait for long."""
        now = self._time()
        self._timer, self._check_at = None, NEVER
        next_check = NEVER
        for answer, _, late_at in list(self._unanswered):  # a task that gets its error may send a request at once
            if late_at > now:
                next_check = min(next_check, late_at)
            elif not answer.done():
                answer.set_exception(unavailable(self._name, "did not answer in time"))
        if self._unanswered:
            _, asked_at, late_at = self._unanswered[0]
            suspect_at = max(self._received_at, asked_at) + self._silence_limit(late_at - asked_at)
            if now >= suspect_at:  # not a slow reply but none at all: the connection may be dead
                self.on_silence()
                suspect_at = now + SUSPECT_AFTER_S
            next_check = min(next_check, suspect_at) if self.alive else NEVER
        if next_check < self._check_at:
            self._watch(next_check)

    def on_silence(self) -> None:
        self.close()

    # Callbacks of asyncio

    # Without a buffer of ours asyncio makes one of 256 KiB for each read, which the system maps and unmaps.

    def get_buffer(self, _: int) -> memoryview:
        return self._received

    def buffer_updated(self, size: int) -> None:
        self._received_at = self._time()
        try:
            self._feed(self._received, 0, size)  # type: ignore[arg-type]  # it takes any buffer
            gets, unanswered = self._gets, self._unanswered
            while (answer := gets()) is not NOTHING:
                if unanswered:
                    waiting = unanswered.popleft()[0]
                    if not waiting.done():
                        waiting.set_result(answer)
                else:
                    self.message(answer)
        except ProtocolError:
            self._fail("sent a reply that is not RESP")
            self.close()

    def message(self, message: Any) -> None:
        """Overridden where messages are expected."""

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        self._detach()
        self._fail(f"closed the connection: {error or 'end of stream'}")

    def _fail(self, what: str) -> None:
        """No reply to these requests comes any more."""
        unanswered, self._unanswered = self._unanswered, deque()
        for waiting, *_ in unanswered:
            if not waiting.done():
                waiting.set_exception(unavailable(self._name, what))

    def close(self) -> None:
        ends = not self.loop.is_closed()
        if ends and self._transport is not None:
            self._transport.abort()
        self._detach()
        if ends:
            self._fail("was disconnected")

    async def gone(self) -> None:
        """After `close`: wait until the loop has dropped the connection, since the caller may close the loop next."""
        if self._transport is not None and self.loop is asyncio.get_running_loop():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_WITHIN_S):
                    await self._gone.wait()

    def _detach(self) -> None:
        self.alive = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._check_at = NEVER
        self._writer = None
