"""A lease that is not held any more.

Decides: which error its holder gets, and the reason in it; when the keeper is asked to notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lockfast._reentry import drive, nothing
from lockfast._time import format_duration
from lockfast.errors import LeaseLost, NotHeld

if TYPE_CHECKING:
    from lockfast.engine.lease import Lease


class Reason(NamedTuple):
    """Why a lease was lost."""

    code: str  # for events
    text: str  # for people


OUT_OF_TIME: Final = "its time ran out before a renewal came through"
NO_LONGER_THERE: Final = Reason("gone", "the backend no longer has it: it expired or was broken")


def error_if_not_held(lease: Lease) -> LeaseLost | NotHeld:
    """What is raised for a lease that is not held: it was lost, released, or belongs to a forked parent."""
    name = lease.name
    if lease._state == "forked":
        return NotHeld(f"lock {name!r} is held by the parent process; this fork does not hold it", name=name)
    if not lease.lost:
        return NotHeld(f"lock {name!r} is not held any more: its lease was released", name=name)
    held_for = lease._engine.now() - lease._granted_at
    reason = lease._reason or why_out_of_time(lease).text
    return LeaseLost(
        f"lease on {name!r} (fence {lease._fence}) was lost {format_duration(held_for)} after it was granted: "
        f"{reason}; another holder may have the lock now",
        name=name,
        fence=lease._fence,
        holder=lease.holder,
        held_for=held_for,
        reason=reason,
    )


def why_out_of_time(lease: Lease) -> Reason:
    """Why it was not renewed before its deadline."""
    max_hold = lease._request.max_hold
    if not lease._request.renew:
        return Reason("not_renewed", OUT_OF_TIME)
    if max_hold is None or lease._deadline < lease._granted_at + max_hold:
        failure = lease._engine.keeper.why_not_renewed(lease)
        late = Reason("late", OUT_OF_TIME)
        return Reason("renewals_failed", f"{OUT_OF_TIME} (last error: {failure})") if failure else late
    return Reason("max_hold", f"it reached its max_hold of {format_duration(max_hold)}, after which it is not renewed")


def notice_soon(lease: Lease) -> None:
    """Its deadline may have passed. At once, or soon if this is a finalizer or a signal handler inside an operation."""
    engine = lease._engine
    if engine.mutex.cr_running:  # a step of an event loop, where nothing is driven
        engine.put_off(_notice(lease))
    else:
        drive(_notice(lease), engine, nothing)


async def _notice(lease: Lease) -> None:
    lease._engine.keeper.notice(lease)
