"""Values of a caller, as text.

Decides: how an error message shows a value, and which strings can leave the process.
"""

from __future__ import annotations

from typing import Final

LONGEST_SHOWN: Final = 200  # characters


def shown(value: object) -> str:
    """Its repr, cut to a bounded length. Never raises."""
    try:
        if isinstance(value, str | bytes | bytearray) and len(value) > LONGEST_SHOWN:
            value = value[:LONGEST_SHOWN]  # the repr of the whole would be made only to be cut
            return f"{value!r}…"
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def encodable(text: str) -> bool:
    """False if it contains half of a surrogate pair, which no store and no protocol can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
