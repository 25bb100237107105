"""A clock that the test moves, and the blocking locks of a store of its own that follow it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import lockfast
from lockfast.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def locks(url: str, clock: FakeClock) -> Iterator[lockfast.Locks]:
    with lockfast.connect(url, clock=clock) as locks:
        yield locks
