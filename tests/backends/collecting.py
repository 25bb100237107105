"""The garbage collector at its worst: it runs at every line of ours, and ends a hold each time.

Decides: what is garbage (generators, coroutines and objects whose end releases, asks or looks), and where it is found.
Leaves to the tests: what is done meanwhile.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import ref

import lockfast
from lockfast._reentry import BEHIND
from tests.servers.waiting import until

_OURS = str(Path(lockfast.__file__).parent)
_NOT = (f"{_OURS}/testing/", f"{_OURS}/cli/")
LOT = 200  # pieces of garbage that are made at once


class Releases:
    """Its end releases a lease, then asks for another lock, and inspects a third: what a `__del__` should not do."""

    def __init__(self, locks: lockfast.Locks, lease: lockfast.Lease, looked_at: lockfast.Lease) -> None:
        self._locks, self._lease, self._looked_at = locks, lease, looked_at

    def __del__(self) -> None:
        with suppress(lockfast.LockError):
            self._lease.release()
        with suppress(lockfast.LockError):  # refused, where an answer would have to be waited for
            refused = self._locks.lock("asked for by garbage").acquire(blocking=False)
            if refused is not None:
                refused.release()
        with suppress(lockfast.LockError):
            self._looked_at.check()


def holding(lock: Any) -> Iterator[None]:
    """A generator that ends its hold when it is closed."""
    with lock:
        yield


class _Circle:
    """What it holds is garbage as soon as the cycle has no outer reference, and only a collection finds that."""

    def __init__(self, piece: Any = None) -> None:
        self._me, self._piece = self, piece


def _finds(circle: ref[_Circle]) -> bool:
    """Collect, if no other thread is just collecting: then `gc.collect` does nothing, and returns."""
    gc.collect()
    return circle() is None


def collect_all() -> None:
    """Nothing that is garbage now is left."""
    circle = ref(_Circle())
    until(lambda: _finds(circle))


class Collector:
    """Forces a collection, with something to collect, at each line of ours that is reached, in every thread."""

    def __init__(self) -> None:
        self.stock: deque[Any] = deque()  # what is garbage as soon as it is taken out
        self.short = False  # there was a line at which nothing was collected
        self._seen: set[tuple[CodeType, int]] = set()
        self._watching = False

    @property
    def lines(self) -> int:
        return len(self._seen)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.short = False
        gc.disable()
        collect_all()  # what is garbage and frozen would never be found
        gc.freeze()  # so that a collection has little to do; what is frozen still ends with its last reference
        self._watching = True
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            self._watching = False  # threads that go on are traced still
            sys.settrace(None)
            threading.settrace(None)
            gc.enable()

    @staticmethod
    def over() -> None:
        """Release what was frozen, once; the rest stays frozen, as conftest has left it."""
        gc.unfreeze()
        collect_all()
        gc.freeze()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if not self._watching or not file.startswith(_OURS) or file.startswith(_NOT):
            return None
        if event == "call" and threading.current_thread().name == BEHIND:
            return None  # it does what others put off, and would never come to an end
        if event == "line":
            self._reach(frame.f_code, frame.f_lineno)
        return self._trace

    def _reach(self, code: CodeType, line: int) -> None:
        if (code, line) in self._seen:
            return
        try:
            circle = ref(_Circle(self.stock.popleft()))
        except IndexError:
            self.short = True
            return
        if _finds(circle):
            self._seen.add((code, line))
        else:
            self.short = True
