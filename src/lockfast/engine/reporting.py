"""The events of claims and leases.

Decides: what an event says of a claim or a lease, and in which thread it is emitted.
Leaves to `observe`: which listeners there are.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from lockfast._model import Busy, Claim
from lockfast.engine.lease import Lease
from lockfast.engine.request import Adopt, Refused
from lockfast.observe.events import Event, Kind

if TYPE_CHECKING:
    from lockfast.engine.core import Engine


def report_claim(
    engine: Engine, kind: Kind, claim: Claim, *, fence: int | None = None, waited: float | None = None, detail: str = ""
) -> None:
    terms = claim.terms
    engine.events.emit(Event(kind, terms.name, terms.holder, claim.id, fence, waited, None, detail))


async def reported_acquire(
    engine: Engine,
    claim: Claim,
    ask: Callable[[Adopt, Refused], Awaitable[Lease | Busy]],
    adopt: Adopt,
    refused: Refused,
) -> Lease | Busy:
    """`ask(adopt, refused)`, with an event for each step."""
    started = engine.now()
    report_claim(engine, "asked", claim)

    def adopt_and_report(lease: Lease) -> None:
        adopt(lease)
        body = lease._body
        lease._enter(lease._guard, body or sys._getframe())  # a listener that waits for it would wait for itself
        if lease._waited:
            report_claim(engine, "waited", claim, waited=lease._waited)
        report_claim(engine, "granted", claim, fence=lease.fence, waited=engine.now() - started)
        if lease._state == "held":
            lease._enter(lease._guard, body)

    def report_and_refuse(busy: Busy, waited: float) -> Busy:
        report_claim(engine, "waited", claim, waited=waited, detail=f"gave up, {busy.in_words}")
        return refused(busy, waited)

    return await ask(adopt_and_report, report_and_refuse)


def report_lease(engine: Engine, kind: Kind, lease: Lease, detail: str = "") -> None:
    engine.events.emit(_event(engine, kind, lease, detail))


def report_lease_behind(engine: Engine, kind: Kind, lease: Lease, detail: str = "") -> None:
    """From a keeper's thread: a listener that blocks it would cost leases. An event loop has no other thread."""
    emit = engine.background.emit if engine.world.blocking else engine.events.emit
    emit(_event(engine, kind, lease, detail))


def _event(engine: Engine, kind: Kind, lease: Lease, detail: str) -> Event:
    held = engine.now() - lease._granted_at
    return Event(kind, lease.name, lease.holder, lease.claim_id, lease.fence, lease._waited, held, detail)
