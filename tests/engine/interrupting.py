"""A KeyboardInterrupt at a chosen instruction: at each one, in turn, at which a signal could be heard.

Python runs signal handlers in the main thread only, at the start of a function, at each turn of a loop and after a
call of something that is not written in Python. A call of a Python function is none of these: CPython goes from one to
the other without looking.
"""

from __future__ import annotations

import dis
import gc
import itertools
import opcode
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

_CALLS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW")
_LOOKS = (*_CALLS, "RESUME", "JUMP_BACKWARD")


@cache
def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """Where an exception is handled that comes from the first to the second instruction."""
    return [(one.start, one.end, one.target) for one in dis._parse_exception_table(code)]  # type: ignore[attr-defined]


def _handler(code: CodeType, offset: int) -> int:
    return next((target for start, end, target in _handlers(code) if start <= offset < end), -1)


@cache
def _next(code: CodeType) -> dict[int, int]:
    """What follows each instruction. Python 3.13 leaves some out, the first time that it traces a function."""
    offsets = [one.offset for one in dis.get_instructions(code)]
    return dict(itertools.pairwise(offsets))


def _may_come(code: CodeType, before: int, now: int, *, into_python: bool) -> bool:
    """Whether an interrupt that comes at the end of `before` is as one that comes at the start of `now`."""
    name = opcode.opname[code.co_code[before]]
    if (name in _CALLS and into_python) or (name != "JUMP_BACKWARD" and _next(code).get(before) != now):
        return False
    return name in _LOOKS and _handler(code, before) == _handler(code, now)


class Interrupt:
    """Raises KeyboardInterrupt at the `point`-th such instruction of the files that `where` picks, in this thread."""

    def __init__(self, point: int, where: Callable[[str], bool], armed: Callable[[], bool] = lambda: True) -> None:
        self._left = point
        self._where = where
        self._armed = armed  # instructions before that are not counted
        self._before: dict[FrameType, int] = {}
        self._into_python: set[FrameType] = set()  # those that have called Python since their last instruction
        self.struck = ""

    def __enter__(self) -> Interrupt:
        gc.disable()  # Python drops what is raised in a finalizer, and the collector may call one anywhere
        sys._getframe().f_trace_opcodes = True  # else Python 3.12 does not tell of them until the next `settrace`
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()
        self._before.clear()
        self._into_python.clear()

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_back is not None and frame.f_back in self._before:
            self._into_python.add(frame.f_back)
        if not self._where(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        self._before[frame] = frame.f_lasti  # RESUME, where a function starts: it is not told as an instruction
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            before = self._before.get(frame)
            self._before[frame] = frame.f_lasti
            into_python = frame in self._into_python
            self._into_python.discard(frame)
            may_come = before is not None and _may_come(frame.f_code, before, frame.f_lasti, into_python=into_python)
            if may_come and self._armed():
                self._left -= 1
                if self._left == 0:
                    self.struck = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                    raise KeyboardInterrupt(self.struck)
        elif event == "return":
            self._before.pop(frame, None)
        return self._step
