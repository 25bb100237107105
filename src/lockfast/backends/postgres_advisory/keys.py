"""From a name to the numbers that PostgreSQL's advisory locks are about.

Decides: which number stands for a name. This is a contract: another language, or somebody with psql, takes part in the
same locks by computing the same number.

    key = the first 8 bytes of SHA-256 of the name in UTF-8, as a signed big-endian integer
    tag = the 8th to the 11th byte, likewise

In SQL, with a server that has `sha256` (11 and later):

    ('x' || left(encode(sha256(convert_to('order:42', 'UTF8')), 'hex'), 16))::bit(64)::bigint

In another namespace than the default one the name is preceded by the namespace and the character U+001F.

`pg_advisory_lock(key)` is the lock. Who holds it through lockfast also has `pg_advisory_lock_shared(tag, second)`, the
second being that of the grant: it tells since when, and whether a holder of the key means the same name. Key and tag
share a byte, so that a tag which belongs to a key can be told from those of the holder's other locks.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

from lockfast._bounded import BoundedDict


class Key(NamedTuple):
    number: int  # signed, 64 bits
    tag: int  # signed, 32 bits


_REMEMBERED = 10_000  # names that this process has used lately, so that it can tell whose number it sees
_names = BoundedDict[int, str](_REMEMBERED)


@lru_cache(maxsize=4096)
def key_of(name: str) -> Key:
    digest = hashlib.sha256(name.encode()).digest()
    key = Key(int.from_bytes(digest[:8], "big", signed=True), int.from_bytes(digest[7:11], "big", signed=True))
    _names[key.number] = name
    return key


def name_of(number: int) -> str | None:
    """The name that a number stands for, if this process has used it."""
    return _names.get(number)


def is_tag_of(tag: int, number: int) -> bool:
    """Whether somebody who holds that number may have that tag because of it."""
    return (tag >> 24) & 0xFF == number & 0xFF


def halves(number: int) -> tuple[int, int]:
    """As `pg_locks` shows a key: `classid` and `objid`."""
    unsigned = number % 2**64
    return unsigned >> 32, unsigned & 0xFFFF_FFFF


def whole(classid: int, objid: int) -> int:
    """The key that `pg_locks` shows in two halves."""
    unsigned = classid << 32 | objid
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def second_of(fence: int) -> int:
    """What the tag of a grant carries besides the name; the statements compute it too."""
    return fence // 1_000_000 % 2**31
