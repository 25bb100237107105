"""Whether an acquire that failed may have reached a Redis server: then it is to be abandoned."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast import BackendUnavailable
from lockfast._model import Claim, Terms
from lockfast._worlds import drive
from lockfast.backends.redis.backend import IN_DOUBT, RedisBackend
from lockfast.backends.redis.io.endpoints import Address, RedisEndpoint
from lockfast.backends.redis.io.resp import no_connection, unavailable
from lockfast.backends.redis.io.router import RedisDriver
from lockfast.backends.redis.requests import script as script_of

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

    @staticmethod
    def keeps_order(address: Address | None, since: float) -> bool:
        return False

    class wakeups:  # noqa: N801
        address = ""

        @staticmethod
        def forget(claim: Claim) -> None: ...


class NotInTime(RedisDriver):
    """Requests of one event loop share a connection that stays, and are answered when the test says so."""

    def __init__(self) -> None:
        super().__init__(RedisEndpoint("tcp", {}, Address("127.0.0.1", 1)), _OneWire(), None)  # type: ignore[arg-type]
        self.answers = False
        self.doubts: list[bytes] = []  # what each abandon said of earlier requests

    async def run(self, script: Any, key: str, request: bytes, within: float) -> Any:
        if script is script_of("abandon"):
            self.doubts.append(request.split(b"\r\n")[-2])
        if not self.answers:
            raise unavailable("the server", "did not answer in time")
        return 0


class _OneWire(_NoWires):
    @staticmethod
    def keeps_order(address: Address | None, since: float) -> bool:
        return True


def test_a_grant_that_could_not_be_taken_back_was_sent() -> None:
    backend = RedisBackend(ThenGone())
    with pytest.raises(BackendUnavailable, match="replicas") as caught:
        drive(backend.acquire(CLAIM, enqueue=False, within=1.0))
    assert caught.value.sent
    assert backend._doubt(CLAIM.id) == IN_DOUBT


def test_an_abandon_that_failed_is_repeated_with_a_tombstone() -> None:
    """It may overtake an earlier request, since it travels on another connection."""
    backend = RedisBackend(ThenGone())
    with pytest.raises(BackendUnavailable, match="refused"):
        drive(backend.abandon(CLAIM, within=1.0))
    assert backend._doubt(CLAIM.id) == IN_DOUBT


def test_an_abandon_that_is_repeated_on_the_same_connection_needs_no_tombstone() -> None:
    """A thousand tasks that give up at the same moment are not all answered in time. With a tombstone each, the record
    of the name would be so long that every request for it takes milliseconds."""
    backend = RedisBackend(driver := NotInTime())
    with pytest.raises(BackendUnavailable):
        drive(backend.abandon(CLAIM, within=1.0))
    driver.answers = True
    drive(backend.abandon(CLAIM, within=1.0))
    drive(backend.abandon(CLAIM, within=1.0))
    assert driver.doubts == [b"0", b"2", b"2"]


def test_an_acquire_that_is_abandoned_on_the_same_connection_needs_no_tombstone() -> None:
    backend = RedisBackend(driver := NotInTime())
    backend._contended.add("a")
    with pytest.raises(BackendUnavailable):
        drive(backend.acquire(CLAIM, enqueue=False, within=1.0))
    driver.answers = True
    drive(backend.abandon(CLAIM, within=1.0))
    assert driver.doubts == [b"2"]
