"""Ids of claims and holders.

Decides: how a claim is distinguished from every other claim, and the default holder id.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

CLAIM_ID_BYTES: Final = 16
CLAIM_ID_CHARS: Final = 2 * CLAIM_ID_BYTES
_UUID7: Final = 0x7000_8000_0000_0000_0000  # its version and variant
_RAND_B: Final = 0x3FFF_FFFF_FFFF_FFFF  # the 62 random bits at the end of a uuid7


def _fresh_count() -> itertools.count[int]:
    # Start in the lower half, so that counting up for years does not run out of the 62 bits.
    return itertools.count(_UUID7 | int.from_bytes(os.urandom(8), "big") & (_RAND_B >> 1))


_count = _fresh_count()


def new_claim_id() -> str:
    """A fresh uuid7 as 32 hex digits: milliseconds first, then bits that no other process has.

    The random part starts at a random number and counts up, so ids of one process always differ, and ids of two
    processes differ as surely as random ones.
    """
    milliseconds = time.time_ns() // 1_000_000
    return (milliseconds << 80 | next(_count)).to_bytes(CLAIM_ID_BYTES, "big").hex()


def default_holder() -> str:
    """host:pid:random, so that an operator can find the process and two containers never share an id."""
    return f"{os.uname().nodename if hasattr(os, 'uname') else 'host'}:{os.getpid()}:{os.urandom(3).hex()}"


def renew_after_fork() -> None:
    """In the child of a fork: never use an id that the parent uses too."""
    global _count
    _count = _fresh_count()
