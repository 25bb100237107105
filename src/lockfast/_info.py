"""What can be seen of locks and of the servers that keep them.

Decides: what `inspect`, `list`, `break_lock` and `doctor` report.
Leaves to each backend: where it reads that.
"""

from __future__ import annotations

from math import inf
from typing import Any, Literal, NamedTuple


class HolderInfo(NamedTuple):
    """One holder of a name. Times are wall-clock seconds since the epoch, for people to read."""

    holder: str
    claim_id: str
    fence: int | None  # None: the store does not know it
    mode: Literal["exclusive", "shared"]
    acquired_at: float
    expires_at: float  # infinity: no time ends it, only the end of its session
    metadata: Any = None
    session: dict[str, Any] | None = None  # the connection that it is held by, where it belongs to one

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON: None for what is not known or never comes."""
        return {**self._asdict(), "expires_at": self.expires_at if self.expires_at < inf else None}


class LockInfo(NamedTuple):
    """Who holds a name and how many wait for it, at the moment of the question."""

    name: str
    holders: tuple[HolderInfo, ...] = ()
    waiters: int = 0
    queue: tuple[str, ...] = ()  # the holder ids of those who wait, first in line first
    damage: str = ""  # what of its record cannot be read: that is held by "(damaged)", and break_lock frees it

    @property
    def locked(self) -> bool:
        """True if anybody held it when the question was answered."""
        return bool(self.holders)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return {
            "name": self.name,
            "holders": [holder.as_dict() for holder in self.holders],
            "waiters": self.waiters,
            "queue": list(self.queue),
            "damage": self.damage or None,
        }


class Health(NamedTuple):
    """One server, or a store that is none, as this client sees it now."""

    where: str
    reachable: bool
    latency: float | None = None  # seconds from a question to its answer
    version: str = ""  # where it tells
    role: str = ""
    kept_out: float = 0.0  # seconds for which it does not count yet, because it started anew
    error: str = ""  # why it cannot be used

    @property
    def counts(self) -> bool:
        """True if locks can rest on it."""
        return self.reachable and not self.kept_out and not self.error


class Diagnosis(NamedTuple):
    """All servers that the locks rest on; most backends have one."""

    servers: tuple[Health, ...]

    @property
    def works(self) -> bool:
        """True if locks are to be had: more than half of the servers count."""
        return 2 * sum(server.counts for server in self.servers) > len(self.servers)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        servers = [{**server._asdict(), "counts": server.counts} for server in self.servers]
        return {"works": self.works, "servers": servers}
