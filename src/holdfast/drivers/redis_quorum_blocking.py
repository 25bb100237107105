"""A quorum of Redis servers, blocking: one thread writes to all of them, and reads as the answers come.

Decides: which connections a thread uses, how long it waits for whom, and what becomes of answers that nobody waits for.
Leaves to `redis_quorum`: what a server must be. Leaves to the verbs of the nodes: what is sent.

A verb of a node is a coroutine that stops where its request is under way; here each is run until it stops, and goes on
when the answer is there. A server that is gone is connected to in the background, so it costs its time but once.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import hiredis

from holdfast._model import Health
from holdfast._time import boot_now
from holdfast._worlds import Clock
from holdfast.drivers.redis import _Line
from holdfast.drivers.redis_quorum import Ask, Asks, Enough, Member, NodeWires, Turn, refuse_wrong
from holdfast.drivers.redis_quorum_rounds import Round, round_of
from holdfast.drivers.redis_quorum_wakes import WakeFan
from holdfast.drivers.redis_wire import new_channel, unavailable
from holdfast.drivers.wakes import BlockingWakes
from holdfast.errors import BackendUnavailable

_IDLE = 16  # fans that are kept for later
_RARE = 60.0  # seconds without a question after which nobody looks for servers that are gone
_CLEAN_UPS = 1000  # that are kept for a server that is gone


class _Owed:
    """One request whose answer is to come."""

    __slots__ = ("answers", "node", "replies", "round", "since")

    def __init__(self, round: Round, node: int, replies: int) -> None:
        self.round = round
        self.node = node
        self.replies = replies
        self.answers: list[Any] = []
        self.since = boot_now()


class _NodeLine(_Line):
    """A connection on which several answers may be due, some of which nobody waits for any more."""

    def __init__(self, member: Member, within: float) -> None:
        super().__init__(member, None, within)
        self.number = self.socket.fileno()
        self.owed: deque[_Owed] = deque()
        self.socket.setblocking(False)

    def put(self, round: Round, node: int, turn: Turn) -> None:
        self.owed.append(_Owed(round, node, turn.replies))
        self._send(turn.request)


class _Fan:
    """One connection to each server, used by one thread at a time."""

    def __init__(self, crew: BlockingCrew) -> None:
        self._crew = crew
        self.lines: list[_NodeLine | None] = [None] * len(crew.members)
        self._poll = select.poll()
        self._by_number: dict[int, int] = {}

    def fill(self, within: float) -> None:
        for node, line in enumerate(self.lines):
            if line is None:
                found = self._crew.line_to(node, within)
                if found is not None:
                    self.add(node, found)

    def add(self, node: int, line: _NodeLine) -> None:
        self.lines[node] = line
        self._by_number[line.number] = node
        self._poll.register(line.number, select.POLLIN)

    def take_out(self, node: int) -> _NodeLine | None:
        line, self.lines[node] = self.lines[node], None
        if line is not None:
            del self._by_number[line.number]
            self._poll.unregister(line.number)
        return line

    def discard(self, node: int, what: str) -> None:
        """Nothing is answered there any more."""
        line = self.take_out(node)
        if line is not None:
            self._crew.members[node].failed()
            self._crew.end(line, what)

    def begin(self, round: Round, node: int, turn: Turn) -> None:
        """A verb has stopped: send what it asks."""
        if not turn.request:
            error = self._crew.subscribe(node, round.node_timeout)
            round.go_on(node, None, error)
            return
        line = self.lines[node]
        if line is None:
            round.go_on(node, None, unavailable(self._crew.members[node].name, "cannot be reached just now"))
            return
        try:
            line.put(round, node, turn)
        except OSError as error:
            self.discard(node, f"closed the connection: {error}")  # which tells the round too

    def listen(self, seconds: float) -> None:
        """Hear what arrives within that time."""
        for number, _ in self._poll.poll(max(0, math.ceil(seconds * 1000))):
            node = self._by_number.get(number)
            line = self.lines[node] if node is not None else None
            if node is not None and line is not None and not self._crew.read(line):
                self.discard(node, "closed the connection")

    def give_up_silent(self, now: float, patience: float) -> None:
        for node, line in enumerate(self.lines):
            if line is not None and line.owed and line.owed[0].since + patience <= now:
                self.discard(node, "did not answer in time")

    def close(self) -> None:
        for node in range(len(self.lines)):
            line = self.take_out(node)
            if line is not None:
                self._crew.end(line, "was let go of")

    def abandon(self) -> None:
        """It is the parent's: close only our copies."""
        for line in self.lines:
            if line is not None:
                line.socket.close()


