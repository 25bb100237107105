"""What a lock object asks for, and what a lease knows of the lock object that it was taken through."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lockfast._model import Terms

if TYPE_CHECKING:
    from lockfast.engine.lease import Lease

_CONTEXTLIB: Final = vars(contextlib)


class Request(NamedTuple):
    """What one lock object asks for each time, and what it wants done with the lease."""

    terms: Terms
    wait: float | None = None
    renew: bool = True
    reentrant: bool = False
    min_hold: float = 0.0
    on_lost: Callable[[Any], object] | None = None
    named: bool = False  # the holder was named by the caller, not after its process
    renew_every: float | None = None  # seconds from one renewal to the next; None: a third of the ttl
    max_hold: float | None = None  # seconds after the grant at which renewals stop; None: never


class LeaseTaker(Protocol):
    """The lock object that a lease was taken through, as far as the lease knows it."""

    async def release_last(self, lease: Lease) -> bool: ...
    def drop(self, lease: Lease) -> None: ...


def call_of(body: FrameType | None) -> FrameType | None:
    """The call that the body of a `with` is part of. An `ExitStack`'s own is over long before the body is."""
    return body if body is not None and body.f_globals is not _CONTEXTLIB else None
