"""A primary, its replica, and Sentinels that watch over them.

Decides: how fast the Sentinels are, and when the whole counts as up.
Leaves to `server`: each server of it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Self

import redis

from tests.servers.group import Group
from tests.servers.server import HOST, Server
from tests.servers.waiting import until

SERVICE = "locks"
_CALM_MS = 60_000  # milliseconds of silence after which a server counts as down: not by the load of a test machine
_NERVOUS_MS = 500  # and when the primary is to be replaced
_NOT_YET = (redis.RedisError, OSError, ValueError)

# The Sentinels' own timers, in milliseconds: they are made for the distances of a real network.
_FAST = {
    "info-period": 100,
    "ping-period": 300,  # five of them without news of a replica, and that one is not made the primary
    "ask-period": 50,
    "publish-period": 50,
    "tilt-period": 100,
    "tilt-trigger": 20_000,  # a busy machine is no reason to distrust the clock
    "election-timeout": 500,
    "default-failover-timeout": 2000,
}


class Watched(Group):
    """One primary, one replica, and that many Sentinels of one mind."""

    def __init__(self, sentinels: int = 3, *, shared: bool = False) -> None:
        super().__init__()
        self.primary = Server(shared=shared)
        self.replica = Server("--repl-timeout", "5", shared=shared)
        self.sentinels = [Server(sentinel=True, shared=shared) for _ in range(sentinels)]

    @property
    def servers(self) -> list[Server]:
        return [self.primary, self.replica, *self.sentinels]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def start(self) -> Self:
        self._stack.enter_context(self.primary)
        self._stack.enter_context(self.replica)
        self.replica.command("REPLICAOF", HOST, self.primary.port)
        for sentinel in self.sentinels:
            self._stack.enter_context(sentinel)
            self.watch(sentinel, self.primary)
        until(lambda: self.replica.replicates, "the replica", despite=_NOT_YET)
        self._until_known()
        return self

    def _until_known(self) -> None:
        until(lambda: all(map(self._knows_all, self.sentinels)), "the Sentinels to know all", despite=_NOT_YET)

    def watch(self, sentinel: Server, primary: Server) -> None:
        """From now on it reports this primary."""
        with suppress(redis.ResponseError):
            sentinel.command("SENTINEL", "REMOVE", SERVICE)
        sentinel.command("SENTINEL", "DEBUG", *(word for pair in _FAST.items() for word in pair))
        first = sentinel is self.sentinels[0]  # it runs for the lead before the others do: they would split the votes
        quorum = len(self.sentinels) // 2 + 1 if first else len(self.sentinels)
        sentinel.command("SENTINEL", "MONITOR", SERVICE, HOST, primary.port, quorum)
        sentinel.command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", _CALM_MS)
        sentinel.command("SENTINEL", "SET", SERVICE, "failover-timeout", 2000)

    def kill_primary(self) -> None:
        """The primary dies, and the Sentinels notice soon."""
        self.primary.kill()
        for sentinel in self.sentinels:
            first = sentinel is self.sentinels[0]
            sentinel.command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", _NERVOUS_MS + 100 * first)

    def _knows_all(self, sentinel: Server) -> bool:
        (facts,) = sentinel.command("SENTINEL", "MASTERS")
        known = dict(zip(facts[::2], facts[1::2], strict=True))
        others = int(known[b"num-other-sentinels"])
        return int(known[b"num-slaves"]) == 1 and others == len(self.sentinels) - 1 and known[b"flags"] == b"master"
