"""A quorum of Redis servers, blocking: one thread writes to all of them, and reads as the answers come.

Decides: which connections a thread uses, and how long it waits for whom.
Leaves to `connections`: whom an answer belongs to. Leaves to `stragglers`: answers that nobody waits
for, and servers that are gone. Leaves to the verbs of the nodes: what is sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from lockfast._model import Health
from lockfast._time import boot_now
from lockfast._worlds import Clock
from lockfast.backends.redis.io.blocking import BlockingConnection
from lockfast.backends.redis.io.resp import new_channel, unavailable
from lockfast.backends.redlock.io.connections import BlockingNodeConnection, ConnectionSet, at_once
from lockfast.backends.redlock.io.fanout import Enough, NodeConnections, Verb, Verbs
from lockfast.backends.redlock.io.members import Member, refuse_wrong
from lockfast.backends.redlock.io.rounds import LINGER, Broadcast, Round
from lockfast.backends.redlock.io.stragglers import Stragglers
from lockfast.backends.redlock.io.subscriptions import QuorumInbox
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.errors import BackendUnavailable

_IDLE: Final = 16  # connection sets that are kept for later
_LATE: Final = 1000  # claims of which is known by which connection set a vote is under way


class BlockingFanout:
    def __init__(self, members: Sequence[Member], clock: Clock | None, node_timeout: float) -> None:
        self.members = tuple(members)
        self.node_timeout = node_timeout
        # Called with a claim of which a request may come late to that node.
        self.mark_in_doubt: Callable[[int, str], None] = lambda node, claim: None
        self._wakeups = BlockingWakeups(clock, self._open_inbox)
        self.connections = tuple(NodeConnections(self._wakeups, member) for member in members)
        self._channel = new_channel(clustered=False)
        self._reset()

    def _reset(self) -> None:
        self._idle: list[ConnectionSet] = []
        self._late: dict[str, ConnectionSet] = {}  # by claim: where a vote of it is still under way
        self._inbox: QuorumInbox | None = None
        self._subscribing = threading.Lock()
        self._closed = False
        self._stragglers = Stragglers(
            self.members, self.node_timeout, lambda node, claim: self.mark_in_doubt(node, claim), self._say
        )
        self.later, self.line_to = self._stragglers.later, self._stragglers.line_to

    @property
    def wakeups(self) -> BlockingWakeups:
        return self._wakeups

    # All at once

    async def broadcast(
        self, request: bytes, wanted: bytes | int, *, within: float, claim: str, every: bool = False
    ) -> list[Any]:
        timeout = within if within < self.node_timeout else self.node_timeout
        connection_set = self._take(claim)
        broadcast = None
        try:
            if None in connection_set.lines:
                connection_set.fill(timeout)
            if not every:  # a release is for what was granted before
                refuse_wrong(self.members)
            broadcast = Broadcast(wanted, self.members, claim, every)  # its time begins now
            connection_set.broadcast(broadcast, request)
            connection_set.hear_in_turn(broadcast)
            if not broadcast.is_over():
                self._listen(connection_set, broadcast, broadcast.since + timeout)
        except BaseException:
            if broadcast is not None:
                broadcast.drop()
            connection_set.close()  # an answer must never be taken for another's
            raise
        if broadcast.left:
            broadcast.drop()
            self._is_late(claim, connection_set)
        self._put_back(connection_set)
        return broadcast.results

    async def ask(
        self,
        verbs: Verbs,
        enough: Enough,
        *,
        within: float,
        finish: bool = False,
        claim: str = "",
        settled: Enough | None = None,
    ) -> list[Any]:
        timeout = within if within < self.node_timeout else self.node_timeout
        round = Round(verbs, enough, self.members, timeout, claim, settled)
        connection_set = None
        try:
            connection_set = self._take(claim)
            if None in connection_set.lines:
                connection_set.fill(timeout)
            if claim and not finish:  # what was granted before is renewed and let go of all the same
                refuse_wrong(self.members)
            round.begin = connection_set.begin
            round.start()
            self._listen(connection_set, round, boot_now() + timeout)
            if finish and round.pending:
                self._linger(connection_set, round)
        except BaseException:
            round.drop()
            if connection_set is not None:
                connection_set.close()  # an answer must never be taken for another's
            raise
        if round.pending:
            if finish:
                self._leave_behind(connection_set, round)
            else:
                round.drop()
                if claim:
                    self._is_late(claim, connection_set)
        self._put_back(connection_set)
        return round.results

    def _listen(self, connection_set: ConnectionSet, round: Round | Broadcast, until: float) -> None:
        while not round.decided():
            now = boot_now()
            if now >= until:
                for node in round.waits_for():
                    self.members[node].failed()
                    if round.claim:
                        self.mark_in_doubt(node, round.claim)
                    round.hear(node, unavailable(self.members[node].name, "did not answer in time"))
                connection_set.give_up_silent(now, self.node_timeout)
                return
            connection_set.listen(max(0.0, min(until, round.over_at) - now))

    def _linger(self, connection_set: ConnectionSet, round: Round) -> None:
        """Others are likely to answer in a moment, and then nobody has to see to it later."""
        until = min(round.since + LINGER, boot_now() + round.node_timeout)
        until = max(until, boot_now() + (boot_now() - round.since))
        while any(not self.members[node].absent for node in round.pending):
            now = boot_now()
            if now >= until:
                return
            connection_set.listen(until - now)

    def _leave_behind(self, connection_set: ConnectionSet, round: Round) -> None:
        taken = [line for node in list(round.pending) if (line := connection_set.take_out(node)) is not None]
        behind = ConnectionSet(self)  # where its verbs go on
        for line in taken:
            behind.add(line)
        round.begin = behind.begin
        for line in taken:
            self._stragglers.leave(line)
        self._stragglers.see_to()

    def _take(self, claim: str) -> ConnectionSet:
        """For a claim whose vote is still under way the same that it went by, so that what is asked now comes later."""
        if self._closed:
            raise BackendUnavailable.closed(self.members[0].name, transient=False)
        self._stragglers.asked_at = boot_now()
        late = self._late.pop(claim, None)
        if late is not None:
            try:
                self._idle.remove(late)
                return late
            except ValueError:  # another thread uses it: what it still carries may arrive after what we send
                self._mark_late_in_doubt(claim, late)
        try:
            return self._idle.pop()
        except IndexError:
            return ConnectionSet(self)

    def _is_late(self, claim: str, connection_set: ConnectionSet) -> None:
        if len(self._late) >= _LATE:
            with suppress(StopIteration, RuntimeError, KeyError):  # another thread may be about it too
                oldest = next(iter(self._late))
                self._mark_late_in_doubt(oldest, self._late.pop(oldest))
        self._late[claim] = connection_set

    def _mark_late_in_doubt(self, claim: str, connection_set: ConnectionSet) -> None:
        for node, line in enumerate(connection_set.lines):
            if line is None or any(owed.claim == claim for owed in list(line.owed)):
                self.mark_in_doubt(node, claim)

    def _put_back(self, connection_set: ConnectionSet) -> None:
        if len(self._idle) < _IDLE and not self._closed:
            self._idle.append(connection_set)
            if self._closed:  # meanwhile
                connection_set.close()
        else:
            connection_set.close()

    def _say(self, line: BlockingNodeConnection, ask: Verb) -> bool:
        verbs = [ask if node == line.node else None for node in range(len(self.members))]
        round = Round(verbs, lambda results: False, self.members, self.node_timeout, "")
        connection_set = ConnectionSet(self)
        connection_set.add(line)
        round.begin = connection_set.begin
        round.start()
        self._listen(connection_set, round, boot_now() + max(1.0, self.node_timeout))
        round.drop()
        return connection_set.take_out(line.node) is not None

    # Wake-ups

    def _open_inbox(self) -> QuorumInbox:
        if self._inbox is None:
            self._inbox = QuorumInbox(self._channel, self._unsubscribed)
        return self._inbox

    def _unsubscribed(self, node: int) -> None:
        self.connections[node].node_wakeups.subscribed = False

    def subscribe(self, node: int, within: float) -> BackendUnavailable | None:
        wakeups, member = self.connections[node].node_wakeups, self.members[node]
        with self._subscribing:
            if wakeups.subscribed:
                return None
            if member.absent:  # nobody waits for it until it is back
                return unavailable(member.name, "cannot be reached just now")
            try:
                inbox = self._open_inbox()
                inbox.subscribe(node, BlockingConnection(member, None, within), within)
            except BackendUnavailable as error:
                if within >= self.node_timeout:  # else it was given less time than it may take
                    member.failed()
                return error
            wakeups.subscribed = True
        return None

    # The rest

    async def check_up(self) -> list[Health]:
        return at_once([partial(member.check_up, max(1.0, self.node_timeout)) for member in self.members])

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (nothing suspends in this world)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        self._stragglers.close()
        self._wakeups.close()

    def after_fork(self) -> None:
        """The connections are the parent's; only our copies of them are closed."""
        for connection_set in self._idle:
            connection_set.abandon()
        self._stragglers.abandon()
        self._wakeups.after_fork()
        for connections in self.connections:
            connections.after_fork()
        self._channel = new_channel(clustered=False)
        self._reset()
