"""Which node of a cluster has which names.

Decides: what is known, and when it is stale.
Leaves to `router`: to ask the nodes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from redis.crc import key_slot

from lockfast._time import boot_now
from lockfast.backends.redis.io.endpoints import Address
from lockfast.backends.redis.io.resp import unavailable

IN_DOUBT_S = 5.0  # after a node did not answer: other nodes are asked first for what every node knows


class ClusterMap:
    """Which node has which of the 16384 slots."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = tuple(seeds)
        self._nodes: dict[int, Address] = {}
        self._in_doubt: dict[Address, float] = {}  # until when
        self.stale = True

    def node_of(self, key: str) -> Address:
        try:
            return self._nodes[key_slot(key.encode())]
        except KeyError:
            self.stale = True
            raise unavailable("cluster", f"has no node for {key!r} at the moment") from None

    def primaries(self) -> list[Address]:
        return sorted(set(self._nodes.values()))

    def any(self) -> Address:
        return self.candidates()[0]

    def candidates(self) -> list[Address]:
        """All nodes that can be asked, the likely ones first."""
        known = self.primaries()
        random.shuffle(known)
        now = boot_now()
        nodes = [*known, *(seed for seed in self._seeds if seed not in known)]
        return sorted(nodes, key=lambda node: self._in_doubt.get(node, 0.0) > now)

    def mark_in_doubt(self, node: Address | None) -> None:
        """It did not answer, so another node may have replaced it."""
        self.stale = True
        if node is not None:
            self._in_doubt[node] = boot_now() + IN_DOUBT_S

    def read(self, answer: Any, asked: Address) -> bool:
        """Store the map that a node reports; False if it knows none."""
        nodes: dict[int, Address] = {}
        for first, last, primary, *_ in answer:
            node = Address(primary[0].decode() or asked.host if primary[0] else asked.host, primary[1])
            nodes.update(dict.fromkeys(range(first, last + 1), node))
        if nodes:
            self._nodes, self.stale = nodes, False
        return bool(nodes)

    def moved(self, slot: int, where: str, reported_by: Address | None) -> Address:
        """One slot has moved, so others may have too."""
        node = self._nodes[slot] = address_in(where, reported_by)
        self.stale = True
        return node


def address_in(where: str, reported_by: Address | None) -> Address:
    """An empty host is that of the node that reported it."""
    host, _, port = where.rpartition(":")
    return Address(host or (reported_by.host if reported_by else "localhost"), int(port))
