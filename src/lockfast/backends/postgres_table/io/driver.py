"""What the lock table's backend asks of its driver, in either world.

Decides: which driver a world has.
Leaves to `blocking` and `asyncio_`: how it is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lockfast._model import Claim
from lockfast._worlds import Clock, World
from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.backends.postgres_table.io.batching import Many, TableRequest
from lockfast.backends.postgres_table.io.blocking import BlockingPostgres
from lockfast.backends.wakeups import Wakeups


class PostgresDriver(Protocol):
    endpoint: PostgresEndpoint
    now: Callable[[], float] | None  # a test's clock, which is passed to the server

    @property
    def wakeups(self) -> Wakeups: ...

    @property
    def cannot_listen(self) -> bool:
        """No wake-up arrives here, so waiters have to poll."""
        ...

    async def ask(self, request: TableRequest, within: float) -> Any:
        """The answer, from JSON. Raises BackendUnavailable."""
        ...

    async def expect(self, claim: Claim, within: float) -> str:
        """As `wakeups.expect`, but makes the connection that wake-ups arrive by, if there is none."""
        ...

    @property
    def blocking(self) -> bool: ...

    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


def open_driver(
    endpoint: PostgresEndpoint, world: World, clock: Clock | None, many: Many, version: int
) -> PostgresDriver:
    """The driver for that world. Nothing is opened yet."""
    if world.blocking:
        return BlockingPostgres(endpoint, clock, many, version)
    from lockfast.backends.postgres_table.io.asyncio_ import AsyncioPostgres

    return AsyncioPostgres(endpoint, clock, many, version)
