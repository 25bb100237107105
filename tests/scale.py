"""How much is tested: the quick loop (`make check`), everything (`make test`) or the long search (`make soak`).

Decides: how the three are distinguished, in one place, by LOCKFAST_TESTS=quick|all|soak.
Leaves to each test: what it does less of, or more of.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SCALES = ("quick", "all", "soak")
SCALE = os.environ.get("LOCKFAST_TESTS", "all")
if SCALE not in SCALES:
    raise ValueError(f"LOCKFAST_TESTS is one of {', '.join(SCALES)}, not {SCALE!r}")

QUICK = SCALE == "quick"
SOAK = SCALE == "soak"


def by_scale(usual: T, *, soak: T, quick: T | None = None) -> T:
    """As much as fits into `make test`, as is worth a long search or, where that is less, as fits into `make check`."""
    if QUICK and quick is not None:
        return quick
    return soak if SOAK else usual
