"""The pattern of a name: what many names of one kind have in common, so that a metric has few labels (pure).

Decides: which parts of a name are taken for an id.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

MAX_REMEMBERED: Final = 1024  # names
_UUID: Final = r"(?<![0-9A-Za-z])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Za-z])"
_HASH: Final = r"(?<![0-9A-Za-z])(?=[A-Fa-f]*[0-9])(?=[0-9]*[A-Fa-f])[0-9A-Fa-f]{7,}(?![0-9A-Za-z])"
_ID: Final = re.compile(rf"(?P<uuid>{_UUID})|(?P<hash>{_HASH})|(?P<n>\d+)")


@lru_cache(MAX_REMEMBERED)
def pattern_of(name: str) -> str:
    """The name with "{uuid}", "{hash}" or "{n}" in place of each id: "order:{n}" for "order:42".

    A hash has at least 7 hexadecimal digits, both figures and letters, and stands alone.
    """
    return _ID.sub(lambda found: f"{{{found.lastgroup}}}", name)
