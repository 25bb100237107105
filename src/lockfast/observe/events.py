"""One stream of what happens to leases. Logs, metrics and traces are fed from it and from nowhere else.

Decides: what an event says, and what becomes of an error in a listener.
Leaves to the listeners: where it goes. Without listeners, no event is even made.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any, Final, Literal, NamedTuple, NoReturn

from lockfast._reentry import outside
from lockfast._text import shown

Kind = Literal[
    "asked",
    "waited",
    "granted",
    "renewed",
    "renewal_failed",
    "lost",
    "released",
    "release_failed",
    "broken",
    "unreachable",  # of the backend, not of a lock: it has no name
    "reachable",  # again
]

logger = logging.getLogger("lockfast")
_DEBUG: Final = logging.DEBUG


class Event(NamedTuple):
    """One thing that happened to a lease, or to the backend as a whole: then `name` is empty."""

    kind: Kind
    name: str
    holder: str
    claim_id: str = ""
    fence: int | None = None
    waited: float | None = None  # seconds from asking to being granted or giving up
    held_for: float | None = None  # seconds from being granted to now
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

    def after_fork(self) -> None:
        """The threads are the parent's."""
        self._in_listener = set()

    def wanted(self) -> bool:
        """Whether there is a listener for an everyday event. Ask before making one."""
        return True if self._listeners else logger.isEnabledFor(_DEBUG)

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


_LEVELS = {
    "lost": logging.WARNING,
    "release_failed": logging.WARNING,
    "unreachable": logging.WARNING,
    "reachable": logging.INFO,
}


def log(event: Event) -> None:
    """The first listener: debug for each event, warning where an operator would act."""
    level = _LEVELS.get(event.kind, logging.DEBUG)
    if logger.isEnabledFor(level):
        facts = {key: value for key, value in event._asdict().items() if value not in (None, "")}
        text = " ".join(f"{key}={_plain(value)}" for key, value in facts.items() if key != "kind")
        fields = {f"lock_{key}": value for key, value in facts.items()}
        if event.name:
            logger.log(level, "lock %s: %s", event.kind.replace("_", " "), text, extra=fields)
        else:
            logger.log(level, "%s", event.detail, extra=fields)


def _plain(value: object) -> str:
    return f"{value:.3f}s" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
