"""A quorum of independent servers: a claim that holds at a majority of them holds the lock.

Decides: what is given back and what is repaired, when a lease is still held, and what a majority says.
Leaves to `votes`: when votes are a grant. Leaves to the nodes: each step at each server. Leaves to the fan-out: to
ask all at once, and to wait for no more than are needed. `docs/backends/redlock.md` has the argument.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from lockfast._bounded import BoundedDict
from lockfast._model import Capabilities, Claim, Health, LockInfo, Observation, Renewal
from lockfast._time import first_fence
from lockfast.backends.optional import WithoutValues, holders_of
from lockfast.backends.redlock.io.fanout import Enough, Fanout, Verb, Verbs, all_of_them, has_answered, were_sent
from lockfast.backends.redlock.observing import Observations
from lockfast.backends.redlock.quorum import Node, Quorum, ignore
from lockfast.backends.redlock.renewals import QuorumRenewals
from lockfast.backends.redlock.tally import answers, broken_holders, merged
from lockfast.backends.redlock.votes import MAX_HISTORIES, Votes
from lockfast.errors import BackendUnavailable

USUAL_TTL_S: Final = 30.0  # what a lock has by default, for a client that has not asked for any yet


CAPABILITIES: Final = Capabilities(
    drift=0.01, renew_batch=200, shared=False, limits=False, limiter=False, cell=False, wakes_once=False
)


class QuorumBackend(Votes, WithoutValues):
    capabilities = CAPABILITIES
    url = ""  # one that leads to all servers, without secrets, where there is one

    def __init__(
        self,
        nodes: Sequence[Node],
        fanout: Fanout,
        *,
        chance: Callable[[], float],
        micros: Callable[[], int] = first_fence,
        rejoin: float | None = None,
    ) -> None:
        """`rejoin` is how long a server that restarted is excluded; None: the longest ttl that was asked for."""
        super().__init__(Quorum(nodes, fanout, rejoin), chance=chance, micros=micros)
        self._observations = BoundedDict[str, Observations](MAX_HISTORIES)  # by claim that observes
        self._renewals = QuorumRenewals(self._quorum)

    # What is held

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool | None]:
        return await self._renewals.renew(batch, within=within)

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        self._renewals.end(claim)
        until = self._fanout.now() + within
        results: Sequence[Any] = ()
        if not linger and self._is_uncontended(claim):
            request = self._nodes[0].quick_release(claim)

            def late(number: int, result: Any) -> None:
                if result not in (0, 1):
                    self._quorum.clean_up_later(claim, number)

            def settled(results: Sequence[Any]) -> bool:
                return results.count(1) >= self._quorum.majority

            verbs = [request] * len(self._nodes)
            results = await self._fanout.ask(
                verbs, all_of_them, within=within, claim=claim.id, settled=settled, late=late
            )
            freed = results.count(1)
            if freed == len(results) or (freed >= self._quorum.majority and _is_over(claim, self._nodes, results)):
                self._clean_up_where_needed(claim, results)
                self._histories.pop(claim.id, None)
                return True
        return await self._release(claim, results, linger, self._quorum.time_left(until), successor)

    async def _release(self, claim: Claim, first: Sequence[Any], linger: float, within: float, successor: str) -> bool:
        """At the nodes that have not freed it, by what they answered at `first`."""
        freed = [node for node, one in enumerate(first) if one == 1]
        unknown = [node for node, one in enumerate(first) if not has_answered(one)]  # they may have freed it
        granted_by = self._recall(claim).granted_by

        def verb(number: int) -> Verb | None:
            if number in freed:
                return None
            if granted_by is None or number in granted_by:
                return self._nodes[number].release(claim, linger=linger, within=within, successor=successor)
            return _release_or_leave(self._nodes[number], claim, linger, within, successor)

        def yes(results: Sequence[Any]) -> int:
            return len(freed) + sum([one is True for one in results])

        results = await self._to_the_end(claim, verb, lambda results: yes(results) >= self._quorum.majority, within)
        answered = len(freed) + answers(results)
        if answered < self._quorum.majority:
            what = f"lock {claim.terms.name!r} cannot be released"
            raise self._quorum.too_few(results, what, sent=were_sent(first))
        self._histories.pop(claim.id, None)
        maybe = len(results) - answered + sum([results[node] is False for node in unknown])
        return yes(results) + maybe >= self._quorum.majority

    async def abandon(self, claim: Claim, *, within: float) -> None:
        self._renewals.end(claim)
        self._histories.pop(claim.id, None)
        self._observations.pop(claim.id, None)
        try:
            verbs = _at_each(self._nodes, lambda node: node.abandon(claim, within=within))
            results = await self._to_the_end(
                claim, verbs, lambda results: answers(results) >= self._quorum.majority, within
            )
            if answers(results) < self._quorum.majority:
                raise self._quorum.too_few(results, f"lock {claim.terms.name!r} cannot be abandoned")
        finally:
            self._fanout.wakeups.forget(claim)

    async def _to_the_end(self, claim: Claim, verbs: Verbs, settled: Enough, within: float) -> builtins.list[Any]:
        """What ends a claim reaches every server, though the caller does not wait for the slow ones."""

        def late(number: int, result: Any) -> None:
            if result.__class__ is BackendUnavailable:
                self._quorum.clean_up_later(claim, number)

        results = await self._fanout.ask(verbs, all_of_them, within=within, claim=claim.id, settled=settled, late=late)
        self._clean_up_where_needed(claim, results)
        return results

    def _clean_up_where_needed(self, claim: Claim, results: Sequence[Any]) -> None:
        """Where the outcome is not known, or where a request may have been overtaken."""
        for number, node in enumerate(self._nodes):
            if results[number].__class__ is BackendUnavailable or claim.id in node.in_doubt:
                self._quorum.clean_up_later(claim, number)

    # What can be seen

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        observations = self._observations.get(claim.id)
        if observations is None or not after:
            observations = Observations(len(self._nodes), self._micros())
            self._observations[claim.id] = observations
        nodes, known = self._nodes, observations.after
        verbs: Verbs = lambda number: nodes[number].observe(claim, after=known[number], within=within)  # noqa: E731
        results = await self._fanout.ask(verbs, all_of_them, within=within, claim=claim.id, late=ignore)
        if answers(results) < self._quorum.majority:
            raise self._quorum.too_few(results, f"{claim.terms.name!r} cannot be observed")
        return observations.see(results, after)

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        return self._merged(key, await self._question(lambda node: node.inspect(key, within=within), repr(key), within))

    async def inspect_holders(self, key: str, *, within: float) -> LockInfo:
        results = await self._question(lambda node: holders_of(node, key, within=within), repr(key), within)
        return self._merged(key, results)

    async def break_(self, key: str, *, within: float) -> LockInfo:
        """Its holds are ended, and then refused: a holder that learns of it later finds no server to renew them at."""
        until = self._fanout.now() + within
        results = await self._question(lambda node: node.end_holds(key, within=within), repr(key), within)
        before = self._merged(key, [one.info if has_answered(one) else one for one in results])
        for id, seconds in broken_holders(before, results).items():
            left = self._quorum.time_left(until)
            await self._question(_refusal(key, id, seconds, left), repr(key), left)
        return before

    def _merged(self, key: str, results: Sequence[Any]) -> LockInfo:
        return merged(key, results, [node.name for node in self._nodes])

    async def list(self, prefix: str, *, within: float) -> builtins.list[LockInfo]:
        what = f"names with {prefix!r}"  # each request is limited, not all of them
        results = await self._question(lambda node: node.list(prefix, within=within), what, inf)
        found = [{info.name: info for info in one} if has_answered(one) else one for one in results]
        keys = sorted({key for one in found if isinstance(one, dict) for key in one})
        infos = [self._merged(key, [_info(one, key) for one in found]) for key in keys]
        return [info for info in infos if info.holders or info.waiters or info.damage]

    async def check_up(self) -> builtins.list[Health]:
        until = (self._quorum.longest_ttl or USUAL_TTL_S) if self._quorum.rejoin is None else self._quorum.rejoin
        healths = zip(await self._fanout.check_up(), self._nodes, strict=True)
        return [
            health._replace(excluded_for=max(0.0, until - node.age())) if health.reachable else health
            for health, node in healths
        ]

    async def _question(self, verb: Callable[[Node], Verb], what: str, within: float) -> builtins.list[Any]:
        verbs = _at_each(self._nodes, verb)
        results = await self._fanout.ask(verbs, all_of_them, within=within, late=ignore)
        if answers(results) < self._quorum.majority:
            raise self._quorum.too_few(results, f"{what} cannot be asked about")
        return results

    async def close(self) -> None:
        await self._fanout.close()

    def before_fork(self) -> None:
        """Connections are forgotten in the child; the parent goes on using them."""

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._fanout.after_fork()


def _refusal(key: str, id: str, seconds: float, within: float) -> Callable[[Node], Verb]:
    return lambda node: node.refuse(key, id, seconds=seconds, within=within)


def _at_each(nodes: Sequence[Node], verb: Callable[[Node], Verb]) -> Verbs:
    return lambda number: verb(nodes[number])


async def _release_or_leave(node: Node, claim: Claim, linger: float, within: float, successor: str) -> bool:
    """At a node that had not granted it when a majority had: it may since have done so, or have it in its queue."""
    if await node.release(claim, linger=linger, within=within, successor=successor):
        return True
    await node.abandon(claim, within=within)  # the round limits both together
    return False


def _is_over(claim: Claim, nodes: Sequence[Node], results: Sequence[Any]) -> bool:
    """Nothing else has to be sent now: an answer may come late, or the server cannot be reached.

    But where there was nothing to release a vote may be on its way.
    """
    for node, result in zip(nodes, results, strict=True):
        if result == 0:
            if claim.terms.key in node.contended or claim.id in node.in_doubt:
                return False
        elif result != 1 and has_answered(result):
            return False
    return True


def _info(found: Any, key: str) -> Any:
    return found.get(key, LockInfo(key)) if isinstance(found, dict) else found
