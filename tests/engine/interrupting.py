"""A KeyboardInterrupt at a chosen instruction: at each one, in turn, at which Python could run a signal handler.

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
from threading import get_ident
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
    """What follows each instruction."""
    offsets = [one.offset for one in dis.get_instructions(code)]
    return dict(itertools.pairwise(offsets))


def _may_come(code: CodeType, before: int, now: int, *, into_python: bool) -> bool:
    """Whether an interrupt that comes at the end of `before` is as one that comes at the start of `now`."""
    name = opcode.opname[code.co_code[before]]
    if (name in _CALLS and into_python) or (name != "JUMP_BACKWARD" and _next(code).get(before) != now):
        return False
    return name in _LOOKS and _handler(code, before) == _handler(code, now)


class _Steps:
    """Counts the instructions at which an interrupt may come, in this thread."""

    def __init__(self, point: int, where: Callable[[str], bool], armed: Callable[[], bool]) -> None:
        self._left = point
        self._where = where
        self._armed = armed
        self._before: dict[FrameType, int] = {}  # the last instruction of each frame that is under way
        self._into_python: set[FrameType] = set()  # those that have called Python since their last instruction
        self.struck = ""

    def begins(self, frame: FrameType, offset: int) -> bool:
        """A function begins or goes on, with RESUME, which is not reported as an instruction. Whether it counts."""
        if frame.f_back is not None and frame.f_back in self._before:
            self._into_python.add(frame.f_back)
        if not self._where(frame.f_code.co_filename):
            return False
        self._before[frame] = offset
        return True

    def counts(self, frame: FrameType) -> bool:
        return frame in self._before

    def step(self, frame: FrameType, offset: int) -> None:
        before = self._before.get(frame)
        self._before[frame] = offset
        into_python = frame in self._into_python
        self._into_python.discard(frame)
        may_come = before is not None and _may_come(frame.f_code, before, offset, into_python=into_python)
        if may_come and self._armed():
            self._left -= 1
            if self._left == 0:
                self.struck = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise KeyboardInterrupt(self.struck)

    def ends(self, frame: FrameType) -> None:
        self._before.pop(frame, None)

    def forget(self) -> None:
        self._before.clear()
        self._into_python.clear()


class _Traced:
    """With a trace function."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def start(self) -> None:
        sys._getframe().f_trace_opcodes = True  # else Python 3.12 does not report them until the next `settrace`
        sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self._steps.begins(frame, frame.f_lasti):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self._steps.step(frame, frame.f_lasti)
        elif event == "return":
            self._steps.ends(frame)
        return self._step


class _Monitored:
    """With `sys.monitoring`: Python 3.13 reports to a trace function no instruction that was last run untraced."""

    _TOOL = 3  # one that no other tool takes

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self._thread = get_ident()
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined]

    def start(self) -> None:
        events = self._monitoring.events
        callbacks = {
            events.PY_START: self._begins,
            events.PY_RESUME: self._begins,
            events.INSTRUCTION: self._step,
            events.PY_RETURN: self._ends,
            events.PY_YIELD: self._ends,
            events.PY_UNWIND: self._ends,
        }
        self._monitoring.use_tool_id(self._TOOL, "interrupts of the tests")
        for event, callback in callbacks.items():
            self._monitoring.register_callback(self._TOOL, event, callback)
        self._monitoring.set_events(self._TOOL, sum(callbacks))

    def stop(self) -> None:
        self._monitoring.set_events(self._TOOL, 0)
        self._monitoring.free_tool_id(self._TOOL)

    def _begins(self, code: CodeType, offset: int) -> None:
        if get_ident() == self._thread:
            self._steps.begins(sys._getframe(1), offset)

    def _step(self, code: CodeType, offset: int) -> None:
        if get_ident() == self._thread:
            frame = sys._getframe(1)
            if self._steps.counts(frame):
                self._steps.step(frame, offset)

    def _ends(self, code: CodeType, offset: int, what: object) -> None:
        if get_ident() == self._thread:
            self._steps.ends(sys._getframe(1))


class Interrupt:
    """Raises KeyboardInterrupt at the `point`-th such instruction of the files that `where` picks, in this thread.

    Instructions before it is `armed` are not counted.
    """

    def __init__(self, point: int, where: Callable[[str], bool], armed: Callable[[], bool] = lambda: True) -> None:
        self._steps = _Steps(point, where, armed)
        self._observer: _Traced | _Monitored = (_Monitored if sys.version_info >= (3, 13) else _Traced)(self._steps)

    @property
    def struck(self) -> str:
        """Where it was raised; empty if it was not."""
        return self._steps.struck

    def __enter__(self) -> Interrupt:
        gc.disable()  # Python drops what is raised in a finalizer, and the collector may call one anywhere
        self._observer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.stop()
        gc.enable()
        self._steps.forget()
