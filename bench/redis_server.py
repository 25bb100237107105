"""What the questions about Redis ask of the server itself: which core it runs on, and what it counted.

Decides: how the commands of clients are distinguished from those that a script called.
Leaves to `tests.servers`: starting and ending it. Leaves to each question's file: what the figures mean.
"""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, NamedTuple

from tests.servers.server import HOST

from bench.peers import need

_BY_A_CLIENT = re.compile(rb'^\+[\d.]+ \[\d+ (?!lua\])[^\]]+\] "([^"]+)"', re.MULTILINE)


def client(port: int, **how: Any) -> Any:
    """A client of redis-py's, at its defaults but for `how`."""
    return need("redis").Redis(HOST, port, **how)


@contextmanager
def one_core(pid: int) -> Iterator[None]:
    """This thread, those that it starts, and the server share a core: a round trip is then work and no idle waiting."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before, theirs = os.sched_getaffinity(0), os.sched_getaffinity(pid)
    core = {max(before)}
    os.sched_setaffinity(0, core)
    os.sched_setaffinity(pid, core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        os.sched_setaffinity(pid, theirs)


class Count(NamedTuple):
    calls: int
    microseconds: int


def counted(port: int, work: Callable[[], object]) -> dict[str, Count]:
    """What the server did meanwhile, by command; a script's own calls are counted too, under their own names."""
    asking = client(port)
    asking.config_resetstat()
    work()
    stats: dict[str, Any] = asking.info("commandstats")
    return {name[len("cmdstat_") :]: Count(one["calls"], one["usec"]) for name, one in stats.items()}


class Monitor:
    """Counts the commands that clients send, by name. It slows the server down, so no speed is measured meanwhile."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._line = socket.create_connection((HOST, port))
        self._line.sendall(b"MONITOR\r\n")
        self._line.recv(5)  # +OK
        self.commands: Counter[str] = Counter()
        self._reading = Thread(target=self._read, daemon=True)

    def __enter__(self) -> Monitor:
        self._reading.start()
        return self

    def _read(self) -> None:
        rest, over = b"", False
        while not over:
            whole, end, rest = (rest + self._line.recv(1 << 20)).rpartition(b"\r\n")
            over = b'"the bench has seen enough"' in whole
            self.commands.update(name.decode().lower() for name in _BY_A_CLIENT.findall(whole + end))

    def __exit__(self, *_: object) -> None:
        client(self._port).echo("the bench has seen enough")  # all that came before it has been read when this is
        self._reading.join(60)
        self._line.close()
        for own in ("echo", "hello", "client"):
            del self.commands[own]
