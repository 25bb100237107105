"""What is checked before anything is sent.

Decides: which settings an engine refuses, and with which error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockfast._debug import debug_is_on
from lockfast._text import shown
from lockfast._time import Seconds, length
from lockfast.errors import Unsupported

if TYPE_CHECKING:
    from lockfast.engine.core import Engine
    from lockfast.engine.order import LockOrder

MIN_RENEW_EVERY_S: Final = 0.01
MAX_RENEW_EVERY_RATIO: Final = 0.9  # of the ttl


def must_be_able(engine: Engine, what: str, able: bool) -> None:
    """Raises Unsupported, at construction and not later, for what the backend has said it cannot do."""
    if not able:
        raise unsupported(engine, what)


def unsupported(engine: Engine, what: str) -> Unsupported:
    return Unsupported(f"{engine.backend!r} has no {what}; nothing was sent")


def valid_ttl(engine: Engine, ttl: Seconds) -> float:
    """Raises ValueError for a length of time that the backend cannot keep."""
    can = engine.backend.capabilities
    return length(ttl, "ttl", least=can.min_ttl, most=can.max_ttl)


def valid_renewals(
    engine: Engine, ttl: float, renew_every: Seconds | None, max_hold: Seconds | None
) -> tuple[float | None, float | None]:
    """Both in seconds, for a `Request`. Raises ValueError for an interval that lets the lease expire."""
    every = None if renew_every is None else length(renew_every, "renew_every", least=MIN_RENEW_EVERY_S)
    if every is not None and every > ttl * MAX_RENEW_EVERY_RATIO:  # the holder stops believing a little before its ttl
        most = f"{MAX_RENEW_EVERY_RATIO:.0%} of the ttl of {ttl:g} seconds"
        raise ValueError(f"renew_every must be at most {most}, not {shown(renew_every)}")
    return every, None if max_hold is None else length(max_hold, "max_hold")


def lock_order(debug: bool | None) -> LockOrder | None:
    """What debug mode needs; None says `$LOCKFAST_DEBUG`."""
    if debug is None:
        debug = debug_is_on()
    if not debug:
        return None
    from lockfast.engine.order import ORDER

    return ORDER
