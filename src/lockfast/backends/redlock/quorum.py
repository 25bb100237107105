"""The servers of a quorum together: how many are needed, whose votes count, and what is wrong if too few answer.

Decides: for how long a server that restarted is excluded, and what an error says when there is no majority.
Leaves to `votes`, `renewals` and `backend`: what is asked.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final, Protocol

from lockfast._model import Busy, Claim, Grant, LockInfo, Observation, Renewal
from lockfast._time import format_duration
from lockfast.backends.redlock.io.fanout import PENDING, Fanout, were_sent
from lockfast.backends.redlock.tally import BrokenHolds, Tally, answers
from lockfast.errors import BackendUnavailable

MIN_ROUND_S: Final = 0.01  # what a round has at least, if there is no time left

_WHY_EXCLUDED: Final = (
    "a server that started less than a ttl ago may have forgotten a lease that is still held. If the servers are new, "
    "connect with rejoin=0 (in a URL: ?rejoin=0): they count at once then, and one that loses its data can let a "
    "second holder in"
)


class Node(Protocol):
    """One server: what a quorum asks of it beyond the verbs is to vote."""

    @property
    def name(self) -> str: ...
    def age(self) -> float: ...
    @property
    def contended(self) -> Container[str]:
        """Keys for which the quick scripts are not enough, as far as is known."""
        ...

    @property
    def in_doubt(self) -> Container[str]:
        """Claims of which a request may still arrive, after the next one."""
        ...

    def mark_in_doubt(self, id: str) -> None: ...
    def quick_vote(self, claim: Claim, fence: int) -> bytes: ...
    def quick_release(self, claim: Claim) -> bytes: ...
    @property
    def load_quick_vote(self) -> bytes: ...
    async def vote(self, claim: Claim, *, fence: int, order: int, enqueue: bool, within: float) -> Grant | Busy: ...
    async def record_fence(self, claim: Claim, *, fence: int, instead_of: int, within: float) -> bool: ...
    async def give_back(self, claim: Claim, *, up_to: int, order: int, enqueue: bool, within: float) -> None: ...
    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]: ...
    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool: ...
    async def abandon(self, claim: Claim, *, within: float) -> None: ...
    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation: ...
    async def inspect(self, key: str, *, within: float) -> LockInfo: ...
    async def list(self, prefix: str, *, within: float) -> list[LockInfo]: ...
    async def end_holds(self, key: str, *, within: float) -> BrokenHolds: ...
    async def refuse(self, key: str, id: str, *, seconds: float, within: float) -> None: ...


class Quorum:
    def __init__(self, nodes: Sequence[Node], fanout: Fanout, rejoin: float | None) -> None:
        self.nodes = tuple(nodes)
        self.fanout = fanout
        self.rejoin = rejoin
        self.majority = len(nodes) // 2 + 1
        self.longest_ttl = 0.0  # that was asked for, by an extend too: what a server may have forgotten ends by then

    def time_left(self, until: float) -> float:
        return max(MIN_ROUND_S, until - self.fanout.now())

    def counts(self, node: Node, claim: Claim) -> bool:
        excluded = self.excluded_for(claim)
        return excluded <= 0 or node.age() >= excluded

    def excluded_for(self, claim: Claim) -> float:
        """Seconds for which a server that restarted does not count."""
        self.longest_ttl = max(self.longest_ttl, claim.terms.ttl)
        return self.longest_ttl if self.rejoin is None else self.rejoin

    def clean_up_later(self, claim: Claim, number: int) -> None:
        """An unreachable server forgets the claim as soon as it can be reached, if that is before the claim expires."""
        node, until = self.nodes[number], self.fanout.now() + claim.terms.ttl
        self.fanout.retry_later(number, claim.id, lambda: node.abandon(claim, within=1.0), until)

    def no_majority(self, claim: Claim, results: Sequence[Any], votes: Tally, *, sent: bool) -> BackendUnavailable:
        """The error for a claim; `sent`: a request for it may have reached a server, in this round or before."""
        until, name = self.excluded_for(claim), claim.terms.name
        left = {node: max(0.0, until - self.nodes[node].age()) for node in votes.granted}
        young = [_young(self.nodes[node], left[node]) for node in votes.granted if node not in votes.counted]
        if not young:
            return self.too_few(results, f"lock {name!r} cannot be asked for", sent=sent)
        if len(left) < self.majority or answers(results) < len(results):  # others may be back before these count
            return self.too_few(results, f"lock {name!r} cannot be asked for", [*young, _WHY_EXCLUDED], sent=sent)
        soonest = sorted(left.values())[self.majority - 1]
        return BackendUnavailable(
            f"lock {name!r} cannot be granted for another {format_duration(soonest)}: "
            f"{'; '.join(young)}; {_WHY_EXCLUDED}",
            name=name,
            retry_after=soonest,
        )

    def too_few(
        self, results: Sequence[Any], what: str, also: Sequence[str] = (), do: str = "answer", *, sent: bool = False
    ) -> BackendUnavailable:
        """The error for `what` cannot be done, because fewer servers than a majority `do` what is needed.

        `sent`: a request for it may have reached a server before these results.
        """
        errors = [answer for answer in results if answer.__class__ is BackendUnavailable]
        silent = [f"{self.nodes[node].name} is not waited for" for node, one in enumerate(results) if one is PENDING]
        reasons = "; ".join([*map(str, errors), *silent, *also])
        final = len(errors) > len(self.nodes) - self.majority and not any(error.transient for error in errors)
        return BackendUnavailable(
            f"{what}: fewer than {self.majority} of the {len(self.nodes)} lock servers {do} ({reasons})",
            transient=not final,
            sent=sent or were_sent(results),
        )

    def __repr__(self) -> str:
        return f"redlock of {', '.join(sorted(node.name for node in self.nodes))}"


def _young(node: Node, left: float) -> str:
    return f"{node.name} has just started and is excluded for another {format_duration(left)}"


def ignore(node: int, result: Any) -> None:
    """The verb only has to run to its end."""
