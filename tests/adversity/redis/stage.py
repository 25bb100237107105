"""The stage for stories of a Redis server in trouble: a server of their own, and a wire to it that can be cut.

Decides: nothing about locks. A story runs in both worlds, in real time, as those of the contract do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import lockfast
from lockfast._connect import open_backend
from lockfast._model import LockInfo
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.backends.redis.io import resp
from lockfast.backends.redis.requests import script
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.contract import Promise, on_the_real_clock
from lockfast.testing.stage import Stage
from tests.servers.proxy import Proxy
from tests.servers.server import Server
from tests.servers.waiting import LIMIT_S


def request_of(verb: str) -> bytes:
    """What a request of that verb begins with on the quick way, once the server knows the script."""
    return script({"acquire": "acquire_quick", "release": "release_quick"}.get(verb, verb)).digest


def sooner(patch: pytest.MonkeyPatch, seconds: float = 0.5) -> float:
    """A connection that falls silent is given up after that many seconds instead of one."""
    patch.setattr(resp, "SUSPECT_AFTER_S", seconds)
    return seconds


class OnAServer(Promise):
    """The base of each chapter."""

    can = frozenset()
    server_args: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        for name, story in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, on_the_real_clock(story))
        super().__init_subclass__()

    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        with Server(*self.server_args) as self.server, Proxy(self.server) as self.proxy:
            self._url = self.proxy.url
            self._direct: dict[str, lockfast.Locks] = {}
            yield
            if self.server.running:
                self.server.go_on()

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        return open_backend(self._url, world, clock)

    async def ready(self, stage: Stage, **options: Any) -> AwaitedLocks:
        """A client behind the wire; it is connected, and the server knows all that it will ask."""
        locks = stage.locks(**options)
        lease = await locks.lock("ready", renew=False).take()
        await lease.extend(1)
        await lease.release()
        await locks.faults.abandon(stage.claim("ready"), within=LIMIT_S)
        return locks

    def beside_the_wire(self, stage: Stage, **options: Any) -> AwaitedLocks:
        """A client whose wire is never cut."""
        self._url = self.server.url
        try:
            return stage.locks(**options)
        finally:
            self._url = self.proxy.url

    def truth(self, stage: Stage, name: str) -> LockInfo:
        """What the server knows of the name, whatever happens to the wire."""
        if stage.namespace not in self._direct:
            self._direct[stage.namespace] = lockfast.connect(self.server.url, namespace=stage.namespace)
            stage.close_at_end(self._direct[stage.namespace])
        return self._direct[stage.namespace].inspect(name)

    def free(self, stage: Stage, name: str) -> Callable[[], bool]:
        return lambda: self.truth(stage, name) == LockInfo(name)

    async def waiting(self, stage: Stage, name: str, number: int = 1) -> None:
        """Until that many wait for it."""
        await stage.until(lambda: self.truth(stage, name).waiters == number, f"{number} to wait for {name!r}")
