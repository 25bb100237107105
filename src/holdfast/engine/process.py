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

Finish = Callable[[Engine], None]

_engines: weakref.WeakKeyDictionary[Engine, Finish] = weakref.WeakKeyDictionary()


def adopt(engine: Engine, finish: Finish) -> None:
    """Look after the engine at a fork; call `finish` with it if the interpreter ends while it holds leases.

    `finish` must not refer to the engine by itself, or the engine would live for ever.
    """
    _engines[engine] = finish


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
    for engine, finish in list(_engines.items()):
        if not engine.closed and engine.keeper.leases:
            finish(engine)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
