"""What a caller has passed, as text.

Decides: how an error message shows it, and which strings can leave the process.
"""

from __future__ import annotations

from typing import Final

LONGEST_SHOWN: Final = 200  # characters


def shown(value: object) -> str:
    """Its repr, as far as it fits; never an error, and never the whole of something long."""
    try:
        if isinstance(value, str | bytes | bytearray) and len(value) > LONGEST_SHOWN:
            value = value[:LONGEST_SHOWN]  # a repr of all of it would be made only to be cut
            return f"{value!r}…"
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def encodable(text: str) -> bool:
    """False if there is half of a surrogate pair in it, which no store and no wire can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
