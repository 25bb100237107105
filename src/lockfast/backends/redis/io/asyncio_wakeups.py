"""The subscription of an `AsyncLocks`, which wakes its waiters, and whether it still leads to the server.

Decides: when a subscription is given up.
Leaves to `wakeups`: how a wake-up finds its task.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from lockfast._model import Claim
from lockfast._worlds import Clock
from lockfast.backends.connecting.arrived import READ_AGAIN_AFTER_S, has_arrived
from lockfast.backends.connecting.single_flight import SingleFlight
from lockfast.backends.redis.io.asyncio_connection import AsyncioConnection
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import (
    PING,
    PONG_WITHIN_S,
    QUIET_S,
    ReplyError,
    claim_in,
    command,
    keep_alive,
    new_channel,
    no_connection,
    probe,
    refusal,
    unsent,
)
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.asyncio_ import AsyncioWaiters
from lockfast.errors import BackendUnavailable


class AsyncioSubscription(AsyncioConnection):
    def __init__(self, waiters: AsyncioWaiters, endpoint: RedisEndpoint, address: Address | None) -> None:
        super().__init__(endpoint, address, asyncio.get_running_loop())
        self._waiters = waiters
        self._pinged_at = 0.0
        self._next_check: asyncio.TimerHandle | None = None

    async def subscribe(self, channel: str, within: float) -> None:
        """From now on it is only read."""
        answer = await self.ask(command("SUBSCRIBE", channel), within)
        if answer.__class__ is ReplyError:
            raise refusal(self._name, answer)
        keep_alive(self.socket)  # nothing else would notice a silent cut
        self._check_alive()

    def _check_alive(self) -> None:
        """If nothing arrives, ask for a sign of life, and give the connection up without one. A proxy may answer the
        probes of the kernel and still have lost the way to the server."""
        now, check_at = self._time(), self._received_at + QUIET_S
        if now >= check_at:
            if not self.alive:
                self.close()
                return
            if has_arrived(self.socket.fileno()):
                check_at = now + READ_AGAIN_AFTER_S
            elif self._pinged_at > self._received_at:
                self.close()
                return
            else:
                self._pinged_at, check_at = now, now + PONG_WITHIN_S
                self._transport.write(PING)
        self._next_check = self.loop.call_at(check_at, self._check_alive)

    def _detach(self) -> None:
        super()._detach()
        if self._next_check is not None:
            self._next_check.cancel()

    def message(self, message: Any) -> None:
        claim = claim_in(message)
        if claim is not None:
            self._waiters.wake(claim)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._waiters.wake(WAKE_ALL)  # wake-ups since then are lost


class AsyncioRedisWakeups(AsyncioWaiters):
    """The event loop reads the subscription."""

    def __init__(self, endpoint: RedisEndpoint, clock: Clock | None, *, confirms: bool) -> None:
        super().__init__(clock)
        self._endpoint = endpoint
        self._confirms = confirms
        self._channel = new_channel(clustered=self._endpoint.clustered, confirms=self._confirms)
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
        try:
            await subscription.subscribe(self._channel, within)
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
        self._channel = new_channel(clustered=self._endpoint.clustered, confirms=self._confirms)
        self.subscription = None
        self.opening = SingleFlight("lockfast-connect")
        self.reset()
