"""Judge a simulated run from its records.

Decides: what may never happen, and what may only happen where a fault excuses it.
Leaves to `history`: whether believed holds exclude each other. Each check is a pure function of what was recorded;
it yields one line for each thing that is wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from lockfast._model import EXCLUSIVE, GRACE_S, MAX_POLL_S, SHARED, Claim, Grant
from lockfast.errors import LimitMismatch
from lockfast.testing.simulated_network import Fault, Step

HAND_OVER_S = 0.25  # for a hand-over without faults, with room for a waiter or two that just gave up


class Loss(NamedTuple):
    time: float
    client: str
    claim_id: str
    ttl: float
    renews: bool
    deadline: float  # true time at which its holder had to stop believing
    reason: str
    rest: tuple[str, ...] = ()  # ids of the other claims, if it was one of several names
    blocked_until: float = 0.0  # true time at which the event loop was free again in which it is reported

    @property
    def ended_at(self) -> float:
        """True time at which it was lost, be it reported later."""
        return min(self.time, self.deadline)


class Waiter:
    """A claim in the queue, as far as the log shows it."""

    def __init__(self, claim: Claim, since: float) -> None:
        self.claim = claim
        self.since = since  # on the server's clock
        self.woken = False


class _Name:
    """What the log says about one name. Times are the server's."""

    def __init__(self) -> None:
        self.queue: dict[str, Waiter] = {}
        self.ends: dict[str, float] = {}  # by claim id: when its hold ends, or has ended
        self.held: dict[str, Claim] = {}  # by claim id: what it asked for last, of those in `ends` and some before
        self.successor = ""  # the id of the waiter that the last release named as successor
        self.ended_at = 0.0  # when a holder last released, or lost its hold
        self.given_up = 0  # waiters that left since the last grant
        self.gone = 0  # those of them that a fault had touched, so that they may have been reserved for and not come

    def limits(self, claim: Claim, now: float, waiting: bool) -> set[int | None]:
        """Limits of the others who share the name, or wait to."""
        others = {id: held for id, held in self.held.items() if self.ends.get(id, 0.0) > now}
        if waiting:
            others |= {id: waiter.claim for id, waiter in self.queue.items()}
        return {other.terms.limit for id, other in others.items() if id != claim.id and other.terms.mode == SHARED}

    def free_since(self, now: float) -> float | None:
        latest = max(self.ends.values(), default=now)
        return latest if latest <= now else None


class LogReader:
    """Follows the server's log and asks `checks` at each new grant, before it is counted in."""

    def __init__(self, excused: set[str]) -> None:
        self.excused = excused
        self.names: defaultdict[str, _Name] = defaultdict(_Name)
        self.successors = 0  # how often a waiter was named as the next
        self._fences: dict[str, int] = {}

    def read(self, log: Sequence[Step]) -> Iterator[str]:
        observers = {step.asked.id for step in log if step.verb == "observe"}
        for step in log:
            yield from _too_many_wakeups(step, observers)
            for claim in step.woken:
                waiter = self.names[claim.terms.key].queue.get(claim.id)
                if waiter is not None:
                    waiter.woken = True
            if step.verb == "acquire":
                yield from self._handed_over(step)  # to waiters, because time had made room
                yield from self._acquire(step, step.asked)
                continue
            if step.verb == "renew":
                self._renew(step)
            elif step.verb in ("release", "abandon"):
                self._end(step, step.asked)
            elif step.verb == "break_":
                self._break(step, self.names[step.asked])
            yield from self._handed_over(step)

    def _handed_over(self, step: Step) -> Iterator[str]:
        for claim, grant in step.handed_over:
            yield from self._granted(step, claim, grant)

    def _acquire(self, step: Step, claim: Claim) -> Iterator[str]:
        name = self.names[claim.terms.key]
        if isinstance(step.answer, LimitMismatch):
            if not name.limits(claim, step.now, waiting=True) - {claim.terms.limit}:
                yield f"{step.time:.6f}: {claim.id} was refused, though no claim has another limit: {step.answer}"
            return
        if not isinstance(step.answer, Grant):
            if step.options["enqueue"] and claim.id not in name.queue:
                name.queue[claim.id] = Waiter(claim, step.now)
            return
        yield from self._granted(step, claim, step.answer)

    def _granted(self, step: Step, claim: Claim, grant: Grant) -> Iterator[str]:
        name, expires = self.names[claim.terms.key], step.now + claim.terms.ttl
        if self._fences.get(claim.id) == grant.fence:  # it was granted before, and the answer or the wake-up was lost
            name.ends[claim.id] = max(name.ends[claim.id], expires)
            name.held[claim.id] = claim
            return
        self._fences[claim.id] = grant.fence
        yield from self._two_limits(step, claim, name)
        yield from self._out_of_order(step, claim, name)
        yield from self._idle(step, claim, name)
        name.queue.pop(claim.id, None)
        name.successor = ""
        name.held = {id: held for id, held in name.held.items() if name.ends[id] > step.now} | {claim.id: claim}
        name.ends = {id: end for id, end in name.ends.items() if end > step.now} | {claim.id: expires}
        name.given_up = name.gone = 0

    def _renew(self, step: Step) -> None:
        for renewal, kept in zip(step.asked, step.answer, strict=True):
            if kept:
                ends = self.names[renewal.claim.terms.key].ends
                ends[renewal.claim.id] = max(ends[renewal.claim.id], step.now + renewal.ttl)

    def _end(self, step: Step, claim: Claim) -> None:
        name = self.names[claim.terms.key]
        if step.verb == "abandon" and name.queue.pop(claim.id, None) is not None:
            name.given_up += 1
            name.gone += claim.id in self.excused
        if name.ends.get(claim.id, 0.0) > step.now and step.answer is not False:
            linger = step.options.get("linger", 0.0)
            name.ends[claim.id] = step.now + linger
            name.ended_at = step.now
            successor = step.options.get("successor", "")
            waiting = (id for id, waiter in name.queue.items() if successor and waiter.claim.terms.holder == successor)
            name.successor = next(waiting, "")
            self.successors += name.successor != ""

    def _break(self, step: Step, name: _Name) -> None:
        if any(end > step.now for end in name.ends.values()):
            name.ended_at = step.now
        name.ends = {id: min(end, step.now) for id, end in name.ends.items()}

    def _two_limits(self, step: Step, claim: Claim, name: _Name) -> Iterator[str]:
        """Who comes while others share the name has their limit; a writer may become a reader while others wait."""
        others = name.limits(claim, step.now, waiting=False)
        if claim.terms.mode == SHARED and claim.id not in name.queue and others and claim.terms.limit not in others:
            yield f"{step.time:.6f}: {claim.id} with limit {claim.terms.limit} was let in beside limits {others}"

    def _out_of_order(self, step: Step, claim: Claim, name: _Name) -> Iterator[str]:
        """No waiter is served before an earlier one that could have been served, unless it is the named successor."""
        if claim.id == name.successor:
            return
        if name.successor in name.queue and name.successor not in self.excused:
            yield f"{step.time:.6f}: {claim.terms.key!r} was handed over to {name.successor}, but {claim.id} got it"
        for id, older in name.queue.items():
            if id == claim.id:
                return
            exclude = EXCLUSIVE in (older.claim.terms.mode, claim.terms.mode)
            if id not in self.excused and (exclude or not older.woken):
                yield (
                    f"{step.time:.6f}: {claim.terms.key!r} went to {claim.id} of {step.client} "
                    f"before {id}, which has waited since {older.since:.6f} without a fault"
                )

    def _idle(self, step: Step, claim: Claim, name: _Name) -> Iterator[str]:
        """A free name does not stand idle while a claim waits for it."""
        waiter, free_since = name.queue.get(claim.id), name.free_since(step.now)
        if waiter is None or free_since is None or claim.id in self.excused:
            return
        idle = step.now - max(free_since, waiter.since)
        dead = name.gone + sum(1 for id in name.queue if id in self.excused)
        allowed = HAND_OVER_S + 0.1 * name.given_up + dead * (GRACE_S + MAX_POLL_S)
        if free_since > name.ended_at:  # an expiry wakes no waiter: the first in the queue, or another one, polls
            allowed += MAX_POLL_S
        if idle > allowed:
            yield f"{step.time:.6f}: {claim.terms.key!r} stood idle for {idle:.3f}s while {claim.id} waited"


