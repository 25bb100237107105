"""From a URL to what the blocking faces stand on: an engine in the world of threads, looked after at fork and exit."""

from __future__ import annotations

from lockfast._connect import factory_of
from lockfast._faces.sync_lock import Lease
from lockfast._time import Seconds, length
from lockfast._worlds import Clock, drive, valid_clock
from lockfast._worlds.threads import ThreadWorld
from lockfast.backends.opening import ConnectOptions
from lockfast.engine.core import Engine, lock_order
from lockfast.engine.process import adopt
from lockfast.primitives.locks import LocksLogic


def open_locks(
    url_or_client: object,
    *,
    holder: str | None,
    namespace: str,
    patience: Seconds,
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
        order=lock_order(debug),
    )
    locks = LocksLogic(engine, namespace)
    adopt(engine, _close)
    return locks


def _close(engine: Engine) -> None:
    drive(engine.close(within=1.0))
