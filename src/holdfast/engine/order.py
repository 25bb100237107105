"""Debug mode: who asked for what while holding what, so that a deadlock is noticed before it happens.

Decides: when the order of two locks is inverted, and when somebody would wait for itself.
Leaves to the caller: what to do about it. It is told as a `LockOrderWarning` and in the log, and nothing is refused.

One order for the whole process: locks of two `Locks` can be taken in two orders too.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Final

from holdfast._model import EXCLUSIVE, Claim
from holdfast.observe.events import logger

if TYPE_CHECKING:
    from holdfast.engine.core import Engine

MOST: Final = 10_000  # pairs that are remembered; the oldest go first
_HERE: Final = os.path.dirname(os.path.dirname(__file__))

Place = tuple[str, str]  # a store and a key in it


class LockOrderWarning(UserWarning):
    """Two locks are taken in two orders, or one by somebody who holds it: a deadlock waiting for its moment."""


class LockOrder:
    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._after: dict[Place, dict[Place, str]] = {}  # what was asked for while holding what, and where
        self._pairs: dict[tuple[Place, Place], None] = {}  # the same in order of their first time

    def asked(self, engine: Engine, claim: Claim, wait: float | None) -> None:
        """Somebody asks. Warns if that can end in a deadlock."""
        wanted, where = _place(engine, claim), _caller()
        with self._mutex:
            self._engines.add(engine)
            engines = list(self._engines)
        mine = [(other, lease) for other in engines for lease in _held_here(other)]
        for other, lease in mine:
            held = _place(other, lease._claim)
            if held == wanted:
                if wait != 0 and EXCLUSIVE in (lease.mode, claim.terms.mode):
                    _warn(f"{claim.terms.name!r} is asked for at {where} by somebody who holds it already")
                continue
            inverted = self._note(held, wanted, where)
            if inverted is not None:
                _warn(
                    f"{claim.terms.name!r} is asked for at {where} while {lease.name!r} is held, "
                    f"and the other way round at {inverted}: two who do both can wait for each other for ever"
                )

    def _note(self, held: Place, wanted: Place, where: str) -> str | None:
        """Remember the pair; where the opposite order was seen, if it was."""
        with self._mutex:
            if (held, wanted) in self._pairs:
                return None  # told before, or in order
            inverted = self._path(wanted, held)
            self._pairs[held, wanted] = None
            self._after.setdefault(held, {})[wanted] = where
            while len(self._pairs) > MOST:
                first, then = next(iter(self._pairs))
                del self._pairs[first, then]
                del self._after[first][then]
                if not self._after[first]:
                    del self._after[first]
            return inverted

    def _path(self, start: Place, end: Place) -> str | None:
        """Where the first step was taken on a way from `start` to `end`, if there is one."""
        seen, ahead = {start}, [(then, where) for then, where in self._after.get(start, {}).items()]
        while ahead:
            here, first_step = ahead.pop()
            if here == end:
                return first_step
            if here not in seen:
                seen.add(here)
                ahead += [(then, first_step) for then in self._after.get(here, {})]
        return None


def _held_here(engine: Engine) -> list:  # type: ignore[type-arg]
    try:
        return list(engine.held_by(engine.world.owner()))
    except RuntimeError:  # its loop is not the one that runs here
        return []


def _place(engine: Engine, claim: Claim) -> Place:
    return repr(engine.backend), claim.terms.key


def _caller() -> str:
    """The line outside this package that asks."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _warn(text: str) -> None:
    logger.warning("lock order: %s", text)
    warnings.warn(text, LockOrderWarning, stacklevel=2)


ORDER: Final = LockOrder()
