"""How a test waits for what another thread, task, process or server does: one way, with one limit.

Decides: how long at most, and what a wait in vain says. The limit ends a broken test; it judges no speed, so it is far
longer than anything takes on a busy machine.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from tests.servers.processes import thread_switches

T = TypeVar("T")
Errors = tuple[type[BaseException], ...]

LIMIT_S = 60.0  # real seconds; only ever reached when something is broken
_POLL_EVERY_S = 0.002
_POLL_EVERY_MAX_S = 0.02  # when many polls were in vain


def until(condition: Callable[[], T], what: str = "", *, despite: Errors = ()) -> T:
    """The first true answer of the condition. An error of `despite` counts as "not yet"; any other is raised.

    Raises AssertionError after LIMIT_S, with what was waited for and what was seen last.
    """
    polled = _Polled(condition, what)
    while True:
        try:
            if answer := polled.record(condition()):
                return answer
        except despite as error:
            polled.record(error)
        polled.check()
        time.sleep(polled.pause)


async def until_async(condition: Callable[[], Any], what: str = "", *, despite: Errors = ()) -> Any:
    """As `until`, in a task; the condition may be awaitable."""
    polled = _Polled(condition, what)
    while True:
        try:
            answer = condition()
            if answer := polled.record(await answer if inspect.isawaitable(answer) else answer):
                return answer
        except despite as error:
            polled.record(error)
        polled.check()
        await asyncio.sleep(polled.pause)


async def moment(seconds: float) -> None:
    """Let that much time pass, at least. Only to vary at which point of its work something is interrupted."""
    await asyncio.sleep(seconds)


def pause(seconds: float) -> None:
    """As `moment`, in a thread."""
    time.sleep(seconds)


def join(*threads: threading.Thread) -> None:
    """Until they have ended. Raises AssertionError after LIMIT_S, with where those stand that have not."""
    limit = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))
    standing = [thread for thread in threads if thread.is_alive()]
    assert not standing, "\n".join(
        f"{thread.name} has not ended after {LIMIT_S:g} s:\n{_where(thread)}" for thread in standing
    )


def stand_still(*threads: threading.Thread) -> None:
    """Until each of them waits for another one, and not just for the interpreter, which it has while this one sleeps.

    Where the system does not say it (it has no /proc), they are taken to wait already.
    """
    before: list[list[str]] = []

    def unchanged() -> bool:
        nonlocal before
        last, before = before, [thread_switches(thread) for thread in threads]
        return before == last and all(lines[0].split()[1:2] != ["R"] for lines in before if lines)

    until(unchanged, f"{len(threads)} threads to stand still")


def happens(event: threading.Event, what: str = "the event") -> None:
    """Until the event is set."""
    assert event.wait(LIMIT_S), f"waited {LIMIT_S:g} s in vain for {what}"


class _Polled:
    """What has been seen of a condition."""

    def __init__(self, condition: Callable[[], object], what: str) -> None:
        self._condition, self._what = condition, what
        self._last: object = None
        self._number = 0
        self._until = time.monotonic() + LIMIT_S

    def record(self, answer: T) -> T:
        self._last, self._number = answer, self._number + 1
        return answer

    @property
    def pause(self) -> float:
        """Seconds until the next poll: longer and longer, since each poll costs the others time."""
        return min(_POLL_EVERY_MAX_S, _POLL_EVERY_S * (1 + self._number / 10))

    def check(self) -> None:
        if time.monotonic() >= self._until:
            cause = self._last if isinstance(self._last, BaseException) else None
            raise AssertionError(
                f"waited {LIMIT_S:g} s in vain for {self._what or _source(self._condition)}; "
                f"the last of {self._number} polls saw {self._last!r}"
            ) from cause


def _source(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):  # a built-in or a bound method of one
        return repr(condition)


def _where(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else "nowhere"
