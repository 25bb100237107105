"""Requests that are repeated while the backend cannot be reached.

Decides: when to ask again, and when to give up.
Leaves to `outage`: what is reported meanwhile. An acquire has a loop of its own, because it may wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from lockfast.errors import BackendUnavailable

if TYPE_CHECKING:
    from lockfast.engine.core import Engine

T = TypeVar("T")
MIN_WITHIN_S: Final = 0.01
MIN_PAUSE_S: Final = 0.001  # where less is left, no other request is worth it
LAST_WITHIN_S: Final = 0.1  # that the last pause but one leaves: to connect again and to be answered may take a while
HASTY_S: Final = 1.0  # a request that had less time than this and is not answered says nothing about the server


def pause_for_retry(engine: Engine, failures: int, left: float) -> float | None:
    """Seconds until a request that has failed `failures` times is repeated, where `left` seconds are left for it.

    A pause never ends after that: a server that is back is asked before the caller gives up. None: give up now.
    """
    if left < MIN_PAUSE_S:
        return None
    pause = engine.retry.pause(failures, engine.world.chance())
    return min(pause, left - LAST_WITHIN_S if left > LAST_WITHIN_S + MIN_PAUSE_S else left)


def most_telling(
    engine: Engine, error: BackendUnavailable, before: BackendUnavailable | None, within: float
) -> BackendUnavailable:
    """The error to report: the last one, unless its request had too little time even to be sent, `within` seconds.

    "Connection refused" tells more than that a connection could not be made in the tenth of a second that was left.
    """
    hasty = within < HASTY_S and within < engine.patience
    return before if before is not None and hasty and error.transient and not error.sent else error


async def insist(engine: Engine, ask: Callable[[float], Awaitable[T]], until: float) -> tuple[T, int]:
    """Repeat `ask(within)` while it fails in passing, until then at most; the answer, and how often it failed."""
    engine.arrive()
    failures = 0
    telling: BackendUnavailable | None = None  # see `most_telling`
    while True:
        asked_at = engine.now()
        try:
            within = max(MIN_WITHIN_S, min(engine.patience, until - asked_at))
            answer = await engine.watched(lambda within=within: ask(within), asked_at, until)  # type: ignore[misc]
            if failures:
                engine.outage.over()
            return answer, failures
        except BackendUnavailable as error:
            failures += 1
            now = engine.now()
            pause = pause_for_retry(engine, failures, until - now)
            telling = most_telling(engine, error, telling, within)
            if not error.transient or pause is None:
                raise engine.outage.final(telling) from telling.__cause__
            engine.outage.failed(error, asked_at, now + pause, until)
            await engine.world.pause(pause)


async def watched(engine: Engine, ask: Callable[[], Awaitable[T]], asked_at: float, until: float | None) -> T:
    """Ask once. Silence is reported, and until when the caller repeats the request, if that is known.

    `ask` is better a lambda than a `partial`: Python looks for interrupts after a call of C code, and one that falls
    between such a call and its first step leaves a request behind that never begins.
    """
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
        return await engine.watched(lambda: ask(within=engine.patience), now, now + engine.patience)
    except BackendUnavailable as error:
        raise engine.outage.final(error) from error.__cause__
