"""A quorum of Redis servers, blocking: one thread writes to all of them, and reads the replies as they come.

Decides: which connections a thread uses, and how long it waits.
Leaves to `connections`: which request a reply belongs to. Leaves to `stragglers`: replies that no thread waits for, and
unreachable servers. Leaves to the verbs of the nodes: what is sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from lockfast._model import Health
from lockfast._refusals import closed_driver
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast.backends.connecting.turns import in_turn
from lockfast.backends.redis.io.blocking_connection import BlockingConnection
from lockfast.backends.redis.io.resp import new_channel, unavailable
from lockfast.backends.redlock.io.connections import BlockingNodeConnection, ConnectionSet, at_once
from lockfast.backends.redlock.io.dials import Dials
from lockfast.backends.redlock.io.fanout import Enough, Late, NodeConnections, Verbs
from lockfast.backends.redlock.io.idle import IdleSets, WaitingThread
from lockfast.backends.redlock.io.members import Member, refuse_wrong
from lockfast.backends.redlock.io.rounds import Round
from lockfast.backends.redlock.io.stragglers import Stragglers
from lockfast.backends.redlock.io.subscriptions import QuorumInbox
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.errors import BackendUnavailable

MAX_IDLE_SETS: Final = 16  # those that were used lately are kept beside them
UNUSED_S: Final = 30.0  # after which an idle set beyond that number is closed
MIN_DIAL_S: Final = 1.0  # for a connection, even if its caller has less time: later requests may have more
MAX_LATE_CLAIMS: Final = 1000  # of which is known by which connections a vote is under way


class BlockingFanout:
    def __init__(self, members: Sequence[Member], clock: Clock | None, node_timeout: float) -> None:
        self.members = tuple(members)
        self.node_timeout = node_timeout
        self.now = boot_now
        self.wakeups = BlockingWakeups(clock, self._open_inbox)
        self.node_connections = tuple(NodeConnections(self.wakeups, member) for member in members)
        self._channel = new_channel(confirms=True)
        self._reset()

    def _reset(self) -> None:
        self._idle = IdleSets()
        self._late: dict[str, ConnectionSet] = {}  # by claim: where a vote of it is still under way
        self._subscribing = [threading.RLock() for _ in self.members]
        self._dials = Dials(len(self.members), self._dial)
        self._closed = False
        self._stragglers = Stragglers(self.members, max(1.0, self.node_timeout), self._new_set, self._idle)
        self.retry_later = self._stragglers.retry_later

    def _new_set(self) -> ConnectionSet:
        return ConnectionSet(self.members, self._subscribe)

    async def ask(
        self,
        verbs: Verbs,
        enough: Enough,
        *,
        within: float,
        claim: str = "",
        settled: Enough | None = None,
        new: bool = False,
        late: Late | None = None,
    ) -> list[Any]:
        round = Round(verbs, enough, self.members, claim, settled, late)
        connections = None
        try:
            connections = self._take(claim)
            if None in connections.connections:
                started = self._stragglers.asked_at = boot_now()
                connections = self._connected(connections, within)
                within = max(0.01, started + within - boot_now())
            if new:
                refuse_wrong(self.members)
            round.start(connections, within, self.node_timeout)
            self._stragglers.asked_at = round.since
            connections.read_in_turn(round)
            if round.pending and not round.is_enough:
                self._wait(connections, round)
        except BaseException:
            round.drop()
            if connections is not None:
                connections.close()  # a reply must never be taken for another's
            raise
        results = round.close()
        is_late = round.is_dropped and claim != ""
        if is_late:
            self._remember_late(claim, connections)
        self._put_back(connections, is_late)
        if round.pending:
            self._stragglers.watch(connections)
        return results

    def _wait(self, connections: ConnectionSet, round: Round) -> None:
        """What has arrived is read before a server is given up: the delay may have been this thread's own."""
        while not round.is_decided():
            now = boot_now()
            if now < round.late_at:
                connections.read(max(0.0, min(round.late_at, round.over_at) - now))
                continue
            connections.read_replies(0.0)
            if now >= round.late_at and not round.is_decided():
                connections.give_up_silent(now, self.node_timeout)
                return
        if round.pending and not round.is_enough and boot_now() >= round.over_at:
            connections.read_replies(0.0)

    # Connections

    def _take(self, claim: str) -> ConnectionSet:
        """The set that a vote for this claim is still under way on, so that what is asked now comes later."""
        if self._closed:
            raise closed_driver(self.members[0].name)
        late = self._late.pop(claim, None)
        if late is not None:
            if self._idle.take_this(late):
                return late
            self._mark_late_in_doubt(claim, late)  # another thread uses it: what it still carries may arrive later
        return self._idle.take() or self._new_set()

    def _remember_late(self, claim: str, connections: ConnectionSet) -> None:
        if len(self._late) >= MAX_LATE_CLAIMS:
            with suppress(StopIteration, RuntimeError, KeyError):  # another thread may make room too
                oldest = next(iter(self._late))
                self._mark_late_in_doubt(oldest, self._late.pop(oldest))
        self._late[claim] = connections

    def _mark_late_in_doubt(self, claim: str, connections: ConnectionSet) -> None:
        for node, member in enumerate(self.members):
            if connections.is_due(claim, node):
                member.mark_in_doubt(claim)

    def _put_back(self, connections: ConnectionSet, is_late: bool = False) -> None:
        connections.used_at = self._stragglers.asked_at
        self._idle.put(connections, is_late=is_late)
        if len(self._idle) > MAX_IDLE_SETS and (unused := self._idle.take_unused(connections.used_at - UNUSED_S)):
            unused.close()
        if self._closed:  # meanwhile
            connections.close()

    def _connected(self, connections: ConnectionSet, within: float) -> ConnectionSet:
        """This set, with connections; or, if it is new, one that another thread puts back, if that comes first."""
        if not connections.is_empty:
            self._fill(connections, within)
            return connections
        until, waiter = boot_now() + within, WaitingThread()
        try:
            connections = self._idle.wait(waiter, min(self.node_timeout, within / 2), within / 2) or connections
            if self._closed:
                raise closed_driver(self.members[0].name)
            if None in connections.connections:
                self._fill(connections, max(0.01, until - boot_now()))
        except BaseException:
            connections.close()
            raise
        finally:
            self._idle.leave(waiter)
        return connections

    def _fill(self, connections: ConnectionSet, within: float) -> None:
        """Connect where no connection is, all at once: servers that hang take their time together.

        The caller waits for each of them once. A connection that takes longer is made in the background, and used from
        then on; it is waited for again only as long as there is no majority without it.
        """
        started = boot_now()
        while connections.add_dialled(0.0):
            pass  # they were made since the last request
        new = self._start_dials(connections, min(self.node_timeout, within / 2))  # the servers are asked in the rest
        while connections.dialling.keys() & new if connections.is_majority else connections.dialling:
            now = boot_now()
            if connections.is_majority:
                until = started + min(self.node_timeout, within / 4)
            else:  # a server has its time from when it is connected to: this process may be busy with other connections
                begun = max([now if at is None else at for at in connections.dialling.values()])
                until = min(started + within / 2, begun + self.node_timeout)
            if not connections.add_dialled(max(0.0, until - now)) and now >= until:
                break

    def _start_dials(self, connections: ConnectionSet, limit: float) -> set[int]:
        """Which nodes are connected to from now on."""
        new = set()
        for node, connection in enumerate(connections.connections):
            if connection is not None or node in connections.dialling:
                continue
            if (spare := self._stragglers.take_spare(node)) is not None:
                connections.add(spare)
            elif self.members[node].absent:
                self._stragglers.start()  # it is connected to in the background
            else:
                new.add(node)
                self._dials.start(connections, node, min(self.node_timeout, max(limit, MIN_DIAL_S)))
        return new

    def _dial(self, node: int, within: float) -> BlockingNodeConnection | None:
        if self.members[node].absent:  # since it was asked for
            return None
        started = boot_now()
        try:
            return BlockingNodeConnection(node, self.members[node], within)
        except BackendUnavailable:
            self._failed_to_connect(node, within, started)
            return None

    def _failed_to_connect(self, node: int, within: float, started: float) -> None:
        if within >= self.node_timeout or boot_now() - started < within:  # else it had less time than it may take
            self.members[node].failed()
            self._stragglers.start()

    # Wake-ups

    def _open_inbox(self) -> QuorumInbox:
        return QuorumInbox(self._channel, self._unsubscribed)

    def _unsubscribed(self, node: int) -> None:
        self.node_connections[node].node_wakeups.subscribed = False

    def _subscribe(self, nodes: Sequence[int], within: float) -> list[BackendUnavailable | None]:
        inbox, limit = self.wakeups.inbox(), max(0.01, min(self.node_timeout, within / 2))  # votes follow in the rest
        if inbox is None:
            return [closed_driver(self.members[node].name) for node in nodes]
        assert isinstance(inbox, QuorumInbox)
        return at_once([partial(self._subscribe_to, node, inbox, limit) for node in nodes])

    def _subscribe_to(self, node: int, inbox: QuorumInbox, within: float) -> BackendUnavailable | None:
        wakeups, member = self.node_connections[node].node_wakeups, self.members[node]
        started = boot_now()

        def left() -> float:
            return max(0.01, started + within - boot_now())

        def subscribe() -> bool:
            if not wakeups.subscribed:
                if member.absent:  # no round waits for it until it is back
                    raise member.out_of_reach()
                connection = BlockingConnection(member, None, left())
                inbox.subscribe(node, connection, left())
                wakeups.subscribed = True
            return True

        try:
            if not in_turn(self._subscribing[node], within, subscribe):
                raise unavailable(member.name, "did not answer in time")  # the thread whose turn it is
        except BackendUnavailable as error:
            if not member.absent:
                self._failed_to_connect(node, within, started)
            return error
        return None

    # The rest

    async def check_up(self) -> list[Health]:
        return at_once([partial(member.check_up, max(1.0, self.node_timeout)) for member in self.members])

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (nothing suspends in this world)

    async def close(self) -> None:
        self._closed = True
        self._stragglers.close()
        self._idle.close()
        while (connections := self._idle.take()) is not None:
            connections.close()
        self.wakeups.close()

    def after_fork(self) -> None:
        """The connections are the parent's; only our copies of them are closed."""
        for connections in self._idle:
            connections.abandon()
        self._stragglers.abandon()
        self.wakeups.after_fork()
        for node_connections in self.node_connections:
            node_connections.after_fork()
        self._channel = new_channel(confirms=True)
        self._reset()
