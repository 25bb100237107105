"""SQLite for asyncio: the blocking driver in one thread of its own, so that a slow disk never stops the loop.

Decides: how a step gets to that thread and its answer back. Steps run in the order in which they were asked for, also
when whoever asked was cancelled meanwhile: what cleans up after a step runs after it.
"""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from holdfast._model import Claim
from holdfast._reentry import outside, run_to_end, start_thread
from holdfast._time import say
from holdfast._worlds import Clock
from holdfast._worlds.asyncio_ import call_in
from holdfast.drivers.datagrams import LOOK_ALL, Mailbox
from holdfast.drivers.floods import FloodGuard
from holdfast.drivers.seats_asyncio import AsyncioSeats
from holdfast.drivers.sqlite import BlockingSqlite, Step, Wake
from holdfast.errors import BackendUnavailable

T = TypeVar("T")

# The loop and the future to answer to, and what to ask of the blocking driver; None is to close it, and to end.
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", tuple[Any, tuple[Any, ...], float, Any, bool] | None]


class _End(Enum):
    """What else a thread is sent."""

    DROPPED = "close the file, and end"
    UNWANTED = "end: the thread was not to be started"


class AsyncioSqlite:
    def __init__(self, blocking: BlockingSqlite, wakes: AsyncioWakes) -> None:
        self.wakes = wakes
        self._blocking = blocking
        self._jobs: queue.SimpleQueue[_Job | _End] | None = None  # there is one while the thread runs
        self._closed = False  # for good: a request that comes later must not start another thread

    async def transact(
        self,
        step: Step[T],
        args: tuple[Any, ...],
        within: float,
        quick: Step[T | None] | None = None,
        reads: bool = False,
    ) -> tuple[T, list[Wake]]:
        loop = self.wakes.read_in(asyncio.get_running_loop())
        answer: asyncio.Future[tuple[T, list[Wake]]] = loop.create_future()
        self._queue().put((loop, answer, (step, args, within, quick, reads)))
        too_late = loop.call_later(within + 0.05, self._give_up, answer, within)
        try:
            return await answer
        finally:
            too_late.cancel()

    def _give_up(self, answer: asyncio.Future[Any], within: float) -> None:
        if not answer.done():
            text = f"the lock store {str(self._blocking.path)!r} did not answer for {say(within)}"
            answer.set_exception(BackendUnavailable(text))

    def _queue(self) -> queue.SimpleQueue[_Job | _End]:
        if self._jobs is None:
            if self._closed:
                raise self._blocking.is_closed()
            jobs: queue.SimpleQueue[_Job | _End] = queue.SimpleQueue()
            try:
                start_thread("holdfast-sqlite", _work, jobs, self._blocking)
            except BaseException:
                jobs.put(_End.UNWANTED)  # an interrupt: should the thread run all the same, it ends at once
                raise
            self._jobs = jobs
            weakref.finalize(self, self._jobs.put, _End.DROPPED)  # without close(): the thread must not stay
        return self._jobs

    async def close(self) -> None:
        """Whatever was asked for before is done first, unless the disk hangs."""
        self._closed = True
        self.wakes.close()
        if self._jobs is None:
            self._blocking.shut()
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._jobs.put((loop, done, None))
        self._jobs = None
        await asyncio.wait([done], timeout=2.0)

    def before_fork(self) -> None:
        self._blocking.before_fork()

    def after_fork(self, *, child: bool) -> None:
        self._blocking.after_fork(child=child)
        if child:
            self._jobs = None

    @property
    def url(self) -> str:
        return self._blocking.url

    def __repr__(self) -> str:
        return repr(self._blocking)


def _work(jobs: queue.SimpleQueue[_Job | _End], blocking: BlockingSqlite) -> None:
    while True:
        with outside():
            job = jobs.get()
        if isinstance(job, _End):
            if job is _End.DROPPED:
                blocking.shut()
            return
        loop, answer, asked = job
        if asked is None:
            blocking.shut()
            call_in(loop, _succeed, answer, None)
            return
        try:
            result = run_to_end(blocking.transact(*asked))
        except Exception as error:
            call_in(loop, _fail, answer, error)
        else:
            call_in(loop, _succeed, answer, result)
        del job, answer  # so that nothing is kept alive while the thread waits for the next


def _succeed(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


class AsyncioWakes(AsyncioSeats):
    """The loop itself reads the mailbox."""

    def __init__(
        self,
        clock: Clock | None,
        open_mailbox: Callable[[], Mailbox | None],
        flood_guard: FloodGuard | None = None,
    ) -> None:
        super().__init__(clock)
        self._open = open_mailbox
        self._flood_guard = flood_guard
        self._mailbox: Mailbox | None = None

    @property
    def address(self) -> str:
        return self._mailbox.address if self._mailbox is not None else ""

    def read_in(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        if self.is_new(loop) and self._mailbox is not None:  # from an earlier loop, which is closed
            loop.add_reader(self._mailbox.socket, self._read)
        return loop

    def expect(self, claim: Claim) -> str:
        self.seat(claim)
        if self._mailbox is None:
            self._mailbox = self._open()
            if self._mailbox is not None and self._loop is not None:
                call_in(self._loop, self._loop.add_reader, self._mailbox.socket, self._read)
        return self.address

    def _read(self) -> None:
        mailbox, guard = self._mailbox, self._flood_guard
        if mailbox is None:
            return
        claims = mailbox.read()
        woken = [self._mark(claim) for claim in claims]
        if guard is not None:
            guard.has_read(claims, woken)
            if guard.rest():
                self._leave_unread(mailbox, guard.rest())

    def _leave_unread(self, mailbox: Mailbox, seconds: float) -> None:
        loop = self._loop
        if loop is not None:
            loop.remove_reader(mailbox.socket)
            loop.call_later(seconds, self._read_on, loop, mailbox)

    def _read_on(self, loop: asyncio.AbstractEventLoop, mailbox: Mailbox) -> None:
        if self._mailbox is mailbox and self._loop is loop:  # neither closed nor forked meanwhile
            loop.add_reader(mailbox.socket, self._read)

    def close(self) -> None:
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(mailbox.socket)
            mailbox.close()
        self.wake(LOOK_ALL)

    def after_fork(self) -> None:
        """The mailbox is the parent's; only our copy of it is closed."""
        if self._mailbox is not None:
            self._mailbox.abandon()
        self._mailbox = None
        self.get_up()
