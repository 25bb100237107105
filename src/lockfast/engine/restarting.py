"""An engine that goes on in a new event loop, or in the child of a fork.

Decides: what becomes of each part of it then.
Leaves to `process`: to notice the fork. Leaves to the world: to notice the new event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockfast.engine.releasing import take_back

if TYPE_CHECKING:
    from lockfast.engine.core import Engine


def begin_again(engine: Engine) -> None:
    """The event loop was closed with all that ran in it, and the engine is used in another one now."""
    waited = list(engine.waiting.values())
    engine.waiting.clear()
    engine.outage.begin_again()
    engine.on_lost.begin_again()
    engine.background.begin_again()
    engine.keeper.begin_again()
    for claim in waited:
        take_back(engine, claim)
        engine.unfinished.note(claim)
    engine.unfinished.begin_again()


def after_fork(engine: Engine) -> None:
    """In the child: the leases are the parent's, and so is every connection and thread."""
    leases = list(engine.keeper.leases.values())
    watch = engine.loop_watch
    if engine.standby is not None:
        engine.standby.after_fork()
    engine.make_parts()
    engine.world.after_fork()
    engine.backend.after_fork(child=True)
    if watch is not None:
        watch.after_fork(child=True)
    for lease in leases:
        lease._move("fork")
    engine.events.after_fork()
