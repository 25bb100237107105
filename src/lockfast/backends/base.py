"""The verbs that a backend answers. Everything else in lockfast is made of these.

Decides: what each verb means, so that the engine can be written once for every backend.
Leaves to each backend: how a verb is made atomic, and how a waiter in another process is woken.
Leaves to `optional`: verbs that only some backends have.

Each verb is one atomic step at the store, on the store's own clock, and may be repeated with the same claim
without harm: that is how a lost reply is survived. A verb answers within `within` seconds or raises
`BackendUnavailable`, after which the step may still happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lockfast._model import Busy, Capabilities, Claim, Grant, LockInfo, Observation, Renewal
from lockfast._values import Booked, Rate, Stored, Write, Written


class Backend(Protocol):
    """What the engine asks of a store. `within` is in seconds, and counts from the call."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do. Known before anything is sent, and never changed."""
        ...

    @property
    def store_id(self) -> str:
        """Which store this is: two backends of a process with one store_id are one store."""
        ...

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        """Grant the claim if it fits, else say why not; with `enqueue`, put it into the queue.

        A claim fits if `Occupancy.fits` admits it beside the holders and the reservations, and no older waiter is
        without a reservation. A claim that holds gets its fence again and at least a fresh ttl; if it held alone and
        now asks to share, it shares from now on, and the name is handed over to waiters that fit beside it.
        A claim that waits keeps its position; the request shows that it is alive.
        Raises LimitMismatch for a new claim if another one shares the key, or waits to, under another limit.
        """
        ...

    async def wait(self, claim: Claim, seconds: float) -> bool | Grant:
        """After `Busy` or an `Observation`: True as soon as the claim is woken, or False after `seconds`.

        A wake-up between that answer and this call is not missed. True is a hint to ask again.

        If `hands_over` is among the capabilities, a wake-up may carry the grant, which is then returned in place of
        True. It may be late, repeated or lost. The engine believes it only if its fence is above the `last_fence` of
        the claim's last answer, which was `Busy`: then the store has granted it after that answer, and the ttl counts
        from before the request for it. A grant that is not believed is a hint, as True is.
        """
        ...

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        """For each: True, and it expires no earlier than its ttl from now; or False, it no longer holds.

        None where it is not known: some of several servers did not answer, or another client has locked the record.
        If nothing is known of any, BackendUnavailable is raised.
        Never shortens a hold, and never revives one that has expired, so replies may arrive in any order.
        """
        ...

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        """End the claim's hold and hand over to the next waiters, and wake them and no others.

        If the store `hands_over`, a waiter becomes the holder in the same step, with a fence and the terms of its last
        request, where `offer_to` says so. Else the name is reserved for it, and it confirms by asking.
        A waiter of the holder id `successor` goes before all others.
        With `linger` the name stays taken for that many seconds more, though no claim holds it.
        False if the claim did not hold; then nothing is changed.
        """
        ...

    async def abandon(self, claim: Claim, *, within: float) -> None:
        """End the claim whatever became of it: as a waiter, as a holder and as an observer.

        It is ended before anything is handed over, so that this step grants it nothing.
        """
        ...

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        """All changes of the key after change number `after`; 0 begins with what is true now.

        From the first call until `abandon`, or until no call comes for a while, every change is kept for this claim,
        and wakes it. A change that was reported is kept until a later call shows that the report arrived.
        """
        ...

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        """Holders and waiters; `name` is the key as given."""
        ...

    async def list(self, prefix: str, *, within: float) -> list[LockInfo]:
        """Every key with that prefix that has a holder or a waiter, in order of the keys."""
        ...

    async def break_(self, key: str, *, within: float) -> LockInfo:
        """End every hold of the key and hand over; what was there before."""
        ...

    # Values: unlike claims these have no holder. A limiter, a cell and a lock of one key are three things.

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        """Take permits of a limiter, see `_values.book_permits`. A lost reply costs permits and never gives any."""
        ...

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        """Give permits back, if `until` is still the end of all bookings.

        Sent once and never repeated: a second time it could give back the booking of another caller up to that moment.
        """
        ...

    async def read(self, key: str, *, within: float) -> Stored:
        """What the cell holds; `Stored()` if it was never written."""
        ...

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        """See `_values.check_write`. Versions of a deleted cell go on above the old ones."""
        ...

    async def close(self) -> None:
        """Close the connections. Leases are not touched."""
        ...

    def before_fork(self) -> None:
        """Close whatever must not be carried through a fork."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """Go on. In the child: drop every connection and mutex, touch nothing that the parent uses."""
        ...
