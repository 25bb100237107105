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
from lockfast.backends.redlock.io.connections import Fan, Line, at_once
from lockfast.backends.redlock.io.fanout import Ask, Asks, Enough, NodeConnections
from lockfast.backends.redlock.io.members import Member, refuse_wrong
from lockfast.backends.redlock.io.rounds import LINGER, Round, Shout
from lockfast.backends.redlock.io.stragglers import Janitor
from lockfast.backends.redlock.io.subscriptions import WakeFan
from lockfast.backends.wakeups.blocking import BlockingWakeups
from lockfast.errors import BackendUnavailable

_IDLE: Final = 16  # fans that are kept for later
_LATE: Final = 1000  # claims of which is known by which fan a vote is under way


class BlockingCrew:
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
        self._idle: list[Fan] = []
        self._late: dict[str, Fan] = {}  # by claim: where a vote of it is still under way
        self._inbox: WakeFan | None = None
        self._subscribing = threading.Lock()
        self._closed = False
        self._janitor = Janitor(
            self.members, self.node_timeout, lambda node, claim: self.mark_in_doubt(node, claim), self._say
        )
        self.later, self.line_to = self._janitor.later, self._janitor.line_to

    @property
    def wakeups(self) -> BlockingWakeups:
        return self._wakeups

    # All at once

    async def shout(
        self, request: bytes, wanted: bytes | int, *, within: float, claim: str, every: bool = False
    ) -> list[Any]:
        timeout = within if within < self.node_timeout else self.node_timeout
        fan = self._take(claim)
        shout = None
        try:
            if None in fan.lines:
                fan.fill(timeout)
            if not every:  # a release is for what was granted before
                refuse_wrong(self.members)
            shout = Shout(wanted, self.members, claim, every)  # its time begins now: others may have been connected to
            fan.shout(shout, request)
            fan.hear_in_turn(shout)
            if not shout.is_over():
                self._listen(fan, shout, shout.since + timeout)
        except BaseException:
            if shout is not None:
                shout.drop()
            fan.close()  # an answer must never be taken for another's
            raise
        if shout.left:
            shout.drop()
            self._is_late(claim, fan)
        self._put_back(fan)
        return shout.heard

    async def ask(
        self,
        asks: Asks,
        enough: Enough,
        *,
        within: float,
        finish: bool = False,
        claim: str = "",
        settled: Enough | None = None,
    ) -> list[Any]:
        timeout = within if within < self.node_timeout else self.node_timeout
        round = Round(asks, enough, self.members, timeout, claim, settled)
        fan = None
        try:
            fan = self._take(claim)
            if None in fan.lines:
                fan.fill(timeout)
            if claim and not finish:  # what was granted before is renewed and let go of all the same
                refuse_wrong(self.members)
            round.begin = fan.begin
            round.start()
            self._listen(fan, round, boot_now() + timeout)
            if finish and round.pending:
                self._linger(fan, round)
        except BaseException:
            round.drop()
            if fan is not None:
                fan.close()  # an answer must never be taken for another's
            raise
        if round.pending:
            if finish:
                self._leave_behind(fan, round)
            else:
                round.drop()
                if claim:
                    self._is_late(claim, fan)
        self._put_back(fan)
        return round.heard

    def _listen(self, fan: Fan, round: Round | Shout, until: float) -> None:
        while not round.decided():
            now = boot_now()
            if now >= until:
                for node in round.waits_for():
                    self.members[node].failed()
                    if round.claim:
                        self.mark_in_doubt(node, round.claim)
                    round.hear(node, unavailable(self.members[node].name, "did not answer in time"))
                fan.give_up_silent(now, self.node_timeout)
                return
            fan.listen(max(0.0, min(until, round.over_at) - now))

    def _linger(self, fan: Fan, round: Round) -> None:
        """Others are likely to answer in a moment, and then nobody has to see to it later."""
        until = min(round.since + LINGER, boot_now() + round.node_timeout)
        until = max(until, boot_now() + (boot_now() - round.since))
        while any(not self.members[node].absent for node in round.pending):
            now = boot_now()
            if now >= until:
                return
            fan.listen(until - now)

    def _leave_behind(self, fan: Fan, round: Round) -> None:
        taken = [line for node in list(round.pending) if (line := fan.take_out(node)) is not None]
        behind = Fan(self)  # where its verbs go on
        for line in taken:
            behind.add(line)
        round.begin = behind.begin
        for line in taken:
            self._janitor.leave(line)
        self._janitor.see_to()

    def _take(self, claim: str) -> Fan:
        """For a claim whose vote is still under way the same that it went by, so that what is asked now comes later."""
        if self._closed:
            raise BackendUnavailable.closed(self.members[0].name, transient=False)
        self._janitor.asked_at = boot_now()
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
            return Fan(self)

    def _is_late(self, claim: str, fan: Fan) -> None:
        if len(self._late) >= _LATE:
            with suppress(StopIteration, RuntimeError, KeyError):  # another thread may be about it too
                oldest = next(iter(self._late))
                self._mark_late_in_doubt(oldest, self._late.pop(oldest))
        self._late[claim] = fan

    def _mark_late_in_doubt(self, claim: str, fan: Fan) -> None:
        for node, line in enumerate(fan.lines):
            if line is None or any(owed.claim == claim for owed in list(line.owed)):
                self.mark_in_doubt(node, claim)

    def _put_back(self, fan: Fan) -> None:
        if len(self._idle) < _IDLE and not self._closed:
            self._idle.append(fan)
            if self._closed:  # meanwhile
                fan.close()
        else:
            fan.close()

    def _say(self, line: Line, ask: Ask) -> bool:
        asks = [ask if node == line.node else None for node in range(len(self.members))]
        round = Round(asks, lambda heard: False, self.members, self.node_timeout, "")
        fan = Fan(self)
        fan.add(line)
        round.begin = fan.begin
        round.start()
        self._listen(fan, round, boot_now() + max(1.0, self.node_timeout))
        round.drop()
        return fan.take_out(line.node) is not None

    # Wake-ups

    def _open_inbox(self) -> WakeFan:
        if self._inbox is None:
            self._inbox = WakeFan(self._channel, self._unsubscribed)
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
        self._janitor.close()
        self._wakeups.close()

    def after_fork(self) -> None:
        """The connections are the parent's; only our copies of them are closed."""
        for fan in self._idle:
            fan.abandon()
        self._janitor.abandon()
        self._wakeups.after_fork()
        for connections in self.connections:
            connections.after_fork()
        self._channel = new_channel(clustered=False)
        self._reset()
