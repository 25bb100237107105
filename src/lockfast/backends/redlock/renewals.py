"""Renewals at a majority, and votes that servers lost.

Decides: when a lease is still held, and which server is asked for a vote again.
Leaves to `tally`: what the servers' answers mean together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from lockfast._bounded import BoundedSet
from lockfast._model import Claim, Grant, Renewal
from lockfast.backends.redlock.io.fanout import Verb, all_of_them, has_answered
from lockfast.backends.redlock.quorum import Quorum, ignore
from lockfast.backends.redlock.tally import answers, by_lease, kept
from lockfast.errors import BackendUnavailable

MAX_ENDED: Final = 10_000
MAX_LATE_REPAIRS: Final = 100  # votes that one late answer shows to be missing, and that are asked for at once
REPAIR_S: Final = 0.1  # for which a renewal asks servers again for the votes that they lost: its caller waits


class QuorumRenewals:
    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._nodes, self._fanout = quorum.nodes, quorum.fanout
        self._ended: BoundedSet[str] = BoundedSet(MAX_ENDED)  # claims that were released or abandoned

    def end(self, claim: Claim) -> None:
        """The claim is not held any more, whatever a renewal does that is under way or about to begin."""
        self._ended.add(claim.id)

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> list[bool | None]:
        longest = max(renewal.ttl for renewal in batch)  # `extend` may ask for more than the grant had
        self._quorum.longest_ttl = max(self._quorum.longest_ttl, longest)
        asked_at = self._fanout.now()
        until = asked_at + within
        known: Sequence[Any] = ()

        def settled(results: Sequence[Any]) -> bool:
            nonlocal known
            known = results  # later answers do not change it
            return None not in self._kept(results, len(batch))

        def late(number: int, answer: Any) -> None:
            if has_answered(answer):
                self._repair_later(number, self._missing_at(batch, known, answer), asked_at)

        def verb(number: int) -> Verb:
            return self._nodes[number].renew(batch, within=within)

        results = await self._fanout.ask(verb, all_of_them, within=within, settled=settled, late=late)
        votes = by_lease(results, len(batch))
        lost = self._to_regain(batch, votes)
        if lost:
            regained = await self._repair(lost, self._quorum.time_left(until))
            for renewal, each in zip(batch, votes, strict=True):
                for number in lost:
                    if has_answered(regained[number]) and renewal.claim.id in regained[number]:
                        each[number] = True
        verdicts = [kept(each, len(self._nodes)) for each in votes]
        if verdicts.count(None) == len(verdicts):
            raise self._unknown(batch, results)
        return verdicts

    def _to_regain(self, batch: Sequence[Renewal], votes: Sequence[Sequence[bool | None]]) -> dict[int, list[Renewal]]:
        """By node: leases that a majority still has, or may have, and this node does not.

        Their holder is in time, so no other claim can hold a majority: a vote that was missing may take the place of
        one that cannot be reached. Not the vote of a server that restarted: it may have forgotten a break.
        """
        lost: dict[int, list[Renewal]] = {}
        for renewal, each in zip(batch, votes, strict=True):
            if False in each and True in each and (verdict := kept(each, len(self._nodes))) is not False:
                for number, node in enumerate(self._nodes):
                    if each[number] is False and (verdict or self._quorum.counts(node, renewal.claim)):
                        lost.setdefault(number, []).append(renewal)
        return lost

    def _missing_at(self, batch: Sequence[Renewal], results: Sequence[Any], answer: Sequence[Any]) -> list[Renewal]:
        """The leases that a majority has, by these results, and the server of this answer has not."""
        votes = by_lease(results, len(batch))
        of_all = zip(batch, votes, answer, strict=True)
        return [
            renewal for renewal, each, here in of_all if here is False and each.count(True) >= self._quorum.majority
        ]

    def _repair_later(self, number: int, lost: Sequence[Renewal], asked_at: float) -> None:
        """In the background, while the holder is certainly in time."""
        for claim, ttl, fence in lost[:MAX_LATE_REPAIRS]:
            again = Claim(claim.id, claim.terms._replace(ttl=ttl))
            verb = partial(self._vote_again_for, number, again, fence, 1.0)
            self._fanout.retry_later(number, claim.id, verb, asked_at + ttl / 2)

    def _kept(self, results: Sequence[Any], leases: int) -> list[bool | None]:
        return [kept(votes, len(self._nodes)) for votes in by_lease(results, leases)]

    def _unknown(self, batch: Sequence[Renewal], results: Sequence[Any]) -> BackendUnavailable:
        """Of none of these leases a majority says that it is kept, or that it is not."""
        what = "leases cannot be renewed" if len(batch) > 1 else f"lock {batch[0].claim.terms.name!r} cannot be renewed"
        if answers(results) < self._quorum.majority:
            return self._quorum.too_few(results, what)
        without = [
            node.name for node, one in zip(self._nodes, results, strict=True) if has_answered(one) and True not in one
        ]
        return self._quorum.too_few(results, what, [f"{name} does not have it" for name in without], do="have it")

    async def _repair(self, lost: dict[int, list[Renewal]], within: float) -> list[Any]:
        """A node lost holds, or never had them: it takes them again where it is free. By node: the claims it took."""
        until = self._fanout.now() + REPAIR_S

        def verb(number: int) -> Verb | None:
            return self._vote_again(number, lost[number], until, within) if number in lost else None

        def enough(results: Sequence[Any]) -> bool:
            return answers(results) >= len(lost)

        return await self._fanout.ask(verb, enough, within=within, late=ignore)

    async def _vote_again(self, number: int, lost: Sequence[Renewal], until: float, within: float) -> set[str]:
        """As often as there is time for; the rest comes with the next renewal."""
        regained = set()
        for place, (claim, ttl, fence) in enumerate(lost):
            if place and self._fanout.now() >= until:
                break
            if await self._vote_again_for(number, Claim(claim.id, claim.terms._replace(ttl=ttl)), fence, within):
                regained.add(claim.id)
        return regained

    async def _vote_again_for(self, number: int, claim: Claim, fence: int, within: float) -> bool:
        """Whether the node has it now, with that fence."""
        node = self._nodes[number]
        if claim.id in self._ended:
            return False
        try:
            answer = await node.vote(claim, fence=fence, order=fence, enqueue=False, within=within)
        except BaseException:
            node.mark_in_doubt(claim.id)  # it may still arrive, after the release
            if claim.id in self._ended:  # which did not know that
                self._quorum.clean_up_later(claim, number)
            raise
        has_it = isinstance(answer, Grant)
        if isinstance(answer, Grant) and answer.fence != fence:
            has_it = await node.record_fence(claim, fence=fence, instead_of=answer.fence, within=within)
        if claim.id in self._ended:
            await node.abandon(claim, within=within)
            return False
        return has_it
