"""Locks whose store does what a test says, on a clock that the test moves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import lockfast
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.testing import FakeClock, FaultyBackend, open_backend


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def backends() -> list[FaultyBackend]:
    """What was opened, in order."""
    return []


@pytest.fixture
def locks(url: str, clock: FakeClock, backends: list[FaultyBackend]) -> Iterator[lockfast.Locks]:
    def open_it(world: World, clock: Clock | None) -> Backend:
        backends.append(FaultyBackend(open_backend(url, world, clock), world))
        return backends[-1]

    with lockfast.connect(open_it, holder="worker-7", namespace="shop", clock=clock) as locks:
        yield locks


@pytest.fixture
def received(locks: lockfast.Locks) -> list[lockfast.Event]:
    """The events of `locks`."""
    events: list[lockfast.Event] = []
    locks.events.listen(events.append)
    return events
