"""The requests that renew leases: in batches, in the background of the keeper's loop.

Decides: how many requests are under way, how long each may take, and what an answer or its absence means.
Leaves to `schedule`: when a lease is renewed next. Leaves to `loop_watch`: when another thread sends a request, because
the event loop is blocked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from lockfast._model import Renewal
from lockfast.engine.not_held import NO_LONGER_THERE
from lockfast.engine.reporting import report_renewal_failed, report_renewed
from lockfast.engine.retrying import cannot_say
from lockfast.engine.schedule import NEVER, RenewalState
from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast.engine.core import Engine
    from lockfast.engine.keeper import Keeper

Ask: TypeAlias = Callable[[list[Renewal], float], Awaitable[Sequence[bool | None]]]  # within so many seconds
HANGING_S: Final = 0.25  # after which an unanswered renewal no longer holds up the others
MIN_WITHIN_S: Final = 0.01
MIN_BEAT_S: Final = 0.01  # between two rounds of the keeper while it waits for an answer


class RenewalBatch:
    """Leases that are renewed in one request, watched until it is answered."""

    __slots__ = ("states", "watch_until")

    def __init__(self, states: list[RenewalState]) -> None:
        self.states = states
        self.watch_until = min(state.lease._deadline for state in states)  # when the first is lost unanswered


class Renewals:
    def __init__(self, engine: Engine, keeper: Keeper) -> None:
        self._engine = engine
        self._keeper = keeper
        self._due: list[RenewalBatch] = []  # to be renewed next
        self.unanswered: list[RenewalBatch] = []  # due, or sent and not answered yet
        self._renewers = 0  # threads or tasks that renew: one, or more while requests hang
        self._asked_at = 0.0  # when one of them last sent a request

    def reset(self) -> None:
        """In a new event loop: what renewed in the old one never goes on."""
        with self._engine.mutex:
            self._due, self.unanswered, self._renewers = [], [], 0

    def add(self, due: list[RenewalState]) -> None:
        size = self._engine.backend.capabilities.renew_batch
        batches = [RenewalBatch(due[start : start + size]) for start in range(0, len(due), size)]
        with self._engine.mutex:
            self._due += batches
            self.unanswered += batches

    def start(self, now: float) -> float:
        """Start a thread or task for what is due, if none renews it; the answer is when to check whether that goes on.

        One renewer sends batch after batch. Another is only started when its request hangs, so that one hanging
        request does not cost the leases that fall due meanwhile.
        """
        with self._engine.mutex:
            start = bool(self._due) and (not self._renewers or self._asked_at + HANGING_S <= now)
            if start:
                self._renewers += 1
                self._asked_at = now
        if start:
            try:
                self._engine.world.spawn(self._run(), "lockfast-renewal")
            except RuntimeError:  # no thread can be started just now; tried again
                with self._engine.mutex:
                    self._renewers -= 1
        hangs_at = self._asked_at + HANGING_S
        return (hangs_at if hangs_at > now else now + HANGING_S) if self._due else NEVER

    def watch(self, now: float) -> float:
        """Notice deadlines that pass before a renewal is answered; the answer is when the next one does."""
        for batch in list(self.unanswered):
            if batch.watch_until <= now:
                for state in batch.states:
                    self._keeper.notice(state.lease)
                held = [state.lease._deadline for state in batch.states if state.lease._state == "held"]
                batch.watch_until = min(held, default=NEVER)
        until = min((batch.watch_until for batch in list(self.unanswered)), default=NEVER)
        if until == NEVER or self._engine.standby is None:
            return until
        return min(until, now + max(MIN_BEAT_S, (until - now) / 4))  # so that the standby sees that the loop runs

    async def _run(self) -> None:
        while True:
            with self._engine.mutex:
                if not self._due:
                    self._renewers -= 1
                    return
                batch = self._due.pop(0)
                self._asked_at = self._engine.now()
            try:
                await self.renew(batch.states)
            finally:
                with self._engine.mutex:
                    self.unanswered.remove(batch)

    async def renew(self, states: list[RenewalState]) -> None:
        """One request of the keeper's."""
        engine = self._engine
        now = engine.now()
        until = max(state.lease._deadline for state in states)
        try:
            await self.renew_with(
                lambda batch, within: engine.watched(partial(engine.backend.renew, batch, within=within), now, until),
                states,
                behind=engine.world.blocking,
            )
        finally:
            for state in states:
                state.renewing = False
                self._keeper.fresh[state.lease._claim.id] = state.lease
            self._keeper.loop.wake()

    async def renew_with(self, ask: Ask, states: list[RenewalState], *, behind: bool, at_most: float = NEVER) -> None:
        """One request, asked in that way, which takes `at_most` that many seconds. Never raises an Exception.

        Where a listener that blocks would hold up others, an outage is reported `behind`.
        """
        engine, leases = self._engine, [state.lease for state in states]
        batch = [Renewal(lease._claim, lease._ttl, lease._fence) for lease in leases]
        asked_at = engine.now()  # before sending: the server's ttl cannot have started earlier
        # A third of what is left: if this request goes unanswered, there is time to ask again, more than once.
        left = min(lease._deadline for lease in leases) - asked_at
        within = min(engine.patience, max(MIN_WITHIN_S, left / 3), at_most)
        try:
            answers = await ask(batch, within)
        except Exception as error:
            self._ride_out(states, error)
            if isinstance(error, BackendUnavailable):
                self._report_outage(states, error, asked_at, behind)
        else:
            had_failed = any(state.failures for state in states)
            self._on_answers(states, batch, answers, asked_at)
            if None in answers:  # a part of the backend cannot be reached, such as one server of several
                unknown = [state for state, kept in zip(states, answers, strict=True) if kept is None]
                what = f"{len(unknown)} of {len(states)} leases"
                self._report_outage(unknown, cannot_say(engine, what), asked_at, behind)
            elif had_failed:
                engine.outage.over(behind=behind)

    def _on_answers(
        self, states: list[RenewalState], batch: list[Renewal], answers: Sequence[bool | None], asked_at: float
    ) -> None:
        now = self._engine.now()
        wanted = self._engine.events.wanted()
        for state, renewal, kept in zip(states, batch, answers, strict=True):
            lease = state.lease
            if now >= lease._deadline:
                self._keeper.notice(lease)  # an answer that comes after the deadline brings nothing back
            elif kept is None:
                self._ride_out([state], cannot_say(self._engine, "it"))
            elif not kept:
                self._keeper.lose(lease, "denied", NO_LONGER_THERE)
            elif lease._state == "held":
                left = lease._deadline - now
                lease._renewed(asked_at, renewal.ttl)
                state.renewed(asked_at)
                self._engine.on_renewed()
                if wanted:
                    report_renewed(self._engine, lease, left)

    def _ride_out(self, states: list[RenewalState], error: Exception) -> None:
        """An error is not a loss: try again soon, until the deadline."""
        engine = self._engine
        now, failure = engine.now(), f"{type(error).__name__}: {error}"
        for state in states:
            state.failed(now, engine.world.chance(), failure)
            if engine.events.noted():
                report_renewal_failed(engine, state.lease, error, failure)

    def _report_outage(
        self, states: list[RenewalState], error: BackendUnavailable, asked_at: float, behind: bool
    ) -> None:
        until = max(state.lease._deadline for state in states)
        again_at = min(state.renew_at for state in states)
        self._engine.outage.failed(error, asked_at, again_at, until, behind=behind)
