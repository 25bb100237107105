"""One question to all servers of a quorum: who has answered, and whether that is enough.

Decides: when a round is over, and how a verb that stopped goes on.
Leaves to the drivers: what is written and read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast._time import boot_now
from holdfast.drivers.redis_quorum import PENDING, Ask, Enough, Member, Turn, has_answered
from holdfast.errors import BackendUnavailable


class Round:
    def __init__(
        self, asks: Sequence[Ask | None], enough: Enough, members: Sequence[Member], node_timeout: float, claim: str
    ) -> None:
        self.claim = claim
        self.node_timeout = node_timeout
        self.heard: list[Any] = [PENDING] * len(asks)
        self.pending = {node: ask for node, ask in enumerate(asks) if ask is not None}
        self.begin: Callable[[Round, int, Turn], None] = lambda round, node, turn: None
        self.told: Callable[[], None] | None = None  # called with each answer
        self.started = boot_now()
        self._enough = enough
        self._members = members
        self._is_enough = False
        self.needed = len(members) // 2 + 1

    def start(self) -> None:
        for node in list(self.pending):
            self.go_on(node, None)

    def go_on(self, node: int, answer: Any, error: BackendUnavailable | None = None) -> None:
        """Let the verb of that node run until it stops again. Does nothing if it was dropped."""
        ask = self.pending.get(node)
        if ask is None:
            return
        try:
            turn = ask.send(answer) if error is None else ask.throw(error)
        except StopIteration as stop:
            self.hear(node, stop.value)
        except BackendUnavailable as failure:
            self.hear(node, failure)
        else:
            self.begin(self, node, turn)

    def hear(self, node: int, answer: Any) -> None:
        ask = self.pending.pop(node, None)
        if ask is None:
            return
        ask.close()
        self.heard[node] = answer
        if not self._is_enough:
            self._is_enough = self._enough(self.heard)
        if self.told is not None:
            self.told()

    def decided(self) -> bool:
        """Enough is known, or all have answered but those that nobody waits for."""
        if self._is_enough or not self.pending:
            return True
        for node in self.pending:
            if not self._members[node].absent:
                return False
        return sum(1 for one in self.heard if has_answered(one)) >= self.needed

    def drop(self) -> None:
        """Nobody waits for the rest."""
        pending, self.pending = self.pending, {}
        for ask in pending.values():
            ask.close()


class Shout(Round):
    """One and the same request to all, with nobody behind it who would go on: what comes back is what they said."""

    def __init__(self, turn: Turn, enough: Enough, members: Sequence[Member], node_timeout: float, claim: str) -> None:
        super().__init__((), enough, members, node_timeout, claim)
        self._turn = turn
        self.heard = [PENDING] * len(members)
        self.pending = dict.fromkeys(range(len(members)))  # type: ignore[assignment]

    def start(self) -> None:
        for node in list(self.pending):
            self.begin(self, node, self._turn)

    def go_on(self, node: int, answer: Any, error: BackendUnavailable | None = None) -> None:
        if node in self.pending:
            self.hear(node, answer if error is None else error)

    def hear(self, node: int, answer: Any) -> None:
        if node not in self.pending:
            return
        del self.pending[node]
        self.heard[node] = answer
        if not self._is_enough:
            self._is_enough = self._enough(self.heard)
        if self.told is not None:
            self.told()

    def drop(self) -> None:
        self.pending = {}


def round_of(
    asks: Sequence[Ask | None] | Turn, enough: Enough, members: Sequence[Member], node_timeout: float, claim: str
) -> Round:
    kind: Any = Shout if asks.__class__ is Turn else Round
    made: Round = kind(asks, enough, members, node_timeout, claim)
    return made
