"""To wait for something that becomes true on a real server."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT = 20.0  # real seconds; only ever reached when something is broken


def until(condition: Callable[[], object]) -> None:
    """Return as soon as it is true. Fails after a generous limit."""
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.002)
