"""Who notices that a session of the blocking world has ended.

Decides: that one thread sleeps at all of them and is woken by nothing but that, so that an answer on its way to another
thread costs it nothing. Leaves to `blocking`: what becomes of it.
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
from lockfast.backends.postgres_advisory.io.session import Dialled, Line

_ENDED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_LOOK: Final = None if hasattr(select, "POLLRDHUP") else 1000  # milliseconds; where the end is not told, look for it
OnBroken = Callable[[Line], None]


class WatchedLine(Line):
    def __init__(self, dialled: Dialled, name: str, watch: Watch, on_broken: OnBroken) -> None:
        super().__init__(dialled, name)
        self.turn = threading.RLock()  # whoever has it reads and writes
        self.crowd = threading.RLock()  # one at a time of those who are not urgent waits for the turn
        self._watch = watch
        self._on_broken = on_broken
        self.poll = select.poll()
        self.poll.register(self.socket, select.POLLIN)
        watch.add(self)

    def take_last_words(self) -> None:
        while self.alive and not self.heed():
            pass  # the answer is there, or the end is: nothing more comes
        if self.alive:
            self.broken(ConnectionResetError("end of stream"))

    def let_go(self) -> None:
        self._watch.remove(self)
        copy = self._copy()
        super().let_go()
        if copy is not None:
            with suppress(OSError), copy:
                copy.shutdown(socket.SHUT_RDWR)  # for a thread that sleeps at it: to close it would wake nobody
        self._on_broken(self)

    def _copy(self) -> socket.socket | None:
        """The socket, unless libpq has closed it: then its number may be another's by now."""
        with suppress(Exception):
            return socket.fromfd(self.pgconn.socket, socket.AF_UNIX, socket.SOCK_STREAM)  # of whatever kind it is
        return None


class Watch:
    """Sleeps at all sessions until one of them ends. The thread knows no more than this, so it keeps nothing alive."""

    def __init__(self, pause: float, tidy: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._bell, self._hand = socket.socketpair()
        self._lines: dict[int, weakref.ref[WatchedLine]] = {}
        self._closed = False
        self._started = False
        self._mutex = threading.Lock()
        self._pause = ceil(pause * 1000)  # milliseconds after which `tidy` is called, while there is more than one
        self._tidy = tidy

    def add(self, line: WatchedLine) -> None:
        """Raises NoThread."""
        with self._mutex:
            if not self._started:
                start_thread("lockfast-watch", self._run)
                self._started = True  # not before: an interrupt may come in between, and better two watch than none
            self._lines[line.socket] = weakref.ref(line)
        self._ring()

    def remove(self, line: WatchedLine) -> None:
        """Its socket is about to be closed."""
        with self._mutex:
            known = self._lines.get(line.socket)
            if known is not None and known() in (line, None):  # the number may be another's by now
                del self._lines[line.socket]
        self._ring()

    def _forget_the_dead(self) -> None:
        """One that an interrupt kept from its owner was closed by nobody."""
        with self._mutex:
            self._lines = {number: known for number, known in self._lines.items() if known() is not None}

    def _ring(self) -> None:
        with suppress(OSError):
            self._hand.send(b"!")

    def _run(self) -> None:
        while not self._closed:
            poll = select.poll()
            poll.register(self._bell, select.POLLIN)
            with self._mutex:
                lines = dict(self._lines)  # the number of one that has ended may soon be another's
            for number in lines:
                poll.register(number, _ENDED)
            pause = None if len(lines) < 2 else self._pause
            with outside():
                told = [number for number, _ in poll.poll(_LOOK or pause)]
            self._look_at([lines[number] for number in (told if _LOOK is None else lines) if number in lines])
            if pause is not None and (tidy := self._tidy()) is not None:
                tidy()
            tidy = None  # it would keep the sessions alive
            with suppress(BlockingIOError):
                self._bell.recv(4096, socket.MSG_DONTWAIT)
        self._bell.close()
        self._hand.close()

    def _look_at(self, ended: Iterable[weakref.ref[WatchedLine]]) -> None:
        for known in ended:
            line = known()
            if line is None:
                self._forget_the_dead()
                continue
            with line.turn:
                if line.alive and _LOOK is not None:
                    line.heed()
                elif line.alive:
                    line.take_last_words()

    def close(self) -> None:
        self._closed = True
        self._ring()
        if not self._started:
            self._bell.close()
            self._hand.close()
