"""Redis, blocking: the connections of one `Locks`, and who uses them.

Decides: which connection a thread uses, and when a connection is dropped.
Leaves to `blocking_connection`: what is written and read. Leaves to `router`: which server gets a request.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from math import inf
from typing import Any, NamedTuple

from lockfast._model import Claim
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock, World
from lockfast.backends.connecting.turns import in_turn
from lockfast.backends.redis.io.blocking_connection import BlockingConnection, BlockingSubscription
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import (
    LONG_S,
    new_channel,
    no_connection,
    probe,
    suspect_after,
    suspect_after_wait,
    unsent,
)
from lockfast.backends.redis.io.router import RedisDriver
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.errors import BackendUnavailable

_MAX_IDLE_CONNECTIONS = 16  # for each server; those that were used lately are kept beside them
_UNUSED_S = 30.0  # after which an idle connection beyond that number is closed
_MIN_WITHIN_S = 0.01


class _Dial(NamedTuple):
    """An attempt to make another connection to a server, and what it shows to all threads that wait for a reply."""

    instead_of: BlockingConnection
    started: float
    ended: float
    until: float
    error: BackendUnavailable | None  # None: the server has greeted the new connection

    def settles(self, asked_at: float) -> bool:
        """Whether it shows what became of a request that was sent then. If it ran out of time, it shows nothing to
        threads that have more."""
        return self.started >= asked_at and (self.error is None or self.ended < self.until)

    @property
    def due_at(self) -> float:
        """When replies to earlier requests have arrived: the way back is as long as that of the greeting."""
        return 2 * self.ended - self.started


class BlockingConnections:
    def __init__(self, endpoint: RedisEndpoint, clock: Clock | None, replicas: int) -> None:
        self._endpoint = endpoint
        self._suspect_after = suspect_after_wait if replicas else suspect_after
        self._suspect_late = self._suspect_after(LONG_S)  # the longest
        self._confirms = replicas > 0  # the replicas confirm a grant to its holder, which therefore has to ask
        self.wakeups = BlockingWakeups(clock, None)
        self._reset()

    def _reset(self) -> None:
        self._channel = new_channel(clustered=self._endpoint.clustered, confirms=self._confirms)
        self._idle: dict[Address | None, list[BlockingConnection]] = {}
        self._opening = threading.RLock()
        self._dialling: dict[Address | None, threading.RLock] = {}
        self._dials: dict[Address | None, _Dial] = {}  # the last ones in place of a late connection
        self._subscription: BlockingSubscription | None = None  # the last one
        self._closed = False

    async def expect(self, claim: Claim, address: Address | None, within: float) -> str:
        if not self.wakeups.address:
            until = boot_now() + within
            if not in_turn(self._opening, within, lambda: self._see_to_subscription(address, until)):
                raise no_connection(self._endpoint.url_of(address), "no answer in time")
        return self.wakeups.expect(claim)

    def _see_to_subscription(self, address: Address | None, until: float) -> bool:
        if not self.wakeups.address:
            self._subscribe(address, max(0.01, until - boot_now()))
        return True

    def _subscribe(self, address: Address | None, within: float) -> None:
        connection = self._dial(address, within)
        try:
            self._subscription = BlockingSubscription(connection, self._channel, within)
            self.wakeups.attach(self._subscription)
        except BaseException:
            connection.close()
            raise

    def _idle_connection(self, address: Address | None) -> BlockingConnection | None:
        try:
            return self._idle[address].pop()  # the one that was used last
        except LookupError:
            return None

    def _dial(self, address: Address | None, within: float) -> BlockingConnection:
        if self._closed:
            raise closed_driver(self._endpoint.name)
        return BlockingConnection(self._endpoint, address, within)

    def _dial_for_requests(self, address: Address | None, within: float) -> BlockingConnection:
        """Behind a load balancer it may lead to another server than before. Then the subscription moves there too."""
        until = boot_now() + within
        connection, subscription = self._dial(address, within), self._subscription
        if subscription is None or subscription.broken or self._endpoint.clustered:
            return connection
        try:
            if connection.ask(probe(self._channel), max(_MIN_WITHIN_S, until - boot_now())) == 0:
                subscription.end()
        except BaseException as error:
            connection.close()
            if isinstance(error, BackendUnavailable):
                raise unsent(error) from error.__cause__
            raise
        return connection

    def _put_back(self, address: Address | None, connection: BlockingConnection) -> None:
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle.setdefault(address, [])
        idle.append(connection)
        if len(idle) > _MAX_IDLE_CONNECTIONS or self._closed:
            self._close_idle(address, idle, connection.asked_at)

    def _close_idle(self, address: Address | None, idle: list[BlockingConnection], now: float) -> None:
        """Close the one that was used longest ago, if that was long ago; after `close` all."""
        with suppress(LookupError):  # other threads may have taken all of them
            if len(idle) > _MAX_IDLE_CONNECTIONS and idle[0].asked_at < now - _UNUSED_S:
                idle.pop(0).close()
        if self._closed:
            self.drop(address)

    async def ask_one(self, address: Address | None, request: bytes, within: float) -> Any:
        """As `ask` for one reply, with as few calls as can be."""
        try:
            idle = self._idle[address]
            connection = idle.pop()  # the one that was used last
        except LookupError:
            return self._ask_first(address, request, 1, within)[0]
        try:
            suspect_after = self._suspect_late if within >= LONG_S else self._suspect_after(within)
            answer = connection.ask(request, suspect_after)
        except BaseException as error:
            return self._not_in_time(address, connection, error, [], 1, within)[0]
        idle.append(connection)
        if len(idle) > _MAX_IDLE_CONNECTIONS or self._closed:
            self._close_idle(address, idle, connection.asked_at)
        return answer

    async def ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        return self._ask(address, request, replies, within)

    def _ask(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        connection = self._idle_connection(address)
        if connection is None:
            return self._ask_first(address, request, replies, within)
        answers: list[Any] = []
        try:
            connection.send(request, within)
            connection.read_replies(answers, replies, connection.asked_at + self._suspect_after(within))
        except BaseException as error:
            return self._not_in_time(address, connection, error, answers, replies, within)
        self._put_back(address, connection)
        return answers

    def _ask_first(self, address: Address | None, request: bytes, replies: int, within: float) -> list[Any]:
        """On a new connection."""
        until = boot_now() + within
        connection = self._dial_for_requests(address, within)
        answers: list[Any] = []
        try:
            connection.send(request, max(_MIN_WITHIN_S, until - boot_now()))
            connection.read_replies(answers, replies, until)
        except BaseException:
            connection.close()
            raise
        self._put_back(address, connection)
        return answers

    def _not_in_time(
        self,
        address: Address | None,
        connection: BlockingConnection,
        error: BaseException,
        answers: list[Any],
        replies: int,
        within: float,
    ) -> list[Any]:
        """The replies after all, if only the server is slow. Else the connection is closed and an error raised: a late
        reply must never be taken for the reply to another request.

        A new connection shows it: the server greets it after it has replied to what was sent before. If the old
        connection is silent even then, or has ended, all others that were idle since have too.
        """
        dial: _Dial | None = None
        try:
            if not isinstance(error, BackendUnavailable) or not connection.late:
                raise error
            until = connection.asked_at + within
            dial = self._dial_another(address, connection, until)
            connection.read_replies(answers, replies, until if dial is None else min(until, dial.due_at))
        except BaseException as last:
            connection.close()
            if not isinstance(last, BackendUnavailable):
                raise
            if dial is not None and dial.error is not None:
                unreachable = copy(dial.error)
                unreachable.sent = True  # on the old connection
                raise unreachable from dial.error.__cause__
            if dial is not None or not connection.late:
                self._drop_unused(address, connection.asked_at)
            raise
        if dial is not None and dial.instead_of is connection:
            connection.close()
        else:
            self._put_back(address, connection)
        return answers

    def _dial_another(self, address: Address | None, late: BlockingConnection, until: float) -> _Dial | None:
        """Make a connection in place of a late one. One thread at a time does, for all that wait; None if there is no
        time for it."""
        left = until - boot_now()
        if left <= 0:
            return None
        turn = self._dialling.setdefault(address, threading.RLock())
        return in_turn(turn, left, lambda: self._dial_once(address, late, until))

    def _dial_once(self, address: Address | None, late: BlockingConnection, until: float) -> _Dial | None:
        last, started = self._dials.get(address), boot_now()
        if last is not None and last.settles(late.asked_at):
            return last
        if started >= until:
            return None
        error: BackendUnavailable | None = None
        try:
            self._put_back(address, self._dial_for_requests(address, until - started))
        except BackendUnavailable as failure:
            error = failure.with_traceback(None)
        dial = self._dials[address] = _Dial(late, started, boot_now(), until, error)
        return dial

    async def ask_each(
        self, requests: Sequence[tuple[Address | None, bytes, int]], within: float
    ) -> list[list[Any] | BackendUnavailable]:
        """Servers with an idle connection are asked first: connecting to one that hangs may take long. Of those without
        one, each has an equal part of the time that is left."""
        until = boot_now() + within
        replied: dict[Address | None, list[Any] | BackendUnavailable] = {}
        sent: list[tuple[Address | None, BlockingConnection, int, list[Any]]] = []
        silent: list[tuple[Address | None, BlockingConnection, BaseException, list[Any], int]] = []
        for address, request, replies in requests:
            connection = self._idle_connection(address)
            if connection is not None:
                try:
                    connection.send(request, within)
                    sent.append((address, connection, replies, []))
                except BackendUnavailable as error:
                    silent.append((address, connection, error, [], replies))
        suspect_at = boot_now() + self._suspect_after(within)
        for address, connection, replies, answers in sent:
            try:
                connection.read_replies(answers, replies, suspect_at)
                self._put_back(address, connection)
                replied[address] = answers
            except BackendUnavailable as error:
                silent.append((address, connection, error, answers, replies))
        for address, connection, failure, answers, replies in silent:
            try:
                replied[address] = self._not_in_time(address, connection, failure, answers, replies, within)
            except BackendUnavailable as error:
                replied[address] = error
        unasked = [request for request in requests if request[0] not in replied]
        for done, (address, request, replies) in enumerate(unasked):
            part = (until - boot_now()) / (len(unasked) - done)
            try:
                replied[address] = self._ask(address, request, replies, max(_MIN_WITHIN_S, part))
            except BackendUnavailable as error:
                replied[address] = error
        return [replied[address] for address, _, _ in requests]

    def keeps_order(self, address: Address | None, since: float) -> bool:
        return False  # the connection of an interrupted request is closed, and the server may read another one first

    def drop(self, address: Address | None) -> None:
        self._drop_unused(address, inf)

    def _drop_unused(self, address: Address | None, since: float) -> None:
        """Close the idle connections on which no request was sent after that."""
        idle, kept = self._idle.get(address, []), []
        with suppress(LookupError):
            while True:
                connection = idle.pop()
                if connection.asked_at > since:
                    kept.append(connection)
                else:
                    connection.close()
        idle.extend(reversed(kept))

    async def close(self) -> None:
        self._closed = True
        for address in list(self._idle):
            self.drop(address)
        self.wakeups.close()

    def after_fork(self) -> None:
        """In the child: close our copies of the parent's connections."""
        for idle in self._idle.values():
            for connection in idle:
                connection.socket.close()
        self.wakeups.after_fork()
        self._reset()


def open_driver(endpoint: RedisEndpoint, world: World, clock: Clock | None, replicas: int) -> RedisDriver:
    """The driver for that world. Nothing is opened yet."""
    now = clock.now if clock is not None else None
    if world.blocking:
        return RedisDriver(endpoint, BlockingConnections(endpoint, clock, replicas), now, replicas)
    from lockfast.backends.redis.io.asyncio_ import AsyncioConnections

    return RedisDriver(endpoint, AsyncioConnections(endpoint, clock, replicas), now, replicas)
