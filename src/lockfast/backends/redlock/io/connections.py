"""One connection to each server of a quorum, for one blocking thread at a time.

Decides: how a request is written to all, and whom an answer belongs to.
Leaves to `rounds`: what answers mean. Leaves to `blocking`: how long they are waited for.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import hiredis

from lockfast._reentry import start_thread
from lockfast._time import boot_now
from lockfast.backends.redis.io.blocking import BlockingConnection
from lockfast.backends.redis.io.resp import NOTHING, unavailable
from lockfast.backends.redlock.io.fanout import Suspended
from lockfast.backends.redlock.io.members import Member
from lockfast.backends.redlock.io.rounds import Broadcast, PendingReply, Round
from lockfast.errors import BackendUnavailable

T = TypeVar("T")

_RECEIVE: Final = 4096  # bytes: answers are short, and room for long ones costs time
_TURN: Final = struct.pack("ll", 0, 1000)  # a timeval: the longest that a server is waited for in its turn
_SOON: Final = 0.001  # seconds in which all have answered that are heard in turn
_POLLED: Final = 100  # rounds in which whoever answers first is heard first, before it is tried again in turn


class BlockingNodeConnection(BlockingConnection):
    """A connection on which several answers may be due, some of which nobody waits for any more."""

    def __init__(self, node: int, member: Member, within: float) -> None:
        super().__init__(member, None, within)
        self.node = node
        self.number = self.socket.fileno()
        self.owed: deque[PendingReply | Broadcast] = deque()
        self.member = member
        self.socket.setblocking(not self._tls)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, _TURN)

    def put(self, owed: PendingReply | Broadcast, request: bytes) -> None:
        """Raises OSError."""
        self.owed.append(owed)
        self._send(request)

    def hear(self) -> bool:
        """Let go on whoever waits for what has arrived; False if the connection has ended."""
        try:
            data = self._receive(_RECEIVE)
            while data and isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
                data += self._receive(_RECEIVE)  # which no poll would tell of
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return self.take(data)

    def take(self, data: bytes) -> bool:
        """The same of what was received."""
        if not data:
            return False
        try:
            self._feed(data)
            while self.owed and (reply := self._gets()) is not NOTHING:
                owed = self.owed[0]
                if owed.replies:
                    owed.answers.append(reply)
                    if len(owed.answers) < owed.replies:
                        continue
                    reply = owed.answers
                self.owed.popleft()
                owed.answer(self.node, reply)
        except hiredis.HiredisError:
            return False
        self.member.failures = 0
        return True

    def end(self, what: str, mark_in_doubt: Callable[[int, str], None]) -> None:
        """Its requests may still be carried out, and nobody will hear of it."""
        owed, self.owed = self.owed, deque()
        self.close()
        for each in owed:
            if each.claim:
                mark_in_doubt(self.node, each.claim)
        for each in owed:
            each.fail(self.node, unavailable(self.member.name, what))


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """What all of them return; each but the last in a thread of its own, where there is one to be had."""
    results: list[Any] = [None] * len(jobs)
    started = []

    def work(number: int) -> None:
        results[number] = jobs[number]()

    for number in range(len(jobs) - 1):
        try:
            started.append(start_thread("lockfast-dial", work, number))
        except RuntimeError:  # there is none
            work(number)
    if jobs:
        work(len(jobs) - 1)
    for job in started:
        job.join()
    return results


class ConnectionSource(Protocol):
    """What a fan needs of the fan-out that it belongs to."""

    members: tuple[Member, ...]
    mark_in_doubt: Callable[[int, str], None]

    def line_to(self, node: int, within: float) -> BlockingNodeConnection | None: ...
    def subscribe(self, node: int, within: float) -> BackendUnavailable | None: ...


class ConnectionSet:
    def __init__(self, fanout: ConnectionSource) -> None:
        self._fanout = fanout
        self.lines: list[BlockingNodeConnection | None] = [None] * len(fanout.members)
        self._poll = select.poll()
        self._by_number: dict[int, BlockingNodeConnection] = {}
        self._polled = 0  # rounds that are left in which nobody is heard in turn

    def fill(self, within: float) -> None:
        """Connect to whom there is no connection, all at once: those that hang take their time together."""
        missing = [node for node, line in enumerate(self.lines) if line is None]
        absent = [node for node in missing if self._fanout.members[node].absent]  # nobody connects to those now
        found = [self._fanout.line_to(node, within) for node in absent]
        found += at_once([partial(self._fanout.line_to, node, within) for node in missing if node not in absent])
        for line in found:
            if line is not None:
                self.add(line)

    def add(self, line: BlockingNodeConnection) -> None:
        self.lines[line.node] = self._by_number[line.number] = line
        self._poll.register(line.number, select.POLLIN)

    def take_out(self, node: int) -> BlockingNodeConnection | None:
        line, self.lines[node] = self.lines[node], None
        if line is not None:
            del self._by_number[line.number]
            self._poll.unregister(line.number)
        return line

    def discard(self, node: int, what: str) -> None:
        """Nothing is answered there any more."""
        line = self.take_out(node)
        if line is not None:
            self._fanout.members[node].failed()
            line.end(what, self._fanout.mark_in_doubt)

    def broadcast(self, broadcast: Broadcast, request: bytes) -> None:
        for node, line in enumerate(self.lines):
            if line is None:
                self._put(node, line, broadcast, request)
                continue
            try:
                line.owed.append(broadcast)
                line._send(request)
            except OSError as error:
                self.discard(node, f"closed the connection: {error}")

    def hear_in_turn(self, broadcast: Broadcast) -> None:
        """Hear one after another: half the calls of the system, as long as all of them answer at once."""
        if self._polled:
            self._polled -= 1
            return
        sent, wanted = broadcast.sent, broadcast.wanted
        for line in self.lines:
            if line is None or line._tls or line.member.failures:
                continue
            try:
                data = line._receive(_RECEIVE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if data == sent and len(line.owed) == 1:
                line.owed.clear()
                over = broadcast.answer(line.node, wanted)
            else:
                if not line.take(data):
                    self.discard(line.node, "closed the connection")
                over = broadcast.is_over()
            if over:
                break
        if boot_now() - broadcast.since > _SOON:
            self._polled = _POLLED

    def begin(self, round: Round, node: int, suspended: Suspended) -> None:
        """A verb has stopped: send what it asks."""
        if suspended.request:
            self._put(node, self.lines[node], PendingReply(round, suspended.replies), suspended.request)
            return
        error = self._fanout.subscribe(node, round.node_timeout)
        if error is None:
            round.answer(node, None)
        else:
            round.fail(node, error)

    def _put(
        self, node: int, line: BlockingNodeConnection | None, owed: PendingReply | Broadcast, request: bytes
    ) -> None:
        if line is None:
            owed.fail(node, self._fanout.members[node].out_of_reach())
            return
        try:
            line.put(owed, request)
        except OSError as error:
            self.discard(node, f"closed the connection: {error}")  # which tells the round too

    def listen(self, seconds: float) -> None:
        """Hear what arrives within that time."""
        for number, _ in self._poll.poll(math.ceil(seconds * 1000)):
            line = self._by_number.get(number)
            if line is not None and not line.hear():
                self.discard(line.node, "closed the connection")

    def give_up_silent(self, now: float, patience: float) -> None:
        for node, line in enumerate(self.lines):
            if line is not None and line.owed and line.owed[0].since + patience <= now:
                self.discard(node, "did not answer in time")

    def close(self) -> None:
        for node in range(len(self.lines)):
            line = self.take_out(node)
            if line is not None:
                line.end("was let go of", self._fanout.mark_in_doubt)

    def abandon(self) -> None:
        """It is the parent's: close only our copies."""
        for line in self.lines:
            if line is not None:
                line.socket.close()
