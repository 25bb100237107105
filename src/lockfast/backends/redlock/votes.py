"""Votes for a claim: asked of all servers at once, counted, and given back where they are not enough.

Decides: when votes are a grant, which fence it has, who keeps votes that are not enough, and who is next in line.
Leaves to `tally`: what answers mean together. Leaves to `quorum`: everything after the grant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from lockfast._bounded import BoundedDict
from lockfast._model import Busy, Claim, Grant, LockInfo, Observation, Renewal
from lockfast._time import format_duration, full_jitter
from lockfast.backends.redis.io.resp import ReplyError, kind_of
from lockfast.backends.redlock.io.fanout import PENDING, Fanout, all_of_them
from lockfast.backends.redlock.tally import Tally, agreed_fence, answers, busy_of, is_held, is_next, tally
from lockfast.errors import BackendUnavailable

MAX_RETRIES: Final = 4  # rounds that one try adds when others try at the same moment
SPLIT_PAUSE_MIN_S: Final = 0.001  # the first of the longest pauses after a split vote
SPLIT_PAUSE_MAX_S: Final = 0.1
MIN_ROUND_S: Final = 0.01  # what a round has at least, if there is no time left
MAX_HISTORIES: Final = 10_000

_WHY_KEPT_OUT: Final = (
    "a server that started less than a ttl ago may have forgotten a lease that is still held. If the servers are new, "
    "connect with rejoin=0 (in a URL: ?rejoin=0): they count at once then, and one that loses its data can let a "
    "second holder in"
)


class Node(Protocol):
    """One server: what a quorum asks of it beyond the verbs is to vote."""

    @property
    def name(self) -> str: ...
    def age(self) -> float: ...
    def mark_in_doubt(self, id: str) -> None: ...
    def is_in_doubt(self, id: str) -> bool: ...
    def is_uncontended(self, claim: Claim) -> bool: ...
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
    async def break_(self, key: str, *, within: float) -> LockInfo: ...


class ClaimHistory:
    """What a client remembers of a claim of its own."""

    __slots__ = ("fence", "granted_by", "order", "splits", "unknown_at", "void", "woken")

    def __init__(self, fence: int = 0) -> None:
        self.fence = fence  # that it was granted with: asked for again, it is to have the same
        self.void = 0  # fences up to this one were given back, and that may arrive late
        self.order = 0  # in line, the same at every server; 0 if it never had to wait
        self.granted_by: frozenset[int] | None = None  # the nodes that granted it; at the others it may stand in line
        self.splits = 0  # rounds in a row in which it got some votes and not enough
        self.unknown_at: frozenset[int] = frozenset()  # the nodes that may have granted it, or may still, unheard of
        self.woken = False  # it is about to ask because a server woke it

    @property
    def is_simple(self) -> bool:
        """Whether nothing happened but a grant."""
        return self.granted_by is None and not self.splits and not self.void


class Votes:
    def __init__(
        self,
        nodes: Sequence[Node],
        fanout: Fanout,
        *,
        chance: Callable[[], float],
        micros: Callable[[], int],
        rejoin: float | None,
    ) -> None:
        self._nodes = tuple(nodes)
        self._fanout = fanout
        self._chance = chance
        self._micros = micros
        self._rejoin = rejoin
        self._longest = 0.0  # of the ttls that were asked for: what a server may have forgotten is over after that
        self._majority = len(nodes) // 2 + 1
        self._ahead = 0  # microseconds by which fences that were seen are ahead of our clock
        self._last = 0  # the highest fence that we proposed
        self._histories = BoundedDict[str, ClaimHistory](MAX_HISTORIES)  # by claim

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        until = self._fanout.now() + within
        if self._is_uncontended(claim):
            grant = await self._quick_votes(claim, within)
            if grant is not None:
                return grant
        answer, again = await self._votes(claim, enqueue, until)
        attempt = 0
        while again and attempt < MAX_RETRIES and (not enqueue or self._recall(claim).woken):
            # Others try at this very moment; or one server has handed over, and the others are about to.
            attempt += 1
            pause = self._split_pause(attempt)
            if self._fanout.now() + pause >= until:
                break
            await self._fanout.pause(pause)
            answer, again = await self._votes(claim, enqueue, until)
        if enqueue:
            self._recall(claim).woken = False
        elif answer.__class__ is Busy:
            for node in self._recall(claim).unknown_at:  # whoever only tries does not come back to see to it
                self._nodes[node].mark_in_doubt(claim.id)
                self._clean_up_later(claim, node)
        return answer

    async def wait(self, claim: Claim, seconds: float) -> bool:
        history = self._recall(claim)
        if history.splits:  # a claim that met others comes back at another moment than they do
            pause = min(seconds, self._split_pause(history.splits))
            await self._fanout.pause(pause)
            seconds -= pause
        history.woken = await self._fanout.wakeups.wait(claim, seconds)
        return history.woken

    def _split_pause(self, attempt: int) -> float:
        return full_jitter(attempt, self._chance(), base=SPLIT_PAUSE_MIN_S, cap=SPLIT_PAUSE_MAX_S)

    # Where nobody is in the way

    def _is_uncontended(self, claim: Claim) -> bool:
        """Nobody else is known to want it, and all went well so far: then all servers are asked in the same words."""
        history = self._histories.get(claim.id)
        if history is not None and not history.is_simple:
            return False
        return all([node.is_uncontended(claim) for node in self._nodes])  # noqa: C419 (quicker than a generator)

    async def _quick_votes(self, claim: Claim, within: float) -> Grant | None:
        """None if it is to be asked for again, in the way that can do more."""
        history = self._histories.get(claim.id)
        fence = history.fence if history is not None and history.fence else self._propose(0)
        wanted, request = b"%016d" % fence, self._nodes[0].quick_vote(claim, fence)

        def enough(results: Sequence[Any]) -> bool:
            """A majority has voted, or none can any more."""
            votes = results.count(wanted)
            return votes >= self._majority or votes + results.count(PENDING) < self._majority

        results = await self._fanout.ask([request] * len(self._nodes), enough, within=within, claim=claim.id, new=True)
        history = self._histories[claim.id] = ClaimHistory(fence)  # if it is asked for again, it is for the same
        votes = results.count(wanted)
        if votes + results.count(PENDING) < len(results):
            history.unknown_at = _failed(results)
            if any([one.__class__ is ReplyError and kind_of(one) == "NOSCRIPT" for one in results]):  # noqa: C419
                load = [self._nodes[0].load_quick_vote] * len(self._nodes)  # an operator has flushed the scripts
                await self._fanout.ask(load, all_of_them, within=within)
        if votes >= self._majority and self._kept_out_for(claim) > 0:
            votes = sum([one == wanted and self._counts(self._nodes[node], claim) for node, one in enumerate(results)])
        return Grant(fence, fence / 1e6) if votes >= self._majority else None

    # Where somebody may be

    async def _votes(self, claim: Claim, enqueue: bool, until: float) -> tuple[Grant | Busy, bool]:
        """Whether it is granted; if not, also whether asking again soon may help."""
        history, within = self._recall(claim), self._time_left(until)
        proposal = history.fence or self._propose(history.void)
        history.order = history.order or proposal

        def enough(results: Sequence[Any]) -> bool:
            if sum([one.__class__ is Grant for one in results]) < self._majority:
                return False
            votes = self._tally(results, claim)  # if they disagree, one that is still to come may make a majority agree
            return len(votes.counted) >= self._majority and agreed_fence(votes, self._majority, history.void)[1]

        def settled(results: Sequence[Any]) -> bool:
            return sum([one.__class__ is Busy for one in results]) >= self._majority

        verbs = [
            node.vote(claim, fence=proposal, order=history.order, enqueue=enqueue, within=within)
            for node in self._nodes
        ]
        results = await self._fanout.ask(verbs, enough, within=within, claim=claim.id, settled=settled, new=True)
        votes = self._tally(results, claim)
        history.unknown_at |= _failed(results) | {node for node, one in enumerate(results) if one is PENDING}
        if len(votes.counted) >= self._majority:
            if votes.busy or history.unknown_at or history.splits or history.granted_by is not None:
                history.granted_by = frozenset(votes.granted)
            return await self._granted(claim, votes, proposal, until), False
        if votes.answered < self._majority:
            if len(votes.granted) > len(votes.counted):
                await self._give_back(claim, votes.granted, False, until)  # what does not count is in nobody's way
            raise self._no_majority(claim, results, votes)
        return await self._not_granted(claim, votes, enqueue, until)

    def _time_left(self, until: float) -> float:
        return max(MIN_ROUND_S, until - self._fanout.now())

    def _tally(self, results: Sequence[Any], claim: Claim) -> Tally:
        return tally(results, [self._counts(node, claim) for node in self._nodes])

    def _counts(self, node: Node, claim: Claim) -> bool:
        kept_out = self._kept_out_for(claim)
        return kept_out <= 0 or node.age() >= kept_out

    def _kept_out_for(self, claim: Claim) -> float:
        """Seconds for which a server that started anew does not count."""
        self._longest = max(self._longest, claim.terms.ttl)
        return self._longest if self._rejoin is None else self._rejoin

    def _propose(self, void: int) -> int:
        """A fence that is likely to be above all that the nodes know: then they agree on it at once."""
        self._last = max(self._last + 1, self._micros() + self._ahead, void + 1)
        return self._last

    async def _granted(self, claim: Claim, votes: Tally, proposal: int, until: float) -> Grant:
        history = self._recall(claim)
        fence, agreed = agreed_fence(votes, self._majority, history.void)
        if not agreed:
            await self._write_back(claim, votes, fence, self._time_left(until))
        if fence > proposal:
            self._ahead += fence - proposal
        history.fence, history.splits = fence, 0
        self._fanout.wakeups.forget(claim)
        return Grant(fence, next(iter(votes.granted.values())).acquired_at)

    async def _write_back(self, claim: Claim, votes: Tally, fence: int, within: float) -> None:
        """Nobody may be told of a fence that a later majority might not know of."""
        have = [node for node in votes.counted if votes.granted[node].fence == fence]
        verbs = [
            node.record_fence(claim, fence=fence, instead_of=votes.granted[number].fence, within=within)
            if number in votes.granted and number not in have
            else None
            for number, node in enumerate(self._nodes)
        ]

        def enough(results: Sequence[Any]) -> bool:
            return len(have) + sum(results[node] is True for node in votes.counted) >= self._majority

        results = await self._fanout.ask(verbs, enough, within=within, claim=claim.id)
        if not enough(results):
            self._recall(claim).void = fence  # it may still be recorded, after what is asked next
            raise BackendUnavailable(
                f"lock {claim.terms.name!r} was granted by a majority of {self!r}, but too few of them could be told "
                f"its fence {fence}; it is not held",
                name=claim.terms.name,
            )

    async def _not_granted(self, claim: Claim, votes: Tally, enqueue: bool, until: float) -> tuple[Busy, bool]:
        """What a minority granted is given back, so that somebody gets a majority; but whoever is next may keep it."""
        busy, history = busy_of(votes, self._majority), self._recall(claim)
        history.fence = 0
        if enqueue:
            history.granted_by = frozenset(votes.granted)
        if not votes.granted or (enqueue and is_next(votes, self._majority)):
            history.splits = 0
            return busy, bool(votes.granted)
        await self._give_back(claim, votes.granted, enqueue, until)
        if enqueue:  # it is woken when it is next, unless that is for some servers only
            history.splits += 1
            busy = busy._replace(retry_after=min(busy.retry_after, SPLIT_PAUSE_MAX_S))
        return busy, not enqueue and not is_held(votes, self._majority)

    async def _give_back(self, claim: Claim, granted: dict[int, Grant], enqueue: bool, until: float) -> None:
        """Say so, though it may arrive after the next vote of the same claim.

        So it tells which fences it means, and none of them counts from now on: a vote that goes by one of them when it
        is asked for again is to be given a higher one.
        """
        history, within = self._recall(claim), self._time_left(until)
        history.void, history.fence = max(history.void, *[grant.fence for grant in granted.values()]), 0
        verbs = [
            node.give_back(claim, up_to=history.void, order=history.order, enqueue=enqueue, within=within)
            if number in granted
            else None
            for number, node in enumerate(self._nodes)
        ]
        await self._fanout.ask(
            verbs, lambda results: answers(results) >= len(granted), within=within, claim=claim.id, late=ignore
        )

    def _clean_up_later(self, claim: Claim, number: int) -> None:
        """A server that is gone has nothing of the claim to keep when it is back, should that be before it expires."""
        node, until = self._nodes[number], self._fanout.now() + claim.terms.ttl
        self._fanout.retry_later(number, claim.id, lambda: node.abandon(claim, within=1.0), until)

    # What is remembered, and what is wrong

    def _recall(self, claim: Claim) -> ClaimHistory:
        history = self._histories.get(claim.id)
        if history is None:
            history = self._histories[claim.id] = ClaimHistory()
        return history

    def _no_majority(self, claim: Claim, results: Sequence[Any], votes: Tally) -> BackendUnavailable:
        until, name = self._kept_out_for(claim), claim.terms.name
        left = {node: max(0.0, until - self._nodes[node].age()) for node in votes.granted}
        young = [_young(self._nodes[node], left[node]) for node in votes.granted if node not in votes.counted]
        if not young:
            return self._too_few(results, f"lock {name!r} cannot be asked for")
        if len(left) < self._majority or answers(results) < len(results):  # others may be back before these count
            return self._too_few(results, f"lock {name!r} cannot be asked for", [*young, _WHY_KEPT_OUT])
        soonest = sorted(left.values())[self._majority - 1]
        return BackendUnavailable(
            f"lock {name!r} cannot be granted for another {format_duration(soonest)}: "
            f"{'; '.join(young)}; {_WHY_KEPT_OUT}",
            name=name,
            retry_after=soonest,
        )

    def _too_few(self, results: Sequence[Any], what: str, also: Sequence[str] = ()) -> BackendUnavailable:
        errors = [answer for answer in results if answer.__class__ is BackendUnavailable]
        silent = [f"{self._nodes[node].name} is not waited for" for node, one in enumerate(results) if one is PENDING]
        told = "; ".join([*map(str, errors), *silent, *also])
        final = len(errors) > len(self._nodes) - self._majority and not any(error.transient for error in errors)
        return BackendUnavailable(
            f"{what}: fewer than {self._majority} of the {len(self._nodes)} lock servers answer ({told})",
            transient=not final,
        )

    @property
    def store_id(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"redlock of {', '.join(sorted(node.name for node in self._nodes))}"


def _young(node: Node, left: float) -> str:
    return f"{node.name} started anew and is kept out for another {format_duration(left)}"


def ignore(node: int, result: Any) -> None:
    """It is only to be carried out to its end."""


def _failed(results: Sequence[Any]) -> frozenset[int]:
    """The nodes that were asked, and of which it is not known what they did."""
    return frozenset(node for node, one in enumerate(results) if one.__class__ is BackendUnavailable)
