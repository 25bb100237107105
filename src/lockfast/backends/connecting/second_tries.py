"""A connection beside one that is being made and that is silent: a proxy may have accepted it and lost the server.

Decides: when another connection is made, and that a server which is slow to answer gets few of them. The first
connection goes on meanwhile: the one that is ready first counts, so a slow login takes no longer than without this.
Leaves to each driver: what is made, and how both are waited for: `first_ready` for tasks.
"""

from __future__ import annotations

from typing import Final

from lockfast._time import boot_now

SUSPECT_AFTER_S: Final = 1.0  # after which a connection that is not ready gets one beside it; sooner if time is short
SUSPECT_SHARE: Final = 1 / 3  # of the time that there is
SPACING_S: Final = 1.0  # between two such connections to one server, unless the earlier one was ready
CHECK_EVERY_S: Final = 0.05  # how often a caller that may not begin checks whether it may now


def suspect_after(within: float) -> float:
    """Seconds after which a connection that is being made is suspect, if it may take `within` seconds."""
    return min(SUSPECT_AFTER_S, within * SUSPECT_SHARE)


class SecondTries:
    """Those to one server. Callers share the limit, so that a server which is only slow is not flooded."""

    def __init__(self) -> None:
        self._not_before = 0.0

    def may_begin(self) -> bool:
        """Whether a caller may make another connection now; if so, the next one may not for a while."""
        now = boot_now()
        if now < self._not_before:
            return False
        self._not_before = now + SPACING_S
        return True

    def worked(self) -> None:
        """The server answers on new connections: it is not slow, and others that wait may try too."""
        self._not_before = 0.0
