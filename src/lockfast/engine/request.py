"""What a lock object asks for, and what it and its leases know of each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from lockfast._model import Busy, Terms
from lockfast.observe.events import Primitive

if TYPE_CHECKING:
    from lockfast.engine.lease import Lease

_CONTEXTLIB: Final = vars(contextlib)


Adopt = Callable[["Lease"], None]  # what the caller of an acquire does with the lease
# What it gets for its request if there is no lease after so many seconds; may raise:
Refused = Callable[["Request", Busy, float], Busy]


def as_it_is(_: Request, busy: Busy, __: float) -> Busy:
    return busy


class Request:
    """What one lock object asks for each time, and what it wants done with the lease. Never changed.

    No NamedTuple: each acquire reads a dozen fields, and those of a tuple take three times as long to read.
    """

    __slots__ = (
        *("max_hold", "min_hold", "named", "on_lost", "pattern", "primitive"),
        *("reentrant", "renew", "renew_every", "terms", "wait"),
    )

    def __init__(
        self,
        terms: Terms,
        wait: float | None = None,
        renew: bool = True,
        reentrant: bool = False,
        min_hold: float = 0.0,
        on_lost: Callable[[Any], object] | None = None,
        named: bool = False,
        renew_every: float | None = None,
        max_hold: float | None = None,
        primitive: Primitive = "lock",
        pattern: str | None = None,
    ) -> None:
        self.terms = terms
        self.wait = wait
        self.renew = renew
        self.reentrant = reentrant
        self.min_hold = min_hold
        self.on_lost = on_lost
        self.named = named  # the holder was named by the caller, not after its process
        self.renew_every = renew_every  # seconds from one renewal to the next; None: a third of the ttl
        self.max_hold = max_hold  # seconds after the grant at which renewals stop; None: never
        self.primitive: Primitive = primitive  # what its user calls it; for events, as the next
        self.pattern = pattern  # what its name has in common with others; None: to be guessed from the name

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def but(self, **changes: Any) -> Request:
        """The same with other values of these fields."""
        return Request(**self.fields() | changes)


class LeaseTaker(Protocol):
    """The lock object that a lease was taken through, as far as the lease knows it."""

    async def release_last(self, lease: Lease) -> bool: ...
    def drop(self, lease: Lease) -> None: ...


class Unique:
    """To release a copy would release the original."""

    __slots__ = ()

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError(f"{self!r} can be neither copied nor pickled; hand its fence to others, and keep the lease")


def call_of(body: FrameType | None) -> FrameType | None:
    """The call that the body of a `with` is part of. An `ExitStack`'s own is over long before the body is."""
    return body if body is not None and body.f_globals is not _CONTEXTLIB else None