class BlockingCrew:
    def __init__(self, members: Sequence[Member], clock: Clock | None, node_timeout: float) -> None:
        self.members = tuple(members)
        self.node_timeout = node_timeout
        self.doubt: Callable[[int, str], None] = lambda node, claim: None  # a request of the claim may come late
        self._wakes = BlockingWakes(clock, self._open_mailbox)
        self.wires = tuple(NodeWires(self._wakes, member) for member in members)
        self._channel = new_channel(clustered=False)
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._idle: list[_Fan] = []
        self._late: dict[str, _Fan] = {}  # by claim: where a vote of it is still under way
        self._spare: list[list[_NodeLine]] = [[] for _ in self.members]
        self._straggling: list[tuple[int, _NodeLine]] = []
        self._clean_ups: list[dict[str, tuple[Callable[[], Ask], float]]] = [{} for _ in self.members]
        self._mailbox: WakeFan | None = None
        self._subscribing = threading.Lock()
        self._janitor: threading.Thread | None = None
        self._asked_at = 0.0
        self._closed = False

    @property
    def wakes(self) -> BlockingWakes:
        return self._wakes

    # All at once

    async def ask(
        self, asks: Asks, enough: Enough, *, within: float, finish: bool = False, claim: str = ""
    ) -> list[Any]:
        timeout = within if within < self.node_timeout else self.node_timeout
        round = round_of(asks, enough, self.members, timeout, claim)
        fan = None
        try:
            fan = self._take(claim)
            if None in fan.lines:
                fan.fill(timeout)
            if not finish:  # what was granted before is let go of all the same
                refuse_wrong(self.members)
            round.begin = fan.begin
            self._run(fan, round, boot_now() + timeout)
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
                    self._late[claim] = fan
        self._put_back(fan)
        return round.heard

    def _run(self, fan: _Fan, round: Round, until: float) -> None:
        round.start()
        while not round.decided():
            now = boot_now()
            if now >= until:
                for node in list(round.pending):
                    self.members[node].failed()
                    round.hear(node, unavailable(self.members[node].name, "did not answer in time"))
                fan.give_up_silent(now, self.node_timeout)
                return
            fan.listen(until - now)

    def _linger(self, fan: _Fan, round: Round) -> None:
        """Others are likely to answer in a moment, and then nobody has to see to it later."""
        until = min(round.started + 0.002, boot_now() + round.node_timeout)
        until = max(until, boot_now() + (boot_now() - round.started))
        while any(not self.members[node].absent for node in round.pending):
            now = boot_now()
            if now >= until:
                return
            fan.listen(until - now)

    def _take(self, claim: str) -> _Fan:
        if self._closed:
            raise unavailable(self.members[0].name, "was let go of: this Locks is closed", transient=False)
        self._asked_at = boot_now()
        late = self._late.pop(claim, None) if claim else None
        if late is not None:
            try:
                self._idle.remove(late)
                return late
            except ValueError:  # another thread uses it: what it still carries may arrive after what we send
                for node, line in enumerate(late.lines):
                    if line is None or any(owed.round.claim == claim for owed in list(line.owed)):
                        self.doubt(node, claim)
        try:
            return self._idle.pop()
        except IndexError:
            return _Fan(self)

    def _put_back(self, fan: _Fan) -> None:
        if len(self._idle) < _IDLE and not self._closed:
            self._idle.append(fan)
            if self._closed:  # meanwhile
                fan.close()
        else:
            fan.close()

    # One connection

    def read(self, line: _NodeLine) -> bool:
        """Let go on whoever waits for what has arrived; False if the connection has ended."""
        try:
            replies = line.read_all()
        except (OSError, hiredis.HiredisError):
            return False
        for reply in replies:
            owed = line.owed[0]
            if owed.replies:
                owed.answers.append(reply)
                if len(owed.answers) < owed.replies:
                    continue
                reply = owed.answers
            line.owed.popleft()
            self.members[owed.node].answered()
            owed.round.go_on(owed.node, reply)
        return True

    def end(self, line: _NodeLine, what: str) -> None:
        """Its requests may still be carried out, and nobody will hear of it."""
        owed, line.owed = line.owed, deque()
        line.close()
        for each in owed:
            if each.round.claim:
                self.doubt(each.node, each.round.claim)
        for each in owed:
            each.round.go_on(each.node, None, unavailable(self.members[each.node].name, what))

    def line_to(self, node: int, within: float) -> _NodeLine | None:
        """One that there is, or a new one, unless that is known to take long: then it is seen to in the background."""
        with suppress(IndexError):
            return self._spare[node].pop()
        member = self.members[node]
        if member.absent:
            self._see_to()
            return None
        try:
            return _NodeLine(member, within)
        except BackendUnavailable:
            member.failed()
            self._see_to()
            return None

    # What is left behind

    def later(self, node: int, claim: str, ask: Callable[[], Ask], until: float) -> None:
        if len(self._clean_ups[node]) < _CLEAN_UPS:
            self._clean_ups[node][claim] = ask, until

    def _leave_behind(self, fan: _Fan, round: Round) -> None:
        for node in list(round.pending):
            line = fan.take_out(node)
            if line is not None:
                self.members[node].failed()
                self._straggling.append((node, line))
        self._see_to()

    def _see_to(self) -> None:
        with self._mutex:
            if self._janitor is not None or self._closed:
                return
            self._janitor = threading.Thread(target=self._tidy, name="holdfast-nodes", daemon=True)
            try:
                self._janitor.start()
            except RuntimeError:  # no thread to be had just now; tried again
                self._janitor = None

    def _tidy(self) -> None:
        while True:
            self._hear_stragglers()
            for node, member in enumerate(self.members):
                if member.absent and member.try_at <= boot_now():
                    self._reach(node)
            with self._mutex:
                idle = boot_now() - self._asked_at > _RARE
                busy = bool(self._straggling) or (any(member.absent for member in self.members) and not idle)
                if self._closed or not busy:
                    self._janitor = None
                    return
            if not self._straggling:
                time.sleep(0.02)

    def _hear_stragglers(self) -> None:
        straggling = list(self._straggling)
        poll = select.poll()
        for _, line in straggling:
            poll.register(line.number, select.POLLIN)
        ready = {number for number, _ in poll.poll(10)} if straggling else set()
        for each in straggling:
            node, line = each
            alive = line.number not in ready or self.read(line)
            late = bool(line.owed) and line.owed[0].since + max(1.0, self.node_timeout) < boot_now()
            if alive and line.owed and not late:
                continue
            self._straggling.remove(each)
            if alive and not line.owed:
                self.members[node].answered()
                self._spare[node].append(line)
            else:
                self.members[node].failed()
                self.end(line, "did not answer in time")

    def _reach(self, node: int) -> None:
        member = self.members[node]
        try:
            line = _NodeLine(member, max(1.0, self.node_timeout))
        except BackendUnavailable:
            member.failed()
            return
        except Exception:
            member.failed()
            raise
        member.answered()
        if self._clean_up(node, line):
            self._spare[node].append(line)
        if self._closed:
            line.close()

    def _clean_up(self, node: int, line: _NodeLine) -> bool:
        """Say what could not be said while it was gone; False if it is gone again."""
        while self._clean_ups[node]:
            _, (ask, until) = self._clean_ups[node].popitem()
            if until <= boot_now():
                continue
            asks = [ask() if each == node else None for each in range(len(self.members))]
            round = Round(asks, lambda heard: False, self.members, self.node_timeout, "")
            fan = _Fan(self)
            fan.add(node, line)
            round.begin = fan.begin
            self._run(fan, round, boot_now() + max(1.0, self.node_timeout))
            round.drop()
            if fan.take_out(node) is None:
                return False
        return True

    # Wake-ups

    def _open_mailbox(self) -> WakeFan:
        if self._mailbox is None:
            self._mailbox = WakeFan(self._channel, self._unsubscribed)
        return self._mailbox

    def _unsubscribed(self, node: int) -> None:
        self.wires[node].node_wakes.subscribed = False

    def subscribe(self, node: int, within: float) -> BackendUnavailable | None:
        wakes, member = self.wires[node].node_wakes, self.members[node]
        with self._subscribing:
            if wakes.subscribed:
                return None
            try:
                mailbox = self._open_mailbox()
                mailbox.subscribe(node, _Line(member, None, within), within)
            except BackendUnavailable as error:
                return error
            wakes.subscribed = True
        return None

    # The end

    async def check_up(self) -> list[Health]:
        return [member.check_up(max(1.0, self.node_timeout)) for member in self.members]

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (nothing suspends in this world)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        for spare in self._spare:
            while spare:
                spare.pop().close()
        self._wakes.close()

    def after_fork(self) -> None:
        """The connections are the parent's; only our copies of them are closed."""
        for fan in self._idle:
            fan.abandon()
        lines = [line for spare in self._spare for line in spare] + [line for _, line in self._straggling]
        for line in lines:
            line.socket.close()
        self._wakes.after_fork()
        for wires in self.wires:
            wires.after_fork()
        self._channel = new_channel(clustered=False)
        self._reset()
