"""What may be asked for: names, namespaces, metadata. Refused here, nothing is sent.

Decides: what a valid name is, and how a name is filed under its namespace.
"""

from __future__ import annotations

import json
import re
from typing import Any

LONGEST_NAME = 255
LARGEST_METADATA = 16 * 1024
DEFAULT_NAMESPACE = "holdfast"
_SEPARATOR = "\x1f"  # cannot stand in a name, so no two names of two namespaces can meet
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def valid(name: str, what: str = "lock name") -> str:
    """The name itself. Raises ValueError, saying what is wrong with it."""
    if not isinstance(name, str):
        raise ValueError(f"a {what} must be a string, not {name!r}")
    if not name:
        raise ValueError(f"a {what} must not be empty")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a {what} has at most {LONGEST_NAME} characters; this has {len(name)}: {name[:40]!r}…")
    if _CONTROL.search(name):
        raise ValueError(f"a {what} must not contain control characters: {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a {what} must be encodable as UTF-8: {name!r}") from None
    return name


def qualify(namespace: str, name: str) -> str:
    """The key that the backend files a name under; in the default namespace that is the plain name."""
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace}{_SEPARATOR}{name}"


def unqualify(namespace: str, key: str) -> str | None:
    """The name that a key stands for, or None if it is another namespace's."""
    if namespace == DEFAULT_NAMESPACE:
        return None if _SEPARATOR in key else key
    start = namespace + _SEPARATOR
    return key[len(start) :] if key.startswith(start) else None


def metadata_text(metadata: Any) -> str | None:
    """Metadata as it is stored. Raises ValueError unless it is JSON of a reasonable size."""
    if metadata is None:
        return None
    try:
        text = json.dumps(metadata, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"metadata must be JSON: {error}") from None
    if len(text) > LARGEST_METADATA:
        raise ValueError(f"metadata must be at most {LARGEST_METADATA} characters of JSON; this has {len(text)}")
    return text
