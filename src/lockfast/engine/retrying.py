"""Requests that are repeated while the backend cannot be reached.

Decides: when to ask again, and when to give up.
Leaves to `outage`: what is reported meanwhile. An acquire has a loop of its own, because it may wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

T = TypeVar("T")
MIN_WITHIN_S: Final = 0.01


async def insist(engine: Engine, ask: Callable[[float], Awaitable[T]], until: float) -> tuple[T, int]:
    """Repeat `ask(within)` while it fails in passing, until then at most; the answer, and how often it failed."""
    engine.arrive()
    failures = 0
    while True:
        asked_at = engine.now()
        try:
            within = max(MIN_WITHIN_S, min(engine.patience, until - asked_at))
            answer = await engine.watched(partial(ask, within), asked_at, until)
            if failures:
                engine.outage.over()
            return answer, failures
        except BackendUnavailable as error:
            failures += 1
            again_at = engine.now() + engine.retry.pause(failures, engine.world.chance())
            if not error.transient or again_at >= until:
                raise engine.outage.final(error) from error.__cause__
            engine.outage.failed(error, asked_at, again_at, until)
            await engine.world.pause(again_at - engine.now())


async def watched(engine: Engine, ask: Callable[[], Awaitable[T]], asked_at: float, until: float | None) -> T:
    """Ask once. Silence is reported, and until when the caller repeats the request, if that is known."""
    if not engine.outage.watches:
        return await ask()
    request = object()
    try:
        engine.outage.sent(request, asked_at, until)
        answer = await ask()
        engine.outage.answered(request)
        return answer
    finally:
        if request in engine.outage.unanswered:  # no call: an interrupt could fall into it
            del engine.outage.unanswered[request]
            engine.keeper.loop.end_if_done()


def cannot_say(engine: Engine, leases: str) -> BackendUnavailable:
    """The error for leases of which the backend answered neither that it has them nor that it does not."""
    return BackendUnavailable(f"{engine.backend!r} cannot say whether it still has {leases}")


async def once(engine: Engine, ask: Callable[..., Awaitable[T]]) -> T:
    """The answer to a question that is not repeated: `ask(within=…)` has all of the patience."""
    engine.arrive()
    now = engine.now()
    try:
        return await engine.watched(partial(ask, within=engine.patience), now, now + engine.patience)
    except BackendUnavailable as error:
        raise engine.outage.final(error) from error.__cause__
