"""Going through the steps of `wire` in a thread.

Decides: how a thread waits for a connection's socket, or for either of two, and for how long.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable
from typing import Any

from lockfast._time import boot_now
from lockfast.backends.connecting.second_tries import CHECK_EVERY_S, SecondTries, suspect_after
from lockfast.backends.postgres.io.refusals import Broken, RolledBack
from lockfast.backends.postgres.io.wire import Steps


class Late(Exception):
    """There was no reply in time."""


def run(steps: Steps, until: float, readable: select.poll | None = None) -> Any:
    """Go through the steps in this thread. Raises Late; then the connection is in the middle of an exchange.

    The steps are closed, so that a connection that was being made is.
    """
    try:
        while True:
            number, what = next(steps)
            poll = readable
            if poll is None or what == "w":
                poll = select.poll()
                poll.register(number, select.POLLIN if what == "r" else select.POLLOUT)
            if not poll.poll(max(0, math.ceil((until - boot_now()) * 1000))):
                raise Late
    except StopIteration as end:
        return end.value
    finally:
        steps.close()


def run_first_ready(tries: SecondTries, make: Callable[[], Steps], until: float) -> Any:
    """What the steps of `make()` end with, or those of another one beside it, which is begun if the first is suspect.

    Raises Late, or the error of the last if both fail. All steps are closed in the end.
    """
    suspect_at = boot_now() + suspect_after(until - boot_now())
    under_way = [make()]
    waits: dict[int, tuple[Steps, int]] = {}  # by socket: the steps that wait for it, and for what
    begun = ready = under_way.copy()
    try:
        while True:
            for steps in ready:
                try:
                    number, what = next(steps)
                    waits[number] = steps, select.POLLIN if what == "r" else select.POLLOUT
                except StopIteration as end:
                    if steps is not begun[0]:
                        tries.worked()
                    return end.value
                except (Broken, RolledBack):
                    under_way.remove(steps)
                    if not under_way:
                        raise
            now = boot_now()
            if len(begun) == 1 and now >= suspect_at and tries.may_begin():
                under_way.append(make())
                begun, ready = under_way.copy(), under_way[1:]
                continue
            end_at = until if len(begun) > 1 else min(until, max(suspect_at, now + CHECK_EVERY_S))
            poll = select.poll()
            for number, (_, event) in waits.items():
                poll.register(number, event)
            numbers = [number for number, _ in poll.poll(max(0, math.ceil((end_at - now) * 1000)))]
            if not numbers and boot_now() >= until:
                raise Late
            ready = [waits.pop(number)[0] for number in numbers]
    finally:
        for steps in begun:
            steps.close()
