"""Waiters that never look for themselves: whoever gets a lock then was woken, however slow the machine is.

Decides: which timers would do the work of a wake-up, and that they are an hour away.
"""

from __future__ import annotations

import importlib

import pytest

HOUR = 3600.0
_BACKENDS = ("memory", "sqlite", "redis", "postgres_table_requests", "postgres_advisory_asking")


def never_look(patch: pytest.MonkeyPatch) -> None:
    """From now on no waiter and no observer of this process looks by its timer. Holders need a ttl of `HOUR`."""
    for name in _BACKENDS:
        module = importlib.import_module(f"holdfast.backends.{name}")
        for timer, value in (("patrol", lambda position, room_in=HOUR: HOUR), ("PATROL", HOUR)):
            if hasattr(module, timer):
                patch.setattr(module, timer, value)
