"""Keep leases alive, and notice when one is no longer ours.

Decides: when to stop believing, and who learns of a loss.
Leaves to `schedule`: when a lease is due. Leaves to `renewing`: the requests. Leaves to `keeper_loop`: in which thread
or task. Leaves to the backend: whether the record is still ours. Leaves to the caller: what to do after a loss.

One keeper serves all leases of a `Locks`. Its loop sleeps until the first lease is due, renews all leases that are due
about then in one request, and never waits for that request: a deadline that passes meanwhile is noticed in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lockfast._bounded import BoundedDict
from lockfast.engine.keeper_loop import KeeperLoop
from lockfast.engine.lease import Lease, Step
from lockfast.engine.leases_by_key import LeasesByKey
from lockfast.engine.not_held import Reason, why_out_of_time
from lockfast.engine.renewing import Renewals
from lockfast.engine.reporting import report_lost, report_unanswered
from lockfast.engine.schedule import INTERVALS_IN_TTL, WATCHED, RenewalState, Schedule, renewal_interval

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

MAX_EARLY_LOSSES: Final = 1000
LOOP_CLOSED: Final = Reason("loop_closed", "the event loop that its body ran in was closed")


class Keeper:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.leases: dict[str, Lease] = {}  # all that are held, by claim id
        self.by_key = LeasesByKey(engine.mutex)  # the same
        self._unfiled = self.by_key.unfiled
        self.fresh: dict[str, Lease] = {}  # those to inspect as soon as the loop is awake
        self._states: dict[str, RenewalState] = {}  # of those that were inspected or renewed, by claim id
        self._schedule = Schedule()
        # Reported before the lease is kept, which may never come: the reason by claim id and fence.
        self._early = BoundedDict[tuple[str, int], str](MAX_EARLY_LOSSES)
        self.renewals = Renewals(engine, self)
        self.loop = KeeperLoop(engine, self)

    # Which leases are kept

    def keep(self, lease: Lease) -> None:
        """From now on: renew it, and report its loss. Raises RuntimeError if no thread or task can be started."""
        id = lease._claim.id
        self.leases[id] = self._unfiled[id] = self.fresh[id] = lease
        if self._early and (reason := self._early.pop((id, lease._fence), "")):
            self.lose(lease, "denied", Reason("session_ended", reason))
            return
        request = lease._request
        if not request.renew:
            due_at = lease._deadline
        elif request.renew_every is None:  # as `renewal_interval`, which costs a call
            due_at = lease._asked_at + lease._ttl / INTERVALS_IN_TTL
        else:
            due_at = lease._asked_at + renewal_interval(lease)
        loop = self.loop
        if due_at < loop.wake_at or loop.signal is None:  # as in `wake_by`, which costs a call
            try:
                loop.wake_by(due_at)
            except RuntimeError:
                self.forget(lease)  # the caller does not get it
                raise

    def forget(self, lease: Lease) -> None:
        """It is released or lost: nothing more to do for it."""
        id = lease._claim.id
        self.leases.pop(id, None)
        if self._unfiled.pop(id, None) is None:
            self.by_key.remove(lease)
        self.fresh.pop(id, None)
        if self._states:
            self._states.pop(id, None)

    def renewed(self, lease: Lease, asked_at: float) -> None:
        """A request that was sent at that moment has renewed it, perhaps for another ttl."""
        state = self.state_of(lease)
        state.interval = renewal_interval(lease)
        state.renewed(asked_at)

    def reschedule(self, lease: Lease) -> None:
        """Its times have changed."""
        id = lease._claim.id
        if id in self.leases:
            self.fresh[id] = lease
            self.loop.wake()

    def state_of(self, lease: Lease) -> RenewalState:
        """Made when it is first needed: most leases are released before the loop inspects them."""
        id = lease._claim.id
        state = self._states.get(id)
        if state is None:
            state = self._states.setdefault(id, RenewalState(lease))
            if id not in self.leases:  # another thread has released it, and may have called `forget` before that line
                self._states.pop(id, None)
        return state

    def why_not_renewed(self, lease: Lease) -> str:
        """The error of the last renewal, if it failed."""
        state = self._states.get(lease._claim.id)
        return "" if state is None else state.failure

    def begin_again(self) -> None:
        """In a new event loop, after the old one was closed with all that ran in it: what is held is kept from there.

        A body that ran in the old one never goes on, so what it held is lost.
        """
        self.loop.reset()
        self._schedule.clear()
        self.renewals.reset()
        for lease in list(self.leases.values()):
            self.state_of(lease).renewing = False
            if lease._guard is not None:
                self.lose(lease, "deadline", LOOP_CLOSED)
        self.loop.go_on()

    # What the loop does each time that it is awake

    def inspect(self, now: float) -> float:
        """Inspect every lease whose time has come, and start renewals; when the next one is due."""
        fresh: list[RenewalState] = []
        known = self._states
        with suppress(KeyError):  # until it is empty, also if another thread takes the last one out
            while True:
                id, lease = self.fresh.popitem()
                fresh.append(known.get(id) or self.state_of(lease))
        due = self._inspect(fresh[::-1], now)
        while group := self._schedule.take(now):
            due += self._inspect(group, now)
        self.renewals.add(due)
        return min(self.renewals.start(now), self.renewals.watch(now), self._schedule.first())

    def _inspect(self, states: list[RenewalState], now: float) -> list[RenewalState]:
        """Decide for each: over, due for renewal, or when to inspect it again. The answer: those that are due."""
        due: list[RenewalState] = []
        later: dict[float, list[RenewalState]] = {}
        for state in states:
            lease = state.lease
            if lease._state not in WATCHED or now >= lease._deadline:
                self.notice(lease)
                self.forget(lease)
                report_unanswered(self._engine, lease)
                continue
            due_at = lease._deadline
            if now < state.renew_until and lease._state == "held" and not state.renewing:
                if now >= state.renewable_at:
                    state.renewing = True
                    due.append(state)
                    continue  # watched with its batch until that is answered
                due_at = min(due_at, state.renew_at)
            state.due_at = due_at
            later.setdefault(due_at, []).append(state)
        self._schedule.add(later, len(self.leases))
        return due

    def is_idle(self) -> bool:
        """Nothing is due, and no request is unanswered."""
        return not self.fresh and not self.renewals.unanswered

    def clear_schedule(self) -> None:
        """It may still name leases that were released long before they were due."""
        self._schedule.clear()

    # Losses

    def notice(self, lease: Lease) -> None:
        """Its deadline may have passed before the loop has seen it."""
        if lease._state == "held" and self._engine.now() >= lease._deadline:
            self.lose(lease, "deadline", why_out_of_time(lease))

    def on_loss(self, ended: Sequence[tuple[str, int]], reason: str) -> None:
        """The backend has noticed that these claims, each with its fence, hold no longer. Called from any thread."""
        for held in ended:
            self._early[held] = reason  # before the search: it may be granted, and on its way to be kept
            id, fence = held
            lease = self.leases.get(id)
            if lease is not None and lease._fence == fence:  # else the claim was granted again since
                self._early.pop(held, None)
                self.lose(lease, "denied", Reason("session_ended", reason))
                self.lose(
                    lease, "gone", Reason("session_ended", reason)
                )  # if its release is under way, and not answered yet

    def lose_all(self, error: Exception) -> None:
        """No lease can be renewed any more: its holder learns that now, not at the deadline."""
        for lease in list(self.leases.values()):
            why = Reason("keeper_failed", f"renewing failed: {type(error).__name__}: {error}")
            self.lose(lease, "deadline", why)

    def lose(self, lease: Lease, step: Step, reason: Reason) -> None:
        """Stop believing, and report it to all who must know. Only the first to notice does so."""
        if not lease._move(step, reason.text):
            return
        self.forget(lease)
        engine = self._engine
        if step == "deadline" and not engine.backend.capabilities.expires:
            engine.unfinished.add(lease._claim)  # else the store would keep it for ever
        try:
            if lease._request.on_lost is not None:
                engine.on_lost.lost(lease)
        finally:  # after that: the body may be all that its event loop runs for
            if lease._guard is not None:
                lease._guard.interrupt()
            else:
                engine.forget_entry(lease)  # inside a `with` it stays, so that entering again reports the loss
        report_lost(engine, lease, reason)  # last: a listener may raise
