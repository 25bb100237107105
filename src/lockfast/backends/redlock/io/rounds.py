"""One question to all servers of a quorum: who has answered, and whether that is enough.

Decides: when a round is over, and how a verb that stopped goes on.
Leaves to the drivers: what is written and read. They tell both kinds of rounds what came back by `answer` and `fail`,
of what is waited for no longer by `hear`, and ask whether that is enough by `decided`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from lockfast._time import boot_now
from lockfast.backends.redis.io.resp import as_sent
from lockfast.backends.redlock.io.fanout import PENDING, Enough, Suspended, Verbs, has_answered
from lockfast.backends.redlock.io.members import Member
from lockfast.errors import BackendUnavailable

LINGER: Final = 0.01  # seconds after a majority in which the others are likely to answer too, on a busy machine as well


def is_left_to_absent(results: Sequence[Any], members: Sequence[Member]) -> bool:
    """A majority has answered, and all who have not are known to be gone."""
    for answer, member in zip(results, members, strict=True):
        if answer is PENDING and not member.failures:
            return False
    return 2 * sum(map(has_answered, results)) > len(results)


def a_moment_after(since: float) -> float:
    """When those are given up who have not answered a question of that moment, though a majority has by now."""
    now = boot_now()
    return now + max(LINGER, now - since)


class Broadcast:
    """One and the same request to all, with nobody behind it who would go on: what comes back is what they said."""

    __slots__ = (
        "_every",
        "_members",
        "_needed",
        "_spare",
        "claim",
        "left",
        "over_at",
        "results",
        "sent",
        "since",
        "told",
        "wanted",
    )

    replies = 0  # one, and not in a list
    answers: list[Any] = []  # noqa: RUF012 (so nothing is collected)

    def __init__(self, wanted: bytes | int, members: Sequence[Member], claim: str, every: bool) -> None:
        self.claim = claim
        self.results: list[Any] = [PENDING] * len(members)
        self.left = len(members)  # whose answers are waited for; 0 when it is over
        self.since = boot_now()
        self.over_at = math.inf  # nobody is waited for after that
        self.told: Callable[[], None] | None = None  # called with each answer
        self.wanted = wanted
        self.sent = as_sent(wanted)  # what a server writes that gives the answer that is wanted, and no other
        self._members = members
        self._needed = len(members) // 2 + 1  # answers that are wanted, and not there yet
        self._spare = len(members) - self._needed  # others that there may be
        self._every = every

    def answer(self, node: int, reply: Any) -> bool:
        """Whether nobody else is waited for."""
        if not self.left or self.results[node] is not PENDING:
            return self.is_over()
        self.results[node] = reply
        self.left -= 1
        if reply == self.wanted:
            self._needed -= 1
            if self._every and not self._needed:
                self.over_at = a_moment_after(self.since)
        else:
            self._spare -= 1
        if self.told is not None:
            self.told()
        return self.is_over()

    fail = hear = answer

    def is_over(self) -> bool:
        """Whether nobody else is waited for, whoever is there or gone."""
        return not self.left or (not self._every and (self._needed <= 0 or self._spare < 0))

    def decided(self) -> bool:
        return self.is_over() or is_left_to_absent(self.results, self._members) or boot_now() >= self.over_at

    def waits_for(self) -> list[int]:
        return [node for node, answer in enumerate(self.results) if answer is PENDING] if self.left else []

    def drop(self) -> None:
        self.left = 0


class Round:
    """A verb for each node, which stops where its request is under way and goes on with the answer."""

    def __init__(
        self,
        verbs: Verbs,
        enough: Enough,
        members: Sequence[Member],
        node_timeout: float,
        claim: str,
        settled: Enough | None = None,
    ) -> None:
        self.claim = claim
        self.node_timeout = node_timeout
        self.results: list[Any] = [PENDING] * len(verbs)
        self.pending = {node: ask for node, ask in enumerate(verbs) if ask is not None}
        self.begin: Callable[[Round, int, Suspended], None] = lambda round, node, suspended: None
        self.told: Callable[[], None] | None = None  # called with each answer
        self.since = boot_now()
        self.over_at = math.inf  # nobody is waited for after that
        self._enough = enough
        self._settled = settled
        self._members = members
        self._is_enough = False

    def start(self) -> None:
        self._is_enough = self._enough(self.results)  # what is known already may be
        for node in list(self.pending):
            self.answer(node, None)

    def answer(self, node: int, reply: Any) -> None:
        """Let the verb of that node run until it stops again. Does nothing if it was dropped."""
        ask = self.pending.get(node)
        if ask is not None:
            self._go_on(node, lambda: ask.send(reply))

    def fail(self, node: int, error: BackendUnavailable) -> None:
        ask = self.pending.get(node)
        if ask is not None:
            self._go_on(node, lambda: ask.throw(error))

    def _go_on(self, node: int, step: Callable[[], Suspended]) -> None:
        try:
            suspended = step()
        except StopIteration as stop:
            self.hear(node, stop.value)
        except BackendUnavailable as failure:
            self.hear(node, failure)
        else:
            self.begin(self, node, suspended)

    def hear(self, node: int, answer: Any) -> None:
        ask = self.pending.pop(node, None)
        if ask is None:
            return
        ask.close()
        self.results[node] = answer
        if not self._is_enough:
            self._is_enough = self._enough(self.results)
        if self._settled is not None and self.over_at == math.inf and self._settled(self.results):
            self.over_at = a_moment_after(self.since)
        if self.told is not None:
            self.told()

    def decided(self) -> bool:
        """Enough is known, or all have answered but those that nobody waits for."""
        if self._is_enough or not self.pending or boot_now() >= self.over_at:
            return True
        if any(not self._members[node].absent for node in self.pending):
            return False
        return 2 * sum(map(has_answered, self.results)) > len(self._members)

    def waits_for(self) -> list[int]:
        return list(self.pending)

    def drop(self) -> None:
        """Nobody waits for the rest."""
        pending, self.pending = self.pending, {}
        for ask in pending.values():
            ask.close()


class PendingReply:
    """One request of a round whose answer, or several, is to come on one connection."""

    __slots__ = ("_round", "answers", "claim", "replies", "since")

    def __init__(self, round: Round, replies: int) -> None:
        self._round = round
        self.claim = round.claim
        self.replies = replies
        self.answers: list[Any] = []
        self.since = boot_now()

    def answer(self, node: int, reply: Any) -> None:
        self._round.answer(node, reply)

    def fail(self, node: int, error: BackendUnavailable) -> None:
        self._round.fail(node, error)
