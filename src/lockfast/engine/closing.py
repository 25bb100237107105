"""The end of a `Locks`.

Decides: what is released and abandoned then, in which order, and for how long a backend that does not answer is asked.
Leaves to the engine: each single step. Leaves to `process`: what happens when a process forks or ends.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from lockfast._model import Claim
from lockfast.engine.lease import Lease
from lockfast.engine.not_held import Reason
from lockfast.engine.releasing import leave_to_time, release_again, take_back, time_to_linger
from lockfast.engine.reporting import report_unanswered
from lockfast.errors import BackendUnavailable, LockError

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

REPORT_WITHIN_S: Final = 1.0  # for callbacks that report losses: the process may end right after
ABANDON_WITHIN_S: Final = 1.0  # for each claim
CLOSED: Final = Reason("closed", "its Locks was closed")


async def close(engine: Engine, within: float | None = None) -> None:
    """Release what is still held, best effort and within that time or the engine's patience, and close everything.

    A body that still runs under a lock has lost it. Cut short by a cancellation, it can be called again.
    """
    engine.closed = True  # a lease that is granted from here on is given back, or found below
    engine.keeper.loop.close()
    until = engine.now() + (engine.patience if within is None else within)
    taken = _take_from_bodies(engine)
    for lease in list(engine.keeper.leases.values()):
        lease._count_entry(1 - lease._depth)
        await _release(engine, lease, until)
    for lease, linger in taken:
        if engine.now() < until:
            with suppress(BackendUnavailable):  # reported as an event; its ttl ends it
                await release_again(engine, lease, linger, "", until)
                engine.unfinished.done(lease._claim)
    for claim in list(engine.waiting.values()):  # their callers learn of the end with the next answer
        take_back(engine, claim)
        engine.unfinished.note(claim)
    for claim in engine.unfinished.claims:
        if claim in engine.unfinished:  # else a worker has abandoned it meanwhile
            await _abandon(engine, claim, until)
    for lease in list(engine.keeper.leases.values()):  # whose release was not answered
        report_unanswered(engine, lease)
    await engine.on_lost.all_called(REPORT_WITHIN_S)
    await engine.background.all_emitted(REPORT_WITHIN_S)
    engine.keeper.loop.close()  # again: it has watched for silence until now
    if engine.loop_watch is not None:
        engine.loop_watch.close()
    await engine.backend.close()


def _take_from_bodies(engine: Engine) -> list[tuple[Lease, float]]:
    """What bodies hold that still run, or are about to, is lost to them. The leases, each with how it lingers."""
    taken = []
    for lease in list(engine.keeper.leases.values()):
        if lease._guard is not None or lease._claim.id in engine.waiting:
            taken.append((lease, time_to_linger(engine, lease)))
            engine.unfinished.note(lease._claim)  # should what follows be cut short
            engine.keeper.lose(lease, "denied", CLOSED)
    return taken


async def _release(engine: Engine, lease: Lease, until: float) -> None:
    if engine.now() < until:
        with suppress(BackendUnavailable):  # reported as an event; its ttl ends it
            await engine.release(lease, until=until)
    elif lease._move("release"):
        leave_to_time(engine, lease, "its Locks was closed, and there was no time left to ask the backend")


async def _abandon(engine: Engine, claim: Claim, until: float) -> None:
    now = engine.now()
    if now < until:
        ask = partial(engine.backend.abandon, claim, within=min(ABANDON_WITHIN_S, until - now))
        with suppress(LockError):
            await engine.world.shielded(engine.watched(ask, now, until))
            engine.unfinished.done(claim)
