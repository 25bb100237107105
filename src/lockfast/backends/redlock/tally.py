"""What the answers of several servers mean together: pure functions.

Decides: what a majority says about holds, fences, queues and renewals.
Leaves to `votes` and `backend`: to ask, and to act on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lockfast._model import Busy, Grant, HolderInfo, LockInfo
from lockfast._records import UNREADABLE, listed
from lockfast.backends.redlock.io.fanout import has_answered


class Tally(NamedTuple):
    """One round of votes. Nodes are known by their number."""

    granted: dict[int, Grant]  # whether they count or not
    counted: frozenset[int]  # the nodes that granted and whose vote counts
    busy: dict[int, Busy]

    @property
    def answered(self) -> int:
        return len(self.counted) + len(self.busy)


class BrokenHolds(NamedTuple):
    """What one server had before a break."""

    info: LockInfo
    left: dict[str, float]  # by claim: seconds for which it would have held


def tally(results: Sequence[Any], counts: Sequence[bool]) -> Tally:
    granted = {node: answer for node, answer in enumerate(results) if answer.__class__ is Grant}
    busy = {node: answer for node, answer in enumerate(results) if answer.__class__ is Busy}
    return Tally(granted, frozenset(node for node in granted if counts[node]), busy)


def agreed_fence(votes: Tally, majority: int, void: int = 0) -> tuple[int, bool]:
    """The fence of a grant, and whether a majority has it already; else it is the highest, and to be written back.

    It is above `void`: up to there, a request that is still under way may take back what the nodes answered.

    Any majority has a node in common with the one that knows the last fence, and no node gives out what is not above
    all that it knows: so what a majority agrees on is above that, and so is the highest of any majority.
    """
    fences = Counter(votes.granted[node].fence for node in votes.counted)
    fence, nodes = fences.most_common(1)[0]
    return (fence, True) if nodes >= majority and fence > void else (max(*fences, void + 1), False)


def answers(results: Sequence[Any]) -> int:
    return sum(map(has_answered, results))


def by_lease(results: Sequence[Any], leases: int) -> list[list[bool | None]]:
    """What each node answers about each lease; None where it is not known."""
    return [[one[lease] if has_answered(one) else None for one in results] for lease in range(leases)]


def is_next(votes: Tally, majority: int) -> bool:
    """Whether the claim is next at a majority for what one claim holds there: it may keep what it was granted.

    A position is as it was when the server answered: another claim may have come before this one since. So where
    several claims have a vote each, all of them may be next for the others' votes, and none would give back.
    A server where no claim holds counts as well: it is reserved for a claim of a later order, which will give it back.
    """
    first = [busy for busy in votes.busy.values() if busy.position == 0]
    return _largest_hold(first) + sum(busy.claim_id is None for busy in first) >= majority


def is_held(votes: Tally, majority: int) -> bool:
    """Whether a majority names the same hold: then no other claim can get one, and it is no split vote."""
    return _largest_hold(votes.busy.values()) >= majority


def _largest_hold(answers: Iterable[Busy]) -> int:
    """How many answers name the claim that most of them name."""
    claims = Counter(busy.claim_id for busy in answers if busy.claim_id is not None)
    return max(claims.values(), default=0)


def kept(votes: Sequence[bool | None], nodes: int) -> bool | None:
    """Whether a lease is still held, from what the nodes that answered say."""
    majority = nodes // 2 + 1
    if votes.count(True) >= majority:
        return True
    return False if nodes - votes.count(False) < majority else None


def merged(key: str, results: Sequence[Any], nodes: Sequence[str]) -> LockInfo:
    """The holders at a majority, as far as that can be known when some do not answer, or have a damaged record.

    As long as the others are a majority, what is damaged is shown and has no effect.
    """
    damage = listed(f"{node}: {info.damage}" for node, info in zip(nodes, results, strict=True) if _is_damaged(info))
    infos: list[LockInfo] = [info for info in results if has_answered(info) and UNREADABLE not in info.holders]
    majority, silent = len(results) // 2 + 1, len(results) - len(infos)
    if damage and len(infos) < majority and any(UNREADABLE in info.holders for info in results if has_answered(info)):
        return LockInfo(key, (UNREADABLE,), damage=damage)
    by_claim: dict[str, list[HolderInfo]] = {}
    for info in infos:
        for holder in info.holders:
            by_claim.setdefault(holder.claim_id, []).append(holder)
    holders = [_one(found, majority) for found in by_claim.values() if len(found) + silent >= majority]
    queues = sorted((_queue(info, holders) for info in infos), key=len, reverse=True)
    queue = queues[min(majority, len(queues)) - 1]
    return LockInfo(key, tuple(holders), len(queue), queue, damage)


def broken_holders(before: LockInfo, results: Sequence[Any]) -> dict[str, float]:
    """By claim that may have held at a majority: seconds after which it is over for certain."""
    broken = [one for one in results if has_answered(one)]
    left = {holder.claim_id: max(one.left.get(holder.claim_id, 0.0) for one in broken) for holder in before.holders}
    return {id: seconds for id, seconds in left.items() if seconds > 0.0}  # without a hold that could not be read


def _is_damaged(info: Any) -> bool:
    return has_answered(info) and bool(info.damage)


def _queue(info: LockInfo, holders: Sequence[HolderInfo]) -> tuple[str, ...]:
    """The waiters at one server, without a claim that holds at a majority and is still in the queue here."""
    inside = {holder.claim_id for holder in info.holders}
    queue = list(info.queue)
    for holder in holders:
        if holder.claim_id not in inside and holder.holder in queue:
            queue.remove(holder.holder)
    return tuple(queue)


def _one(found: Sequence[HolderInfo], majority: int) -> HolderInfo:
    """It holds for as long as a majority says so."""
    ends = sorted((holder.expires_at for holder in found), reverse=True)
    first = min(found, key=lambda holder: holder.acquired_at)
    fence = Counter(holder.fence for holder in found).most_common(1)[0][0]
    return first._replace(fence=fence, expires_at=ends[min(majority, len(ends)) - 1])


def busy_of(votes: Tally, majority: int) -> Busy:
    """The answer to a claim that was not granted: its position is the one that most nodes see."""
    all_busy = votes.busy.values()
    holders = Counter(busy.holder for busy in all_busy if busy.holder is not None)
    positions = sorted(busy.position for busy in all_busy)
    return Busy(
        positions[min(majority, len(positions)) - 1] if positions else 0,
        min((busy.retry_after for busy in all_busy), default=0.0),
        holders.most_common(1)[0][0] if holders else None,
    )
