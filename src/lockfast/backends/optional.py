"""Verbs that not every backend has.

Decides: by which protocol the engine finds an optional verb, how a missing verb is refused, and how `doctor` judges a
backend that says nothing about its servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from lockfast._model import Claim, Health, LockInfo, Observation, Renewal
from lockfast._time import boot_now
from lockfast._values import Booked, Rate, Stored, Write, Written
from lockfast.backends.base import Backend
from lockfast.errors import BackendUnavailable, Unsupported

LossListener = Callable[[Sequence[tuple[str, int]], str], None]  # ids and fences of claims, and the reason


@runtime_checkable
class ReportsLosses(Protocol):
    """A backend that notices by itself when a hold has ended, as with its session."""

    on_loss: LossListener | None  # set by the engine; called from any thread, also before the grant has arrived


@runtime_checkable
class RenewsFromOutside(Protocol):
    """A backend for an event loop whose holds only it can renew, because they belong to its own connections.

    Any other backend needs nothing: while its loop is blocked, what its `BackendFactory` makes for threads renews them.
    """

    async def renew_from_outside(self, batch: Sequence[Renewal], *, within: float) -> Sequence[bool | None]:
        """As `renew`, in a thread that is not the loop's, while the loop is blocked. Never suspends.

        The loop may go on at any moment, and the backend be used there meanwhile.
        """
        ...


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
class TakesIntegers(Protocol):
    """A backend whose locks have numbers of their own, which other programs use too."""

    def name_of_integer(self, key: int) -> str:
        """The name that stands for that number, in every namespace. Raises ValueError if there is no such number."""
        ...


def name_on(backend: Backend, name: str | int) -> str | int:
    """What the caller passed; or the name of an integer, where the backend takes integers."""
    if isinstance(name, int) and not isinstance(name, bool) and isinstance(backend, TakesIntegers):
        return backend.name_of_integer(name)
    return name


class _Inspects(Protocol):
    async def inspect(self, key: str, *, within: float) -> LockInfo: ...


@runtime_checkable
class InspectsHolders(Protocol):
    """A backend for which it costs less to say who holds a key than who waits for it, too."""

    async def inspect_holders(self, key: str, *, within: float) -> LockInfo:
        """As `inspect`, without the waiters."""
        ...


async def holders_of(backend: _Inspects, key: str, *, within: float) -> LockInfo:
    """Who holds a key. The waiters may be missing."""
    if isinstance(backend, InspectsHolders):
        return await backend.inspect_holders(key, within=within)
    return await backend.inspect(key, within=within)


@runtime_checkable
class HasUrl(Protocol):
    """A backend whose store can be named to an operator by a URL."""

    @property
    def url(self) -> str:
        """A URL for `lockfast doctor` that leads to the store, without secrets."""
        ...


def url_of(backend: Backend) -> str:
    """Empty if it has none."""
    return backend.url if isinstance(backend, HasUrl) else ""


@runtime_checkable
class HasSeveralServers(Protocol):
    """A backend that reports the health of its servers itself."""

    async def check_up(self) -> Sequence[Health]:
        """Each of its servers, as this client sees it now. Never raises: a server that is down is a `Health` too."""
        ...


@runtime_checkable
class HasOneServer(Protocol):
    """A backend that can identify its server, even while that grants no locks."""

    async def identify(self, within: float) -> tuple[str, str]:
        """Its version and its role (primary or replica), each empty where there is none. Raises BackendUnavailable."""
        ...


_DOCTOR_KEY: Final = "lockfast:doctor"
_IDENTIFY_WITHIN_S: Final = 5.0
_ASK_WITHIN_S: Final = 10.0


async def check_up(backend: Backend) -> Sequence[Health]:
    """The health of the servers of a backend. One that does not report it is asked an ordinary request."""
    if isinstance(backend, HasSeveralServers):
        return await backend.check_up()
    where = url_of(backend) or repr(backend)
    version = role = ""
    identified = False
    try:
        if isinstance(backend, HasOneServer):
            version, role = await backend.identify(_IDENTIFY_WITHIN_S)
            identified = True
        await backend.inspect(_DOCTOR_KEY, within=_ASK_WITHIN_S)  # this one may have to connect
        started = boot_now()
        await backend.inspect(_DOCTOR_KEY, within=_ASK_WITHIN_S)
    except BackendUnavailable as error:
        answers = identified or not error.transient  # a lasting error, such as a wrong password, comes from the server
        return [Health(where, answers, version=version, role=role, error=str(error))]
    return [Health(where, True, boot_now() - started, version, role)]


# Mixins for a backend that lacks verbs. No primitive calls these: it is refused by `capabilities` when it is made.


class WithoutValues:
    """A backend without limiters and cells."""

    async def throttle(self, key: str, rate: Rate, *, cost: int, patience: float, within: float) -> Booked:
        """Raises Unsupported."""
        raise _lacks(self, "limiters")

    async def unthrottle(self, key: str, rate: Rate, *, cost: int, until: int, within: float) -> None:
        """Raises Unsupported."""
        raise _lacks(self, "limiters")

    async def read(self, key: str, *, within: float) -> Stored:
        """Raises Unsupported."""
        raise _lacks(self, "cells")

    async def write(self, key: str, write: Write, *, within: float) -> Written:
        """Raises Unsupported."""
        raise _lacks(self, "cells")


class WithoutChanges:
    """A backend that reports no changes of holder."""

    async def observe(self, claim: Claim, *, after: int, within: float) -> Observation:
        """Raises Unsupported."""
        raise _lacks(self, "changes to observe")


def _lacks(backend: object, what: str) -> Unsupported:
    return Unsupported(f"{backend!r} has no {what}; nothing was sent")
