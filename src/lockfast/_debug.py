"""Whether debug mode is on.

Decides: what `$LOCKFAST_DEBUG` says. Leaves to the others: what they do then.
"""

from __future__ import annotations

import os


def debug_is_on() -> bool:
    """Empty and 0 mean off, as if it were not set."""
    return os.environ.get("LOCKFAST_DEBUG", "") not in ("", "0")
