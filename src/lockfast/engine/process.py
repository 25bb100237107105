"""What happens to the leases of a process when it forks or ends.

Decides: that a child never touches its parent's leases, and that an ending interpreter releases its own.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from lockfast import _ids
from lockfast.engine.core import Engine
from lockfast.engine.living import all_living


def adopt(engine: Engine, finish: Callable[[Engine], None]) -> None:
    """Look after the engine at a fork; call `finish` with it if the interpreter ends while it holds or waits."""
    engine.finish = finish


def _adopted() -> list[Engine]:
    return [engine for engine in all_living() if engine.finish is not None]


def _before_fork() -> None:
    for engine in _adopted():
        engine.backend.before_fork()
        if engine.loop_watch is not None:
            engine.loop_watch.before_fork()


def _after_fork_in_parent() -> None:
    for engine in _adopted():
        engine.backend.after_fork(child=False)
        if engine.loop_watch is not None:
            engine.loop_watch.after_fork(child=False)


def _after_fork_in_child() -> None:
    _ids.renew_after_fork()
    for engine in _adopted():
        engine.after_fork()


def _at_exit() -> None:
    for engine in _adopted():
        if engine.finish is not None and engine.leaves_something:
            engine.finish(engine)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
