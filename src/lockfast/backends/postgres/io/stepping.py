"""Going through the steps of `wire` in a thread.

Decides: how a thread waits for a connection's socket, and for how long.
"""

from __future__ import annotations

import math
import select
from typing import Any

from lockfast._time import boot_now
from lockfast.backends.postgres.io.wire import Steps


class Late(Exception):
    """There was no reply in time."""


def run(steps: Steps, until: float, readable: select.poll | None = None) -> Any:
    """Go through the steps in this thread. Raises Late; then the connection is in the middle of an exchange.

    The steps are closed, so that a connection that was being made is.
    """
    try:
        while True:
            number, what = next(steps)
            poll = readable
            if poll is None or what == "w":
                poll = select.poll()
                poll.register(number, select.POLLIN if what == "r" else select.POLLOUT)
            if not poll.poll(max(0, math.ceil((until - boot_now()) * 1000))):
                raise Late
    except StopIteration as end:
        return end.value
    finally:
        steps.close()
