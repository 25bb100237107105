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
    session: dict[str, Any] | None = None  # the connection that holds it, where a hold belongs to one

    @property
    def holder_id(self) -> str:
        """The same as `holder`, as lock tables call it."""
        return self.holder

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON: None for an unknown value or an infinite time."""
        return {**self._asdict(), "expires_at": self.expires_at if self.expires_at < inf else None}


class LockInfo(NamedTuple):
    """The holders and waiters of a name at the moment of the request."""

    name: str
    holders: tuple[HolderInfo, ...] = ()
    waiters: int = 0
    queue: tuple[str, ...] = ()  # the holder ids of the waiters, in order
    damage: str = ""  # what of its record cannot be read; the holder "(damaged)" stands for it, and break_lock frees it

    @property
    def locked(self) -> bool:
        """True if there was a holder at that moment."""
        return bool(self.holders)

    # One row of a lock table: the name, and the first holder. All but the name are None while nobody holds it.

    @property
    def lock_name(self) -> str:
        """The same as `name`, as lock tables call it."""
        return self.name

    @property
    def holder_id(self) -> str | None:
        """Who holds it: the first holder, of a lock the only one. None if nobody does."""
        return self.holders[0].holder if self.holders else None

    @property
    def acquired_at(self) -> float | None:
        """When the first holder acquired it, in seconds since the epoch. None if nobody holds it."""
        return self.holders[0].acquired_at if self.holders else None

    @property
    def expires_at(self) -> float | None:
        """When the first holder's lease ends unless renewed, in seconds since the epoch. None if nobody holds it."""
        return self.holders[0].expires_at if self.holders else None

    @property
    def metadata(self) -> Any:
        """The first holder's metadata. None if it has none, or if nobody holds the name."""
        return self.holders[0].metadata if self.holders else None

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
    """One server, or a store without a server, as this client sees it now."""

    where: str
    reachable: bool
    latency: float | None = None  # seconds from a request to its reply
    version: str = ""  # where it reports it
    role: str = ""
    excluded_for: float = 0.0  # seconds for which it is excluded, because it has just restarted
    error: str = ""  # why it cannot be used

    @property
    def counts(self) -> bool:
        """True if it can grant locks."""
        return self.reachable and not self.excluded_for and not self.error


class Diagnosis(NamedTuple):
    """All servers of the locks; most backends have one."""

    servers: tuple[Health, ...]

    @property
    def works(self) -> bool:
        """True if locks can be acquired: more than half of the servers count."""
        return 2 * sum(server.counts for server in self.servers) > len(self.servers)

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        servers = [{**server._asdict(), "counts": server.counts} for server in self.servers]
        return {"works": self.works, "servers": servers}
