"""Debug mode: who asked for what while holding what, so that a deadlock is noticed before it happens.

Decides: when the order of two locks is inverted, and when a caller would wait for itself.
Leaves to the caller: what to do about it. A `LockOrderWarning` and the log report it; nothing is refused.

One order for the whole process: locks of two `Locks` can be taken in two orders too.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import Final

from lockfast._model import Claim
from lockfast._reentry import Mutex, critical_section
from lockfast.engine.core import Engine
from lockfast.engine.living import held_here
from lockfast.observe.log import logger

MAX_PAIRS: Final = 10_000  # pairs that are remembered; the oldest go first
_HERE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")

KeyInStore = tuple[str, str]  # a store and a key in it


class LockOrderWarning(UserWarning):
    """Two locks are taken in two orders, or one by its own holder: a deadlock waiting for its moment."""


class LockOrder:
    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self._most = max_pairs
        self._mutex = Mutex()
        self._after: dict[KeyInStore, dict[KeyInStore, str]] = {}  # what was asked for while holding what, in words
        self._pairs: dict[tuple[KeyInStore, KeyInStore], None] = {}  # the same in order of their first time

    def after_fork(self) -> None:
        self._mutex = Mutex()  # which a thread of the parent may have held

    def asked(self, engine: Engine, claim: Claim, wait: float | None) -> None:
        """A caller asks. Warns if that can end in a deadlock."""
        wanted, name, caller = _key_in_store(engine, claim), claim.terms.name, _caller()
        asks = f"{name!r} is asked for at {caller.f_code.co_filename}:{caller.f_lineno}"
        for other, lease in held_here():
            held = _key_in_store(other, lease._claim)
            if held == wanted:
                # A try does not wait, and one may hold several permits of a semaphore.
                if wait != 0 and None in (lease._claim.terms.limit, claim.terms.limit):
                    _warn(caller, f"{asks} by a caller that holds it already")
                continue
            step = f"{asks} while {lease.name!r} is held"
            back = self._note(held, wanted, step)
            if back:
                _warn(caller, f"{step}, but {', and '.join(back)}: callers that do so can wait for each other for ever")

    def _note(self, held: KeyInStore, wanted: KeyInStore, step: str) -> list[str]:
        """Remember the pair; the steps that were seen to lead the other way, if it is new and there are any."""
        with critical_section(self._mutex):
            if (held, wanted) in self._pairs:
                return []  # reported before, or in order
            back = self._way(wanted, held)
            self._pairs[held, wanted] = None
            self._after.setdefault(held, {})[wanted] = step
            while len(self._pairs) > self._most:
                self._forget(*next(iter(self._pairs)))
            return back

    def _forget(self, held: KeyInStore, wanted: KeyInStore) -> None:
        del self._pairs[held, wanted]
        del self._after[held][wanted]
        if not self._after[held]:
            del self._after[held]

    def _way(self, start: KeyInStore, end: KeyInStore) -> list[str]:
        """The shortest way from one to the other, step by step; empty if there is none."""
        came: dict[KeyInStore, tuple[KeyInStore, str]] = {}  # from where, and by which step
        ahead = [start]
        for here in ahead:  # grows meanwhile
            if end in came:
                break
            for then, step in self._after.get(here, {}).items():
                if then not in came:
                    came[then] = here, step
                    ahead.append(then)
        steps: list[str] = []
        here = end
        while here != start and here in came:
            here, step = came[here]
            steps.insert(0, step)
        return steps


def _key_in_store(engine: Engine, claim: Claim) -> KeyInStore:
    return engine.backend.store_id, claim.terms.key


def _caller() -> FrameType:
    """Who asks, outside this package."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def _warn(caller: FrameType, text: str) -> None:
    logger.warning("lock order: %s", text)
    warnings.warn_explicit(
        text,
        LockOrderWarning,
        caller.f_code.co_filename,
        caller.f_lineno,
        module=caller.f_globals.get("__name__"),
        registry=caller.f_globals.setdefault("__warningregistry__", {}),
    )


ORDER: Final = LockOrder()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ORDER.after_fork)
