"""One thread or task of a worker: it asks, believes, works and releases, and writes each of it down.

Decides: what is believed and for how long, and which errors are part of the game.
Leaves to `jobs`: what is asked for, and how.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from lockfast import AcquireTimeout, BackendUnavailable, LeaseLost, NotHeld
from lockfast._model import Capabilities
from lockfast._time import boot_now
from lockfast.testing.awaited import AwaitedLocks
from tests.torture.journal import Asked, Belief, Journal

MUTEXES = ("mutex:0", "mutex:1", "mutex:2")
LONG = tuple(f"long:{number}" for number in range(8))  # held for several ttls
LIMIT_OF_SEMAPHORE = 3
TTLS_S = (1.0, 1.5, 3.0)
LONGEST_TTL_S = 5.0  # what `extend` asks for
WAITS_S = (0.3, 2.0, 10.0, 30.0)
_REFRESH_EVERY_S = 0.1
_EXPECTED = (AcquireTimeout, LeaseLost, NotHeld, BackendUnavailable)


class Surroundings(NamedTuple):
    """What all actors of a worker share."""

    world: str
    locks: AwaitedLocks
    manager: Any  # a DistributedLock of either world
    capabilities: Capabilities
    journal: Journal
    rest: Callable[[float], Awaitable[None]]
    stopping: Callable[[], bool]


class Actor:
    def __init__(self, around: Surroundings, random: Random, *, first: bool) -> None:
        self.around, self.random = around, random
        self.first = first  # of its worker; in threads it runs in the main thread
        self.locks, self.journal = around.locks, around.journal

    # What it asks for

    def mutex(self) -> str:
        return self.random.choice(MUTEXES)

    def terms(self, **others: Any) -> dict[str, Any]:
        """Options of a lock."""
        chosen = {"ttl": self.random.choice(TTLS_S), "wait": self.random.choice(WAITS_S), "on_lost": self.on_lost}
        return {**chosen, **others}

    def asked(self, style: str, *, limit: int | None = None, min_hold: float = 0.0) -> Asked:
        return Asked(style, boot_now(), limit, min_hold)

    def moment(self) -> float:
        """Seconds of work, mostly few."""
        return self.random.choice((0.0, 0.005, 0.02, 0.05, 0.2)) * self.random.random()

    # What it believes

    def on_lost(self, lease: Any) -> None:
        for one in leases_of(lease):
            self.journal.write("lost", id=one.claim_id, reason=one._reason)

    async def believe(
        self,
        lease: Any,
        asked: Asked,
        seconds: float,
        inside: Callable[[Sequence[Belief]], Awaitable[None]] | None = None,
    ) -> None:
        """Work under the lease for so long, or until it is lost."""
        beliefs = [Belief(self.journal, one, asked) for one in leases_of(lease)]
        until = boot_now() + seconds
        try:
            if inside is not None:
                await inside(beliefs)
            while all(list(map(Belief.refresh, beliefs))) and (left := until - boot_now()) > 0:
                await self.around.rest(min(left, _REFRESH_EVERY_S))
        finally:
            for belief in beliefs:
                belief.over()

    # One after the other

    async def act(self, jobs: Sequence[tuple[str, Callable[[Actor], Awaitable[None]]]]) -> None:
        while not self.around.stopping():
            style, job = self.random.choice(jobs)
            asked_at = boot_now()
            try:
                await job(self)
            except _EXPECTED as error:
                self._refused(style, asked_at, error)
            except BaseException as error:
                self._unexpected(style, error)
            await self.around.rest(0.03 * self.random.random())

    def _refused(self, style: str, asked_at: float, error: Exception) -> None:
        final = isinstance(error, BackendUnavailable) and not error.transient
        if final and "replicas that confirm" not in str(error):  # a grant that too few replicas have is given up
            self._unexpected(style, error)
        self.journal.write("refused", style=style, asked=asked_at, error=type(error).__name__)

    def _unexpected(self, style: str, error: BaseException) -> None:
        self.journal.write(
            "unexpected", style=style, error=repr(error), trace="".join(traceback.format_exception(error))
        )


def leases_of(lease: Any) -> list[Any]:
    """The one, or those of several names."""
    return list(getattr(lease, "_leases", [lease]))
