"""A cluster of three primaries, each with one replica.

Decides: who has which slots, and when the whole counts as up: every node knows of every other, and all are of one mind.
Leaves to `server`: each node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import redis
from redis.crc import key_slot

from tests.servers.group import Group
from tests.servers.server import HOST, Server
from tests.servers.waiting import until

SLOTS = 16384
SHARDS = 3
_CALM_MS = 15_000  # milliseconds of silence after which a node counts as failed: not by the load of a test machine
_NERVOUS_MS = 500  # and when one has to fail; nodes also exchange their state faster
_ARGS = (
    *("--cluster-enabled", "yes"),
    *("--cluster-node-timeout", str(_NERVOUS_MS)),
    *("--cluster-replica-no-failover", "yes"),
    *("--cluster-replica-validity-factor", "0"),
    *("--cluster-allow-replica-migration", "no"),
    *("--cluster-require-full-coverage", "no"),
)


class Nodes(Group):
    """Shard n is `primaries[n]` and `replicas[n]`, until one of them fails."""

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        self.primaries = [Server(*_ARGS, shared=shared) for _ in range(SHARDS)]
        self.replicas = [Server(*_ARGS, shared=shared) for _ in range(SHARDS)]

    @property
    def all(self) -> list[Server]:
        return [*self.primaries, *self.replicas]

    @property
    def servers(self) -> list[Server]:
        return self.all

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.primaries)

    def start(self) -> Self:
        for number, node in enumerate(self.all):
            self._stack.enter_context(node)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, primary in enumerate(self.primaries):
            first, last = number * SLOTS // SHARDS, (number + 1) * SLOTS // SHARDS - 1
            primary.command("CLUSTER", "ADDSLOTS", *range(first, last + 1))  # ADDSLOTSRANGE is not for Redis 6
        for node in self.all:
            for other in self.all:
                if node.port < other.port:
                    node.command("CLUSTER", "MEET", HOST, other.port)
        _until(lambda: all(len(self._known(node)) == 2 * SHARDS for node in self.all), "all to know all")
        for primary, replica in zip(self.primaries, self.replicas, strict=True):
            replica.command("CLUSTER", "REPLICATE", self.id(primary))
        _until(lambda: all(replica.replicates for replica in self.replicas), "the replicas")
        _until(lambda: all(self._is_well(node) for node in self.all), "all to be of one mind")
        self._configure("cluster-node-timeout", _CALM_MS)
        return self

    def _configure(self, option: str, value: str | int) -> None:
        for node in self.all:
            if node.running:
                node.configure(option, value)

    def _known(self, node: Server) -> list[Any]:
        lines = node.command("CLUSTER", "NODES").splitlines()
        return [line for line in lines if b"handshake" not in line and b"noaddr" not in line]

    def _is_well(self, node: Server) -> bool:
        shards = {shard[0]: len(shard) - 2 for shard in node.command("CLUSTER", "SLOTS")}
        covered = b"cluster_state:ok" in node.command("CLUSTER", "INFO")
        return covered and len(shards) == SHARDS and set(shards.values()) == {2}

    def id(self, node: Server) -> str:
        return str(node.command("CLUSTER", "MYID").decode())

    def owner(self, key: str) -> Server:
        """The primary whose slot it is, as the first node knows it that runs."""
        asked = next(node for node in self.all if node.running)
        for first, last, primary, *_ in asked.command("CLUSTER", "SLOTS"):
            if first <= key_slot(key.encode()) <= last:
                return next(node for node in self.all if node.port == primary[1])
        raise LookupError(key)

    # A slot that moves: in steps, so that a test can check it in between

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(target))

    def move_keys(self, slot: int, source: Server, target: Server, *keys: bytes) -> None:
        """Those keys, or all that are there."""
        moving = keys or source.command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        if moving:
            source.command("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *moving)

    def end_move(self, slot: int, source: Server, target: Server) -> None:
        self.move_keys(slot, source, target)
        id = self.id(target)
        for node in (target, source, *(one for one in self.primaries if one not in (source, target))):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", id)

    def replace(self, primary: Server) -> None:
        """Let its replica take over, by order: an election may take several rounds."""
        assert not primary.running
        self._configure("cluster-node-timeout", _NERVOUS_MS)
        successor = self.replicas[self.primaries.index(primary)]
        successor.command("CLUSTER", "FAILOVER", "TAKEOVER")
        _until(lambda: successor.command("ROLE")[0] == b"master", "the replica to take over")


def _until(condition: Callable[[], object], what: str) -> None:
    until(condition, what, despite=(redis.RedisError, OSError))
