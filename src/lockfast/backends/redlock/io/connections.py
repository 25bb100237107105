"""One connection to each server of a quorum, for one blocking thread at a time.

Decides: how a request is written, and which request a reply belongs to.
Leaves to `rounds`: what replies mean. Leaves to `blocking`: how long they are waited for.
"""

from __future__ import annotations

import math
import queue
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import hiredis

from lockfast._reentry import start_thread
from lockfast._time import boot_now
from lockfast.backends.redis.io.blocking_connection import BlockingConnection
from lockfast.backends.redis.io.resp import NOTHING, unavailable
from lockfast.backends.redlock.io.members import Member
from lockfast.backends.redlock.io.rounds import Round
from lockfast.errors import BackendUnavailable

T = TypeVar("T")
# A request: its round, the number of its replies (0: one, and not in a list), those that came, and when it was sent.
Unanswered = tuple[Round, int, list[Any], float]

_RECEIVE_BYTES: Final = 4096  # replies are short, and room for long ones costs time
_TURN: Final = struct.pack("ll", 0, 1000)  # a timeval of 1 ms: the longest that a server is waited for in its turn
_SOON_S: Final = 0.001  # in which all servers have answered that are read in turn
_POLLED_ROUNDS: Final = 100  # in which the server that answers first is read first, before they are read in turn again


class BlockingNodeConnection(BlockingConnection):
    """A connection on which several replies may be due, some of which no thread waits for any more."""

    def __init__(self, node: int, member: Member, within: float) -> None:
        super().__init__(member, None, within)
        self.node = node
        self.number = self.socket.fileno()
        self.unanswered: deque[Unanswered] = deque()
        self.member = member
        self.write = self._send  # raises OSError
        self.in_turn = not self._tls
        self.socket.setblocking(self.in_turn)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, _TURN)

    def read(self) -> bool:
        """Hand what has arrived to the rounds; False if the connection has ended."""
        try:
            data = self._receive(_RECEIVE_BYTES)
            while self._tls and data and self._undecrypted():
                data += self._receive(_RECEIVE_BYTES)  # which no poll would report
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        if not data:
            return False
        try:
            self._feed(data)
            while self.unanswered and (reply := self._gets()) is not NOTHING:
                round, replies, collected, asked_at = self.unanswered[0]
                if replies:
                    collected.append(reply)
                    if len(collected) < replies:
                        continue
                    reply = collected
                self.unanswered.popleft()
                if self.member.failures:
                    self.member.answered(asked_at)
                round.on_reply(self.node, reply)
        except hiredis.HiredisError:
            return False
        return True

    def _undecrypted(self) -> bool:
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def end(self, what: str) -> None:
        """Its requests may still be carried out, and their replies are not read any more. No fault of the server."""
        unanswered, self.unanswered = self.unanswered, deque()
        self.close()
        for round, *_ in unanswered:
            round.give_up(self.node, unavailable(self.member.name, what))


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """What all of them return; each but the last runs in a thread of its own, if the system has one.

    Raises what one of them raises, when all are over.
    """
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException] = []
    started = []

    def work(number: int) -> None:
        try:
            results[number] = jobs[number]()
        except BaseException as error:
            errors.append(error)

    for number in range(len(jobs) - 1):
        try:
            started.append(start_thread("lockfast-dial", work, number))
        except RuntimeError:  # there is none
            work(number)
    if jobs:
        work(len(jobs) - 1)
    for job in started:
        job.join()
    if errors:
        raise errors[0]
    return results


Subscribe = Callable[[Sequence[int], float], Sequence[BackendUnavailable | None]]  # to these nodes, within that time


Dialled = BlockingNodeConnection | BaseException | None  # None: the server cannot be reached


