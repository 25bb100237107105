"""Whether a connection is silent, or only not read yet.

Decides: nothing. A process that stood still finds its timers due before it has read what arrived meanwhile; uvloop runs
timers before it looks at sockets.
"""

from __future__ import annotations

import select
from typing import Final

READ_AGAIN_AFTER_S: Final = 0.05  # the time that the reader gets for what has arrived


def has_arrived(number: int) -> bool:
    """Whether that socket has something to read, or its end."""
    if number < 0:  # it is closed
        return False
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))
