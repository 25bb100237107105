"""What the stage of the contract's stories waits for."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from lockfast._model import Busy, Claim, Grant
from lockfast._worlds import Clock, World
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import shared_store
from lockfast.testing.stage_threads import ThreadStage
from tests.polling import HOUR
from tests.servers.waiting import pause

STORE = f"memory://{uuid4().hex}"


class _NeverExpires(MemoryBackend):
    """As advisory locks: the client releases what it has lost, in a time of its own."""

    capabilities = MemoryBackend.capabilities._replace(expires=False)

    async def acquire(self, claim: Claim, **how: Any) -> Grant | Busy:
        return await super().acquire(claim._replace(terms=claim.terms._replace(ttl=HOUR)), **how)

    async def abandon(self, claim: Claim, *, within: float) -> None:
        pause(0.1)
        await super().abandon(claim, within=within)


def _open(world: World, clock: Clock | None) -> MemoryBackend:
    return _NeverExpires(shared_store(STORE, clock), world)


def test_a_name_is_looked_at_once_a_client_has_released_what_it_lost() -> None:
    stage = ThreadStage(_open)

    async def story() -> None:
        await stage.locks().lock("x", ttl=10, renew=False).take()
        stage.clock.advance(10)
        assert await stage.is_free("x")

    stage.run(story())
