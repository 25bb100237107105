"""One stream of what happens to claims, leases, limiters and cells. Logs, metrics and traces are listeners of it.

Decides: what an event says, and what becomes of an error in a listener.
Leaves to the listeners: where it goes. Without listeners, no event is even made.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any, Literal, NamedTuple, NoReturn

from lockfast._reentry import outside
from lockfast._text import shown
from lockfast.observe.log import DEBUG, INFO, log, logger

Kind = Literal[
    "asked",  # an acquire begins. Exactly one of the next two ends it
    "granted",
    "not_granted",
    "waiting",  # in between, if that takes long
    "renewed",
    "renewal_failed",
    "released",  # a grant ends: exactly one of these two
    "lost",
    "release_failed",  # its end is still to come, or has just come with its ttl
    "broken",  # a hold, perhaps of another process, by `break_lock` here
    "limited",  # a call of a limiter is over
    "cell_read",
    "cell_write",
    "unreachable",  # of the backend, not of a lock: it has no name
    "reachable",  # again
]
Primitive = Literal["lock", "semaphore", "rwlock", "all", "election", "manager", "limiter_turn", "limiter", "cell"]
Outcome = Literal[
    "granted",  # of an acquire
    "timeout",
    "busy",
    "deadlock",
    "released",  # of a grant
    "lost",
    "broken",
    "expired",
    "allowed",  # of a call of a limiter
    "refused",
    "done",  # of a read or a write of a cell
    "conflict",
    "stale",
    "cancelled",  # of all but a grant
    "unavailable",
    "closed",
    "error",
]


class Event(NamedTuple):
    """One thing that happened. What does not apply to its kind is None, or an empty text.

    docs/events.md has the table of kinds and fields, and every outcome and reason.
    """

    kind: Kind
    name: str  # empty: it is about the backend as a whole
    holder: str  # who asks or holds, as others see it
    claim_id: str = ""
    fence: int | None = None
    primitive: str = ""
    mode: str = ""
    pattern: str = ""  # what names of this kind have in common: few, where there are many names
    backend: str = ""
    namespace: str = ""
    outcome: str = ""  # of what is over
    reason: str = ""  # why it ended so, as a code
    waited: float | None = None  # seconds from asking to now, or to the grant
    attempts: int | None = None  # requests that were sent for it
    position: int | None = None  # waiters that went first, when it was last asked for
    held_by: str | None = None  # who was in the way then
    held_for: float | None = None  # seconds from being granted to now
    remaining: float | None = None  # seconds for which it is certainly held
    slack: float | None = None  # the share of the ttl that was left when a renewal came through
    cost: int | None = None  # permits
    retry_after: float | None = None  # seconds until they could be given
    version: int | None = None  # of a cell
    detail: str = ""  # a reason or an error, for people


Listener = Callable[[Event], None]


class Events:
    """The stream of one `Locks`."""

    __slots__ = ("_in_listener", "_listeners")

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._in_listener: set[int] = set()  # threads in which a listener is being called

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event; the answer ends that.

        Of what a caller does it is called in the caller's thread or loop. Of what the background does (renewals,
        losses, outages) in a thread that does nothing else; in asyncio, in the loop. What it does itself with locks of
        the same `Locks` is not reported.

        A listener only observes: what it raises is logged and changes nothing; an exit ends no thread either. Only
        what a signal may have raised, an exit or an interrupt in the main thread, goes on when all were called.
        Raises ValueError if it cannot be called.
        """
        if not callable(listener):
            raise ValueError(f"a listener must be a function that takes an event, not {shown(listener)}")
        self._listeners += (listener,)

        def stop() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return stop

    def has(self, listener: Listener) -> bool:
        """Whether it is subscribed."""
        return listener in self._listeners

    def after_fork(self) -> None:
        """The threads are the parent's."""
        self._in_listener = set()

    def wanted(self) -> bool:
        """Whether there is a listener for an everyday event. Ask before making one."""
        return True if self._listeners else logger.isEnabledFor(DEBUG)

    def noted(self) -> bool:
        """The same for an event that an operator reads with the log at info level."""
        return bool(self._listeners) or logger.isEnabledFor(INFO)

    def emit(self, event: Event) -> None:
        """Pass it to the log and to every listener."""
        thread = get_ident()
        if thread in self._in_listener:
            return  # a listener's own doing: it would be called for its own events without end
        try:
            self._in_listener.add(thread)
            self._emit_to_each(event)
        finally:
            self._in_listener.discard(thread)

    def _emit_to_each(self, event: Event) -> None:
        interrupt: BaseException | None = None
        for listener in (log, *self._listeners):
            try:
                with outside():
                    listener(event)
            except BaseException as error:
                if _may_be_a_signals(error):
                    interrupt = interrupt or error
                else:
                    _complain(event)
        if interrupt is not None:
            _pass_on(interrupt)


# What a listener raises


def _may_be_a_signals(error: BaseException) -> bool:
    """Python runs signal handlers in the main thread only, and nothing can cancel or close a plain call."""
    if isinstance(error, Exception | GeneratorExit):
        return False
    if isinstance(error, getattr(_asyncio(), "CancelledError", ())):
        return False
    return threading.current_thread() is threading.main_thread()


def _pass_on(interrupt: BaseException) -> None:
    """To the caller; in a loop to the loop, because the interrupted task may be the one that keeps the leases."""
    running = getattr(_asyncio(), "_get_running_loop", None)
    loop = running() if running is not None else None
    if loop is None:
        raise interrupt
    loop.call_soon(_raise, interrupt)


def _raise(interrupt: BaseException) -> NoReturn:
    raise interrupt


def _asyncio() -> Any:
    """None, or half of it, until it was imported: then no loop runs. Just to ask, it takes too long to import."""
    return sys.modules.get("asyncio")


def _complain(event: Event) -> None:
    with suppress(Exception):  # it may be the log itself that fails
        logger.exception("a listener failed on %s", event)