class ConnectionSet:
    """The transport of one round after another."""

    def __init__(
        self,
        members: Sequence[Member],
        subscribe: Subscribe,
    ) -> None:
        self.connections: list[BlockingNodeConnection | None] = [None] * len(members)
        self.closed = False
        self.used_at = 0.0
        self._members = members
        self._subscribe = subscribe
        self._to_subscribe: list[tuple[Round, int]] = []
        self._poll = select.poll()
        self._by_number: dict[int, BlockingNodeConnection] = {}
        self._polled = 0  # rounds that are left in which no server is read in turn
        self.dialling: dict[int, float | None] = {}  # nodes that are connected to for this set, and since when
        self._dialled: queue.SimpleQueue[tuple[int, Dialled]] = queue.SimpleQueue()  # what became of that

    @property
    def is_empty(self) -> bool:
        """Whether it is new, and no thread connects for it."""
        return not self.dialling and self.connections.count(None) == len(self.connections)

    @property
    def is_majority(self) -> bool:
        """Whether it has connections to a majority of the servers."""
        return 2 * (len(self.connections) - self.connections.count(None)) > len(self.connections)

    def add(self, connection: BlockingNodeConnection) -> None:
        self.connections[connection.node] = self._by_number[connection.number] = connection
        self._poll.register(connection.number, select.POLLIN)

    def dial_begins(self, node: int) -> None:
        """Called by the thread that connects."""
        self.dialling[node] = boot_now()

    def dialled(self, node: int, result: Dialled) -> None:
        """Called by the thread that connects, whether or not another one uses this set, or has closed it."""
        self._dialled.put((node, result))
        if self.closed:
            self._close_unused()

    def add_dialled(self, seconds: float) -> bool:
        """Add a connection that was made for this set, and wait for it for that time. False if there is none.

        Raises what is no fault of the server.
        """
        try:
            node, result = self._dialled.get(timeout=seconds)
        except queue.Empty:
            return False
        self.dialling.pop(node, None)
        if isinstance(result, BaseException):
            raise result
        if result is not None:
            self.add(result)
        return True

    def _take_unused(self) -> list[BlockingNodeConnection]:
        """Those that were made for this set, and not added."""
        unused = []
        with suppress(queue.Empty):
            while True:
                _, result = self._dialled.get_nowait()
                if isinstance(result, BlockingNodeConnection):
                    unused.append(result)
        return unused

    def _close_unused(self) -> None:
        for connection in self._take_unused():
            connection.close()

    def take_out(self, node: int) -> BlockingNodeConnection | None:
        connection, self.connections[node] = self.connections[node], None
        if connection is not None:
            del self._by_number[connection.number]
            self._poll.unregister(connection.number)
        return connection

    def discard(self, node: int, what: str) -> None:
        connection = self.take_out(node)
        if connection is not None:
            self._members[node].failed()
            connection.end(what)

    # The transport of a round

    def send(self, round: Round, node: int, request: bytes, replies: int, now: float) -> None:
        connection = self.connections[node]
        if connection is None:
            round.fail(node, self._not_connected(node))
            return
        connection.unanswered.append((round, replies, [], now))
        try:
            connection.write(request)
        except OSError as error:
            self.discard(node, f"closed the connection: {error}")  # which fails the round there too

    def _not_connected(self, node: int) -> BackendUnavailable:
        member = self._members[node]
        if member.absent or node not in self.dialling:
            return member.out_of_reach()
        return unavailable(member.name, "is still being connected to", sent=False)

    def subscribe(self, round: Round, node: int) -> None:
        if self.connections[node] is None:  # then the request that needs it cannot be sent either
            round.fail(node, self._not_connected(node))
        else:
            self._to_subscribe.append((round, node))

    def _subscribe_to_all(self) -> None:
        """Where a round needs it, at once: servers that hang take their time together."""
        asked, self._to_subscribe = self._to_subscribe, []
        waiting = [(round, node) for round, node in asked if not round.is_over]
        for round, node in asked:
            if round.is_over:  # its own time is up, and another caller's is not for this
                round.fail(node, unavailable(self._members[node].name, "did not answer in time"))
        if not waiting:
            return
        started = boot_now()
        errors = self._subscribe([node for _, node in waiting], waiting[0][0].over_at - started)
        for round in {round for round, _ in waiting}:
            round.late_at += boot_now() - started  # meanwhile no other server was read
        for (round, node), error in zip(waiting, errors, strict=True):
            if error is None:
                round.on_reply(node, None)
            else:
                round.fail(node, error)

    # Replies

    def read_in_turn(self, round: Round) -> None:
        """Read one server after another: half the system calls, as long as all of them answer at once."""
        if self._polled:
            self._polled -= 1
            return
        for connection in self.connections:
            if connection is None or not connection.in_turn or not connection.unanswered or connection.member.failures:
                continue
            if not connection.read():
                self.discard(connection.node, "closed the connection")
            if round.is_enough or not round.pending:
                break
        if boot_now() - round.since > _SOON_S:
            self._polled = _POLLED_ROUNDS

    def read(self, seconds: float) -> None:
        """Read what arrives within that time, or subscribe first."""
        if self._to_subscribe:
            self._subscribe_to_all()
        else:
            self.read_replies(seconds)

    def read_replies(self, seconds: float) -> None:
        for number, _ in self._poll.poll(math.ceil(seconds * 1000)):
            connection = self._by_number.get(number)
            if connection is not None and not connection.read():
                self.discard(connection.node, "closed the connection")

    def give_up_silent(self, now: float, patience: float) -> None:
        for node, connection in enumerate(self.connections):
            if connection is not None and connection.unanswered and connection.unanswered[0][-1] + patience <= now:
                self.discard(node, "did not answer in time")

    def is_due(self, claim: str, node: int) -> bool:
        """Whether a reply for that claim is due there, or may be."""
        connection = self.connections[node]
        return connection is None or any(round.claim == claim for round, *_ in list(connection.unanswered))

    def is_unfinished(self) -> bool:
        """Whether a verb goes on with a reply that is due here."""
        return any(
            round.verbs[connection.node] is not None
            for connection in self.connections
            if connection is not None
            for round, *_ in connection.unanswered
        )

    def close(self) -> None:
        self.closed = True
        for node in range(len(self.connections)):
            connection = self.take_out(node)
            if connection is not None:
                connection.end("was disconnected")
        self._close_unused()

    def abandon(self) -> None:
        """It is the parent's: close only our copies."""
        for connection in (*self.connections, *self._take_unused()):
            if connection is not None:
                connection.socket.close()
