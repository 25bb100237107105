"""Work that is done later, by another thread or task.

Decides: where it runs, if anywhere.
Leaves to `_reentry`: what was put off because a finalizer or a signal handler asked for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast import _reentry
from lockfast._reentry import nothing
from lockfast.errors import LockError

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

S = TypeVar("S")


def behind(engine: Engine, verb: Callable[[S], Awaitable[object]], subject: S) -> None:
    """Do it in the background, where there still is one; else the ttl does. Takes no mutex."""
    engine.spawn(lambda: _quietly(verb, subject), "lockfast-behind")


def spawn(engine: Engine, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> bool:
    """Now, or as soon as a thread can be started for it. False: never, since it needs an event loop and none runs."""
    try:
        engine.world.spawn(work(), name)
    except RuntimeError:
        if not (engine.world.blocking or engine.backend.capabilities.instant):
            return False
        _reentry.put_off(work(), nothing)
    return True


def put_off(engine: Engine, work: Coroutine[Any, Any, Any]) -> None:
    """If a keeper runs it starts this work, else the next operation does. Takes no mutex."""
    _reentry.put_off(work, engine.world.stand_in())
    engine.keeper.loop.poke()


async def _quietly(verb: Callable[[S], Awaitable[object]], subject: S) -> None:
    with suppress(LockError):
        await verb(subject)
