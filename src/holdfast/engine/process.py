"""What a process owes its leases when it forks or ends.

Decides: that a child never touches its parent's leases, and that an ending interpreter lets go of its own.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable

from holdfast import _ids
from holdfast.engine.core import Engine

_engines: weakref.WeakKeyDictionary[Engine, Callable[[], None]] = weakref.WeakKeyDictionary()


def adopt(engine: Engine, at_exit: Callable[[], None]) -> None:
    """Look after the engine at a fork; call `at_exit` if the interpreter ends before it is closed."""
    _engines[engine] = at_exit


def _before_fork() -> None:
    for engine in list(_engines):
        engine.backend.before_fork()


def _after_fork_in_parent() -> None:
    for engine in list(_engines):
        engine.backend.after_fork(child=False)


def _after_fork_in_child() -> None:
    _ids.renew_after_fork()
    for engine in list(_engines):
        engine.after_fork()


def _at_exit() -> None:
    for engine, at_exit in list(_engines.items()):
        if not engine.closed and engine.keeper.leases:
            at_exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
