"""Valid names, namespaces and metadata. What is refused here was not sent.

Decides: what a valid name is, and how a name is filed under its namespace.
"""

from __future__ import annotations

import json
import re
from typing import Any

from lockfast._records import DEEPEST, LARGEST_METADATA, LARGEST_NUMBER, LONGEST_NAME, NAMESPACE_SEPARATOR, depth
from lockfast._text import encodable, shown

DEFAULT_NAMESPACE = "lockfast"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


LockName = str | int  # an integer only where the backend takes integers: PostgreSQL's advisory locks


def valid(name: LockName, what: str = "lock name") -> str:
    """The name itself, as a plain string. Raises ValueError, saying what is wrong with it."""
    if not isinstance(name, str):
        raise ValueError(f"a {what} must be a string, not {shown(name)}")
    name = str.__str__(name)  # an Enum, say, would format itself otherwise than it compares
    if flaw := flaw_in(name):
        raise ValueError(f"a {what} {flaw}")
    return name


def flaw_in(name: str) -> str:
    """Why it is no valid name; empty if it is one."""
    if not name:
        return "must not be empty"
    if len(name) > LONGEST_NAME:
        return f"has at most {LONGEST_NAME} characters; this has {len(name)}: {shown(name[:40])}…"
    if _CONTROL.search(name):
        return f"must not contain control characters: {shown(name)}"
    if not encodable(name):
        return f"must be encodable as UTF-8: {shown(name)}"
    return ""


def valid_prefix(prefix: Any) -> str:
    """A prefix of names; the empty one fits every name. Raises ValueError."""
    return prefix if isinstance(prefix, str) and not prefix else valid(prefix, "prefix")


def whole(value: object, what: str, least: int = 0) -> int:
    """The number itself. Raises ValueError unless it is a whole number of at least `least` that a store can keep."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} must be a whole number of at least {least}, not {shown(value)}")
    if value > LARGEST_NUMBER:
        raise ValueError(f"{what} must be at most {LARGEST_NUMBER}, not {shown(value)}")
    return value


def positive(value: object, what: str) -> float:
    """The number itself. Raises ValueError unless it is positive and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{what} must be a positive number, not {shown(value)}")
    return value


def qualify(namespace: str, name: str) -> str:
    """The key that the backend files a name under; in the default namespace that is the plain name."""
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace}{NAMESPACE_SEPARATOR}{name}"


def unqualify(namespace: str, key: str) -> str | None:
    """The name that a key stands for, or None if it is another namespace's, or no name at all."""
    start = "" if namespace == DEFAULT_NAMESPACE else namespace + NAMESPACE_SEPARATOR
    name = key[len(start) :]
    return name if key.startswith(start) and NAMESPACE_SEPARATOR not in name else None


def aside(key: str, purpose: str) -> str:
    """A key for what lockfast itself keeps beside a name: it collides with no name, and no list shows it."""
    return f"{NAMESPACE_SEPARATOR}{purpose}{NAMESPACE_SEPARATOR}{key}"  # no namespace is empty


def json_text(value: Any, what: str, largest: int) -> str:
    """JSON as it is stored. Raises ValueError, naming `what`, unless it is JSON of a reasonable size and depth."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} must be JSON: {error}") from None
    if len(text) > largest:
        raise ValueError(f"{what} must be at most {largest} characters of JSON; this has {len(text)}")
    if depth(value) > DEEPEST:
        raise ValueError(f"{what} must not be nested more than {DEEPEST} deep")
    return text


def metadata_text(metadata: Any) -> str | None:
    """Metadata as it is stored, if there is any."""
    return None if metadata is None else json_text(metadata, "metadata", LARGEST_METADATA)
