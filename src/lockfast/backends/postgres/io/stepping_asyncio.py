"""Going through the steps of `wire` in a task.

Decides: how a task waits for a connection's socket.
"""

from __future__ import annotations

import asyncio
from typing import Any

from lockfast.backends.postgres.io.wire import Steps


async def run(steps: Steps) -> Any:
    """Go through the steps in this task. Cancelled, it leaves the connection in the middle of an exchange.

    The steps are closed, so that a connection that was being made is.
    """
    loop = asyncio.get_running_loop()
    try:
        while True:
            number, what = next(steps)
            ready = loop.create_future()
            add, remove = (
                (loop.add_reader, loop.remove_reader) if what == "r" else (loop.add_writer, loop.remove_writer)
            )
            add(number, _settle, ready)
            try:
                await ready
            finally:
                remove(number)
    except StopIteration as end:
        return end.value
    finally:
        steps.close()


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
