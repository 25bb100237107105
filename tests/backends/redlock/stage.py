"""Where stories of a quorum play: real servers, each behind a proxy that can be cut, in both worlds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockfast._connect import open_backend
from lockfast._model import LockInfo
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.testing.awaited import AwaitedLease, AwaitedLocks
from lockfast.testing.contract import Promise, on_the_real_clock
from lockfast.testing.stage import Stage
from tests.adversity.redlock.servers import Quorum
from tests.renewals import renewed
from tests.servers.waiting import LIMIT_S


class OnAQuorum(Promise):
    """The base of each chapter: both worlds, in real time."""

    can = frozenset()
    size = 3
    options = f"rejoin=0&node_timeout={LIMIT_S}"  # on a busy machine a server may take long; see `hasty`
    _past_the_proxies = False

    def __init_subclass__(cls) -> None:
        for name, story in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, on_the_real_clock(story))
        super().__init_subclass__()

    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        with Quorum(self.size) as self.quorum:
            yield

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        return open_backend(self.quorum.url(self.options, past_the_proxies=self._past_the_proxies), world, clock)

    def beside_the_wires(self, stage: Stage, **options: Any) -> AwaitedLocks:
        """A client whose wires are never cut."""
        self._past_the_proxies = True
        try:
            return stage.locks(**options)
        finally:
            self._past_the_proxies = False

    def at(self, stage: Stage, node: int, name: str) -> LockInfo:
        return self.quorum.at(node, name, stage.namespace)

    async def ready(self, stage: Stage, **options: Any) -> AwaitedLocks:
        """A client that all servers have answered, and which they know the scripts of."""
        locks = stage.locks(**options)

        async def all_vote() -> bool:
            lease = await locks.lock("ready").take()
            votes = [self.at(stage, node, "ready").locked for node in range(self.size)]
            return await lease.release() and all(votes)

        await stage.until(all_vote, "the votes of all")
        return locks

    async def held_at_all(self, stage: Stage, name: str) -> None:
        """A lease is granted when a majority has voted; at a server that votes later a waiter would find it free."""
        await stage.until(lambda: all(self.quorum.held_at(name, stage.namespace)), f"the votes of all for {name}")

    async def repaired(self, stage: Stage, node: int, lease: AwaitedLease) -> None:
        """Until that server has the hold again, which it forgot: renewals see to that."""

        async def holds() -> bool:
            await renewed(stage, lease)
            return bool(self.at(stage, node, lease.name).holders)

        await stage.until(holds, "the hold to be repaired")


def hasty(locks: AwaitedLocks, seconds: float = 0.4) -> AwaitedLocks:
    """From now on a server that is silent for so long is given up."""
    fanout = backend_of(locks)._fanout
    fanout.node_timeout = seconds
    if hasattr(fanout, "_stragglers"):
        fanout._stragglers.patience = 1.0
    return locks


def backend_of(locks: AwaitedLocks):  # type: ignore[no-untyped-def]
    return locks.faults.inner
