"""Renewals that come when a test asks for them: so leases are long, and no test has to wait for a third of their ttl.

Decides: nothing. What the keeper does when a lease falls due is its own affair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockfast.engine.schedule import RenewalState
from lockfast.testing.stage import Stage
from tests.servers.waiting import until, until_async


def renewal_state(lease: Any) -> RenewalState:
    """What the keeper knows of the lease."""
    raw = getattr(lease, "raw", lease)
    state: RenewalState = raw._engine.keeper.state_of(raw)
    return state


def renew_soon(*leases: Any) -> None:
    """Let these leases fall due for renewal now. In asyncio, call it in the loop that keeps them."""
    for lease in leases:
        raw = getattr(lease, "raw", lease)
        engine = raw._engine
        renewal_state(raw).renew_not_before(engine.now())
        engine.keeper.fresh[raw.claim_id] = raw
        engine.keeper.loop.wake()


async def renewed(stage: Stage, lease: Any) -> None:
    """Until one more renewal has come through. One that fails is tried again at once."""
    await stage.until(_renewal(lease), "a renewal")


def renew(lease: Any) -> None:
    """As `renewed`, in a thread."""
    until(_renewal(lease), "a renewal")


async def renew_async(lease: Any) -> None:
    """As `renewed`, in the loop that keeps the lease."""
    await until_async(_renewal(lease), "a renewal")


def _renewal(lease: Any) -> Callable[[], bool]:
    before = lease._deadline  # not expires_at: that is on another clock, which trembles
    renew_soon(lease)

    def came_through() -> bool:
        state = renewal_state(lease)
        if state.failures and not state.renewing:
            renew_soon(lease)
        return bool(lease._deadline > before)

    return came_through
