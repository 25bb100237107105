"""Notices that a session of the blocking world has ended.

Decides: that one thread polls all sessions for their end alone, so that an answer for another thread does not wake it.
Leaves to `blocking`: what happens then.
"""

from __future__ import annotations

import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import ceil
from typing import Final

from lockfast._reentry import outside, start_thread
from lockfast.backends.postgres_advisory.io.session import REPORTS_END, AdvisorySession, Dialled, OnSession

_END_EVENTS: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_POLL_MS: Final = None if REPORTS_END else 1000


class WatchedSession(AdvisorySession):
    def __init__(self, dialled: Dialled, name: str, watch: SessionWatch, on_end: OnSession) -> None:
        super().__init__(dialled, name)
        self.turn = threading.RLock()  # its owner reads and writes
        self.queue = threading.RLock()  # of the statements that are not urgent one at a time waits for the turn
        self._watch = watch
        self._on_end = on_end
        self.poll = select.poll()
        self.poll.register(self.socket, select.POLLIN)
        watch.add(self)

    def _disconnect(self) -> None:
        self._watch.remove(self)
        copy = self._copy()
        super()._disconnect()
        if copy is not None:
            with suppress(OSError), copy:
                copy.shutdown(socket.SHUT_RDWR)  # wakes a thread that polls it; to close it would not
        self._on_end(self)

    def _copy(self) -> socket.socket | None:
        """The socket, unless libpq has closed it: then its number may belong to another by now."""
        with suppress(Exception):
            return socket.fromfd(self.pgconn.socket, socket.AF_UNIX, socket.SOCK_STREAM)  # of whatever kind it is
        return None


class SessionWatch:
    """Polls all sessions until one of them ends. The thread refers to nothing else, so it keeps nothing alive."""

    def __init__(self, pause: float, close_idle: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._watched: dict[int, weakref.ref[WatchedSession]] = {}
        self._closed = False
        self._started = False
        self._mutex = threading.Lock()
        self._pause_ms = ceil(pause * 1000)  # until `close_idle` is called, while there is more than one session
        self._close_idle_sessions = close_idle

    def add(self, session: WatchedSession) -> None:
        """Raises NoThread."""
        with self._mutex:
            if not self._started:
                start_thread("lockfast-watch", self._run)
                self._started = True  # not before: after an interrupt two threads watch, and not none
            self._watched[session.socket] = weakref.ref(session)
        self._wake()

    def remove(self, session: WatchedSession) -> None:
        """Its socket is about to be closed."""
        with self._mutex:
            known = self._watched.get(session.socket)
            if known is not None and known() in (session, None):  # the number may belong to another by now
                del self._watched[session.socket]
        self._wake()

    def _forget_collected(self) -> None:
        """A session that an interrupt kept from its owner was never closed."""
        with self._mutex:
            self._watched = {number: known for number, known in self._watched.items() if known() is not None}

    def _wake(self) -> None:
        with suppress(OSError):
            self._wake_writer.send(b"!")

    def _run(self) -> None:
        while not self._closed:
            poll = select.poll()
            poll.register(self._wake_reader, select.POLLIN)
            with self._mutex:
                sessions = dict(self._watched)  # the number of a session that has ended may soon belong to another
            for number in sessions:
                poll.register(number, _END_EVENTS)
            pause = None if len(sessions) < 2 else self._pause_ms
            with outside():
                ready = [number for number, _ in poll.poll(_POLL_MS or pause)]
            ended = ready if _POLL_MS is None else sessions
            self._read_ended([sessions[number] for number in ended if number in sessions])
            if pause is not None and (close_idle := self._close_idle_sessions()) is not None:
                close_idle()
            close_idle = None  # it would keep the sessions alive
            with suppress(BlockingIOError):
                self._wake_reader.recv(4096, socket.MSG_DONTWAIT)
        self._wake_reader.close()
        self._wake_writer.close()

    def _read_ended(self, ended: Iterable[weakref.ref[WatchedSession]]) -> None:
        for known in ended:
            session = known()
            if session is None:
                self._forget_collected()
                continue
            with session.turn:
                if session.alive:
                    session.read_end()

    def close(self) -> None:
        self._closed = True
        self._wake()
        if not self._started:
            self._wake_reader.close()
            self._wake_writer.close()
