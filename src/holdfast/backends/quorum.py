"""A quorum of independent servers: whoever holds at a majority of them, holds.

Decides: when votes are a grant, which fence it has, what is given back, and what is repaired.
Leaves to the nodes: each step at each server. Leaves to the crew: asking all at once, and waiting for no more than are
needed. Leaves to `quorum_tally`: what answers mean together. `docs/concepts/redlock.md` has the argument.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from holdfast._model import Busy, Capabilities, Claim, Grant, Health, LockInfo, Renewal, Sight
from holdfast._time import boot_now, first_fence, full_jitter
from holdfast._values import Booked, Rate, Stored, Write, Written
from holdfast.backends.quorum_sights import Sights
from holdfast.backends.quorum_tally import Tally, agreed_fence, busy_of, is_next, kept, merged, tally
from holdfast.drivers.redis_quorum import PENDING, Ask, Crew, Turn, has_answered
from holdfast.errors import BackendUnavailable, Unsupported

TRIES: Final = 4  # rounds of one try that meets others who try at the same moment
SPLIT: Final = 0.001  # seconds: the shortest of the longest pauses after a split vote
SPLIT_CAP: Final = 0.1
REMEMBERED: Final = 10_000  # claims that something is remembered of
QUICK: Final = 10.0  # seconds in which a question of an operator is answered, or refused


class Node(Protocol):
    """One server: what a quorum asks of it beyond the verbs is to vote."""

    @property
    def name(self) -> str: ...
    def age(self) -> float: ...
    def doubt(self, id: str) -> None: ...
    def is_crowded(self, key: str) -> bool: ...
    def is_plain(self, claim: Claim) -> bool: ...
    def shout_vote(self, claim: Claim, fence: int) -> Turn: ...
    def shout_release(self, claim: Claim) -> Turn: ...
    async def vote(self, claim: Claim, *, fence: int, enqueue: bool, within: float) -> Grant | Busy: ...
    async def seal(self, claim: Claim, *, fence: int, instead_of: int, within: float) -> bool: ...
    async def give_back(self, claim: Claim, *, up_to: int, within: float) -> None: ...
    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]: ...
    async def release(self, claim: Claim, *, linger: float, within: float, heir: str = "") -> bool: ...
    async def abandon(self, claim: Claim, *, within: float) -> None: ...
    async def observe(self, claim: Claim, *, after: int, within: float) -> Sight: ...
    async def inspect(self, key: str) -> LockInfo: ...
    async def list(self, prefix: str) -> list[LockInfo]: ...
    async def break_(self, key: str) -> LockInfo: ...


class QuorumBackend:
    capabilities = Capabilities(drift=0.01, renew_batch=200, shared=False, limiter=False, cell=False)

    def __init__(
        self,
        nodes: Sequence[Node],
        crew: Crew,
        *,
        chance: Callable[[], float],
        micros: Callable[[], int] = first_fence,
        rejoin: float | None = None,
    ) -> None:
        """`rejoin` is how long a server that started anew is kept out; None: the longest ttl we were asked for."""
        self._nodes = tuple(nodes)
        self._crew = crew
        self._chance = chance
        self._micros = micros
        self._rejoin = rejoin
        self._longest = 0.0  # of the ttls that were asked for: what a server may have forgotten is over after that
        self._majority = len(nodes) // 2 + 1
        self._ahead = 0  # microseconds by which fences that were seen are ahead of our clock
        self._last = 0  # the highest fence that we proposed
        self._stood: dict[str, frozenset[int]] = {}  # by claim that stood in line: the nodes that granted it since
        self._fences: dict[str, int] = {}  # by claim that was granted: asked for again, it is to have the same
        self._void: dict[str, int] = {}  # by claim: fences up to this one were given back, and that may arrive late
        self._woken: set[str] = set()  # claims that are about to ask because a server woke them
        self._splits: dict[str, int] = {}  # by claim: rounds in a row in which it got some votes and not enough
        self._pauses: dict[str, float] = {}  # by claim: how long to leave the others alone
        self._sights: dict[str, Sights] = {}  # by claim that observes
        self._renewing = 0  # renewals under way
        self._ended: set[str] = set()  # claims that were let go of meanwhile
        crew.doubt = lambda node, id: self._nodes[node].doubt(id)

    # Votes

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        answer, split = await self._ask_for_votes(claim, enqueue, within)
        attempt = 0
        while split and attempt < TRIES and (not enqueue or claim.id in self._woken):
            # Others try at this very moment; or one server has handed over, and the others are about to.
            attempt += 1
            await self._crew.pause(full_jitter(attempt, self._chance(), base=SPLIT, cap=SPLIT_CAP))
            answer, split = await self._ask_for_votes(claim, enqueue, within)
        self._woken.discard(claim.id)
        return answer

    async def _ask_for_votes(self, claim: Claim, enqueue: bool, within: float) -> tuple[Grant | Busy, bool]:
        """Whether it is granted; if not, also whether some voted for it, so that asking again soon may help."""
        proposal, key = self._fences.get(claim.id) or self._propose(claim), claim.terms.key
        if self._is_plain(claim) and await self._shout_for_votes(claim, proposal, within):
            self._remember(self._fences, claim.id, proposal)
            return Grant(proposal, proposal / 1e6), False
        stands = enqueue and any(node.is_crowded(key) for node in self._nodes)

        def enough(heard: Sequence[Any]) -> bool:
            if sum([one.__class__ is Grant for one in heard]) < self._majority:
                return False
            return len(self._tally(heard, claim).counted) >= self._majority

        asks = [node.vote(claim, fence=proposal, enqueue=enqueue, within=within) for node in self._nodes]
        heard = await self._crew.ask(asks, enough, within=within, claim=claim.id)
        votes = self._tally(heard, claim)
        if len(votes.counted) >= self._majority:
            if stands or votes.busy or claim.id in self._splits or claim.id in self._stood:
                self._remember(self._stood, claim.id, frozenset(votes.granted))
            return await self._granted(claim, votes, proposal, within), False
        if votes.answered < self._majority:
            if len(votes.granted) > len(votes.counted):
                await self._give_back(claim, votes.granted, within)  # a vote that does not count is in nobody's way
            raise self._no_majority(claim, heard, votes)
        return await self._not_granted(claim, votes, enqueue, within)

    def _is_plain(self, claim: Claim) -> bool:
        """Nobody else is known to want it, and all went well so far: then all servers are asked in the same words."""
        if claim.id in self._stood or claim.id in self._splits or claim.id in self._void:
            return False
        return all(node.is_plain(claim) for node in self._nodes)

    async def _shout_for_votes(self, claim: Claim, proposal: int, within: float) -> bool:
        """Whether a majority granted it with that fence. If not, it is asked for again in the way that can do more."""
        accepted, spare = b"%016d" % proposal, len(self._nodes) - self._majority

        def enough(heard: Sequence[Any]) -> bool:
            votes = heard.count(accepted)
            return votes >= self._majority or len(heard) - heard.count(PENDING) - votes > spare

        heard = await self._crew.ask(self._nodes[0].shout_vote(claim, proposal), enough, within=within, claim=claim.id)
        for node, answer in enumerate(heard):
            if answer.__class__ is BackendUnavailable:
                self._nodes[node].doubt(claim.id)
        until = self._kept_out_for(claim)
        votes = [node for node, answer in enumerate(heard) if answer == accepted]
        return len(votes) >= self._majority and (
            until <= 0 or sum(self._nodes[node].age() >= until for node in votes) >= self._majority
        )

    def _kept_out_for(self, claim: Claim) -> float:
        self._longest = max(self._longest, claim.terms.ttl)
        return self._longest if self._rejoin is None else self._rejoin

    def _tally(self, heard: Sequence[Any], claim: Claim) -> Tally:
        until = self._kept_out_for(claim)
        return tally(heard, [until <= 0 or node.age() >= until for node in self._nodes])

    def _propose(self, claim: Claim) -> int:
        """A fence that is likely to be above all that the nodes know: then they agree on it at once."""
        self._last = max(self._last + 1, self._micros() + self._ahead, self._void.get(claim.id, 0) + 1)
        return self._last

    async def _granted(self, claim: Claim, votes: Tally, proposal: int, within: float) -> Grant:
        fence, agreed = agreed_fence(votes, self._majority, self._void.get(claim.id, 0))
        if not agreed:
            await self._write_back(claim, votes, fence, within)
        if fence > proposal:
            self._ahead += fence - proposal
        self._splits.pop(claim.id, None)
        self._pauses.pop(claim.id, None)
        self._crew.wakes.forget(claim)
        self._remember(self._fences, claim.id, fence)
        return Grant(fence, next(iter(votes.granted.values())).acquired_at)

    async def _write_back(self, claim: Claim, votes: Tally, fence: int, within: float) -> None:
        """Nobody may be told of a fence that a later majority might not know of."""
        have = [node for node in votes.counted if votes.granted[node].fence == fence]
        asks = [
            node.seal(claim, fence=fence, instead_of=votes.granted[number].fence, within=within)
            if number in votes.granted and number not in have
            else None
            for number, node in enumerate(self._nodes)
        ]

        def enough(heard: Sequence[Any]) -> bool:
            return len(have) + sum(heard[node] is True for node in votes.counted) >= self._majority

        heard = await self._crew.ask(asks, enough, within=within, claim=claim.id)
        if not enough(heard):
            self._remember(self._void, claim.id, fence)  # it may still be recorded, after what is asked next
            raise BackendUnavailable(
                f"lock {claim.terms.name!r} was granted by a majority of {self!r}, but too few of them could be told "
                f"its fence {fence}; it is not held",
                name=claim.terms.name,
            )

    async def _not_granted(self, claim: Claim, votes: Tally, enqueue: bool, within: float) -> tuple[Busy, bool]:
        """What a minority granted is given back, so that somebody gets a majority; but whoever is next may keep it."""
        busy = busy_of(votes, self._majority)
        if enqueue:
            self._remember(self._stood, claim.id, frozenset(votes.granted))
        if not votes.granted or (enqueue and is_next(votes, self._majority)):
            return busy, bool(votes.granted)
        await self._give_back(claim, votes.granted, within)
        splits = self._splits.get(claim.id, 0) + 1
        if enqueue:
            self._remember(self._splits, claim.id, splits)
            pause = full_jitter(splits, self._chance(), base=SPLIT, cap=SPLIT_CAP)
            self._remember(self._pauses, claim.id, pause)
            if len(votes.busy) < self._majority:  # it is not woken for certain
                busy = busy._replace(retry_after=min(busy.retry_after, pause))
        return busy, True

    async def _give_back(self, claim: Claim, granted: dict[int, Grant], within: float) -> None:
        """Say so, though it may arrive after the next vote of the same claim.

        So it tells which fences it means, and none of them counts from now on: a vote that goes by one of them when it
        is asked for again is to be given a higher one.
        """
        void = max(self._void.get(claim.id, 0), *[grant.fence for grant in granted.values()])
        self._remember(self._void, claim.id, void)
        asks = [
            node.give_back(claim, up_to=void, within=within) if number in granted else None
            for number, node in enumerate(self._nodes)
        ]
        await self._crew.ask(
            asks, lambda heard: _answers(heard) >= len(granted), within=within, finish=True, claim=claim.id
        )

    def _no_majority(self, claim: Claim, heard: Sequence[Any], votes: Tally) -> BackendUnavailable:
        young = [
            f"{self._nodes[node].name} started anew and is kept out for now"
            for node in votes.granted
            if node not in votes.counted
        ]
        return self._too_few(heard, f"lock {claim.terms.name!r} cannot be asked for", young)

    def _too_few(self, heard: Sequence[Any], what: str, also: Sequence[str] = ()) -> BackendUnavailable:
        errors = [answer for answer in heard if answer.__class__ is BackendUnavailable]
        silent = [f"{self._nodes[node].name} is not waited for" for node, one in enumerate(heard) if one is PENDING]
        told = "; ".join([*map(str, errors), *silent, *also])
        final = len(errors) > len(self._nodes) - self._majority and not any(error.transient for error in errors)
        return BackendUnavailable(
            f"{what}: fewer than {self._majority} of the {len(self._nodes)} lock servers answer ({told})",
            transient=not final,
        )

    def _remember(self, where: dict[str, Any], id: str, what: Any) -> None:
        if len(where) >= REMEMBERED and id not in where:
            del where[next(iter(where))]
        where[id] = what

    def _forget(self, id: str) -> None:
        self._woken.discard(id)
        for memory in (self._stood, self._splits, self._pauses, self._fences, self._void):
            memory.pop(id, None)

    async def wait(self, claim: Claim, seconds: float) -> bool:
        pause = min(self._pauses.pop(claim.id, 0.0), seconds)
        if pause:
            await self._crew.pause(pause)
        woken = await self._crew.wakes.wait(claim, seconds - pause)
        if woken:
            self._woken.add(claim.id)
        return woken

    # What is held

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> builtins.list[bool | None]:
        def enough(heard: Sequence[Any]) -> bool:
            return _answers(heard) >= self._majority and None not in self._kept(heard, len(batch))

        self._renewing += 1
        try:
            asks = [node.renew(batch, within=within) for node in self._nodes]
            heard = await self._crew.ask(asks, enough, within=within)
            if not any(map(has_answered, heard)):
                raise self._too_few(heard, "leases cannot be renewed")
            answers = self._kept(heard, len(batch))
            for renewal, answer, votes in zip(batch, answers, _by_lease(heard, len(batch)), strict=True):
                if answer and False in votes:
                    await self._repair(renewal, [node for node, vote in enumerate(votes) if vote is False], within)
            return answers
        finally:
            self._renewing -= 1
            if not self._renewing:
                self._ended.clear()

    def _kept(self, heard: Sequence[Any], leases: int) -> builtins.list[bool | None]:
        return [kept(votes, len(self._nodes)) for votes in _by_lease(heard, leases)]

    async def _repair(self, renewal: Renewal, nodes: Sequence[int], within: float) -> None:
        """A node lost the hold that a majority still has, or never had it: then it may have it again, if it is free."""
        claim = Claim(renewal.claim.id, renewal.claim.terms._replace(ttl=renewal.ttl))
        asks = [
            self._vote_again(node, claim, renewal.fence, within) if number in nodes else None
            for number, node in enumerate(self._nodes)
        ]
        await self._crew.ask(asks, lambda heard: _answers(heard) >= len(nodes), within=within, finish=True)

    async def _vote_again(self, node: Node, claim: Claim, fence: int, within: float) -> None:
        if claim.id in self._ended:
            return
        answer = await node.vote(claim, fence=fence, enqueue=False, within=within)
        if isinstance(answer, Grant) and answer.fence != fence:
            await node.seal(claim, fence=fence, instead_of=answer.fence, within=within)
        if claim.id in self._ended:
            await node.abandon(claim, within=within)

    async def release(self, claim: Claim, *, linger: float, within: float, heir: str = "") -> bool:
        granted = self._stood.get(claim.id)
        if self._renewing:
            self._ended.add(claim.id)
        told: Sequence[Any] = ()
        if not linger and self._is_plain(claim):
            turn = self._nodes[0].shout_release(claim)
            told = await self._crew.ask(turn, _all_answered, within=within, claim=claim.id)
            if told.count(1) >= self._majority and all(_is_over(one) for one in told):
                self._clean_up_later(claim, told)
                self._fences.pop(claim.id, None)
                return True
        freed_before = {node for node, one in enumerate(told) if one == 1}
        asks: builtins.list[Ask | None] = [
            None
            if number in freed_before
            else node.release(claim, linger=linger, within=within, heir=heir)
            if granted is None or number in granted
            else node.abandon(claim, within=within)  # it may stand in line there
            for number, node in enumerate(self._nodes)
        ]

        def enough(heard: Sequence[Any]) -> bool:
            return len(freed_before) + sum([one is True for one in heard]) >= self._majority

        heard = await self._crew.ask(asks, enough, within=within, finish=True, claim=claim.id)
        self._clean_up_later(claim, heard)
        heard = [True if node in freed_before else one for node, one in enumerate(heard)]
        freed = sum([one is True for one in heard])
        if freed >= self._majority:
            self._forget(claim.id)
            return True
        answers = _answers(heard)
        if answers < self._majority:
            raise self._too_few(heard, f"lock {claim.terms.name!r} cannot be released")
        self._forget(claim.id)
        return freed > 0 and freed + len(heard) - answers >= self._majority

    async def abandon(self, claim: Claim, *, within: float) -> None:
        if self._renewing:
            self._ended.add(claim.id)
        self._forget(claim.id)
        self._sights.pop(claim.id, None)
        try:
            asks = [node.abandon(claim, within=within) for node in self._nodes]
            heard = await self._crew.ask(
                asks, lambda heard: _answers(heard) == len(heard), within=within, finish=True, claim=claim.id
            )
            self._clean_up_later(claim, heard)
            if _answers(heard) < self._majority:
                raise self._too_few(heard, f"lock {claim.terms.name!r} cannot be given up")
        finally:
            self._crew.wakes.forget(claim)

    def _clean_up_later(self, claim: Claim, heard: Sequence[Any]) -> None:
        """A server that is gone has nothing of the claim to keep when it is back, should that be before it expires."""
        for number, answer in enumerate(heard):
            if answer.__class__ is BackendUnavailable:
                node = self._nodes[number]
                until = boot_now() + claim.terms.ttl
                self._crew.later(number, claim.id, lambda node=node: node.abandon(claim, within=1.0), until)  # type: ignore[misc]

    # What can be seen

    async def observe(self, claim: Claim, *, after: int, within: float) -> Sight:
        sights = self._sights.get(claim.id)
        if sights is None or not after:
            sights = Sights(len(self._nodes), self._micros())
            self._remember(self._sights, claim.id, sights)
        asks = [
            node.observe(claim, after=sights.after[number], within=within) for number, node in enumerate(self._nodes)
        ]
        heard = await self._crew.ask(asks, _all_answered, within=within, finish=True, claim=claim.id)
        if _answers(heard) < self._majority:
            raise self._too_few(heard, f"{claim.terms.name!r} cannot be observed")
        return sights.see(heard, after)

    async def inspect(self, key: str) -> LockInfo:
        return merged(key, await self._question([node.inspect(key) for node in self._nodes], f"{key!r}"))

    async def break_(self, key: str) -> LockInfo:
        return merged(key, await self._question([node.break_(key) for node in self._nodes], f"{key!r}"))

    async def list(self, prefix: str) -> builtins.list[LockInfo]:
        heard = await self._question([node.list(prefix) for node in self._nodes], f"names with {prefix!r}")
        found = [{info.name: info for info in one} if has_answered(one) else one for one in heard]
        keys = sorted({key for one in found if isinstance(one, dict) for key in one})
        infos = [merged(key, [_info(one, key) for one in found]) for key in keys]
        return [info for info in infos if info.holders or info.waiters]

    async def check_up(self) -> builtins.list[Health]:
        until = self._longest if self._rejoin is None else self._rejoin
        healths = zip(await self._crew.check_up(), self._nodes, strict=True)
        return [health._replace(kept_out=max(0.0, until - node.age()) * health.reachable) for health, node in healths]

    async def _question(self, asks: Sequence[Ask], what: str) -> builtins.list[Any]:
        heard = await self._crew.ask(asks, _all_answered, within=QUICK, finish=True)
        if _answers(heard) < self._majority:
            raise self._too_few(heard, f"{what} cannot be asked about")
        return heard

    # What a quorum cannot do

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        raise Unsupported(f"{self!r} has no limiters")

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        raise Unsupported(f"{self!r} has no limiters")

    async def read(self, key: str) -> Stored:
        raise Unsupported(f"{self!r} has no cells")

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        raise Unsupported(f"{self!r} has no cells")

    async def close(self) -> None:
        await self._crew.close()

    def before_fork(self) -> None:
        """Connections are forgotten in the child; the parent goes on using them."""

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._crew.after_fork()

    def __repr__(self) -> str:
        return f"redlock of {', '.join(sorted(node.name for node in self._nodes))}"


def _answers(heard: Sequence[Any]) -> int:
    return sum(map(has_answered, heard))


def _is_over(answer: Any) -> bool:
    """Nothing is left to be said to that server, or it cannot be said now."""
    return answer in (0, 1) or answer is PENDING or answer.__class__ is BackendUnavailable


def _all_answered(heard: Sequence[Any]) -> bool:
    return PENDING not in heard


def _info(found: Any, key: str) -> Any:
    return found.get(key, LockInfo(key)) if isinstance(found, dict) else found


def _by_lease(heard: Sequence[Any], leases: int) -> builtins.list[builtins.list[bool | None]]:
    """What each node says of each lease; None where it is not known."""
    return [[one[lease] if has_answered(one) else None for one in heard] for lease in range(leases)]
