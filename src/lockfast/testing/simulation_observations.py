"""Judge what observers of elections received, and what limiters gave, from the records of a simulated run.

Decides: what an observer must have received, change by change, and when a limiter gave too much.
Leaves to `simulation_checks`: everything about claims. Each check yields one line for each thing that is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from lockfast._model import PRESENCE_S, Grant
from lockfast._values import NS_PER_S, Rate
from lockfast.primitives.election import Leadership
from lockfast.testing.simulated_network import MAX_DRIFT, Step
from lockfast.testing.simulation_checks import HAND_OVER_S
from lockfast.testing.simulation_record import ElectionWatch, Use


class _Term(NamedTuple):
    step: int  # where in the log it began
    time: float
    leader: str
    number: int


def _terms(log: Sequence[Step], key: str) -> list[_Term]:
    """Every grant of the name once, in the order in which the server made them."""
    found: dict[int, _Term] = {}
    for place, step in enumerate(log):
        granted = [*step.handed_over]
        if step.verb == "acquire" and isinstance(step.answer, Grant):
            granted.append((step.asked, step.answer))
        for claim, grant in granted:
            if claim.terms.key == key:
                found.setdefault(grant.fence, _Term(place, step.time, claim.terms.holder, grant.fence))
    return list(found.values())


def terms_grow(log: Sequence[Step], key: str) -> Iterator[str]:
    terms = _terms(log, key)
    for earlier, later in pairwise(terms):
        if later.number <= earlier.number:
            yield f"{later.time:.6f}: term {later.number} of {key!r} came after term {earlier.number}"


def _changes(terms: Sequence[_Term]) -> list[Leadership]:
    """All changes that these terms are; each ends before the next one begins, and the last before the run does."""
    return [Leadership(leader, term.number) for term in terms for leader in (term.leader, None)]


class ObservationChecks:
    """What observers should have seen of one name."""

    def __init__(self, log: Sequence[Step], key: str, excused: set[str]) -> None:
        self._log, self._key, self._excused = log, key, excused
        self._terms = _terms(log, key)
        self._asked: defaultdict[str, list[tuple[int, Step]]] = defaultdict(list)  # by claim id, the repeated left out
        seen: set[int] = set()
        for place, step in enumerate(log):
            if step.verb == "observe" and id(step.options) not in seen:
                seen.add(id(step.options))
                self._asked[step.asked.id].append((place, step))

    def silent(self, watch: ElectionWatch) -> bool:
        """Whether it did not ask for so long that the server may have stopped keeping changes for it."""
        times = [step.now for _, step in self._asked[watch.claim_id]]
        return any(later - earlier > 0.98 * PRESENCE_S for earlier, later in pairwise(times))

    def check(self, watch: ElectionWatch) -> Iterator[str]:
        received = [each.leadership for each in watch.received]
        yield from self._not_growing(watch, received)
        if not received:
            if watch.to_the_end:
                yield f"{watch.client.world.name} never received who leads {self._key!r}"
        elif not self.silent(watch):
            yield from self._differing(watch, received)
        elif watch.to_the_end and not received[-1].vacant:
            yield f"{watch.client.world.name} last received {received[-1]}, but nobody leads {self._key!r} any more"
        yield from self._late(watch)

    def _not_growing(self, watch: ElectionWatch, received: list[Leadership]) -> Iterator[str]:
        terms = [each.term for each in received if not each.vacant]
        if terms != sorted(set(terms)):
            yield f"{watch.client.world.name} received terms that do not grow: {terms}"

    def _differing(self, watch: ElectionWatch, received: list[Leadership]) -> Iterator[str]:
        """Each change once and in order: from what was true when it first got an answer, and to the end if it lived."""
        before = sum(term.step <= self._first_answered(watch) for term in self._terms)
        if received[0].vacant:
            expected = [Leadership(None, 0), *_changes(self._terms[before:])]
        else:
            expected = _changes(self._terms[max(0, before - 1) :])
        if not watch.to_the_end:
            expected = expected[: len(received)]
        if received != expected:
            where = next((n for n, (a, b) in enumerate(zip(received, expected, strict=False)) if a != b), len(expected))
            got, was = received[where : where + 2], expected[where : where + 2]
            yield f"{watch.client.world.name} received {got} of {self._key!r}, but what happened was {was}"

    def _first_answered(self, watch: ElectionWatch) -> int:
        """Where in the log it received what was true then: its next request shows which answer came through."""
        asked = self._asked[watch.claim_id]
        after = next((step.options["after"] for _, step in asked if step.options["after"]), None)
        firsts = [(place, step.answer.changes[-1].number) for place, step in asked if not step.options["after"]]
        return next((place for place, number in firsts if number == after), firsts[-1][0])

    def _late(self, watch: ElectionWatch) -> Iterator[str]:
        began = {term.number: term.time for term in self._terms}
        for time, asked_at, leadership in watch.received[1:]:
            late = time - max(asked_at, began.get(leadership.term, time))
            if not leadership.vacant and late > HAND_OVER_S and watch.claim_id not in self._excused:
                yield f"{time:.6f}: {watch.client.world.name} received {leadership} {late:.3f}s late without a fault"


class _Booking(NamedTuple):
    time: float  # true time at which it may be used
    slot: int  # the same in nanoseconds on the server's clock
    client: str
    cost: int
    until: int


def bookings(log: Sequence[Step]) -> list[_Booking]:
    """What the server gave and did not get back, in the order in which it may be used.

    A booking that comes back is the sender's own and comes back once, however often the message arrives.
    """
    kept: list[_Booking] = []
    returned: set[int] = set()
    for step in log:
        if step.verb == "throttle" and step.answer.allowance.allowed:
            wait = step.answer.allowance.retry_after
            slot = int(step.now * NS_PER_S) + round(wait * NS_PER_S)
            cost = step.options["cost"]
            kept.append(_Booking(step.time + wait / (1 + 3 * MAX_DRIFT), slot, step.client, cost, step.answer.until))
        elif step.verb == "unthrottle" and id(step.options) not in returned:
            returned.add(id(step.options))
            own = [each for each in kept if each.client == step.client and each.until == step.options["until"]]
            if own:
                kept.remove(own[-1])
    return sorted(kept, key=lambda booking: booking.slot)


def over_the_rate(booked: Sequence[_Booking], rate: Rate) -> Iterator[str]:
    """In any t seconds no more than the burst and what t seconds give."""
    spoken_for = 0
    for time, slot, client, cost, _ in booked:
        spoken_for = max(spoken_for, slot) + rate.interval * cost
        over = spoken_for - slot - rate.interval * rate.burst
        if over > 1000:  # nanoseconds: seconds as floats are no finer than that
            yield f"{time:.6f}: over the rate: {client} got {cost} permits {over / NS_PER_S:.6f}s too early"


def uses_without_permit(uses: Iterable[Use], booked: Sequence[_Booking]) -> Iterator[str]:
    """Each use of a limiter had a booking of its own that was due."""
    mine: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for booking in booked:
        mine[booking.client, booking.cost].append(booking.time)
    for times in mine.values():
        times.sort(reverse=True)
    for time, client, cost in sorted(uses):
        due = mine[client, cost]
        if not due or due.pop() > time + 1e-3:
            yield f"{time:.6f}: {client} used {cost} permits that it had not got, or before they were due"
