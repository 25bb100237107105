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

    def send(self, round: Round, node: int, request: bytes, replies: int, now: float) -> None:
        """Write it to the server of that node, or fail the round there. The round is given the reply, or, if there are
        `replies`, the list of them.
        """
        ...

    def subscribe(self, round: Round, node: int) -> None:
        """Let the round go on there once wake-ups of that server arrive, or fail it there."""
        ...


class Round:
    """A verb for each node. A coroutine stops where its request is under way, and goes on with the reply."""

    on_change: Callable[[], None] | None = None  # called with each result
    since = 0.0
    over_at = math.inf  # the round waits no longer than that
    late_at = math.inf  # a server that has not answered the last request by then counts as unreachable
    is_enough = False
    is_dropped = False
    is_over = False  # no caller waits for it any more
    _transport: Transport
    _node_timeout = math.inf
    _is_settled = False

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
        self.results: list[Any] = [PENDING] * len(members)
        self.verbs: list[Any]  # of each node; None if there is none, or it has ended
        self._make: Callable[[int], Verb | None] | None = None  # what `start` makes them with
        if callable(verbs):
            self._make, self.verbs = verbs, [None] * len(members)
        else:
            self.verbs = list(verbs)
        self.pending = len(self.verbs) - self.verbs.count(None)  # verbs that have not ended
        self._enough = enough if enough is not all_of_them else None
        self._settled = settled
        self._late = late

    def start(self, transport: Transport, within: float, node_timeout: float) -> None:
        self._transport = transport
        self.since = since = boot_now()
        self.over_at, self.late_at = since + within, since + node_timeout
        self._node_timeout = node_timeout
        if self._make is not None:
            self._make_verbs(self._make)
        if self._enough is not None and self.pending < len(self.verbs):  # what is known already may be enough
            self.is_enough = self._enough(self.results)
        for node, verb in enumerate(self.verbs):
            if verb.__class__ is bytes:  # quicker than isinstance, as below
                transport.send(self, node, verb, 0, since)
            elif verb is not None:
                self._step(node, verb.send, None)

    def _make_verbs(self, make: Callable[[int], Verb | None]) -> None:
        for node in range(len(self.verbs)):
            self.verbs[node] = make(node)  # no interrupt comes between the two
        self.pending = len(self.verbs) - self.verbs.count(None)

    def on_reply(self, node: int, reply: Any) -> None:
        """Let the verb of that node run until it stops again. Does nothing if the verb was dropped."""
        verb = self.verbs[node]
        if verb.__class__ is bytes:
            self._end(node, reply)
        elif verb is not None:
            self._step(node, verb.send, reply)

    def fail(self, node: int, error: BackendUnavailable) -> None:
        verb = self.verbs[node]
        if verb.__class__ is bytes:
            self._end(node, error)
        elif verb is not None:
            self._step(node, verb.throw, error)

    def give_up(self, node: int, error: BackendUnavailable) -> None:
        """The last request there may still be carried out, and its reply is not read any more."""
        if self.claim:
            self.members[node].mark_in_doubt(self.claim)
        self.fail(node, error)

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
                self.late_at = now + self._node_timeout  # each request of a verb has that time
                self._transport.send(self, node, suspended.request, suspended.replies, now)
                if self.on_change is not None and self.over_at <= self.late_at:
                    self.on_change()  # the round may end before the request is late
            else:
                self._transport.subscribe(self, node)

    def _end(self, node: int, result: Any) -> None:
        self.verbs[node] = None
        self.pending -= 1
        if self.is_over:
            if self._late is not None:
                self._late(node, result)
            return
        self.results[node] = result
        if self._enough is not None and not self.is_enough:
            self.is_enough = self._enough(self.results)
        if self.on_change is not None:
            self.on_change()

    def is_decided(self) -> bool:
        """Enough is known, or all have answered but the servers that a round does not wait for."""
        if self.is_enough or not self.pending:
            return True
        now = boot_now()
        self._check_settled(now)
        if now >= self.over_at:
            return True
        for node, verb in enumerate(self.verbs):
            if verb is not None and not self.members[node].failures:
                return False
        return 2 * sum(map(has_answered, self.results)) > len(self.members)

    def _check_settled(self, now: float) -> bool:
        """Whether the outcome is known. From when that is first seen, the other nodes have a moment."""
        if self._settled is not None and not self._is_settled and self._settled(self.results):
            self._is_settled = True
            self.over_at = min(self.over_at, now + max(LINGER_S, now - self.since))
        return self._is_settled

    def close(self) -> list[Any]:
        """The results. The verbs that have none yet are dropped, or go on and are reported to `late`."""
        if self.pending and not self.is_enough:
            now = boot_now()
            if not self._check_settled(now) and (now >= self.over_at or now >= self.late_at):
                self._time_out(now >= self.late_at)
        self.is_over = True
        if self.pending and self._late is None:
            self.is_dropped = True
            self.drop()
        return self.results

    def _time_out(self, unreachable: bool) -> None:
        for node, verb in enumerate(self.verbs):
            if verb is None:
                continue
            member = self.members[node]
            _close(verb)
            if unreachable:
                member.failed()
            if self.claim:
                member.mark_in_doubt(self.claim)
            self._end(node, unavailable(member.name, "did not answer in time"))

    def drop(self) -> None:
        """Requests that are under way take effect, and nothing goes on with their replies."""
        for node, verb in enumerate(self.verbs):
            if verb is not None:
                self.verbs[node] = None
                _close(verb)
        self.pending = 0


def _close(verb: Verb) -> None:
    if verb.__class__ is not bytes:
        verb.close()  # type: ignore[union-attr]
