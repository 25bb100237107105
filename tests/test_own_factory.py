"""`connect()` takes any function that makes a backend, and says what is wrong with one that does not."""

from __future__ import annotations

from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast.backends.memory.backend import MemoryBackend
from lockfast.backends.memory.store import MemoryStore


class NoBackend:
    """Has only a part of the verbs."""

    capabilities = None
    store_id = "none"


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
@pytest.mark.parametrize(
    ("factory", "what"),
    [
        (
            lambda world, clock: None,
            r"<function .*> made None, which is no backend: it has no capabilities; connect\(\)",
        ),
        (lambda world, clock: NoBackend(), "made <.*NoBackend object .*>, which is no backend: it has no acquire"),
        (lambda: None, "<function .*> cannot be called with a world and a clock to make a backend"),
        (NoBackend, "NoBackend'> cannot be called with a world and a clock"),
    ],
)
def test_what_makes_no_backend_is_refused(connect: Any, factory: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        connect(factory)


def test_what_makes_a_backend_is_taken() -> None:
    store = MemoryStore()
    with lockfast.connect(lambda world, clock: MemoryBackend(store, world)) as locks, locks.lock("x") as lease:
        assert lease.held
