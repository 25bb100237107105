"""From a name to the numbers that PostgreSQL's advisory locks are about.

Decides: which number stands for a name. This is a contract: a program in another language, or a psql session, takes
part in the same locks by computing the same number.

    key = the first 8 bytes of SHA-256 of the name in UTF-8, as a signed big-endian integer
    tag = the 8th to the 11th byte, likewise

In SQL, with a server that has `sha256` (11 and later):

    ('x' || left(encode(sha256(convert_to('order:42', 'UTF8')), 'hex'), 16))::bit(64)::bigint

In another namespace than the default one the name is preceded by the namespace and the character U+001F.

An integer, such as 42, is its own key: `pg_advisory_lock(42)` is the same lock. As a name it is written `key 42`, also
where a number is listed whose name is not known. It is the server's own number, so no namespace applies. The form with
two integers, `pg_advisory_lock(1, 2)`, cannot be taken: the tags below are of that form.

`pg_advisory_lock(key)` is the lock. A holder through lockfast also has `pg_advisory_lock_shared(tag, second)`, where
`second` is that of the grant: it shows since when the lock is held, and whether the holder means the same name. Key and
tag share a byte, so that the tag of a key can be distinguished from those of the holder's other locks.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

from lockfast._bounded import BoundedDict
from lockfast._records import NAMESPACE_SEPARATOR


class Key(NamedTuple):
    number: int  # signed, 64 bits
    tag: int  # signed, 32 bits


_INTEGER = re.compile(r"key (0|-?[1-9][0-9]{0,18})")
_REMEMBERED = 10_000  # names that this process has used lately, to show them instead of numbers
_names = BoundedDict[int, str](_REMEMBERED)


@lru_cache(maxsize=4096)
def key_of(name: str) -> Key:
    integer = integer_in(name)
    digest = hashlib.sha256((name if integer is None else name_of_integer(integer)).encode()).digest()
    number = int.from_bytes(digest[:8], "big", signed=True) if integer is None else integer
    last = (number & 0xFF).to_bytes(1, "big")  # which is digest[7], unless it is an integer
    if integer is None:
        _names[number] = name
    return Key(number, int.from_bytes(last + digest[8:11], "big", signed=True))


def name_of_integer(number: int) -> str:
    """Raises ValueError if PostgreSQL has no such key."""
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"an advisory lock's integer key has 64 bits, from {-(2**63)} to {2**63 - 1}; not {number}")
    return f"key {number:d}"


def integer_in(name: str) -> int | None:
    """The integer that a name is the written form of, in whatever namespace; None for every other name."""
    found = _INTEGER.fullmatch(name.rpartition(NAMESPACE_SEPARATOR)[2])
    number = int(found[1]) if found else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def name_of(number: int) -> str | None:
    """The name that a number stands for, if this process has used it."""
    return _names.get(number)


def is_tag_of(tag: int, number: int) -> bool:
    """Whether a session that holds that number may have that tag because of it."""
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
