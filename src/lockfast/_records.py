"""What clients may store with a lock, and what happens with a record that cannot be read.

Decides: the limits of names and metadata, how a damaged record is shown, and the text of its error.
Leaves to each backend: to notice the damage, and to grant no claim beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import inf, isfinite
from typing import Any, Final, NamedTuple

from lockfast._model import EXCLUSIVE, SHARED, HolderInfo, LockInfo
from lockfast._text import shown
from lockfast.errors import BackendUnavailable

NAMESPACE_SEPARATOR: Final = "\x1f"  # between a namespace and a name: neither can contain it
LONGEST_NAME: Final = 255  # characters
LONGEST_KEY: Final = 3 * LONGEST_NAME  # characters of an encoded name or holder id
LARGEST_METADATA: Final = 16 * 1024  # characters of JSON
DEEPEST: Final = 50  # levels of JSON: a reader needs a stack for them
PLAIN: Final = 2 * DEEPEST  # characters of JSON: too few to exceed any of these limits
LARGEST_NUMBER: Final = 2**53  # up to which JSON, Lua and floats are exact

UNREADABLE: Final = HolderInfo("(damaged)", "", None, EXCLUSIVE, 0.0, inf)  # shown for a hold that cannot be read
NO_HOLD: Final = "a hold cannot be read"

_NESTS: Final = (dict, list, tuple)
_ROOM: Final = 3  # times the characters: a store may write the same JSON with spaces
MOST_READ: Final = _ROOM * LARGEST_METADATA + 1  # characters of metadata; more need not be read from a store


class StoredHold(NamedTuple):
    """A hold as read from a store; no value is checked yet."""

    holder: Any
    claim_id: Any
    fence: Any
    mode: Any
    acquired_at: Any
    expires_at: Any
    metadata: Any  # JSON text, or nothing


def lock_info(key: str, holds: Iterable[StoredHold], queue: Iterable[Any], damage: str = "") -> LockInfo:
    """What is shown of a name. Never raises: what cannot be read becomes its damage.

    `damage` is the reason why there may be more holds.
    """
    holders, flaws = [], [damage]
    for held in holds:
        info, flaw = _shown(held)
        holders.append(info)
        flaws.append(flaw)
    if damage:
        holders.append(UNREADABLE)
    waiting = tuple(cut_id(one) for one in queue if isinstance(one, str))
    return LockInfo(key, tuple(holders), len(waiting), waiting, listed(flaws))


def listed(flaws: Iterable[str]) -> str:
    """All of them without duplicates, in order."""
    return "; ".join(dict.fromkeys(filter(None, flaws)))


def _shown(held: StoredHold) -> tuple[HolderInfo, str]:
    if not _is_sound(held):
        return UNREADABLE, NO_HOLD
    holder, claim_id = cut_id(held.holder), cut_id(held.claim_id, LONGEST_KEY)
    flaw = "" if holder == held.holder else f"a holder id is longer than {LONGEST_NAME} characters"
    if claim_id != held.claim_id:
        flaw = listed([flaw, f"a claim id is longer than {LONGEST_KEY} characters"])
    metadata, reason = None, ""
    if held.metadata:
        try:
            metadata = parsed(held.metadata, _ROOM * LARGEST_METADATA)
        except ValueError as error:
            reason = f"the metadata of {shown(holder)} {error}"
    facts = (held.fence, held.mode, float(held.acquired_at), float(held.expires_at), metadata)
    return HolderInfo(holder, claim_id, *facts), listed([flaw, reason])


def _is_sound(held: StoredHold) -> bool:
    return (
        isinstance(held.holder, str)
        and isinstance(held.claim_id, str)
        and is_count(held.fence)
        and held.mode in (EXCLUSIVE, SHARED)
        and all(isinstance(at, int | float) and isfinite(at) for at in (held.acquired_at, held.expires_at))
    )


def is_count(value: Any) -> bool:
    """Whether it can be a fence, a version or the number of a change."""
    return value.__class__ is int and 0 <= value <= LARGEST_NUMBER


def cut_id(id: str, longest: int = LONGEST_NAME) -> str:
    """A holder id or claim id, cut for display: a stored one may have any length."""
    return id if len(id) <= longest else f"{id[: longest - 1]}…"


def parsed(text: Any, largest: int) -> Any:
    """A value from stored JSON. Raises ValueError with the reason why it cannot be shown."""
    if not isinstance(text, str):
        raise ValueError("is not text")
    if len(text) > largest:
        raise ValueError(f"is longer than {largest} characters")
    try:
        value = _JSON.decode(text)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON that can be read") from None
    if text.count("[") + text.count("{") > DEEPEST and depth(value) > DEEPEST:
        raise ValueError(f"is nested more than {DEEPEST} deep")
    return value


def _finite(digits: str) -> float:
    return value if isfinite(value := float(digits)) else _no_number(digits)


def _no_number(digits: str) -> float:
    raise ValueError(digits)


_JSON: Final = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def depth(value: Any) -> int:
    """How deep it is nested, as brackets of JSON count it."""
    depth, level = 0, [value] if isinstance(value, _NESTS) else []
    while level:
        depth += 1
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [part for parts in inner for part in parts if isinstance(part, _NESTS)]
    return depth


def damaged_lock(name: str, where: object, what: str) -> BackendUnavailable:
    """For a verb that must know all holds."""
    return BackendUnavailable(
        f"the record of lock {name!r} in {where} is damaged: {what}. No claim is granted until "
        f"break_lock({name!r}), or `lockfast break`, frees it",
        name=name,
        transient=False,
    )


def damaged_cell(name: str, what: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"cell {name!r} is damaged: {what}. Nothing was changed; its delete() frees it", name=name, transient=False
    )
