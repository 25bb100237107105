"""Connections to the servers of a quorum that threads have asked for, made in the background.

Decides: how many are made at a time. Hundreds of threads that begin at the same moment would otherwise keep each other
from the interpreter for longer than a server may take.
Leaves to its callers: how long they wait for a connection, and what is known of a server that cannot be reached.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from lockfast._reentry import start_thread
from lockfast.backends.redlock.io.connections import ConnectionSet, Dialled

MAX_DIALS: Final = 4  # at a time, to each server


class Dials:
    def __init__(self, nodes: int, dial: Callable[[int, float], Dialled]) -> None:
        """`dial` connects to a node within that time."""
        self._dial = dial
        self._mutex = threading.Lock()
        self._asked: list[deque[tuple[ConnectionSet, float]]] = [deque() for _ in range(nodes)]
        self._workers: list[set[object]] = [set() for _ in range(nodes)]  # each from before it is started until it ends
        self._busy: list[set[object]] = [set() for _ in range(nodes)]  # those of them that connect

    def start(self, connections: ConnectionSet, node: int, within: float) -> None:
        """Make a connection for that set. It has `within` seconds from when its turn comes."""
        connections.dialling[node] = None  # not begun
        self._asked[node].append((connections, within))
        worker, started = object(), False
        try:
            with self._mutex:
                free = len(self._workers[node] - self._busy[node])
                if len(self._workers[node]) >= MAX_DIALS or free >= len(self._asked[node]):
                    return
                self._workers[node].add(worker)
            start_thread("lockfast-dial", self._work, node, worker)
            started = True
        except RuntimeError:  # the system has no thread left
            if len(self._workers[node]) == 1:
                self._work(node, worker)
        finally:
            if not started:  # or an interrupt came. Should it run all the same, another beside it does no harm
                self._workers[node].discard(worker)

    def _work(self, node: int, worker: object) -> None:
        self._workers[node].add(worker)
        while (asked := self._next(node, worker)) is not None:
            connections, within = asked
            connections.dial_begins(node)
            try:
                result = None if connections.closed else self._dial(node, within)
            except BaseException as error:
                result = error
            connections.dialled(node, result)

    def _next(self, node: int, worker: object) -> tuple[ConnectionSet, float] | None:
        """None is the end of the worker: what is asked for next starts another."""
        with self._mutex:
            if self._asked[node]:
                self._busy[node].add(worker)
                return self._asked[node].popleft()
            self._workers[node].discard(worker)
            self._busy[node].discard(worker)
            return None
