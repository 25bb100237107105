"""Ask until granted or out of time, and leave nothing behind.

Decides: what must be undone, however an acquire ends.
Leaves to the backend: who is granted. Leaves to `asking_again`: what follows a request that was not granted.
Leaves to the keeper: what happens after the grant.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from lockfast._ids import new_claim_id
from lockfast._model import Busy, Claim, Grant
from lockfast._refusals import closed_locks
from lockfast.engine.asking_again import MIN_WITHIN_S, AskAgain, believe
from lockfast.engine.lease import Lease
from lockfast.engine.reporting import AskReport, reported_acquire, timed_out
from lockfast.engine.request import Adopt, Refused, Request, as_it_is
from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast.engine.core import Engine


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
    """Ask once, which is enough for what is free. `AskAgain` does the rest."""
    if not engine.world.blocking:
        engine.world.arrive()
    id = claim.id
    asked_at = engine.now()  # before sending: the server's ttl cannot have started earlier
    within = engine.patience
    if wait and wait < within:
        within = max(MIN_WITHIN_S, wait)
    outage = engine.outage if engine.outage.watches else None
    sent = False  # something of it may have reached the backend
    again: AskAgain | None = None
    try:
        engine.waiting[id] = claim  # before sending: from then on it may stand in the queue, or be granted
        if engine.closed:
            raise closed_locks()
        if outage is not None:
            outage.sent(id, asked_at, asked_at + (wait or engine.patience))
        sent = True
        if report is not None:
            report.attempts = 1
        try:
            answer = await engine.backend.acquire(claim, enqueue=wait != 0, within=within)
            if outage is not None:
                outage.answered(id)
            if isinstance(answer, Grant):
                granted = believe(engine, request, claim, answer, asked_at, 0.0)
                adopt(granted)
                return granted
        except BackendUnavailable as error:
            again = AskAgain(engine, request, claim, wait, adopt, asked_at, report)
            lease = await again.after_failure(error, within)
        else:
            again = AskAgain(engine, request, claim, wait, adopt, asked_at, report)
            lease = await again.go_on(answer)
        if lease is not None:
            return lease
        if wait != 0:
            await engine.abandon(claim, within=engine.briefly)
    except GeneratorExit:  # the coroutine is being closed: nothing can be awaited in it any more
        engine.behind(engine.abandon, claim)
        raise
    except BaseException as error:
        try:
            engine.outage.ended(id)  # no caller waits for its answer any more
            sent = sent if again is None else again.sent
            brief = not sent or isinstance(error, BackendUnavailable)
            await engine.abandon(claim, within=engine.briefly if brief else 1.0, sent=sent)
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
    assert again.busy is not None  # else it has raised
    if report is None and wait:
        timed_out(engine, request, claim, again.busy, engine.now() - asked_at)
    return refused(request, again.busy, engine.now() - asked_at)
