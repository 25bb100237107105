"""What an operator sees of advisory locks, from `pg_locks` and `pg_stat_activity`.

Decides: how a session is shown as a holder or a waiter. Claims of this process are shown in full. Of other sessions the
server knows pid, application_name, client, since when and state, but no fence, and such a hold has no time at which it
expires.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

from lockfast._model import EXCLUSIVE, SHARED, HolderInfo, LockInfo
from lockfast._records import NAMESPACE_SEPARATOR
from lockfast.backends.postgres_advisory.holds import AdvisoryHold, refuse_hash_collision
from lockfast.backends.postgres_advisory.keys import integer_in, is_tag_of, key_of, name_of, name_of_integer
from lockfast.backends.postgres_advisory.statements import PgLock

Ours = Callable[[int, int], Sequence[AdvisoryHold]]  # from pid and number to the claims of this process


def info_of(name: str, seen: Iterable[PgLock], ours: Ours) -> LockInfo:
    holders: list[HolderInfo] = []
    queue: list[str] = []
    for one in seen:
        mine = ours(one.pid, one.number)
        held = [hold for hold in mine if hold.state == "held"]
        if held and one.granted:
            holders += [_of_ours(hold, one) for hold in held]
        elif one.granted and not mine:
            holders.append(_of_other(name, one))
        else:  # or it is granted, and its waiter has not read that yet
            queue.append(mine[0].claim.terms.holder if mine else one.called)
    return LockInfo(name, tuple(sorted(holders, key=lambda who: who.acquired_at)), len(queue), tuple(queue))


def infos_of(prefix: str, seen: Iterable[PgLock], ours: Ours) -> list[LockInfo]:
    """All locks whose names have that prefix, and those whose names this process does not know."""
    found: dict[int, list[PgLock]] = {}
    for one in seen:
        found.setdefault(one.number, []).append(one)
    names = {number: name_of(number) or _nameless(number, prefix) for number in found}
    named = sorted((name, found[number]) for number, name in names.items() if _is_wanted(number, name, prefix))
    return [info_of(name, those, ours) for name, those in named]


def _is_wanted(number: int, name: str, prefix: str) -> bool:
    return name_of(number) is None or name.startswith(prefix)


def _of_ours(hold: AdvisoryHold, one: PgLock) -> HolderInfo:
    terms = hold.claim.terms
    return HolderInfo(
        holder=terms.holder,
        claim_id=hold.claim.id,
        fence=hold.fence,
        mode=hold.mode,
        acquired_at=hold.granted_at,
        expires_at=time.time() + hold.remaining(),
        session=one.session,
    )


def _of_other(name: str, one: PgLock) -> HolderInfo:
    tag = key_of(name).tag
    since = [second for other, second in one.tags if other == tag]
    since = since or [second for other, second in one.tags if is_tag_of(other, one.number)]
    return HolderInfo(
        holder=one.called,
        claim_id=f"pid:{one.pid}" if one.has_session else f"prepared:{-one.pid}",
        fence=None,
        mode=SHARED if one.shared else EXCLUSIVE,
        acquired_at=max(float(max(since)), one.connected) if since else one.began or one.connected,  # or later
        expires_at=inf,
        session=one.session,
    )


def ahead_of(hold: AdvisoryHold, seen: Sequence[PgLock]) -> int:
    """How many sessions are before it in the server's queue."""
    queue = [one.pid for one in seen if not one.granted]
    pid = hold.session.pid if hold.session is not None else 0
    return queue.index(pid) if pid in queue else len(queue)


def blocker_of(hold: AdvisoryHold, seen: Sequence[PgLock], ours: Ours) -> str | None:
    """Who holds it. Raises Unsupported if that is another name with the same number; the claim goes on waiting."""
    for one in seen:
        if one.granted:
            here = [other for other in ours(one.pid, one.number) if other.state == "held"]
            if here and here[0].key == hold.key:
                return here[0].claim.terms.holder
            tags = [tag for tag, _ in one.tags if is_tag_of(tag, hold.key.number)]
            if tags and hold.key.tag not in tags and integer_in(hold.claim.terms.key) is None:
                refuse_hash_collision(hold.claim.terms.name, f"another lock, held by {one.called!r}")
            return one.called
    return None


def _nameless(number: int, prefix: str) -> str:
    """What a number is called whose name this process does not know. The name may be in any namespace."""
    namespace, separator, _ = prefix.rpartition(NAMESPACE_SEPARATOR)
    return f"{namespace}{separator}{name_of_integer(number)}"
