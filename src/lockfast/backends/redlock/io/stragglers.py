"""What a client of a quorum leaves behind: requests that a server could not be sent, replies that are still to come.

Decides: what a server is sent once it can be reached, in both worlds. For threads, also when an unreachable server is
connected to again: a thread of its own does it, as long as there is something to do, so that an unreachable server
costs its callers their time but once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from lockfast._bounded import BoundedDict
from lockfast._reentry import outside, start_thread
from lockfast._time import boot_now
from lockfast.backends.redlock.io.connections import BlockingNodeConnection, ConnectionSet
from lockfast.backends.redlock.io.fanout import Verb, all_of_them
from lockfast.backends.redlock.io.idle import IdleSets
from lockfast.backends.redlock.io.members import Member
from lockfast.backends.redlock.io.rounds import Round, Transport
from lockfast.errors import BackendUnavailable

MAX_CLEAN_UPS: Final = 1000  # that are kept for each server
_IDLE_S: Final = 60.0  # without a question, after which no unreachable server is connected to
_INTERVAL_S: Final = 0.02


def _none() -> BoundedDict[str, tuple[Callable[[], Verb], float]]:
    return BoundedDict(MAX_CLEAN_UPS)


class CleanUps:
    """What each server could not be sent, by claim. Used by any thread."""

    def __init__(self, members: Sequence[Member], added: Callable[[int], None]) -> None:
        self._members = members
        self._added = added  # called with the node
        self._mutex = threading.Lock()
        self._by_node = [_none() for _ in members]

    def add(self, node: int, claim: str, verb: Callable[[], Verb], until: float) -> None:
        with self._mutex:
            self._by_node[node][claim] = verb, until
        self._added(node)

    def wait_for(self, node: int) -> bool:
        """Whether there are any that are not too late."""
        with self._mutex:
            now, left = boot_now(), self._by_node[node]
            for claim in [claim for claim, one in left.items() if one[1] <= now]:
                del left[claim]
            return bool(left)

    def start(self, node: int, transport: Transport, node_timeout: float) -> list[Round]:
        """Send all of them at once. Those that fail are kept for the next time."""
        with self._mutex:
            left, self._by_node[node] = self._by_node[node], _none()
        rounds = []
        for claim, (verb, until) in left.items():
            verbs = [verb() if each == node else None for each in range(len(self._members))]
            round = Round(verbs, all_of_them, self._members, late=partial(self._ended, claim, verb, until))
            rounds.append(round)
            round.close()  # no caller waits for it
            round.start(transport, node_timeout, node_timeout)
        return rounds

    def _ended(self, claim: str, verb: Callable[[], Verb], until: float, node: int, result: Any) -> None:
        if isinstance(result, BackendUnavailable) and result.transient:
            self.add(node, claim, verb, until)


class Stragglers:
    """The thread behind the connection sets of a `Locks`."""

    def __init__(
        self,
        members: Sequence[Member],
        patience: float,
        new_set: Callable[[], ConnectionSet],
        idle: IdleSets,
    ) -> None:
        self.patience = patience  # seconds that a server may take to connect, or to answer what no caller waits for
        self.asked_at = 0.0  # when this client last asked for anything
        self._members = members
        self._new_set = new_set
        self._idle = idle  # the sets that no thread uses
        self._clean_ups = CleanUps(members, lambda node: self.start())
        self.retry_later = self._clean_ups.add
        self._mutex = threading.Lock()
        self._worker: object = None  # there is one while a thread does this
        self._spare: list[list[BlockingNodeConnection]] = [[] for _ in members]  # one at most, for each server
        self._unfinished: list[ConnectionSet] = []  # verbs go on with the replies that are due there
        self._closed = False

    def take_spare(self, node: int) -> BlockingNodeConnection | None:
        with suppress(IndexError):
            return self._spare[node].pop()
        return None

    def watch(self, connections: ConnectionSet) -> None:
        """Read the replies that are still to come there, while no other thread uses it."""
        if connections not in self._unfinished:
            self._unfinished.append(connections)
        self.start()

    def start(self) -> None:
        with self._mutex:
            if self._worker is not None or self._closed:
                return
            worker = self._worker = object()
            try:
                start_thread("lockfast-nodes", self._work, worker)
            except BaseException as error:
                self._worker = None  # should the thread run all the same, it finds that it is not wanted
                if not isinstance(error, RuntimeError):  # the system has no thread left; tried again
                    raise

    def _work(self, worker: object) -> None:
        with self._mutex:
            if self._worker is not worker:
                return
        try:
            while not self._is_done():
                for connections in list(self._unfinished):
                    self._read(connections)
                for node, member in enumerate(self._members):
                    if (member.absent or self._clean_ups.wait_for(node)) and member.is_due():
                        self._reach(node, member)
                with outside():
                    time.sleep(_INTERVAL_S)
        except BaseException:
            self._worker = None  # the next caller that needs it starts another
            raise

    def _is_done(self) -> bool:
        with self._mutex:
            is_idle = boot_now() - self.asked_at > _IDLE_S
            nodes = range(len(self._members))
            missing = any(self._members[node].absent or self._clean_ups.wait_for(node) for node in nodes)
            if not self._closed and (self._unfinished or (missing and not is_idle)):
                return False
            self._worker = None
            return True

    def _read(self, connections: ConnectionSet) -> None:
        if not self._idle.take_this(connections):  # another thread uses it, and reads; or it is closed
            if connections.closed:
                self._unfinished.remove(connections)
            return
        connections.read(0.0)
        connections.give_up_silent(boot_now(), self.patience)
        if not connections.is_unfinished():
            self._unfinished.remove(connections)
        self._idle.put(connections)
        if self._closed:  # meanwhile
            connections.close()

    def _reach(self, node: int, member: Member) -> None:
        spare = self.take_spare(node)
        if spare is not None and member.absent:  # made before the server failed: it proves nothing
            spare.close()
            spare = None
        try:
            reached = spare or BlockingNodeConnection(node, member, self.patience)
        except BackendUnavailable:
            member.failed()
            return
        except Exception:
            member.failed()
            raise
        member.answered(boot_now())
        connections = self._new_set()
        connections.add(reached)
        until = boot_now() + self.patience
        rounds = self._clean_ups.start(node, connections, self.patience)
        while any(round.pending for round in rounds) and boot_now() < until:
            connections.read(until - boot_now())
        if any(round.pending for round in rounds) or self._closed or self._spare[node]:
            connections.close()  # which fails what is left, so it is kept for the next time
        elif (connection := connections.take_out(node)) is not None:
            self._spare[node].append(connection)

    def close(self) -> None:
        self._closed = True
        for node in range(len(self._members)):
            if (spare := self.take_spare(node)) is not None:
                spare.close()

    def abandon(self) -> None:
        """Of a parent: close only our copies."""
        for spare in self._spare:
            for connection in spare:
                connection.socket.close()
