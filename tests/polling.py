"""Waiters that never poll, so that one that gets a lock was woken; or that poll all the time.

Decides: which timers would do the work of a wake-up, and when they are due.
"""

from __future__ import annotations

import importlib

import pytest

HOUR = 3600.0
OFTEN_S = 0.02
_BACKENDS = (
    "memory.backend",
    "sqlite.backend",
    "redis.backend",
    "redis.replies",
    "postgres_table.requests",
    "postgres_advisory.acquiring",
)


def never_poll(patch: pytest.MonkeyPatch) -> None:
    """From now on no waiter and no observer of this process polls. Holders need a ttl of `HOUR`."""
    _poll_every(HOUR, patch)


def poll_often(patch: pytest.MonkeyPatch) -> None:
    """From now on waiters and observers of this process need no wake-up to learn of a change, and soon do."""
    _poll_every(OFTEN_S, patch)


def _poll_every(seconds: float, patch: pytest.MonkeyPatch) -> None:
    for name in _BACKENDS:
        module = importlib.import_module(f"lockfast.backends.{name}")
        for timer, value in (("poll_after", lambda position, room_in=seconds: seconds), ("MAX_POLL_S", seconds)):
            if hasattr(module, timer):
                patch.setattr(module, timer, value)


def expect_signs_of_life_soon(patch: pytest.MonkeyPatch) -> None:
    """From now on a subscription to a Redis server that is silent for a moment is asked for a sign of life."""
    for name in ("blocking_connection", "asyncio_wakeups"):
        module = importlib.import_module(f"lockfast.backends.redis.io.{name}")
        patch.setattr(module, "QUIET_S", OFTEN_S)
