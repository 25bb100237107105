"""From a URL to what the facades stand on: an engine in its world, which is known to the hooks of fork and exit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from lockfast._connect import factory_of
from lockfast._facades.lock import AsyncLease, Lease
from lockfast._text import shown
from lockfast._time import Seconds, length
from lockfast._worlds import Clock, World, drive, valid_clock
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.opening import BackendFactory, ConnectOptions
from lockfast.engine.backoff import Backoff
from lockfast.engine.checks import lock_order
from lockfast.engine.core import Engine
from lockfast.engine.lease import Lease as LeaseLogic
from lockfast.engine.process import adopt
from lockfast.engine.releasing import time_to_linger
from lockfast.errors import LockError
from lockfast.primitives.locks import LocksLogic


class LocksOptions(NamedTuple):
    """What `connect()` takes besides the URL or the client, and the options of its backend."""

    holder: str | None
    namespace: str
    patience: Seconds
    retry: Backoff
    debug: bool | None
    clock: Clock | None


def open_locks(url_or_client: object, at_backend: ConnectOptions, options: LocksOptions) -> LocksLogic:
    """See `lockfast.connect`. Raises ValueError for what makes no sense; nothing is connected yet."""
    world = ThreadWorld(valid_clock(options.clock))
    return _open(world, factory_of(url_or_client, at_backend), Lease, _close, options)


def open_async_locks(url_or_client: object, at_backend: ConnectOptions, options: LocksOptions) -> LocksLogic:
    """See `lockfast.aio.connect`. Raises ValueError for what makes no sense; nothing is connected yet."""
    from lockfast._worlds.asyncio_ import AsyncioWorld  # here: a blocking program does not need asyncio
    from lockfast.engine.standby import STANDBY

    clock = valid_clock(options.clock)
    world = AsyncioWorld(clock)
    make = factory_of(url_or_client, at_backend)
    locks = _open(world, make, AsyncLease, _release_without_loop, options)
    locks.engine.open_twin = lambda: make(ThreadWorld(clock), clock)
    if world.real_time:
        locks.engine.stand_by(STANDBY)
    return locks


def _open(
    world: World,
    make: BackendFactory,
    lease_type: type[LeaseLogic],
    finish: Callable[[Engine], None],
    options: LocksOptions,
) -> LocksLogic:
    if not isinstance(options.retry, Backoff):
        raise ValueError(f"retry must be a lockfast.Backoff, not {shown(options.retry)}")
    engine = Engine(
        make(world, options.clock),
        world,
        lease_type=lease_type,
        holder=options.holder,
        patience=length(options.patience, "patience"),
        retry=options.retry,
        order=lock_order(options.debug),
    )
    locks = LocksLogic(engine, options.namespace)
    adopt(engine, finish)
    return locks


def _close(engine: Engine) -> None:
    drive(engine.close(within=1.0))


def _release_without_loop(engine: Engine) -> None:
    """At exit no loop runs any more, so a blocking backend for the same store releases what is left."""
    assert engine.open_twin is not None
    engine.closed = True  # a loop in another thread asks for no more leases
    if engine.loop_watch is not None:
        engine.loop_watch.close()
    twin = engine.open_twin()
    for held in list(engine.keeper.leases.values()):
        held._move("release")  # a renewal that is under way has nothing to report
        with suppress(LockError):  # best effort: the ttl ends what cannot be released
            drive(twin.release(held._claim, linger=time_to_linger(engine, held), within=1.0))
    for claim in [*engine.waiting.values(), *engine.unfinished.claims]:
        with suppress(LockError):
            drive(twin.abandon(claim, within=1.0))
    drive(twin.close())
