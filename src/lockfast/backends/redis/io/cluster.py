"""Which node of a cluster has which names.

Decides: what is known, and when it is to be asked for again.
Leaves to `router`: to ask.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from redis.crc import key_slot

from lockfast._time import boot_now
from lockfast.backends.redis.io.endpoints import Address
from lockfast.backends.redis.io.resp import unavailable

IN_DOUBT_S = 5.0  # seconds after a node failed to answer for which others are asked rather than it, where any will do


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
            raise unavailable("cluster", f"has no node for {key!r} just now") from None

    def primaries(self) -> list[Address]:
        return sorted(set(self._nodes.values()))

    def any(self) -> Address:
        return self.candidates()[0]

    def candidates(self) -> list[Address]:
        """All that may be asked, those first that are likely to answer."""
        known = self.primaries()
        random.shuffle(known)
        now = boot_now()
        nodes = [*known, *(seed for seed in self._seeds if seed not in known)]
        return sorted(nodes, key=lambda node: self._in_doubt.get(node, 0.0) > now)

    def mark_in_doubt(self, node: Address | None) -> None:
        """It did not answer, so it may have been replaced."""
        self.stale = True
        if node is not None:
            self._in_doubt[node] = boot_now() + IN_DOUBT_S

    def read(self, answer: Any, asked: Address) -> bool:
        """Take over what a node says; whether it knows anything."""
        nodes: dict[int, Address] = {}
        for first, last, primary, *_ in answer:
            node = Address(primary[0].decode() or asked.host if primary[0] else asked.host, primary[1])
            nodes.update(dict.fromkeys(range(first, last + 1), node))
        if nodes:
            self._nodes, self.stale = nodes, False
        return bool(nodes)

    def moved(self, slot: int, where: str, told_by: Address | None) -> Address:
        """One slot is elsewhere, so others may be too."""
        node = self._nodes[slot] = address_in(where, told_by)
        self.stale = True
        return node


def address_in(where: str, told_by: Address | None) -> Address:
    """An empty host is the host of whoever says so."""
    host, _, port = where.rpartition(":")
    return Address(host or (told_by.host if told_by else "localhost"), int(port))
