"""From a URL to what the facades stand on: an engine in its world, which is known to the hooks of fork and exit."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from lockfast._connect import factory_of
from lockfast._facades.lock import AsyncLease, Lease
from lockfast._text import shown
from lockfast._time import Seconds, length
from lockfast._worlds import Clock, drive, valid_clock
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.opening import BackendFactory, ConnectOptions
from lockfast.engine.backoff import Backoff
from lockfast.engine.checks import lock_order
from lockfast.engine.core import DEFAULT_RETRY, Engine
from lockfast.engine.process import adopt
from lockfast.engine.releasing import time_to_linger
from lockfast.errors import LockError
from lockfast.primitives.locks import LocksLogic


def open_locks(
    url_or_client: object,
    *,
    holder: str | None,
    namespace: str,
    patience: Seconds,
    retry: Backoff = DEFAULT_RETRY,
    replicas: int = 0,
    schema: str | None = None,
    advisory: bool = False,
    rejoin: Seconds | None = None,
    debug: bool | None,
    clock: Clock | None,
) -> LocksLogic:
    """See `lockfast.connect`. Raises ValueError for what makes no sense; nothing is connected yet."""
    world = ThreadWorld(valid_clock(clock))
    engine = Engine(
        factory_of(url_or_client, ConnectOptions(replicas, schema, advisory, rejoin))(world, clock),
        world,
        lease_type=Lease,
        holder=holder,
        patience=length(patience, "patience"),
        retry=_valid_retry(retry),
        order=lock_order(debug),
    )
    locks = LocksLogic(engine, namespace)
    adopt(engine, _close)
    return locks


def _valid_retry(retry: object) -> Backoff:
    if not isinstance(retry, Backoff):
        raise ValueError(f"retry must be a lockfast.Backoff, not {shown(retry)}")
    return retry


def _close(engine: Engine) -> None:
    drive(engine.close(within=1.0))


def open_async_locks(
    url_or_client: object,
    *,
    holder: str | None,
    namespace: str,
    patience: Seconds,
    retry: Backoff = DEFAULT_RETRY,
    replicas: int = 0,
    schema: str | None = None,
    advisory: bool = False,
    rejoin: Seconds | None = None,
    debug: bool | None,
    clock: Clock | None,
) -> LocksLogic:
    """See `lockfast.aio.connect`. Raises ValueError for what makes no sense; nothing is connected yet."""
    from lockfast._worlds.asyncio_ import AsyncioWorld  # here: a blocking program does not need asyncio

    world = AsyncioWorld(valid_clock(clock))
    make = factory_of(url_or_client, ConnectOptions(replicas, schema, advisory, rejoin))
    engine = Engine(
        make(world, clock),
        world,
        lease_type=AsyncLease,
        holder=holder,
        patience=length(patience, "patience"),
        retry=_valid_retry(retry),
        order=lock_order(debug),
    )
    locks = LocksLogic(engine, namespace)
    adopt(engine, partial(_release_without_loop, make, clock))
    return locks


def _release_without_loop(make: BackendFactory, clock: Clock | None, engine: Engine) -> None:
    """At exit no loop runs any more, so a blocking backend for the same store releases what is left."""
    engine.closed = True  # a loop in another thread asks for no more leases
    twin = make(ThreadWorld(clock), clock)
    for held in list(engine.keeper.leases.values()):
        with suppress(LockError):  # best effort: the ttl ends what cannot be released
            drive(twin.release(held._claim, linger=time_to_linger(engine, held), within=1.0))
    for claim in [*engine.waiting.values(), *engine.unfinished.claims]:
        with suppress(LockError):
            drive(twin.abandon(claim, within=1.0))
    drive(twin.close())
