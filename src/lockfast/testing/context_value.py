"""A value of its own in each thread and each task, which a finalizer may try to set.

Decides: that a finalizer which the garbage collector calls sets nothing on Python 3.11. There the collector runs in the
middle of `ContextVar.set` and `copy_context`. If a finalizer then sets a ContextVar, that frees what they are reading,
and the process crashes. From 3.12 on the collector runs between two instructions.
"""

from __future__ import annotations

import gc
import sys
from contextvars import ContextVar
from threading import get_ident
from typing import Generic, TypeVar

T = TypeVar("T")

_collects = 0  # the thread that runs a collection just now


class ContextValue(Generic[T]):
    """None until it is set."""

    def __init__(self, name: str) -> None:
        self._var: ContextVar[T | None] = ContextVar(name, default=None)
        self.get = self._var.get

    def set(self, value: T | None) -> None:
        if _collects != get_ident():
            self._var.set(value)


def _note_collection(phase: str, _: object) -> None:
    global _collects
    _collects = get_ident() if phase == "start" else 0


if sys.version_info < (3, 12):
    gc.callbacks.append(_note_collection)
