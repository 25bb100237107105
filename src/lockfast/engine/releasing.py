"""How a hold ends: by its release, or because its claim is abandoned.

Decides: for how long a release is repeated, and what is left to time or to the background.
Leaves to the backend: who is next. Leaves to `unfinished`: claims that could not be abandoned.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from lockfast._model import Claim
from lockfast._time import FOREVER
from lockfast.engine.lease import Lease
from lockfast.engine.not_held import Reason
from lockfast.engine.reporting import report_release_failed, report_released
from lockfast.errors import BackendUnavailable, LockError

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

MIN_WITHIN_S: Final = 0.02  # for a release that comes just before the deadline
ENDED_BEFORE: Final = Reason("gone", "it had ended on the backend before it was released")


async def release(engine: Engine, lease: Lease, successor: str = "", *, until: float = FOREVER) -> bool:
    """True if it was held until now. False if it was not; then no other claim's hold is touched.

    Repeats a request that fails for as long as the engine's patience lasts, and not longer than `until`.
    """
    if not engine.world.blocking:  # as `arrive` does, which costs a call
        engine.world.arrive()
    now = engine.now()
    if now >= lease._deadline:
        engine.keeper.notice(lease)
    if lease._request.reentrant:
        engine.forget_entry(lease)
    # An earlier request, perhaps of another thread that waits for its answer, may have freed it; time has not.
    again = lease._state == "releasing" and now < lease._deadline
    linger = time_to_linger(engine, lease) if lease._request.min_hold else 0.0
    claim, outage = lease._claim, engine.outage if engine.outage.watches else None
    request = None if outage is None else object()  # its own: another thread may release this lease too
    try:
        if not lease._move("release"):
            return False
        within = (until if until < lease._deadline else lease._deadline) - now  # then it has ended by itself
        within = engine.patience if within > engine.patience else max(MIN_WITHIN_S, within)
        until = now + within
        try:
            if outage is not None:
                within /= 2  # a connection may be dead, and then there is time to try another
                outage.sent(request, now, until)
            freed = await engine.backend.release(claim, linger=linger, within=within, successor=successor)
            if outage is not None:
                outage.answered(request)
        except BackendUnavailable as error:
            engine.outage.ended(request)
            if error.transient:
                engine.outage.failed(error, now, engine.now(), until)
            freed, again = await release_again(engine, lease, linger, successor, until, error), True
        return _ended(engine, lease, freed or again)  # again: an earlier try that went unanswered has freed it
    except Exception:
        engine.outage.ended(request)
        raise
    except BaseException as interrupt:
        # Cancelled or interrupted: the release is finished first, then the interrupt goes on.
        try:
            engine.outage.ended(request)  # no caller waits for its answer any more
            if lease._state == "releasing" and interrupt.__class__ is not GeneratorExit:
                with suppress(LockError):
                    await engine.world.shielded(_finish(engine, lease, linger, successor))
        except BaseException:
            if engine.world.blocking:  # another interrupt, in the middle of that; none falls into the background
                # No lambda: its variables would be cells, which every release would have to make.
                engine.behind(partial(_finish, engine, linger=linger, successor=successor), lease)
            raise
        if lease._state != "releasing":
            engine.keeper.forget(lease)
        raise
    finally:
        if outage is not None and request in outage.unanswered:  # no call: an interrupt could fall into it
            del outage.unanswered[request]


async def _finish(engine: Engine, lease: Lease, linger: float, successor: str) -> None:
    await release_again(engine, lease, linger, successor, engine.now() + engine.patience)
    _ended(engine, lease, True)


def _ended(engine: Engine, lease: Lease, freed: bool) -> bool:
    if freed:
        report = lease._move("freed") and engine.events.wanted()
        engine.keeper.forget(lease)
        if report:
            report_released(engine, lease)
        return lease._state != "lost"  # the backend may have reported a loss meanwhile
    engine.keeper.lose(lease, "gone", ENDED_BEFORE)
    return False


def time_to_linger(engine: Engine, lease: Lease) -> float:
    """Seconds for which the name stays taken after the release."""
    return max(0.0, lease._request.min_hold - (engine.now() - lease._granted_at))


async def release_again(
    engine: Engine, lease: Lease, linger: float, successor: str, until: float, error: BackendUnavailable | None = None
) -> bool:
    try:
        if error is not None and not error.transient:
            raise error
        freed, _ = await engine.insist(
            lambda within: engine.backend.release(lease._claim, linger=linger, within=within, successor=successor),
            min(lease._deadline, until),
        )
        return freed
    except BackendUnavailable as last:
        leave_to_time(engine, lease, str(last))
        raise


def leave_to_time(engine: Engine, lease: Lease, why: str) -> None:
    """The release was not answered, and is not asked for again by its caller."""
    if engine.backend.capabilities.expires:
        report_release_failed(engine, lease, f"it ends by itself when its ttl has passed; {why}")
    else:
        engine.unfinished.add(lease._claim)
        report_release_failed(engine, lease, f"it is tried again until its session ends; {why}")


async def abandon(engine: Engine, claim: Claim, within: float = 1.0, *, sent: bool = True) -> None:
    """Leave nothing behind, whatever became of the claim; never raises a LockError.

    If the backend does not answer `within` that time, the background tries again; but if no request was ever `sent`,
    only this process has something to forget.
    """
    take_back(engine, claim)
    if engine.world.blocking or engine.backend.capabilities.instant:
        await _abandon(engine, claim, within, sent)
    else:
        await engine.world.shielded(_abandon(engine, claim, within, sent))


def take_back(engine: Engine, claim: Claim) -> None:
    """Its acquire may have been interrupted just after the grant, before the caller had the lease."""
    kept = engine.keeper.leases.get(claim.id)
    if kept is not None:
        kept._move("release")
        engine.keeper.forget(kept)
        engine.forget_entry(kept)
        if kept._taker is not None:
            kept._taker.drop(kept)


async def _abandon(engine: Engine, claim: Claim, within: float, sent: bool) -> None:
    try:
        await engine.backend.abandon(claim, within=min(within, engine.patience))
    except BackendUnavailable:
        if sent:
            engine.unfinished.add(claim)
    except LockError:
        pass  # the store cannot be used at all, and another try would not change that
