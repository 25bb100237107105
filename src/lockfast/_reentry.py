"""Code that runs in the middle of our own: a finalizer that the garbage collector calls, or a signal handler.

Decides: when such code may ask for something, and what becomes of it if it may not.
Leaves to the keeper: to start what was put off, as soon as it wakes up.

A thread that is inside an operation may hold any mutex of ours, a transaction, or a connection in the middle of a
request. Python may run a finalizer or a signal handler there, between any two instructions, and to wait for any of
these in it would be to wait for ever. So one rule holds for all of them: a thread that is inside an operation begins
no other. What ends something is put off, with one atomic append, and another thread does it; what needs an answer is
refused. A thread that sleeps until it is woken, or that runs code of the user's, holds nothing: there it is `outside`.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import get_ident
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from lockfast.errors import BackendUnavailable, LockError

T = TypeVar("T")

# By thread: what it runs, if that is still running. A mark that an interrupt has left behind is of no effect.
_inside: dict[int, Any] = {}
_put_off: deque[tuple[Coroutine[Any, Any, Any], Callable[[], None]]] = deque()  # and for whom, see `put_off`


BEHIND: Final = "lockfast-behind"
_workers: list[None] = []  # as many as there are threads that do what was put off
_beginning: WeakSet[_thread.LockType] = WeakSet()  # of threads that were started: held until they have begun
MAX_BEGIN_S: Final = 5.0  # for how long an interpreter that ends waits for such a thread
MAX_WORKERS: Final = 4  # more than one: a server that hangs must not keep the locks of another


class NoThread(BackendUnavailable, RuntimeError):
    """The system has no thread left just now. What was to run in one does not run."""


def starting(start: Callable[..., T], *args: Any) -> T:
    """What `start(*args)` gives, or NoThread: then the next call may work again."""
    try:
        return start(*args)
    except RuntimeError as error:
        if not is_no_thread(error):
            raise
        raise NoThread(f"no thread could be started: {error}") from error


def is_no_thread(error: RuntimeError) -> bool:
    """Python has no type for it: "can't start new thread", or at the end "can't create new thread at …"."""
    return "new thread" in str(error)


def _launch(run: Callable[[], None], name: str) -> None:
    """Run it in a daemon of that name, without waiting until it has begun. Raises NoThread.

    `Thread.start` waits for the new thread, in Python: an interrupt in the middle of that can leave a lock of its own
    locked, or come out as another error. So another thread calls it.
    """
    begun = _not_begun()
    try:
        starting(_thread.start_new_thread, _start_named, (run, name, begun))
    except NoThread:
        begun.release()
        raise


def _start_named(run: Callable[[], None], name: str, begun: _thread.LockType) -> None:
    """Start a thread that people can find by its name; if there is none, be it."""
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        begun.release()
        run()
    else:
        begun.release()


def _not_begun() -> _thread.LockType:
    """To be released when the thread that is about to be started has begun, or will not."""
    begun = _thread.allocate_lock()
    begun.acquire()
    _beginning.add(begun)
    return begun


def _await_beginning() -> None:
    """Until every thread that was started has begun.

    CPython frees the state of a thread that has not begun when the interpreter ends, and the thread then writes to it:
    a program that ended right after its first request could crash.
    """
    for begun in list(_beginning):
        begun.acquire(timeout=MAX_BEGIN_S)


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run what never suspends, here and now."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("an operation of the blocking world tried to suspend")


class PutsOff(Protocol):
    def put_off(self, work: Coroutine[Any, Any, Any]) -> None:
        """See to it that it is done soon, by another thread, for the one that runs now. Takes no mutex."""
        ...


def drive(work: Coroutine[Any, Any, T], ends_in: PutsOff | None = None, expected: Callable[[], T] | None = None) -> T:
    """Run an operation of the blocking world to its end, here and now.

    In a thread that is inside another, this raises BackendUnavailable, having done nothing. But what ends something
    says in which engine, and what is `expected` of it: it is put off then, and that is the answer.
    """
    thread = get_ident()
    try:
        outer = _inside[thread]
    except KeyError:
        outer = None
    if outer is not None and outer.cr_running:
        return _nested(work, ends_in, expected)
    if _put_off:
        start_put_off()
    _inside[thread] = work
    try:
        work.send(None)
    except StopIteration as stop:  # nothing is called from here on: an interrupt would lose a lease that was granted
        result: T = stop.value
        return result
    finally:
        _inside[thread] = outer  # which may be about to run: it had set its mark, and a finalizer came in between
    work.close()
    raise RuntimeError("an operation of the blocking world tried to suspend")


def _nested(work: Coroutine[Any, Any, T], ends_in: PutsOff | None, expected: Callable[[], T] | None) -> T:
    if ends_in is not None and expected is not None:
        answer = expected()  # before another thread may have begun with it
        ends_in.put_off(work)
        return answer
    work.close()
    raise BackendUnavailable(
        "nothing was sent: a signal handler or a finalizer asked in the middle of another request of this thread; "
        "ask from another thread, or when that request is over",
        transient=False,
    )


def put_off(work: Coroutine[Any, Any, Any], stand_in: Callable[[], None]) -> None:
    """To be done by another thread, when an operation begins or a keeper wakes up. Takes no mutex.

    That thread calls `stand_in` first, so that it does it for the one that wanted it done.
    """
    _put_off.append((work, stand_in))


def start_put_off() -> None:
    """Do what was put off, in a thread of its own: the caller must not wait for a server that hangs."""
    if _put_off and len(_workers) < MAX_WORKERS:
        with suppress(NoThread):  # tried again
            _launch(_do_put_off, BEHIND)


def _do_put_off() -> None:
    _workers.append(None)
    try:
        while _put_off:
            try:
                work, stand_in = _put_off.popleft()
            except IndexError:
                return  # another thread has taken the last
            stand_in()
            with suppress(LockError):  # its events report it, as for a release that was not put off
                drive(work)
    finally:
        _workers.pop()
        start_put_off()  # what came since


class BackgroundJob:
    """Background work that is run by the first thread that takes it, or by none."""

    __slots__ = ("_name", "_over", "_untaken", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._work = work
        self._name = name
        self._untaken = threading.Lock()
        self._over = threading.Lock()
        self._over.acquire()

    def start(self) -> None:
        """Raises NoThread."""
        if get_ident() == threading.main_thread().ident:  # interrupts fall into the main thread only
            _launch(self._run, self._name)
            return
        begun = _not_begun()
        try:
            starting(threading.Thread(target=self._run, name=self._name, daemon=True).start)
        finally:
            begun.release()

    def _run(self) -> None:
        if self._untaken.acquire(blocking=False):
            try:
                drive(self._work)
            finally:
                self._over.release()

    def give_up(self) -> None:
        """It does not run, unless a thread has taken it."""
        if self._untaken.acquire(blocking=False):
            self._work.close()
            self._over.release()

    def join(self) -> None:
        """Until it is over."""
        with self._over:
            pass


def run_behind(work: Coroutine[Any, Any, None], name: str) -> BackgroundJob:
    """Run it in a daemon of that name, inside an operation from its start to its end unless it says `outside`.

    Raises NoThread; then it does not run, and is closed. An interrupt that comes meanwhile is raised, and it runs all
    the same.
    """
    job = BackgroundJob(work, name)
    try:
        job.start()
    except Exception:
        job.give_up()
        raise
    except BaseException:  # an interrupt: a thread may have been started for it, or not
        with suppress(NoThread):
            job.start()
        raise
    return job


def start_thread(name: str, target: Callable[..., None], *args: Any) -> BackgroundJob:
    """As `run_behind`, for a plain function."""
    return run_behind(_call(target, args), name)


async def _call(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    target(*args)


def nothing() -> None:
    """What is expected of that which has no answer."""


class outside:  # noqa: N801  (used as a statement)
    """In this block the thread holds nothing of ours: it sleeps, or runs code that is not ours."""

    __slots__ = ("_mark", "_thread")

    def __enter__(self) -> None:
        self._thread = thread = get_ident()
        self._mark = _inside.get(thread)
        _inside[thread] = None

    def __exit__(self, *_: object) -> None:
        _inside[self._thread] = self._mark


class Mutex(type(threading.RLock())):  # type: ignore[misc]
    """For code of both worlds. In an event loop no operation is driven, so `critical_section` marks the holder."""

    @property
    def cr_running(self) -> bool:
        """Whether this thread holds it: `_inside` asks a mutex as it asks a coroutine."""
        return bool(self._is_owned())


def critical_section(mutex: Mutex) -> Mutex:
    """`with critical_section(mutex):` is inside an operation, wherever it stands."""
    thread = get_ident()
    outer = _inside.get(thread)
    if outer is None or not outer.cr_running:
        _inside[thread] = mutex  # of effect as soon as the mutex is ours, and no longer than that
    return mutex


def is_inside() -> bool:
    """Whether this thread is in the middle of an operation."""
    outer = _inside.get(get_ident())
    return outer is not None and bool(outer.cr_running)


def _after_fork() -> None:
    """What other threads ran, and what was put off, is the parent's."""
    mine = _inside.get(get_ident())
    _inside.clear()
    _inside[get_ident()] = mine
    _workers.clear()
    _beginning.clear()
    while _put_off:
        _put_off.popleft()[0].close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_await_beginning)  # after those of the engines, which may start a thread: the last comes first
