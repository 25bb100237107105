"""Ask until granted or out of time, and leave nothing behind.

Decides: when to ask again, when to give up, and what must be undone.
Leaves to the backend: who is granted. Leaves to `waking`: which grant in a wake-up is believed.
Leaves to the keeper: what happens after the grant.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from lockfast._ids import new_claim_id
from lockfast._model import Busy, Claim, Grant
from lockfast._refusals import closed_locks
from lockfast._time import FOREVER, format_duration
from lockfast.engine.lease import Lease
from lockfast.engine.reporting import LONG_WAIT_S, AskReport, reported_acquire, still_waiting, timed_out
from lockfast.engine.request import Adopt, Refused, Request, as_it_is
from lockfast.engine.retrying import HASTY_S, most_telling, pause_for_retry
from lockfast.engine.waking import Waking, handed_over
from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

MIN_WITHIN_S: Final = 0.02


def acquire(
    engine: Engine, request: Request, wait: float | None, adopt: Adopt, refused: Refused = as_it_is
) -> Coroutine[Any, Any, Lease | Busy]:
    """The lease, or what `refused` makes of who was in the way after `wait` seconds (None waits for ever, 0 asks once).

    Raises BackendUnavailable if the backend cannot be asked: after `wait`, or after the engine's patience if
    there is no such limit; at once if the backend answers that it takes longer than that.

    However it ends, by an exception too, only a returned lease holds anything: what the caller must do with a lease it
    does in `adopt`, since an interrupt of the blocking world can fall between any two calls, and nothing is called
    between here and the user once the lease is adopted.
    """
    claim = tuple.__new__(Claim, (new_claim_id(), request.terms))  # as Claim(…), which takes twice as long
    if request.on_lost is not None:
        request, adopt = engine.on_lost.prepare(request, adopt)
    if engine.order is not None:
        engine.order.asked(engine, claim, wait)
    if engine.events.wanted():
        return reported_acquire(engine, request, claim, wait, adopt, refused, _ask)
    return _ask(engine, request, claim, wait, adopt, refused)


async def _ask(
    engine: Engine,
    request: Request,
    claim: Claim,
    wait: float | None,
    adopt: Adopt,
    refused: Refused,
    report: AskReport | None = None,
) -> Lease | Busy:
    if not engine.world.blocking:
        engine.world.arrive()
    id = claim.id
    started = asked_at = answered_at = engine.now()  # before sending: the server's ttl cannot have started earlier
    give_up_at = FOREVER if wait is None else asked_at + wait
    enqueue = wait != 0
    most = engine.patience  # how long the next request may take
    failures = 0
    checked = False  # that it does not wait for itself
    unsent = True  # nothing of it can have reached the backend
    answer: Grant | Busy | None = None  # the last one
    telling: BackendUnavailable | None = None  # of the failures since then, see `most_telling`
    waking: Waking | None = None  # once it waits
    slow: AskReport | None = None  # once it has waited for long
    outage = engine.outage if engine.outage.watches else None
    try:
        engine.waiting[id] = claim  # before sending: from then on it may stand in the queue, or be granted
        while True:
            if engine.closed:
                raise closed_locks()
            within = most
            if wait and give_up_at - asked_at < within:
                within = max(MIN_WITHIN_S, give_up_at - asked_at)
            if outage is not None:
                outage.sent(id, asked_at, give_up_at if wait else answered_at + engine.patience)
            was_unsent, unsent = unsent, False
            if report is not None and report.attempts is not None:
                report.attempts += 1
            try:
                answer = await engine.backend.acquire(claim, enqueue=enqueue, within=within)
                if outage is not None:
                    outage.answered(id)
                if failures:
                    engine.outage.over()
                if isinstance(answer, Grant):
                    lease = _believe(engine, request, claim, answer, asked_at, asked_at - started)
                    adopt(lease)
                    return lease
            except BackendUnavailable as error:
                engine.outage.ended(id)
                unsent = was_unsent and not error.sent
                if engine.closed:
                    raise closed_locks() from error  # a better reason than that its connection was closed
                # The outcome is unknown; the same claim is asked for again, so it is granted once at most.
                failures += 1
                now = engine.now()
                limit = give_up_at if enqueue and wait is not None else answered_at + engine.patience
                if error.retry_after is not None:  # it answers, and says when it can help: patience is for silence
                    limit = FOREVER if wait is None else limit
                pause = pause_for_retry(engine, failures, limit - now)
                telling = most_telling(engine, error, telling, within)
                if not error.transient or pause is None or now + (error.retry_after or 0.0) > limit:
                    hasty = within < HASTY_S and within < most  # `wait` left so little, and not the caller's patience
                    if isinstance(answer, Busy) and failures == 1 and error.transient and hasty:
                        break  # that answer stands
                    raise engine.outage.final(telling) from telling.__cause__
                if error.retry_after is not None:
                    pause = min(pause, max(0.001, error.retry_after))
                engine.outage.failed(error, asked_at, now + pause, limit)
                await engine.world.pause(pause)
                asked_at = engine.now()
                most = max(MIN_WITHIN_S, min(engine.patience, limit - asked_at))
                continue
            failures, most, telling = 0, engine.patience, None
            answered_at = engine.now()
            if engine.closed:
                raise closed_locks()
            if wait is None and not checked:
                engine.must_not_wait_for_itself(claim)
                checked = True
            if report is not None:
                report.busy = answer
            seconds = min(give_up_at - answered_at, answer.retry_after)
            woken: bool | Grant = False
            if waking is not None:
                woken = answered_at < give_up_at and await waking.wait(seconds, give_up_at)
            elif answered_at < give_up_at:  # most are woken once, with a grant
                woken = await engine.backend.wait(claim, seconds)
            grant = handed_over(engine, request, woken, answer, asked_at) if woken else None
            asked_at = engine.now()
            if grant is not None:
                lease = _believe(engine, request, claim, grant, asked_at, asked_at - started)
                adopt(lease)
                return lease
            if not woken and asked_at >= give_up_at:
                break
            waking = waking or Waking(engine, claim)
            if asked_at - started >= LONG_WAIT_S:
                slow = still_waiting(engine, request, claim, report or slow, answer, asked_at - started)
        if enqueue:
            await engine.abandon(claim, within=engine.briefly)
    except GeneratorExit:  # the coroutine is being closed: nothing can be awaited in it any more
        engine.behind(engine.abandon, claim)
        raise
    except BaseException as error:
        try:
            engine.outage.ended(id)  # no caller waits for its answer any more
            brief = unsent or isinstance(error, BackendUnavailable)
            await engine.abandon(claim, within=engine.briefly if brief else 1.0, sent=not unsent)
        except BaseException:
            if engine.world.blocking:  # another interrupt, in the middle of that; none falls into the background
                engine.behind(engine.abandon, claim)
            raise
        raise
    finally:
        if id in engine.waiting:  # no call is made here after `adopt`
            del engine.waiting[id]
        if outage is not None and id in outage.unanswered:
            del outage.unanswered[id]
    if report is None and wait:
        timed_out(engine, request, claim, answer, engine.now() - started)
    return refused(answer, engine.now() - started)


def _believe(engine: Engine, request: Request, claim: Claim, grant: Grant, asked_at: float, waited: float) -> Lease:
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
