"""What changes a lease while it is held.

Decides: for how long a request for it is repeated, and that an answer after the deadline brings nothing back.
Leaves to the lease: its fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast._model import Busy, Grant, Renewal
from lockfast.engine.lease import Lease
from lockfast.engine.not_held import NO_LONGER_THERE
from lockfast.engine.retrying import cannot_say
from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast.engine.core import Engine


async def extend(engine: Engine, lease: Lease, ttl: float) -> None:
    """It expires no earlier than `ttl` seconds from now. Raises LeaseLost if it is lost.

    Raises BackendUnavailable if that cannot be known in time; it is held until its deadline all the same.
    """
    engine.arrive()
    asked_at = engine.now()

    async def ask(within: float) -> bool:
        nonlocal asked_at
        asked_at = engine.now()  # before sending: the server's ttl cannot have started earlier
        (kept,) = await engine.backend.renew([Renewal(lease._claim, ttl, lease._fence)], within=within)
        if kept is None:
            raise cannot_say(engine, f"lock {lease.name!r}")
        return kept

    kept, _ = await engine.insist(ask, min(lease._deadline, asked_at + engine.patience))
    engine.keeper.notice(lease)  # an answer that comes after the deadline brings nothing back
    if not kept:
        engine.keeper.lose(lease, "denied", NO_LONGER_THERE)
    if lease._state != "held":
        raise lease._not_held()
    lease._extended(asked_at, ttl)
    engine.keeper.renewed(lease, asked_at)
    engine.keeper.reschedule(lease)


async def downgrade(engine: Engine, lease: Lease) -> None:
    """Share it from now on; no other exclusive claim is granted in between."""
    engine.arrive()
    if engine.backend.capabilities.instant:
        await _downgrade(engine, lease)
    else:
        await engine.world.shielded(_downgrade(engine, lease))


async def _downgrade(engine: Engine, lease: Lease) -> None:
    claim = lease._share()
    asked_at = engine.now()

    async def ask(within: float) -> Grant | Busy:
        nonlocal asked_at
        asked_at = engine.now()  # before sending: the server's ttl cannot have started earlier
        answer = await engine.backend.acquire(claim, enqueue=False, within=within)
        if isinstance(answer, Busy) and answer.unsettled:
            raise BackendUnavailable(f"lock {lease.name!r} is {answer.in_words}", name=lease.name)
        return answer

    answer, _ = await engine.insist(ask, min(lease._deadline, asked_at + engine.patience))
    engine.keeper.notice(lease)
    if not isinstance(answer, Grant) or answer.fence != lease._fence:
        engine.keeper.lose(lease, "denied", NO_LONGER_THERE)
        await engine.abandon(claim)  # what was granted instead is not what its holder had
    if lease._state != "held":
        raise lease._not_held()
    lease._renewed(asked_at, lease._ttl)
    engine.keeper.renewed(lease, asked_at)
