"""An acquire of which the first request was not granted: ask again until granted or out of time.

Decides: when to ask again, and when to give up; that a grant which comes too late is none.
Leaves to `acquire`: the first request, and what must be undone. Leaves to `retrying`: the pause after a failure.
Leaves to `waking`: which grant in a wake-up is believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockfast._model import Busy, Claim, Grant
from lockfast._refusals import closed_locks
from lockfast._time import FOREVER, format_duration
from lockfast.engine.lease import Lease
from lockfast.engine.reporting import LONG_WAIT_S, AskReport, still_waiting
from lockfast.engine.request import Adopt, Request
from lockfast.engine.retrying import HASTY_S, most_telling, pause_for_retry
from lockfast.engine.waking import Waking, handed_over
from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

MIN_WITHIN_S: Final = 0.02


class AskAgain:
    """One acquire, from the answer or failure of its first request on. Gives the lease, or None at the end.

    A lease is adopted where it is granted, and nothing is called from there on.
    """

    __slots__ = (
        "_adopt",
        "_answered_at",
        "_asked_at",
        "_claim",
        "_engine",
        "_failures",
        "_give_up_at",
        "_most",
        "_report",
        "_request",
        "_started",
        "_telling",
        "_wait",
        "busy",
        "sent",
    )

    def __init__(
        self,
        engine: Engine,
        request: Request,
        claim: Claim,
        wait: float | None,
        adopt: Adopt,
        started: float,
        report: AskReport | None,
    ) -> None:
        self._engine = engine
        self._request = request
        self._claim = claim
        self._wait = wait
        self._adopt = adopt
        self._report = report
        self._started = self._asked_at = self._answered_at = started
        self._give_up_at = FOREVER if wait is None else started + wait
        self._most = engine.patience  # how long the next request may take
        self._failures = 0
        self._telling: BackendUnavailable | None = None  # of the failures since the last answer, see `most_telling`
        self.busy: Busy | None = None  # the last answer
        self.sent = True  # something of it may have reached the backend

    async def after_failure(self, error: BackendUnavailable, within: float) -> Lease | None:
        """The first request failed, which had that much time."""
        self.sent = error.sent
        await self._stands(error, within)  # it does not: there is none
        return await self.go_on(None)

    async def go_on(self, busy: Busy | None) -> Lease | None:
        """After that answer, or after a failure and its pause."""
        engine, request, claim, wait = self._engine, self._request, self._claim, self._wait
        give_up_at = self._give_up_at
        outage = engine.outage if engine.outage.watches else None
        waking: Waking | None = None  # once it has waited
        report, slow = self._report, self._report  # `slow` once it has waited for long, too
        while True:
            if busy is not None:
                self.busy = busy
                self._failures, self._most, self._telling = 0, engine.patience, None
                answered_at = self._answered_at = engine.now()
                if engine.closed:
                    raise closed_locks()
                if wait is None and waking is None:
                    engine.must_not_wait_for_itself(claim)
                if report is not None:
                    report.busy = busy
                seconds = min(give_up_at - answered_at, busy.retry_after)
                woken: bool | Grant = False
                if waking is not None:
                    woken = answered_at < give_up_at and await waking.wait(seconds, give_up_at)
                elif answered_at < give_up_at:  # most are woken once, with a grant
                    woken = await engine.backend.wait(claim, seconds)
                grant = handed_over(engine, request, woken, busy, self._asked_at) if woken else None
                asked_at = self._asked_at = engine.now()
                if grant is not None:
                    lease = believe(engine, request, claim, grant, asked_at, asked_at - self._started)
                    self._adopt(lease)
                    return lease
                if not woken and asked_at >= give_up_at:
                    return None
                waking = waking or Waking(engine, claim)
                if asked_at - self._started >= LONG_WAIT_S:
                    slow = still_waiting(engine, request, claim, slow, busy, asked_at - self._started)
            asked_at, within = self._asked_at, self._most
            if engine.closed:
                raise closed_locks()
            if wait and give_up_at - asked_at < within:
                within = max(MIN_WITHIN_S, give_up_at - asked_at)
            if outage is not None:
                outage.sent(claim.id, asked_at, give_up_at if wait else self._answered_at + engine.patience)
            was_sent, self.sent = self.sent, True
            if report is not None and report.attempts is not None:
                report.attempts += 1
            try:
                answer = await engine.backend.acquire(claim, enqueue=wait != 0, within=within)
                if outage is not None:
                    outage.answered(claim.id)
                if self._failures:
                    engine.outage.over()
                if isinstance(answer, Grant):
                    self.busy = None
                    lease = believe(engine, request, claim, answer, asked_at, asked_at - self._started)
                    self._adopt(lease)
                    return lease
                busy = answer
            except BackendUnavailable as error:
                self.sent = was_sent or error.sent
                if await self._stands(error, within):
                    return None
                busy = None

    async def _stands(self, error: BackendUnavailable, within: float) -> bool:
        """Whether the last answer stands after all; else it is time for the next request. Raises if there is none.

        The request that failed had `within` seconds. Its outcome is unknown; the same claim is asked for again, so it
        is granted once at most.
        """
        engine, wait = self._engine, self._wait
        engine.outage.ended(self._claim.id)
        if engine.closed:
            raise closed_locks() from error  # a better reason than that its connection was closed
        self._failures += 1
        now = engine.now()
        limit = self._answered_at + engine.patience if wait is None or wait == 0 else self._give_up_at
        if error.retry_after is not None:  # it answers, and says when it can help: patience is for silence
            limit = FOREVER if wait is None else limit
        pause = pause_for_retry(engine, self._failures, limit - now)
        telling = self._telling = most_telling(engine, error, self._telling, within)
        if not error.transient or pause is None or now + (error.retry_after or 0.0) > limit:
            hasty = within < HASTY_S and within < self._most  # `wait` left so little, and not the caller's patience
            if self.busy is not None and self._failures == 1 and error.transient and hasty:
                return True
            raise engine.outage.final(telling) from telling.__cause__
        if error.retry_after is not None:
            pause = min(pause, max(0.001, error.retry_after))
        engine.outage.failed(error, self._asked_at, now + pause, limit)
        await engine.world.pause(pause)
        self._asked_at = engine.now()
        self._most = max(MIN_WITHIN_S, min(engine.patience, limit - self._asked_at))
        return False


def believe(engine: Engine, request: Request, claim: Claim, grant: Grant, asked_at: float, waited: float) -> Lease:
    lease = engine.lease_type(engine, request, claim, grant, asked_at, waited)
    if engine.now() >= lease._deadline:
        took = format_duration(engine.now() - asked_at)
        raise BackendUnavailable(
            f"lock {claim.terms.name!r} was granted, but the answer took {took}, longer than its ttl of "
            f"{format_duration(claim.terms.ttl)}; it is not held",
            name=claim.terms.name,
        )
    engine.keeper.keep(lease)
    if engine.closed:  # while the request was under way: no keeper would renew it. Checked last, see `close`
        raise closed_locks()
    return lease
