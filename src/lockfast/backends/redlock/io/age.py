"""For how long a server of a quorum has remembered every vote, as far as one client can know.

Decides: what a client concludes from what a server reports on each new connection. Once a client has seen a server,
only the client's own clock counts: the server's wall clock may be stepped after a restart.
Leaves to `quorum`: how old a server must be for its vote to count.
"""

from __future__ import annotations

import math
from typing import Final

_ALWAYS: Final = -math.inf  # not 0: that is when the client's machine booted, and a server may be older


class ServerAge:
    """All moments are on the client's clock."""

    def __init__(self) -> None:
        self._run = ""  # the run_id that the server reported last
        self._kept_all = False  # that run synced every write, so the run after it remembers what it knew
        self._since = _ALWAYS  # that run remembers everything since then
        self._copied_at = _ALWAYS  # when it was last seen as a replica, which has the data of another server

    def on_report(self, now: float, run: str, uptime: float, *, keeps_all: bool, is_replica: bool = False) -> None:
        """The server reported this. Its `uptime` is only used for a server that this client has never seen before."""
        if not self._run:
            self._since = _ALWAYS if keeps_all else now - uptime
        elif run != self._run and not (keeps_all and self._kept_all):
            self._since = now
        self._run = run
        self._kept_all = keeps_all
        if is_replica:
            self._copied_at = now

    def at(self, now: float) -> float:
        return now - max(self._since, self._copied_at)
