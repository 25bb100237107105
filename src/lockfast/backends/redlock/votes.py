"""Votes for a claim: asked of all servers at once, counted, and given back where they are not enough.

Decides: when votes are a grant, which fence it has, and which claim keeps votes that are not enough.
Leaves to `tally`: what answers mean together. Leaves to `backend`: everything after the grant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from lockfast._bounded import BoundedDict
from lockfast._model import Busy, Claim, Grant
from lockfast._time import full_jitter
from lockfast.backends.redis.io.resp import ReplyError, kind_of
from lockfast.backends.redlock.io.fanout import PENDING, Verb, all_of_them, were_sent
from lockfast.backends.redlock.quorum import Quorum, ignore
from lockfast.backends.redlock.tally import Tally, agreed_fence, answers, busy_of, is_held, is_next, tally
from lockfast.errors import BackendUnavailable

MAX_RETRIES: Final = 4  # rounds that one try adds when others try at the same moment
SPLIT_PAUSE_MIN_S: Final = 0.001  # the first of the longest pauses after a split vote
SPLIT_PAUSE_MAX_S: Final = 0.1
MAX_HISTORIES: Final = 10_000


class ClaimHistory:
    """What a client remembers of a claim of its own."""

    void = 0  # votes with fences up to this one were given back, and that may arrive late
    order = 0  # in the queue, the same at every server; 0 if it never had to wait
    granted_by: frozenset[int] | None = None  # these nodes; at the others it may be in the queue
    splits = 0  # rounds in a row in which it got some votes and not enough
    unknown_at: frozenset[int] = frozenset()  # the nodes that may have granted it, or may still
    sent = False  # a vote was asked for, and that may have reached a server
    woken = False  # it is about to ask because a server woke it

    def __init__(self, fence: int = 0) -> None:
        self.fence = fence  # of its grant: asked for again, it is to have the same

    @property
    def is_simple(self) -> bool:
        """Whether nothing happened but a grant."""
        return self.granted_by is None and not self.splits and not self.void


class Votes:
    def __init__(
        self,
        quorum: Quorum,
        *,
        chance: Callable[[], float],
        micros: Callable[[], int],
    ) -> None:
        self._quorum = quorum
        self._nodes, self._fanout = quorum.nodes, quorum.fanout
        self._chance = chance
        self._micros = micros
        self._ahead = 0  # microseconds by which fences that were seen are ahead of our clock
        self._last = 0  # the highest fence that we proposed
        self._histories = BoundedDict[str, ClaimHistory](MAX_HISTORIES)  # by claim

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        until = self._fanout.now() + within
        if self._is_uncontended(claim):
            grant = await self._quick_votes(claim, within, until)
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
            for node in self._recall(claim).unknown_at:  # a claim that only tries does not come back to clean up
                self._nodes[node].mark_in_doubt(claim.id)
                self._quorum.clean_up_later(claim, node)
        return answer

    async def wait(self, claim: Claim, seconds: float) -> bool:
        history = self._recall(claim)
        if history.splits:  # claims that split a vote come back at different moments
            pause = min(seconds, self._split_pause(history.splits))
            await self._fanout.pause(pause)
            seconds -= pause
        history.woken = bool(await self._fanout.wakeups.wait(claim, seconds))
        return history.woken

    def _split_pause(self, attempt: int) -> float:
        return full_jitter(attempt, self._chance(), base=SPLIT_PAUSE_MIN_S, cap=SPLIT_PAUSE_MAX_S)

    # Where no other claim is known

    def _is_uncontended(self, claim: Claim) -> bool:
        """No other claim is known, and all went well so far: then one request is the same for all servers."""
        history = self._histories.get(claim.id)
        if history is not None and not history.is_simple:
            return False
        for node in self._nodes:  # noqa: SIM110 (quicker than a generator)
            if claim.terms.key in node.contended or claim.id in node.in_doubt:
                return False
        return True

    async def _quick_votes(self, claim: Claim, within: float, until: float) -> Grant | None:
        """None if it has to be asked for by `_votes`, which can do more."""
        history = self._histories.get(claim.id)
        fence = history.fence if history is not None and history.fence else self._propose(0)
        wanted, request = b"%016d" % fence, self._nodes[0].quick_vote(claim, fence)
        majority = self._quorum.majority

        def enough(results: Sequence[Any]) -> bool:
            """A majority has voted, or none can any more."""
            votes = results.count(wanted)
            return votes >= majority or votes + results.count(PENDING) < majority

        results = await self._fanout.ask([request] * len(self._nodes), enough, within=within, claim=claim.id, new=True)
        history = self._histories[claim.id] = ClaimHistory(fence)  # if it is asked for again, it is for the same
        history.sent = True
        votes = results.count(wanted)
        if votes + results.count(PENDING) < len(results):
            history.unknown_at = _failed(results)
            history.sent = were_sent(results)
            if any([one.__class__ is ReplyError and kind_of(one) == "NOSCRIPT" for one in results]):  # noqa: C419
                load = [self._nodes[0].load_quick_vote] * len(self._nodes)  # an operator has flushed the scripts
                await self._fanout.ask(load, all_of_them, within=self._quorum.time_left(until))
        excluded = self._quorum.excluded_for(claim)
        if votes >= majority and excluded > 0:
            votes = sum([one == wanted and self._nodes[node].age() >= excluded for node, one in enumerate(results)])
        return Grant(fence, fence / 1e6) if votes >= majority else None

    # Where others may want it

    async def _votes(self, claim: Claim, enqueue: bool, until: float) -> tuple[Grant | Busy, bool]:
        """Whether it is granted; if not, also whether asking again soon may help."""
        history, within = self._recall(claim), self._quorum.time_left(until)
        proposal = history.fence or self._propose(history.void)
        history.order = history.order or proposal

        def enough(results: Sequence[Any]) -> bool:
            if sum([one.__class__ is Grant for one in results]) < self._quorum.majority:
                return False
            votes = self._tally(results, claim)  # if they disagree, one that is still to come may make a majority agree
            return (
                len(votes.counted) >= self._quorum.majority
                and agreed_fence(votes, self._quorum.majority, history.void)[1]
            )

        def settled(results: Sequence[Any]) -> bool:
            return sum([one.__class__ is Busy for one in results]) >= self._quorum.majority

        def verb(number: int) -> Verb:
            node = self._nodes[number]
            return node.vote(claim, fence=proposal, order=history.order, enqueue=enqueue, within=within)

        results = await self._fanout.ask(verb, enough, within=within, claim=claim.id, settled=settled, new=True)
        votes = self._tally(results, claim)
        history.sent = history.sent or were_sent(results)
        history.unknown_at |= _failed(results) | {node for node, one in enumerate(results) if one is PENDING}
        if len(votes.counted) >= self._quorum.majority:
            if votes.busy or history.unknown_at or history.splits or history.granted_by is not None:
                history.granted_by = frozenset(votes.granted)
            return await self._granted(claim, votes, proposal, until), False
        if votes.answered < self._quorum.majority:
            if len(votes.granted) > len(votes.counted):
                await self._give_back(claim, votes.granted, False, until)  # they do not count: in no claim's way
            raise self._quorum.no_majority(claim, results, votes, sent=history.sent)
        return await self._not_granted(claim, votes, enqueue, until)

    def _tally(self, results: Sequence[Any], claim: Claim) -> Tally:
        return tally(results, [self._quorum.counts(node, claim) for node in self._nodes])

    def _propose(self, void: int) -> int:
        """A fence that is likely to be above all that the nodes know: then they agree on it at once."""
        self._last = max(self._last + 1, self._micros() + self._ahead, void + 1)
        return self._last

    async def _granted(self, claim: Claim, votes: Tally, proposal: int, until: float) -> Grant:
        history = self._recall(claim)
        fence, agreed = agreed_fence(votes, self._quorum.majority, history.void)
        if not agreed:
            await self._write_back(claim, votes, fence, self._quorum.time_left(until))
        if fence > proposal:
            # By the clock, not by the proposal: that is older than the answer, and other claims of this client may be
            # about to report the same difference. If each of them were added, clients would drive each other on.
            self._ahead = max(self._ahead, fence - self._micros())
        history.fence, history.splits = fence, 0
        self._fanout.wakeups.forget(claim)
        return Grant(fence, next(iter(votes.granted.values())).acquired_at)

    async def _write_back(self, claim: Claim, votes: Tally, fence: int, within: float) -> None:
        """A fence that a later majority might not know of must not be given out."""
        have = [node for node in votes.counted if votes.granted[node].fence == fence]

        def verb(number: int) -> Verb | None:
            if number not in votes.granted or number in have:
                return None
            instead_of = votes.granted[number].fence
            return self._nodes[number].record_fence(claim, fence=fence, instead_of=instead_of, within=within)

        def enough(results: Sequence[Any]) -> bool:
            return len(have) + sum(results[node] is True for node in votes.counted) >= self._quorum.majority

        results = await self._fanout.ask(verb, enough, within=within, claim=claim.id)
        if not enough(results):
            self._recall(claim).void = fence  # it may still be recorded, after what is asked next
            raise BackendUnavailable(
                f"lock {claim.terms.name!r} was granted by a majority of {self!r}, but too few of them recorded "
                f"its fence {fence}; it is not held",
                name=claim.terms.name,
            )

    async def _not_granted(self, claim: Claim, votes: Tally, enqueue: bool, until: float) -> tuple[Busy, bool]:
        """Votes of a minority are given back, so that some claim gets a majority; the claim that is next keeps them."""
        busy, history = busy_of(votes, self._quorum.majority), self._recall(claim)
        history.fence = 0
        if enqueue:
            history.granted_by = frozenset(votes.granted)
        if not votes.granted or (enqueue and is_next(votes, self._quorum.majority)):
            history.splits = 0
            return busy, bool(votes.granted)
        await self._give_back(claim, votes.granted, enqueue, until)
        if enqueue:  # it is woken when it is next, unless that is for some servers only
            history.splits += 1
            busy = busy._replace(retry_after=min(busy.retry_after, SPLIT_PAUSE_MAX_S))
        return busy, not enqueue and not is_held(votes, self._quorum.majority)

    async def _give_back(self, claim: Claim, granted: dict[int, Grant], enqueue: bool, until: float) -> None:
        """This may arrive after the next vote of the same claim.

        So it names the fences that it means, and none of them counts from now on: a vote that has one of them when it
        is asked for again is to be given a higher one.
        """
        history, within = self._recall(claim), self._quorum.time_left(until)
        history.void, history.fence = max(history.void, *[grant.fence for grant in granted.values()]), 0

        def verb(number: int) -> Verb | None:
            if number not in granted:
                return None
            node = self._nodes[number]
            return node.give_back(claim, up_to=history.void, order=history.order, enqueue=enqueue, within=within)

        await self._fanout.ask(
            verb, lambda results: answers(results) >= len(granted), within=within, claim=claim.id, late=ignore
        )

    # What is remembered, and what is wrong

    def _recall(self, claim: Claim) -> ClaimHistory:
        history = self._histories.get(claim.id)
        if history is None:
            history = self._histories[claim.id] = ClaimHistory()
        return history

    @property
    def store_id(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return repr(self._quorum)


def _failed(results: Sequence[Any]) -> frozenset[int]:
    """The nodes of which it is not known what they did: they may have got the request."""
    return frozenset(node for node, one in enumerate(results) if one.__class__ is BackendUnavailable and one.sent)
