"""Listeners that call a library with mutexes of its own, as the clients of Prometheus and OpenTelemetry have.

Decides: that such a library is not entered twice by one thread, nor in the middle while the process forks; what becomes
of its errors.

A finalizer or a signal handler may release a lock in the middle of a call of such a library, in the same thread. A
second call would wait for a mutex that this very thread holds. And a child that was forked in the middle of a call of
another thread would have that mutex locked for ever.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from threading import get_ident
from typing import Final

from lockfast.observe.events import Event, Events, Listener
from lockfast.observe.log import logger

MAX_FORK_WAIT_S: Final = 1.0  # for calls of other threads to end, before a fork
_PAUSE_S: Final = 0.0005

_inside: set[int] = set()  # threads that are in the middle of such a library
_forking: set[int] = set()  # threads that fork
_later: deque[tuple[ShieldedListener, Event]] = deque()  # came in the middle; passed on by the call that is under way
_installing = threading.Lock()


class ShieldedListener:
    """Calls the listener; what it raises is logged once."""

    __slots__ = ("_complained", "_listener", "_what")

    def __init__(self, listener: Listener, what: str) -> None:
        self._listener = listener
        self._what = what  # for the log
        self._complained = False

    def __call__(self, event: Event) -> None:
        thread = get_ident()
        if thread in _inside:
            _later.append((self, event))
            return
        try:
            _inside.add(thread)
            if _forking:
                _await_forks(thread)
            self._pass(event)
            while _later:
                one, late = _later.popleft()
                one._pass(late)
        finally:
            _inside.discard(thread)

    def _pass(self, event: Event) -> None:
        try:
            self._listener(event)
        except Exception:
            if not self._complained:
                self._complained = True
                logger.exception("%s fail, and are incomplete; further errors are not logged", self._what)


def listen_once(events: Events, listener: Listener) -> None:
    """Subscribe it, unless it is subscribed already."""
    with _installing:
        if not events.has(listener):
            events.listen(listener)


def _await_forks(thread: int) -> None:
    until = time.monotonic() + MAX_FORK_WAIT_S
    while _forking - {thread} and time.monotonic() < until:
        _inside.discard(thread)  # else the fork would wait for us
        time.sleep(_PAUSE_S)
        _inside.add(thread)  # before the next look at `_forking`


def _before_fork() -> None:
    thread = get_ident()
    _forking.add(thread)
    until = time.monotonic() + MAX_FORK_WAIT_S
    while _inside - {thread} and time.monotonic() < until:
        time.sleep(_PAUSE_S)


def _after_fork_in_parent() -> None:
    _forking.discard(get_ident())


def _after_fork_in_child() -> None:
    global _installing
    _installing = threading.Lock()
    _forking.clear()
    _inside.intersection_update({get_ident()})
    _later.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
