"""The stage for stories of Redis set-ups: both worlds, in real time, with one set-up for a story or a module.

Decides: nothing about locks. A chapter says where its locks are: `where`, a URL or a ready client.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import redis

from lockfast._connect import open_backend
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.backends.opening import ConnectOptions
from lockfast.backends.redis.requests import keys_of
from lockfast.primitives.names import qualify
from lockfast.testing.awaited import AwaitedLease
from lockfast.testing.contract import Promise, on_the_real_clock
from lockfast.testing.stage import Stage
from tests.servers.server import HOST, Server


class Anywhere(Promise):
    """The base of each chapter."""

    can = frozenset()
    where: Any = None
    replicas: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        for name, story in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, on_the_real_clock(story))
        super().__init_subclass__()

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        return open_backend(self.where, world, clock, ConnectOptions(replicas=self.replicas))

    async def works(self, stage: Stage, name: str = "works") -> None:
        """A lock is taken, waited for and handed over."""
        one, two = stage.locks(), stage.locks()
        held = await one.lock(name).take()
        waiter = stage.start(two.lock(name).take())
        await stage.queue(name, 1)
        assert await held.release()
        granted = await waiter.result()
        assert granted.fence > held.fence
        assert await granted.release()


def record_of(namespace: str, name: str) -> str:
    """The key of a server's record of who holds that name."""
    return keys_of(qualify(namespace, name))[0]


def knows(server: Server, lease: AwaitedLease) -> bool:
    """Whether that very server has a record of the lease, be it a replica, or a node that does not own it yet."""
    client: Any  # redis-py says nothing of its types
    with redis.Redis(HOST, server.port, single_connection_client=True) as client:
        with suppress(redis.ResponseError):  # no cluster
            client.execute_command("READONLY")
        records = [_record(client, key) for key in client.keys("lockfast:*:held")]
    return any(lease.claim_id.encode() in record for record in records)


def _record(client: Any, key: bytes) -> bytes:
    with suppress(redis.ResponseError):
        client.execute_command("ASKING")
    return bytes(client.get(key) or b"")
