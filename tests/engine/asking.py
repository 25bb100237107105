"""One request of each kind, to be made and then awaited: what leads up to it is done before."""

from __future__ import annotations

from collections.abc import Awaitable

from lockfast.primitives.locks import LocksLogic

TTL_S = 3600.0


async def acquire(locks: LocksLogic) -> Awaitable[object]:
    return locks.lock("a", ttl=TTL_S).acquire()


async def release(locks: LocksLogic) -> Awaitable[object]:
    lease = await locks.lock("a", ttl=TTL_S).acquire()
    assert lease is not None
    return lease._release()


async def extend(locks: LocksLogic) -> Awaitable[object]:
    lease = await locks.lock("a", ttl=TTL_S, renew=False).acquire()
    assert lease is not None
    return locks.engine.extend(lease, TTL_S)


async def read_cell(locks: LocksLogic) -> Awaitable[object]:
    return locks.cell("a").read()


async def take_permit(locks: LocksLogic) -> Awaitable[object]:
    return locks.limiter("a", 1, 1.0, None).try_acquire(1)
