"""A thread beside an event loop for work that may wait for the disk, one piece at a time.

Decides: how work gets to that thread and its result back, and that the thread can run beside a loop that computes.
Leaves to the driver: what is done in it.

A thread that has waited for the disk needs the GIL to go on. A loop whose tasks each compute for less than Python's
switch interval releases the GIL and takes it again before the thread has woken up, again and again. So while the thread
has work, the loop yields from time to time: it waits for the thread for a moment.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from lockfast._reentry import nothing, outside, start_thread
from lockfast._worlds.asyncio_ import call_in

YIELD_EVERY_S: Final = 0.01
YIELD_S: Final = 0.002  # at most: the loop goes on as soon as the work is done

Then = Callable[[Any, Exception | None], None]


class _Work:
    """A piece of work for the thread, and the callback for the loop when it is done."""

    __slots__ = ("call", "loop", "over", "report", "then")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Any], report: Any, then: Then) -> None:
        self.loop = loop
        self.call = call
        self.report: Callable[[_Work, Any, Exception | None], None] = report
        self.then = then
        self.over = threading.Lock()  # until it is done
        self.over.acquire()


class _End(Enum):
    """Other messages to the thread."""

    CLOSE = "close the file, and end"
    AT_ONCE = "end"


class SqliteThread:
    """Its methods are called in the loop."""

    def __init__(self, shut: Callable[[], None]) -> None:
        """`shut` closes the file."""
        self._shut = shut
        self._jobs: queue.SimpleQueue[_Work | _End] | None = None  # None while no thread runs
        self._work: _Work | None = None  # the last piece of work, until its result is reported

    @property
    def runs(self) -> bool:
        return self._jobs is not None

    @property
    def has_work(self) -> bool:
        """Until the result is reported: then the connection is free again."""
        return self._work is not None

    def do(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Any], then: Then) -> None:
        """Raises NoThread, having done nothing."""
        jobs = self._start()
        work = _Work(loop, call, self._report, then)
        jobs.put(work)
        self._work = work  # last: an interrupt before this must not leave work whose result is never reported
        loop.call_later(YIELD_EVERY_S, self._yield_to_thread, work)

    def _start(self) -> queue.SimpleQueue[_Work | _End]:
        if self._jobs is None:
            jobs: queue.SimpleQueue[_Work | _End] = queue.SimpleQueue()
            try:
                start_thread("lockfast-sqlite", _serve, jobs, self._shut)
            except BaseException:
                jobs.put(_End.AT_ONCE)  # an interrupt: if the thread has started nevertheless, it ends at once
                raise
            self._jobs = jobs
            weakref.finalize(self, self._jobs.put, _End.CLOSE)  # for a program that never calls close()
        return self._jobs

    def _yield_to_thread(self, work: _Work) -> None:
        if work is not self._work:
            return
        if work.over.acquire(timeout=YIELD_S):
            work.over.release()  # the result is on its way
        else:
            work.loop.call_later(YIELD_EVERY_S, self._yield_to_thread, work)

    def _report(self, work: _Work, result: Any, error: Exception | None) -> None:
        if work is self._work:
            self._work = None
            work.then(result, error)

    def move_to(self, loop: asyncio.AbstractEventLoop, then: Then) -> None:
        """The previous loop is closed, so its work reports to no caller. `then` is called when that work has ended."""
        work, self._work = self._work, None
        if work is not None and self._jobs is not None and not work.over.acquire(blocking=False):
            self.do(loop, nothing, then)

    def end(self, loop: asyncio.AbstractEventLoop, then: Then) -> None:
        """Close the file when all work is done, and end; `then` is called when it is closed."""
        self.do(loop, self._shut, then)
        assert self._jobs is not None
        self._jobs.put(_End.AT_ONCE)
        self._jobs = None

    def after_fork(self) -> None:
        """In the child, which has no such thread."""
        self._jobs = self._work = None


def _serve(jobs: queue.SimpleQueue[_Work | _End], shut: Callable[[], None]) -> None:
    while True:
        with outside():
            work = jobs.get()
        if isinstance(work, _End):
            if work is _End.CLOSE:
                shut()
            return
        result, error = None, None
        try:
            result = work.call()
        except Exception as raised:
            error = raised
        work.over.release()
        call_in(work.loop, work.report, work, result, error)
        del work, result, error  # so that nothing is kept alive while the thread waits for more
