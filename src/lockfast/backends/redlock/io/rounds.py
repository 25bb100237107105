"""One question to all servers of a quorum: which of them have answered, and whether that is enough.

Decides: when a round is over, how a verb that waits for a reply goes on, and what becomes of replies that come later.
Leaves to the transport of either world: what is written and read, and how a round waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from lockfast._time import boot_now
from lockfast.backends.redis.io.resp import unavailable
from lockfast.backends.redlock.io.fanout import (
    PENDING,
    Enough,
    Late,
    Suspended,
    Verb,
    Verbs,
    all_of_them,
    has_answered,
)
from lockfast.backends.redlock.io.members import Member
from lockfast.errors import BackendUnavailable

LINGER_S: Final = 0.01  # after a majority, the others are likely to answer within this time, on a busy machine as well


class Transport(Protocol):
    """Where the requests of a round go."""

    def send(self, pending: PendingReply, request: bytes) -> None:
        """Write it to the server of that node, or fail the round there."""
        ...

    def subscribe(self, round: Round, node: int) -> None:
        """Let the round go on there once wake-ups of that server arrive, or fail it there."""
        ...


class PendingReply:
    """One request of a round whose reply, or several, are still to come on one connection.

    Connections of asyncio treat it as a future.
    """

    __slots__ = ("_collected", "_done", "node", "replies", "round", "since")

    def __init__(self, round: Round, node: int, replies: int, since: float) -> None:
        self.round = round
        self.node = node
        self.replies = replies  # 0: one, and not in a list
        self.since = since
        self._collected: list[Any] = []
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, reply: Any) -> None:
        if self.replies:
            self._collected.append(reply)
            if len(self._collected) < self.replies:
                return
            reply = self._collected
        self._done = True
        self.round.members[self.node].failures = 0
        self.round.on_reply(self.node, reply)

    def set_exception(self, error: BackendUnavailable) -> None:
        """The server failed to answer."""
        self.round.members[self.node].failed()
        self.give_up(error)

    def give_up(self, error: BackendUnavailable) -> None:
        """The request may still be carried out, and its reply is not read any more."""
        if self.round.claim:
            self.round.members[self.node].mark_in_doubt(self.round.claim)
        if not self._done:
            self._done = True
            self.round.fail(self.node, error)


class Round:
    """A verb for each node. A coroutine stops where its request is under way, and goes on with the reply."""

    _transport: Transport

    def __init__(
        self,
        verbs: Verbs,
        enough: Enough,
        members: Sequence[Member],
        claim: str = "",
        settled: Enough | None = None,
        late: Late | None = None,
    ) -> None:
        self.claim = claim
        self.members = members
        self.results: list[Any] = [PENDING] * len(verbs)
        self.pending: dict[int, Any] = {node: verb for node, verb in enumerate(verbs) if verb is not None}
        self.on_change: Callable[[], None] | None = None  # called with each result
        self.since = 0.0
        self.over_at = math.inf  # the round waits no longer than that
        self.late_at = math.inf  # a server that has not answered the last request by then counts as unreachable
        self._node_timeout = math.inf
        self.is_dropped = False
        self.is_enough = False
        self._enough = enough if enough is not all_of_them else None
        self._settled = settled
        self._late = late
        self._is_settled = self.is_over = False

    def start(self, transport: Transport, within: float, node_timeout: float) -> None:
        self._transport = transport
        self.since = since = boot_now()
        self.over_at, self.late_at = since + within, since + node_timeout
        self._node_timeout = node_timeout
        pending = list(self.pending.items())
        if self._enough is not None and len(pending) < len(self.results):  # what is known already may be enough
            self.is_enough = self._enough(self.results)
        for node, verb in pending:
            if verb.__class__ is bytes:
                transport.send(PendingReply(self, node, 0, since), verb)
            else:
                self._step(node, verb.send, None)

    def on_reply(self, node: int, reply: Any) -> None:
        """Let the verb of that node run until it stops again. Does nothing if the verb was dropped."""
        verb = self.pending.get(node)
        if verb.__class__ is bytes:  # quicker than isinstance, as below
            self._end(node, reply)
        elif verb is not None:
            self._step(node, verb.send, reply)

    def fail(self, node: int, error: BackendUnavailable) -> None:
        verb = self.pending.get(node)
        if verb.__class__ is bytes:
            self._end(node, error)
        elif verb is not None:
            self._step(node, verb.throw, error)

    def _step(self, node: int, resume: Callable[[Any], Suspended], value: Any) -> None:
        try:
            suspended = resume(value)
        except StopIteration as stop:
            self._end(node, stop.value)
        except BackendUnavailable as failure:
            self._end(node, failure)
        else:
            if suspended.request:
                now = boot_now()
                self.late_at = now + self._node_timeout  # each request of a verb has so long
                self._transport.send(PendingReply(self, node, suspended.replies, now), suspended.request)
                if self.on_change is not None and self.over_at <= self.late_at:
                    self.on_change()  # the round may end before the request is late
            else:
                self._transport.subscribe(self, node)

    def _end(self, node: int, result: Any) -> None:
        del self.pending[node]
        if self.is_over:
            if self._late is not None:
                self._late(node, result)
            return
        self.results[node] = result
        if not self.is_enough:
            if self._enough is not None:
                self.is_enough = self._enough(self.results)
            if self._settled is not None and not self._is_settled and self._settled(self.results):
                self._is_settled = True
                now = boot_now()
                self.over_at = min(self.over_at, now + max(LINGER_S, now - self.since))
        if self.on_change is not None:
            self.on_change()

    def is_decided(self) -> bool:
        """Enough is known, or all have answered but the servers that a round does not wait for."""
        if self.is_enough or not self.pending:
            return True
        if boot_now() >= self.over_at:
            return True
        for node in self.pending:
            if not self.members[node].failures:
                return False
        return 2 * sum(map(has_answered, self.results)) > len(self.members)

    def close(self) -> list[Any]:
        """The results. The verbs that have none yet are dropped, or go on and are reported to `late`."""
        if self.pending and not self.is_enough and not self._is_settled:
            now = boot_now()
            if now >= self.over_at or now >= self.late_at:
                self._time_out(now >= self.late_at)
        self.is_over = True
        if self.pending and self._late is None:
            self.is_dropped = True
            self.drop()
        return self.results

    def _time_out(self, unreachable: bool) -> None:
        for node, verb in list(self.pending.items()):
            member = self.members[node]
            _close(verb)
            if unreachable:
                member.failed()
            if self.claim:
                member.mark_in_doubt(self.claim)
            self._end(node, unavailable(member.name, "did not answer in time"))

    def drop(self) -> None:
        """Requests that are under way take effect, and nothing goes on with their replies."""
        pending, self.pending = self.pending, {}
        for verb in pending.values():
            _close(verb)


def _close(verb: Verb) -> None:
    if not isinstance(verb, bytes):
        verb.close()
