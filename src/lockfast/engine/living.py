"""All engines of this process, and what a thread or task holds through any of them.

Decides: when a caller would wait for itself.
Leaves to `order`: what debug mode makes of it. Leaves to `process`: what happens when a process forks or ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from lockfast._model import Claim
from lockfast.engine.lease import Lease
from lockfast.errors import SelfDeadlock

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

LIVING: set[weakref.ref[Engine]] = set()  # all that are not closed; a WeakSet costs 25 calls for each claim that waits


def begins(engine: Engine) -> None:
    LIVING.add(weakref.ref(engine, LIVING.discard))


def ends(engine: Engine) -> None:
    LIVING.discard(weakref.ref(engine))


def all_living() -> list[Engine]:
    """Those of now: other threads may make engines meanwhile."""
    while True:
        try:
            return [engine for each in tuple(LIVING) if (engine := each()) is not None]
        except RuntimeError:  # the set has changed under us
            continue


def held_here() -> Iterator[tuple[Engine, Lease]]:
    """What this thread or task holds, through any `Locks` of the process."""
    for engine in all_living():
        if not engine.keeper.leases:
            continue
        owner = None
        with suppress(RuntimeError):  # there is no task where no loop runs
            owner = engine.world.owner()
        if owner is not None:
            yield from ((engine, lease) for lease in held_by(engine, owner))


def held_by(engine: Engine, owner: object) -> Iterator[Lease]:
    """The leases that this thread or task has acquired and not released."""
    return (lease for lease in list(engine.keeper.leases.values()) if lease._owner is owner and lease.held)


def must_not_wait_for_itself(engine: Engine, claim: Claim) -> None:
    """Raises SelfDeadlock in the body of a `with` that holds what would be waited for: it would never end."""
    if not engine.keeper.leases and len(LIVING) == 1:  # as for most callers that wait, and costs no call
        return
    name = claim.terms.name
    bodies: dict[FrameType | None, Lease] = {}
    store = None
    for other in all_living():
        for lease in other.keeper.by_key.beside(claim.terms):  # one may hold several permits of a semaphore
            if lease._body is None or not lease.held:
                continue
            store = store or engine.backend.store_id
            if other is engine or other.backend.store_id == store:
                bodies[lease._body] = lease
    around = next((frame for frame in engine.world.stack() if frame in bodies), None) if bodies else None
    if around is not None:
        raise SelfDeadlock(
            f"lock {name!r} is held by the `with` block around this very call, in {around.f_code.co_qualname} "
            f"(fence {bodies[around]._fence}), which would wait for itself without end; "
            "give it a `wait`, release it first, or make a `lock` reentrant",
            name=name,
        )
