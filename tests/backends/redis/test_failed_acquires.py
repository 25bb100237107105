"""Whether an acquire that failed may have reached a Redis server: then it is to be abandoned."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast import BackendUnavailable
from lockfast._model import Claim, Terms
from lockfast._worlds import drive
from lockfast.backends.redis.backend import RedisBackend
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import no_connection
from lockfast.backends.redis.io.router import RedisDriver

CLAIM = Claim("c1", Terms("a", "a", "us", 30.0))


class ThenGone(RedisDriver):
    """It grants, and reports how many replicas have the grant; then no connection to it can be made any more."""

    def __init__(self) -> None:
        super().__init__(RedisEndpoint("tcp", {}, Address("127.0.0.1", 1)), _NoWires(), None, replicas=1)  # type: ignore[arg-type]

    async def run_replicated(self, *_: object) -> tuple[bytes, int]:
        return b"1 1", 0

    async def run(self, *_: object) -> Any:
        raise no_connection(self.endpoint.url, "connection refused")


class _NoWires:
    ask_one = None

    class wakeups:  # noqa: N801
        address = ""

        @staticmethod
        def forget(claim: Claim) -> None: ...


def test_a_grant_that_could_not_be_taken_back_was_sent() -> None:
    backend = RedisBackend(ThenGone())
    with pytest.raises(BackendUnavailable, match="replicas") as caught:
        drive(backend.acquire(CLAIM, enqueue=False, within=1.0))
    assert caught.value.sent
    assert CLAIM.id in backend._in_doubt


def test_an_abandon_that_failed_is_repeated_with_a_tombstone() -> None:
    """It may overtake an earlier request, since it travels on another connection."""
    backend = RedisBackend(ThenGone())
    with pytest.raises(BackendUnavailable, match="refused"):
        drive(backend.abandon(CLAIM, within=1.0))
    assert CLAIM.id in backend._in_doubt
