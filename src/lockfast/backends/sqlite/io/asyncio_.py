"""SQLite for asyncio: a request runs in the event loop's own thread, since it takes some microseconds.

Decides: which thread runs a request, in which order, and how long requests may stop the loop at a time.
Leaves to `thread`: work that may wait for the disk. Leaves to `stalls`: when requests must run there too.

Python's sqlite3 releases the GIL around each statement. In a thread of its own a transaction would wait for the GIL a
dozen times, each time for milliseconds beside a loop that computes, and block the file for all other processes.
In the loop it does not wait: a commit writes to the log only, and a file that another process is writing is tried again
later. Only the first commit after a restart of the log waits for the disk. The thread makes that commit after its own
checkpoints; after those of other processes it may fall to the loop.

Requests run in order, one at a time. A request whose caller was cancelled either does not run any more, or runs before
all later ones: what cleans up after a request runs after it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from lockfast._model import Claim
from lockfast._reentry import NoThread
from lockfast._time import boot_now, format_duration
from lockfast._worlds import Clock
from lockfast._worlds.asyncio_ import call_in
from lockfast.backends.sqlite.io.blocking import OPENING, TRIES_WITHOUT_PAUSE, BlockingSqlite
from lockfast.backends.sqlite.io.datagrams import DatagramInbox
from lockfast.backends.sqlite.io.driver import SqliteRequest, WakeUp
from lockfast.backends.sqlite.io.stalls import SLOW_S, Stalls, waits
from lockfast.backends.sqlite.io.thread import SqliteThread
from lockfast.backends.wakeups import WAKE_ALL
from lockfast.backends.wakeups.asyncio_ import AsyncioWaiters
from lockfast.backends.wakeups.flood_guard import FloodGuard
from lockfast.errors import BackendUnavailable

T = TypeVar("T")
Answer = tuple[Any, list[WakeUp]]

SLICE_S: Final = 0.00025  # for requests, before other callbacks of the loop run
PAUSE_S: Final = (0.0002, 0.001)  # between two tries for a file that is in use, after TRIES_WITHOUT_PAUSE of them
LATE_S: Final = 0.05  # after the time of a request: its own error, if one comes, says more than a timeout
LATE_CHECKS: Final = 3  # in that time: after a stop of the process the result is there at one of them
CLOSE_WITHIN_S: Final = 2.0


class _Pending:
    """A request in the queue. It does not run any more once it has a result, or its caller has left."""

    __slots__ = ("_left", "answer", "request", "too_late", "until")

    def __init__(self, answer: asyncio.Future[Any], request: SqliteRequest | None, until: float) -> None:
        self._left = False  # not by cancelling the future: its loop may be closed
        self.answer = answer
        self.request = request  # None closes the file
        self.until = until
        self.too_late: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        return self._left or self.answer.done()

    def settle(self, answer: Answer | None, error: Exception | None) -> None:
        if self.is_over:
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answer)

    def leave(self) -> None:
        self._left = True
        if self.too_late is not None:
            self.too_late.cancel()


class AsyncioSqlite:
    def __init__(self, blocking: BlockingSqlite, wakeups: AsyncioSqliteWakeups) -> None:
        self.wakeups = wakeups
        self._blocking = blocking
        self._thread = SqliteThread(blocking.shut)
        self._stalls = Stalls()
        self._queue: deque[_Pending] = deque()  # the first may be running in the thread
        self._turn: asyncio.Handle | None = None  # the callback that continues the queue, if one is scheduled
        self._refused = 0  # times in a row, because another process had the file
        self._spent_s = 0.0  # on requests since other callbacks ran
        self._closed = False  # for good: a later request must not start another thread
        self._loop: asyncio.AbstractEventLoop | None = None

    async def transact(self, request: SqliteRequest, within: float) -> tuple[Any, list[WakeUp]]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move_to(loop)
        if self._closed:
            raise self._blocking.closed_error()
        now = boot_now()
        if not self._queue and self._spent_s < SLICE_S and self._may_run_here(now):
            answer = self._attempt(request, now + within, now)
            if answer is not None:
                return answer
        return await self._enqueue(loop, request, within, now + within)

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises RuntimeError while the previous loop is open. Once it is closed, no caller waits in the queue."""
        self.wakeups.read_in(loop)
        self._loop = loop
        self._forget_queue()
        self._thread.move_to(loop, self._take_turn)

    def _forget_queue(self) -> None:
        self._queue.clear()
        self._turn = None
        self._refused, self._spent_s = 0, 0.0

    # In the loop's own thread

    def _may_run_here(self, now: float) -> bool:
        return not self._thread.has_work and not self._stalls.avoid_loop(now) and self._blocking.is_open(now)

    def _attempt(self, request: SqliteRequest, until: float, now: float) -> Answer | None:
        """None if another process has the file."""
        waited = waits()
        try:
            return self._blocking.attempt(request, until)
        finally:
            ended = boot_now()
            if not self._spent_s and self._loop is not None:
                self._loop.call_soon(self._end_slice)
            self._spent_s += ended - now
            if ended - now >= SLOW_S and waits() != waited:
                self._stalls.took(ended - now, ended)
            self._keep_log_short(ended)

    def _end_slice(self) -> None:
        self._spent_s = 0.0

    def _keep_log_short(self, now: float) -> None:
        if self._blocking.log_is_long(now) and self._loop is not None:
            with suppress(NoThread):  # then the log grows until a thread can start
                self._thread.do(self._loop, self._blocking.checkpoint, self._take_turn)

    # In the queue

    async def _enqueue(
        self, loop: asyncio.AbstractEventLoop, request: SqliteRequest, within: float, until: float
    ) -> Answer:
        pending = _Pending(loop.create_future(), request, until)
        pending.too_late = loop.call_later(within, self._give_up, loop, pending, within, LATE_CHECKS)
        self._queue.append(pending)
        try:
            self._go_on()
            answer: Answer = await pending.answer
            return answer
        finally:
            pending.leave()

    def _give_up(self, loop: asyncio.AbstractEventLoop, pending: _Pending, within: float, checks: int) -> None:
        if checks:
            pending.too_late = loop.call_later(LATE_S / LATE_CHECKS, self._give_up, loop, pending, within, checks - 1)
        else:
            text = f"the lock store {str(self._blocking.path)!r} did not answer for {format_duration(within)}"
            pending.settle(None, BackendUnavailable(text))

    def _go_on_in(self, seconds: float) -> None:
        loop = self._loop
        if self._turn is None and loop is not None:
            self._turn = loop.call_later(seconds, self._take_turn) if seconds else loop.call_soon(self._take_turn)

    def _take_turn(self, *_: object) -> None:
        """Other callbacks have run, or the thread has done its work."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._spent_s = 0.0
        self._go_on()

    def _go_on(self) -> None:
        """Run the requests in the queue in order, until other callbacks must run."""
        try:
            while self._queue and self._turn is None and not self._thread.has_work:
                first = self._queue[0]
                if first.is_over:
                    self._queue.popleft()
                    self._refused = 0
                elif self._spent_s >= SLICE_S:
                    self._go_on_in(0.0)
                else:
                    self._serve(first)
        except BaseException:  # an interrupt
            self._go_on_in(0.0)
            raise

    def _serve(self, pending: _Pending) -> None:
        """Run the request here or in the thread; if another process has the file, schedule the next turn."""
        assert self._loop is not None
        request, now = pending.request, boot_now()
        try:
            if request is None:
                self._thread.end(self._loop, partial(self._served, pending))
            elif self._may_run_here(now):
                answer = self._attempt(request, pending.until, now)
                if answer is not None:
                    pending.settle(answer, None)
                else:
                    self._refused += 1
                    self._go_on_in(0.0 if self._refused < TRIES_WITHOUT_PAUSE else random.uniform(*PAUSE_S))
            elif self._stalls.avoid_loop(now):
                work = partial(self._blocking.run, request, pending.until)
                self._thread.do(self._loop, work, partial(self._served, pending))
            else:
                work = partial(self._blocking.run, OPENING, pending.until)
                self._thread.do(self._loop, work, partial(self._opened, pending))
        except Exception as error:
            pending.settle(None, error)
        except BaseException:  # an interrupt: it may have been done, and a repeated release would find no hold
            text = f"the lock store {str(self._blocking.path)!r} was interrupted, and its reply is lost"
            pending.settle(None, BackendUnavailable(text))
            raise

    def _served(self, pending: _Pending, answer: Answer | None, error: Exception | None) -> None:
        pending.settle(answer, error)
        if not self._closed:
            self._keep_log_short(boot_now())
        self._take_turn()

    def _opened(self, pending: _Pending, _: object, error: Exception | None) -> None:
        if error is not None:
            pending.settle(None, error)
        self._take_turn()

    # The end

    async def close(self) -> None:
        """Earlier requests run first, unless the disk hangs or the file stays in use."""
        self._closed = True
        self.wakeups.close()
        if not self._thread.runs:
            self._blocking.shut()
            return
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move_to(loop)
        closing = _Pending(loop.create_future(), None, 0.0)
        self._queue.append(closing)
        self._go_on_in(0.0)
        await asyncio.wait([closing.answer], timeout=CLOSE_WITHIN_S)
        if self._thread.runs:
            closing.leave()
            self._thread.end(loop, self._take_turn)
            for pending in self._queue:
                pending.settle(None, self._blocking.closed_error())

    def before_fork(self) -> None:
        self._blocking.before_fork()

    def after_fork(self, *, child: bool) -> None:
        self._blocking.after_fork(child=child)
        if child:
            self._loop = None
            self._forget_queue()
            self._thread.after_fork()

    @property
    def path(self) -> Path:
        return self._blocking.path

    @property
    def url(self) -> str:
        return self._blocking.url

    def __repr__(self) -> str:
        return repr(self._blocking)


class AsyncioSqliteWakeups(AsyncioWaiters):
    """The event loop reads the inbox."""

    def __init__(
        self,
        clock: Clock | None,
        open_inbox: Callable[[], DatagramInbox | None],
        flood_guard: FloodGuard | None = None,
    ) -> None:
        super().__init__(clock)
        self._open = open_inbox
        self._flood_guard = flood_guard
        self._inbox: DatagramInbox | None = None

    @property
    def address(self) -> str:
        return self._inbox.address if self._inbox is not None else ""

    def read_in(self, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
        if self.is_new(loop) and self._inbox is not None:  # from an earlier loop, which is closed
            loop.add_reader(self._inbox.socket, self._read)
        return loop

    def expect(self, claim: Claim) -> str:
        self.add_waiter(claim)
        if self._inbox is None:
            self._inbox = self._open()
            if self._inbox is not None and self._loop is not None:
                call_in(self._loop, self._loop.add_reader, self._inbox.socket, self._read)
        return self.address

    def _read(self) -> None:
        inbox, guard = self._inbox, self._flood_guard
        if inbox is None:
            return
        claims = inbox.read()
        woken = [self._mark(claim) for claim in claims]
        if guard is not None:
            guard.has_read(claims, woken)
            if guard.rest():
                self._leave_unread(inbox, guard.rest())

    def _leave_unread(self, inbox: DatagramInbox, seconds: float) -> None:
        loop = self._loop
        if loop is not None:
            loop.remove_reader(inbox.socket)
            loop.call_later(seconds, self._read_on, loop, inbox)

    def _read_on(self, loop: asyncio.AbstractEventLoop, inbox: DatagramInbox) -> None:
        if self._inbox is inbox and self._loop is loop:  # neither closed nor forked meanwhile
            loop.add_reader(inbox.socket, self._read)

    def close(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(inbox.socket)
            inbox.close()
        self.wake(WAKE_ALL)

    def after_fork(self) -> None:
        """In the child: close our copy of the parent's inbox."""
        if self._inbox is not None:
            self._inbox.abandon()
        self._inbox = None
        self.reset()
