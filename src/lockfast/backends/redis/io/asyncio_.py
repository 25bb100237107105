"""Redis for asyncio: one connection to each server for all requests of an `AsyncLocks`, and one for its wake-ups.

Decides: how requests share a connection. All requests of one turn of the loop are written together, and replies come in
their order, so that a thousand tasks cost little more than one. A cancelled request is still carried out before every
later one, so the request that cleans up after it comes after it.
Leaves to `endpoints`: to connect. Leaves to `router`: which server gets a request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lockfast._model import Claim
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast._worlds.asyncio_ import background_task, end_tasks, seen
from lockfast.backends.connecting.single_flight import SingleFlight
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import (
    NOTHING,
    SUSPECT_AFTER_S,
    ProtocolError,
    ReplyError,
    command,
    keep_alive,
    new_channel,
    new_reader,
    no_connection,
    probe,
    refusal,
    suspect_after,
    suspect_after_wait,
    unavailable,
    unsent,
)
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.asyncio_ import AsyncioWaiters
from lockfast.errors import BackendUnavailable

_NEVER = float("inf")
_SILENCE_S = 1.0  # without any reply while replies are due, after which the connection is closed
_GREET_WITHIN_S = 3.0  # for a server to show that it is not silent
_CLOSE_WITHIN_S = 0.5


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


class AsyncioConnection(asyncio.Protocol):
    """One connection. Replies come in the order of the requests; anything else that arrives is a message."""

    def __init__(self, endpoint: RedisEndpoint, address: Address | None, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._address = address
        self._name = str(address or endpoint.name)
        self.loop = loop
        self._future = loop.create_future
        self._time = loop.time
        reader = new_reader()
        self._feed, self._gets = reader.feed, reader.gets
        # With the time of the request, and the time at which it is given up:
        self._unanswered: deque[tuple[asyncio.Future[Any] | _SeveralReplies, float, float]] = deque()
        self._unsent: list[bytes] = []
        self._received_at = 0.0
        self._check_at = _NEVER  # when the first of the unanswered may be late, which `_check` decides
        self._timer: asyncio.TimerHandle | None = None
        self._redis_py: Any = None
        self._transport: Any = None
        self._gone = asyncio.Event()
        # After how many seconds without any reply `on_silence` is called, where the first one is due within so many:
        self._silence_limit: Callable[[float], float] = lambda _: _SILENCE_S
        self.alive = False

    async def connect(self, within: float) -> None:
        """redis-py does the handshake; from then on the connection is ours. Raises BackendUnavailable."""
        redis_py = await self._endpoint.dial_async(self._address, within)
        self._transport = redis_py._writer.transport
        self._transport.set_protocol(self)
        self._redis_py = redis_py  # kept: without a reference it would close the connection
        self._received_at = self._time()
        self.alive = True
        if self._transport.is_closing() or redis_py._reader.at_eof():  # which was reported to redis-py only
            self.close()
            raise unavailable(self._name, "closed the connection after the handshake", sent=False)

    @property
    def socket(self) -> Any:
        return self._transport.get_extra_info("socket")

    def ask(self, request: bytes, within: float) -> asyncio.Future[Any]:
        """A future of the reply, which may be an error reply, or of BackendUnavailable."""
        answer = self._future()
        now = self._time()
        self._unanswered.append((answer, now, now + within))
        self._send(request, now + suspect_after(within))
        if not self.alive:
            self._fail("closed the connection")
        return answer

    def ask_several(self, request: bytes, replies: int, within: float) -> asyncio.Future[list[Any]]:
        several = _SeveralReplies(self._future(), replies)
        now = self._time()
        self._unanswered.extend([(several, now, now + within)] * replies)
        self._send(request, now + suspect_after(within))
        if not self.alive:
            self._fail("closed the connection")
        return several.answer

    def _send(self, request: bytes, check_at: float) -> None:
        if check_at < self._check_at:
            self._watch(check_at)
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(request)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self.alive:
            with suppress(RuntimeError):  # uvloop's: it is closed, and `connection_lost` is about to come
                self._transport.write(b"".join(unsent))

    # Replies that do not come

    def _watch(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._check_at = moment
        self._timer = self.loop.call_at(moment, self._check)

    def _check(self) -> None:
        """One timer serves all requests: few of them ever wait for long."""
        now = self._time()
        self._timer, self._check_at = None, _NEVER
        next_check = _NEVER
        for answer, _, late_at in list(self._unanswered):  # a task that gets its error may send a request at once
            if late_at > now:
                next_check = min(next_check, late_at)
            elif not answer.done():
                answer.set_exception(unavailable(self._name, "did not answer in time"))
        if self._unanswered:
            _, asked_at, late_at = self._unanswered[0]
            suspect_at = max(self._received_at, asked_at) + self._silence_limit(late_at - asked_at)
            if now >= suspect_at:  # not a slow reply but none at all: the connection may lead nowhere
                self.on_silence()
                suspect_at = now + SUSPECT_AFTER_S
            next_check = min(next_check, suspect_at) if self.alive else _NEVER
        if next_check < self._check_at:
            self._watch(next_check)

    def on_silence(self) -> None:
        self.close()

    # Callbacks of asyncio

    def data_received(self, data: bytes) -> None:
        self._received_at = self._time()
        try:
            self._feed(data)
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
        self._check_at = _NEVER
        if self._redis_py is not None:  # so that it closes nothing
            self._redis_py._reader = self._redis_py._writer = None
            self._redis_py = None


class RequestConnection(AsyncioConnection):
    """A connection that used to work and that is silent is replaced once a new one shows that the server is not."""

    def __init__(self, connections: AsyncioConnections, address: Address | None) -> None:
        super().__init__(connections.endpoint, address, asyncio.get_running_loop())
        self._connections = connections
        self.used_since = _NEVER
        self._silence_limit = connections.suspect_after

    def on_silence(self) -> None:
        self._connections.suspect(self._address, self)

    def is_silent_since(self, moment: float) -> bool:
        return bool(self._unanswered) and self._received_at <= moment


class AsyncioSubscription(AsyncioConnection):
    def __init__(self, waiters: AsyncioWaiters, endpoint: RedisEndpoint, address: Address | None) -> None:
        super().__init__(endpoint, address, asyncio.get_running_loop())
        self._waiters = waiters

    def message(self, message: Any) -> None:
        if message[0] == b"message":
            self._waiters.wake(message[2].decode(errors="replace"))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._waiters.wake(WAKE_ALL)  # wake-ups since then are lost


class AsyncioRedisWakeups(AsyncioWaiters):
    """The event loop reads the subscription."""

    def __init__(self, endpoint: RedisEndpoint, clock: Clock | None) -> None:
        super().__init__(clock)
        self._endpoint = endpoint
        self._channel = new_channel(clustered=self._endpoint.clustered)
        self.subscription: AsyncioSubscription | None = None
        self.opening = SingleFlight[None]("lockfast-connect")
        self._closed = False

    @property
    def address(self) -> str:
        return self._channel if self.subscription is not None and self.subscription.alive else ""

    def begin_again(self) -> None:
        """In another event loop."""
        self.subscription = None
        self.opening = SingleFlight("lockfast-connect")

    def expect(self, claim: Claim) -> str:
        self.add_waiter(claim)
        return self.address

    async def check(self, connection: AsyncioConnection, within: float) -> None:
        """Behind a load balancer it may lead to another server than before. Then the subscription moves there too."""
        subscription = self.subscription
        if subscription is None or not subscription.alive or self._endpoint.clustered:
            return
        try:
            if await connection.ask(probe(self._channel), within) == 0:
                subscription.close()  # which wakes all waiters
        except BackendUnavailable as error:
            raise unsent(error) from error.__cause__

    async def subscribe(self, address: Address | None, within: float) -> None:
        failed = partial(no_connection, self._endpoint.url_of(address))
        await self.opening.run(partial(self._subscribe, address), within, failed)

    async def _subscribe(self, address: Address | None, within: float) -> None:
        if self.address:
            return
        subscription = AsyncioSubscription(self, self._endpoint, address)
        await subscription.connect(within)
        keep_alive(subscription.socket)  # it is only read, so nothing else would notice a silent cut
        try:
            answer = await subscription.ask(command("SUBSCRIBE", self._channel), within)
            if answer.__class__ is ReplyError:
                raise refusal(str(address or self._endpoint.name), answer)
        except BaseException:
            subscription.close()
            raise
        if self._closed:
            subscription.close()
        self.subscription = subscription

    def close(self) -> None:
        self._closed = True
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            subscription.close()
        self.wake(WAKE_ALL)

    def after_fork(self) -> None:
        self._channel = new_channel(clustered=self._endpoint.clustered)
        self.subscription = None
        self.opening = SingleFlight("lockfast-connect")
        self.reset()


class AsyncioConnections:
    def __init__(self, endpoint: RedisEndpoint, clock: Clock | None, replicas: int) -> None:
        self.wakeups = AsyncioRedisWakeups(endpoint, clock)
        self.endpoint = endpoint
        self.suspect_after = suspect_after_wait if replicas else suspect_after
        self._reset()

    def _reset(self) -> None:
        self._closed = False
        self._begin_again()

    def _begin_again(self) -> None:
        self._connections: dict[Address | None, RequestConnection] = {}
        self._dialling: dict[Address | None, SingleFlight[None]] = {}
        self._replacing: dict[Address | None, asyncio.Task[None]] = {}

    async def expect(self, claim: Claim, address: Address | None, within: float) -> str:
        if not self.wakeups.address:
            self._must_be_open()
            self._belong_to(asyncio.get_running_loop())
            await self.wakeups.subscribe(address, within)
        return self.wakeups.expect(claim)

    def ask_one(self, address: Address | None, request: bytes, within: float) -> Awaitable[Any]:
        connection = self._connections.get(address)
        if connection is not None and connection.alive and connection.loop is asyncio.get_running_loop():
            return connection.ask(request, within)
        return self._ask_first(address, request, within)

    async def _ask_first(self, address: Address | None, request: bytes, within: float) -> Any:
        started = asyncio.get_running_loop().time()
        connection = await self._connection_to(address, within)
        return await connection.ask(request, max(0.001, within - (connection.loop.time() - started)))

    async def ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        started = asyncio.get_running_loop().time()
        connection = await self._connection_to(address, within)
        return await connection.ask_several(request, replies, max(0.001, within - (connection.loop.time() - started)))

    async def ask_each(
        self, requests: Sequence[tuple[Address | None, bytes, int]], within: float
    ) -> list[list[Any] | BackendUnavailable]:
        async def ask_one(address: Address | None, request: bytes, replies: int) -> list[Any] | BackendUnavailable:
            try:
                return await self.ask(address, request, replies, within)
            except BackendUnavailable as error:
                return error

        if len(requests) == 1:
            return [await ask_one(*requests[0])]
        return await asyncio.gather(*(ask_one(*request) for request in requests))

    def _must_be_open(self) -> None:
        if self._closed:
            raise closed_driver(self.endpoint.name)

    async def _connection_to(self, address: Address | None, within: float) -> AsyncioConnection:
        self._must_be_open()
        loop = asyncio.get_running_loop()
        self._belong_to(loop)
        connection = self._connections.get(address)
        if connection is None or not connection.alive:
            dialling = self._dialling.setdefault(address, SingleFlight("lockfast-connect"))
            failed = partial(no_connection, self.endpoint.url_of(address))
            await dialling.run(partial(self._dial, address), within, failed)  # redis-py swallows cancellations
            connection = self._connections.get(address)
            if connection is None or not connection.alive:
                name = str(address or self.endpoint.name)
                raise unavailable(name, "closed the connection right after it was made", sent=False)
        return connection

    async def _dial(self, address: Address | None, within: float) -> None:
        connection = RequestConnection(self, address)
        try:
            await connection.connect(within)
            await self.wakeups.check(connection, within)
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        self._use(address, connection)

    def _use(self, address: Address | None, connection: RequestConnection) -> None:
        connection.used_since = boot_now()
        self._connections[address] = connection

    def suspect(self, address: Address | None, silent: RequestConnection) -> None:
        """Replace it, unless that is tried already."""
        task = self._replacing.get(address)
        if task is None or task.done():
            task = background_task(silent.loop, self._replace(address, silent), "lockfast-connect")
            task.add_done_callback(seen)
            self._replacing[address] = task

    async def _replace(self, address: Address | None, silent: RequestConnection) -> None:
        """A server greets a new connection after it has replied to what was sent before. If the old connection is
        silent even then, it leads nowhere, and all that was asked there fails; else it is kept.
        """
        started = silent.loop.time()
        connection = RequestConnection(self, address)
        try:
            await connection.connect(_GREET_WITHIN_S)
            await self.wakeups.check(connection, _GREET_WITHIN_S)
            await asyncio.sleep(silent.loop.time() - started)
            if self._connections.get(address) is silent and not self._closed and silent.is_silent_since(started):
                self._use(address, connection)
                silent.close()
        finally:
            if self._connections.get(address) is not connection:
                connection.close()

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.wakeups.is_new(loop):
            self._begin_again()
            self.wakeups.begin_again()

    def keeps_order(self, address: Address | None, since: float) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.alive and connection.used_since < since

    def drop(self, address: Address | None) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        self._closed = True
        dialling = [one.task for one in (*self._dialling.values(), self.wakeups.opening)]
        await end_tasks([*dialling, *self._replacing.values()])
        connections = [*self._connections.values(), *filter(None, [self.wakeups.subscription])]
        self.wakeups.close()
        for address in list(self._connections):
            self.drop(address)
        for connection in connections:
            await connection.gone()

    def after_fork(self) -> None:
        """In the child: drop the parent's connections."""
        self.wakeups.after_fork()
        self._reset()
