"""What the replies of Redis' scripts mean.

Decides: how a reply becomes a grant, a `Busy`, a change or what `inspect` reports.
Leaves to `io.resp`: the bytes, and what an error reply means. Leaves to the scripts (`scripts/`): what they reply.

Other programs can write anything into the keys, so texts that they may have written are read with care.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Any, Final
from urllib.parse import unquote

from lockfast._model import Busy, Change, Grant, LockInfo, poll_after
from lockfast._records import NO_HOLD, StoredHold, cut_id, lock_info
from lockfast.backends.redis.requests import MICRO

_WAITER: Final = re.compile(
    rb"(?P<alive>\d{1,16}) (?P<place>\d{1,16}) [xs] \d{1,16} \S* \d{1,16} (?P<holder>\S*) .*", re.DOTALL
)
_DAMAGES: Final = {b"some": NO_HOLD, b"all": "none of it can be read"}  # as scripts report it


def damage(reply: bytes) -> str:
    """What cannot be read, in words."""
    return _DAMAGES.get(reply, NO_HOLD)


def change(reply: bytes) -> Change:
    number, fence, holder = text(reply).split(" ", 2)
    return Change(int(number), int(fence), unquote(holder[1:]) if holder.startswith("+") else None)


def info(key: str, answer: Any) -> LockInfo:
    found, waiters, wall, now, damaged = answer
    holds = [
        StoredHold(
            holder=unquote(text(holder)),
            claim_id=text(id),
            fence=fence,
            mode="shared" if mode == b"s" else "exclusive",
            acquired_at=acquired / MICRO,
            expires_at=(wall + left) / MICRO,
            metadata=text(metadata),
        )
        for id, holder, fence, mode, acquired, left, metadata in sorted(found, key=_fence)  # the oldest first
    ]
    return lock_info(key, holds, _queue(waiters, now), _DAMAGES.get(damaged, ""))


def _fence(found: Sequence[Any]) -> int:
    return int(found[2])


def seconds_left(answer: Any) -> dict[str, float]:
    """By claim: for how long it would have held, before a break."""
    return {text(id): left / MICRO for id, *_, left, _ in answer[0]}


def _queue(waiters: Sequence[bytes], now: int) -> list[str]:
    """The holder ids of the waiters that are alive, in the order of their places; `library.lua` has their records."""
    found = map(_WAITER.fullmatch, waiters)
    alive = [(int(one["place"]), one["holder"]) for one in found if one and int(one["alive"]) > now]
    return [unquote(text(holder)) for _, holder in sorted(alive)]


def text(value: Any) -> str:
    """Text that another program may have written."""
    return (value or b"").decode(errors="replace") if isinstance(value, bytes | None) else ""


def count(value: bytes | None) -> int | None:
    """None if no cell can have that number."""
    return int(value) if value and len(value) <= 16 and value.isdigit() else None


def busy(ahead: int, retry: int, holder: bytes | None, claim_id: bytes | None, last_fence: int) -> Busy:
    retry_after = poll_after(ahead, retry / MICRO if retry >= 0 else inf)
    if holder is None:
        return Busy(ahead, retry_after, last_fence=last_fence)
    id = claim_id.decode(errors="replace") if claim_id else None
    return Busy(ahead, retry_after, _shown_holder(holder), False, id, last_fence)


@lru_cache(maxsize=256)
def _shown_holder(holder: bytes) -> str:
    return cut_id(unquote(text(holder)))


def granted(answer: bytes) -> Grant:
    if answer.isdigit():  # as for most grants: then the fence is the moment of the grant, too
        number = int(answer)
        return tuple.__new__(Grant, (number, number / MICRO, None))  # as `Grant()` does, with no call in between
    fence, _, acquired = answer.partition(b" ")
    return Grant(int(fence), int(acquired.partition(b" ")[0]) / MICRO)
