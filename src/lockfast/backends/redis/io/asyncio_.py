"""Redis for asyncio: one connection to each server for all requests of an `AsyncLocks`, and one for its wake-ups.

Decides: when a connection is made, and when it is replaced.
Leaves to `asyncio_connection`: how requests share it. Leaves to `endpoints`: to connect. Leaves to `router`: which
server gets a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from lockfast._model import Claim
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast._worlds.asyncio_ import background_task, end_tasks, seen
from lockfast.backends.connecting.single_flight import SingleFlight
from lockfast.backends.redis.io.asyncio_connection import NEVER, AsyncioConnection
from lockfast.backends.redis.io.asyncio_wakeups import AsyncioRedisWakeups
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import no_connection, suspect_after, suspect_after_wait, unavailable
from lockfast.errors import BackendUnavailable

_GREET_WITHIN_S = 3.0  # for a server to show that it is not silent


class RequestConnection(AsyncioConnection):
    """A connection that used to work and that is silent is replaced once a new one shows that the server is not."""

    def __init__(self, connections: AsyncioConnections, address: Address | None) -> None:
        super().__init__(connections.endpoint, address, asyncio.get_running_loop())
        self._connections = connections
        self.used_since = NEVER
        self._silence_limit = connections.suspect_after

    def on_silence(self) -> None:
        self._connections.suspect(self._address, self)

    def is_silent_since(self, moment: float) -> bool:
        return bool(self._unanswered) and self._received_at <= moment


class AsyncioConnections:
    def __init__(self, endpoint: RedisEndpoint, clock: Clock | None, replicas: int) -> None:
        self.wakeups = AsyncioRedisWakeups(endpoint, clock, confirms=replicas > 0)
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
        silent even then, it is dead, and all that was asked there fails; else it is kept.
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
