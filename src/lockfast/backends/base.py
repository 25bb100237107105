"""The verbs that a backend answers. Everything else in lockfast is made of these.

Decides: what each verb means, so that the engine can be written once for every backend.
Leaves to each backend: how a verb is made atomic, and how a waiter in another process is woken.

Each verb is one atomic step at the store, on the store's own clock, and may be repeated with the same claim
without harm: that is how a lost reply is survived. A verb answers within `within` seconds or raises
`BackendUnavailable`, after which what was asked may still happen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from lockfast._model import Busy, Capabilities, Claim, Grant, Health, LockInfo, Observation, Renewal
from lockfast._time import boot_now
from lockfast._values import Booked, Rate, Stored, Write, Written
from lockfast.errors import BackendUnavailable


class Backend(Protocol):
    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def store_id(self) -> str:
        """Which store this is: two backends of a process with one store_id are one store. No secrets: it is shown."""
        ...

    async def acquire(self, claim: Claim, *, enqueue: bool, within: float) -> Grant | Busy:
        """Grant the claim if it fits, else tell why not; with `enqueue`, give it a place in the queue.

        A claim fits when the rule of `Occupancy.fits` lets it in beside the holders and the reserved, and no
        older waiter stands unserved. A claim that holds already gets its fence again and at least a fresh
        ttl; if it held alone and now asks to share, it shares from now on, and whoever fits beside it is next.
        A claim that waits already keeps its place; asking shows that it is alive.
        Raises LimitMismatch if, when it comes, somebody shares the key, or waits to, under another limit.
        """
        ...

    async def wait(self, claim: Claim, seconds: float) -> bool:
        """After `Busy` or a `Observation`: return True as soon as the claim is woken, or False after `seconds`.

        A wake-up that came between the answer and this call is not missed. True is a hint to ask again,
        never a grant.
        """
        ...

    async def renew(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        """For each: True, and it expires no earlier than its ttl from now; or False, it no longer holds.

        None where some of several servers did not answer; if nothing is known of any, BackendUnavailable is raised.

        Never shortens, and never brings back what has expired, so answers may arrive in any order.
        """
        ...

    async def release(self, claim: Claim, *, linger: float, within: float, successor: str = "") -> bool:
        """End the claim's hold and hand over: reserve for the next waiters and wake them alone.

        An `successor` is a holder id; if that one waits it goes before everybody else.
        With `linger` the name stays taken for that many seconds more, though nobody holds it any longer.
        False if the claim did not hold; then nothing is changed.
        """
        ...

    async def abandon(self, claim: Claim, *, within: float) -> None:
        """Whatever became of this claim, end it: out of the queue, released if it was granted, no longer told."""
        ...

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        """Whatever happened to the key since change number `after`; 0 begins with what is true now.

        From the first call until `abandon`, or until nothing is asked for a while, every change is kept for this
        claim, and it is woken by each. What was told stays until a later call shows that it arrived.
        """
        ...

    async def inspect(self, key: str, *, within: float) -> LockInfo:
        """Holders and number of waiters; `name` is the key as given."""
        ...

    async def list(self, prefix: str, *, within: float) -> list[LockInfo]:
        """Every key with that prefix that is held or waited for, in order of the keys."""
        ...

    async def break_(self, key: str, *, within: float) -> LockInfo:
        """End every hold of the key, whoever's it is, hand over, and tell what was there before."""
        ...

    # Values: unlike claims these have no holder. A key means another thing here than above.

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        """Take permits of a limiter, see `_values.book`. A lost reply costs permits and never gives any."""
        ...

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        """Give permits back, if `until` is still all that is booked.

        Sent once and never repeated: a second time it could give back what another has booked up to the same moment.
        """
        ...

    async def read(self, key: str, *, within: float) -> Stored: ...

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        """See `_values.decide`. A cell that was deleted goes on above its old versions."""
        ...

    async def close(self) -> None:
        """Let go of connections. Leases are not touched."""
        ...

    def before_fork(self) -> None:
        """Put away whatever must not be carried through a fork."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """Go on. In the child: forget every connection and mutex, touch nothing that the parent uses."""
        ...


LossListener = Callable[[Sequence[tuple[str, int]], str], None]  # ids and fences of claims, and the reason


@runtime_checkable
class ReportsLosses(Protocol):
    """A backend that notices by itself when a hold has ended, as with its session."""

    on_loss: LossListener | None  # set by the engine; called from any thread, also before the grant has arrived


@runtime_checkable
class LocksInTransactions(Protocol):
    """A backend that locks inside a transaction of the caller's own: commit and rollback end the hold."""

    async def in_transaction(
        self, connection: object, names: Mapping[str, str], wait: float | None
    ) -> tuple[int, str | None, str | None]:
        """Lock these keys, each with its name, in this order. Waits at most `wait` seconds; None waits for ever.

        The fence; or the key that was not free in time and its holder, where it is known. Then no key is locked.
        """
        ...


@runtime_checkable
class HasUrl(Protocol):
    @property
    def url(self) -> str:
        """A URL for `lockfast doctor` that leads to the store, without secrets."""
        ...


def url_of(backend: Backend) -> str:
    """Empty if it has none."""
    return backend.url if isinstance(backend, HasUrl) else ""


@runtime_checkable
class OfSeveralServers(Protocol):
    """A backend that knows more of its servers than that they answer."""

    async def check_up(self) -> Sequence[Health]: ...


@runtime_checkable
class OfOneServer(Protocol):
    """A backend that can tell what its server is, also while that grants no locks."""

    async def identify(self, within: float) -> tuple[str, str]:
        """Its version and its role (primary or replica), each empty where there is none. Raises BackendUnavailable."""
        ...


_NOBODYS: Final = "lockfast:doctor"
_IDENTIFY_WITHIN_S: Final = 5.0
_ASK_WITHIN_S: Final = 10.0


async def check_up(backend: Backend) -> Sequence[Health]:
    """How the servers of a backend are. One that says nothing about them is asked a question, as everybody would."""
    if isinstance(backend, OfSeveralServers):
        return await backend.check_up()
    where = url_of(backend) or backend.store_id
    version = role = ""
    identified = False
    try:
        if isinstance(backend, OfOneServer):
            version, role = await backend.identify(_IDENTIFY_WITHIN_S)
            identified = True
        await backend.inspect(_NOBODYS, within=_ASK_WITHIN_S)  # which may have to connect
        started = boot_now()
        await backend.inspect(_NOBODYS, within=_ASK_WITHIN_S)
    except BackendUnavailable as error:
        answers = identified or not error.transient  # a wrong password, say: what lasts was said by the server
        return [Health(where, answers, version=version, role=role, error=str(error))]
    return [Health(where, True, boot_now() - started, version, role)]
