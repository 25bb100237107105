"""Bugs of a quorum for its simulation to find, by the same seeds and checks that the real one passes.

Bugs that take more than a few hundred seeds to show stand step by step in `test_quorum_votes` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast._model import Busy, Claim, Grant
from lockfast.backends.redlock.backend import QuorumBackend
from tests.simulation.quorum_nodes import SimulatedNode, VotingBackend
from tests.simulation.quorum_runs import LONGEST_TTL_S, Climate, Parts


class TakesAMinority(QuorumBackend):
    """Half of the servers are not a majority."""

    def __init__(self, nodes: Sequence[Any], *others: Any, **options: Any) -> None:
        super().__init__(nodes, *others, **options)
        self._quorum.majority = len(nodes) // 2


class ExcludesForTheTtlOfTheAskingClaim(QuorumBackend):
    """Ours, found by seeds. What a server forgot may have been granted for longer than what it is asked for now."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._quorum.excluded_for = lambda claim: claim.terms.ttl  # type: ignore[method-assign]


class ForgetsToCount(VotingBackend):
    """A server that gives out what is proposed, even if it gave out more before."""

    async def vote(self, claim: Claim, *, fence: int, order: int, enqueue: bool, within: float) -> Grant | Busy:
        self._store.fence = fence - 1
        return await super().vote(claim, fence=fence, order=order, enqueue=enqueue, within=within)


class BelievesTheClockOfAServer(SimulatedNode):
    """Ours. A server that restarted is as old as it says, by a clock that may be stepped."""

    def age(self) -> float:
        return self.network.uptime


PLANTED_QUORUM: dict[str, tuple[Parts, Climate, str]] = {
    "a minority is enough": (Parts(TakesAMinority), Climate(), "held together"),
    "excluded for the ttl of the claim that asks": (
        Parts(ExcludesForTheTtlOfTheAskingClaim),
        Climate(forgets=True, at_once=True),
        "held together",
    ),
    "the clock of a server that restarted is believed": (
        Parts(node=BelievesTheClockOfAServer),
        Climate(forgets=True, at_once=True, rejoin=LONGEST_TTL_S, stepped=3600.0),
        "held together",
    ),
    "a server that does not count": (Parts(server=ForgetsToCount), Climate(), "fence went back"),
}
