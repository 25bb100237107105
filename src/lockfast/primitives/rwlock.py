"""A read/write lock: many readers, or one writer, first come first served.

Decides: nothing. Readers share the name without a limit, writers have it for themselves, and the one rule of
admission does the rest: neither side starves, and readers between two writers enter together.
"""

from __future__ import annotations

from lockfast.engine.core import Engine
from lockfast.engine.request import Request
from lockfast.primitives.lock import LockLogic


class RWLockLogic:
    __slots__ = ("_engine", "_read", "_write")

    def __init__(self, engine: Engine, read: Request, write: Request) -> None:
        self._engine = engine
        self._read = read
        self._write = write

    @property
    def name(self) -> str:
        return self._write.terms.name

    def read(self) -> LockLogic:
        return LockLogic(self._engine, self._read)

    def write(self) -> LockLogic:
        return LockLogic(self._engine, self._write)

    def __repr__(self) -> str:
        return repr(self.name)