def _too_many_wakeups(step: Step, observers: set[str]) -> Iterator[str]:
    """One hand-over of an exclusive lock wakes one waiter, however many wait."""
    by_key: defaultdict[str, list[Claim]] = defaultdict(list)
    for claim in step.woken:
        if claim.id in observers:
            continue  # all of these are woken
        if claim == step.asked:
            continue  # found to be next just before it was taken out: its wake-up does nothing
        by_key[claim.terms.key].append(claim)
    for key, woken in by_key.items():
        if len(woken) > 1 and any(claim.terms.mode == EXCLUSIVE for claim in woken):
            yield f"{step.time:.6f}: {step.verb} woke {len(woken)} waiters of {key!r} at once"


def needless_losses(
    losses: Iterable[Loss], faults: Sequence[Fault], broken: dict[str, float], undisturbed: Callable[[str, float], bool]
) -> Iterator[str]:
    """A lease is lost because it was broken, its machine stood still or was cut off, or renewals failed repeatedly."""
    for loss in losses:
        if not loss.renews or loss.claim_id in broken or not undisturbed(loss.client, loss.ended_at - 1.2 * loss.ttl):
            continue
        since = loss.ended_at - 2 * loss.ttl
        lately = [fault for fault in faults if fault.time >= since and fault.client == loss.client]
        touched = Counter(fault.verb for fault in lately if loss.claim_id in fault.claims)
        failed, hung = touched["renew"], sum(fault.verb == "renew" for fault in lately)
        # A slow grant may have been over before a renewal could help, and requests that hang hold up the next a little.
        if failed < 2 and hung < 4 and not touched["acquire"] and not touched["wake"]:
            yield f"{loss.time:.6f}: {loss.client} lost {loss.claim_id} ({loss.reason}) after {failed} failed renewals"
        elif (late := loss.time - max(loss.deadline, loss.blocked_until)) > HAND_OVER_S:
            yield f"{loss.time:.6f}: {loss.client} noticed the loss of {loss.claim_id} {late:.3f}s too late"


def kept_the_rest(losses: Sequence[Loss], log: Sequence[Step], excused: set[str]) -> Iterator[str]:
    """When one of several names is lost the others are released, unless a fault delays that."""
    released_at: dict[str, float] = {}
    lost = {loss.claim_id for loss in losses}
    for step in log:
        if step.verb in ("release", "abandon"):
            released_at.setdefault(step.asked.id, step.time)
    for loss in losses:
        if not excused.isdisjoint((loss.claim_id, *loss.rest)):
            continue
        for id in loss.rest:
            if id not in lost and released_at.get(id, float("inf")) > loss.time + HAND_OVER_S:
                yield f"{loss.time:.6f}: {loss.client} lost one of several names, {loss.claim_id}, and kept {id}"
