"""One Redis or Valkey server of the tests' own.

Decides: how a server is started, when it counts as up, and that it never outlives the tests.
Leaves to `binaries`: which program. Leaves to `shared`: who uses one together.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import redis

from tests.servers import binaries, run
from tests.servers.launching import ServerProcess
from tests.servers.processes import process_state
from tests.servers.waiting import until

_dice = random.SystemRandom()  # the other would be seeded by Hypothesis, in every process with the same
_NOT_YET = (redis.RedisError, OSError)  # what a replica says that loads what its primary has sent
_connection: Any = redis.Connection  # redis-py says nothing of its types
HOST = "127.0.0.1"
_PORTS = 10_000  # from which all of a run are taken
_QUIET = (
    *("--repl-diskless-sync-delay", "0"),  # a replica need not wait for others that might come
    *("--save", "", "--appendonly", "no", "--loglevel", "warning", "--daemonize", "no", "--protected-mode", "no"),
)


def free_port() -> int:
    """A port without a listener, which nothing else in this run has had.

    While a server is down its clients try again and again: they must not find the server of another test there. And
    not one of those that the kernel gives to outgoing connections: while the server is down, a client that tries to
    connect again and again could get that very port for its own end, and be connected to itself.
    """
    first = int(run.once("first port", lambda: {"number": str(_dice.randrange(_PORTS))})["number"])
    while True:
        port = 11_000 + (first + run.count("port")) % _PORTS
        with closing(socket.socket()) as tried, suppress(OSError):
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((HOST, port))
            return port


class Reachable:
    """A server that answers at a port, whichever process started it."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def command(self, *words: Any, db: int = 0, **how: Any) -> Any:
        """Ask the server itself, past everything that is tested. `how` is for redis-py: username, password..."""
        (answer,) = self._ask([words], db=db, **how)
        return answer

    def _ask(self, commands: Sequence[Sequence[Any]], **how: Any) -> list[Any]:
        connection: Any = _connection(host=HOST, port=self.port, protocol=2, **how)
        try:
            connection.connect()
            answers = []
            for words in commands:
                connection.send_command(*words)
                answers.append(connection.read_response())
            return answers
        finally:
            connection.disconnect()


class Server(ServerProcess, Reachable):
    """A server with a folder of its own. It keeps nothing through a restart unless `args` say so."""

    def __init__(
        self,
        *args: str,
        binary: Path | None = None,
        port: int | None = None,
        sentinel: bool = False,
        env: dict[str, str] | None = None,
        shared: bool = False,
    ) -> None:
        Reachable.__init__(self, port or free_port())
        ServerProcess.__init__(self, Path(tempfile.mkdtemp(prefix="lockfast-server-")), shared=shared)
        self.args = list(args)
        self._port_is_given = port is not None
        self._binary = binary or binaries.valkey()
        self._sentinel = sentinel
        self._env = env

    @property
    def socket(self) -> Path:
        """Where it can be reached without a port."""
        return self.folder / "socket"

    def start(self) -> Server:
        """Return once it answers."""
        assert not self.running
        for _ in range(20):
            self._launch()
            if self._comes_up(self._answers):
                return self
            if self._port_is_given:
                break
            self.port = free_port()  # another process was faster
        raise RuntimeError(f"{self._binary.name} does not start:\n{self._log.read_text()}")

    def stop(self) -> None:
        """Ask it to end, as an operator does; with persistence it keeps what it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """From now on it answers nothing, but its kernel accepts what is sent."""
        os.kill(self.pid, signal.SIGSTOP)
        await_stop(self.pid)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, empty: bool = False) -> None:
        """Kill it and start it at the same port: with what it had on disk, or with nothing."""
        self.kill_for_a_while()
        if empty:
            shutil.rmtree(self.folder)
            self.folder.mkdir()
        self.start()

    def kill_for_a_while(self) -> None:
        """As `kill`; `start` starts it at the same port."""
        self._port_is_given = True
        self.kill()

    def configure(self, option: str, value: str | int) -> None:
        """Set an option; return once the server reports it, on the same connection: it may be about logging in."""
        _, reported = self._ask([("CONFIG", "SET", option, value), ("CONFIG", "GET", option)])
        assert reported == [option.encode(), str(value).encode()], reported

    def keep_all(self) -> None:
        """From now on every write is on disk before it is answered."""
        self.configure("appendonly", "yes")
        self.configure("appendfsync", "always")
        until(lambda: b"aof_rewrite_in_progress:0" in self.command("INFO", "persistence"), "the first file")

    def follow(self, primary: Server) -> None:
        """From now on it is a replica of that one; return once the link between them is up."""
        self.command("REPLICAOF", HOST, primary.port)
        until(lambda: self.replicates, "the replica to follow its primary", despite=_NOT_YET)

    def follow_nobody(self) -> None:
        """A replica gets no more writes, and stays a replica."""
        self.command("REPLICAOF", HOST, free_port())
        until(lambda: not self.replicates, "the link to be down", despite=_NOT_YET)

    def lead(self) -> None:
        """A replica becomes a primary."""
        self.command("REPLICAOF", "NO", "ONE")
        until(lambda: self.command("ROLE")[0] == b"master", "the replica to lead")

    @property
    def replicates(self) -> bool:
        return b"master_link_status:up" in self.command("INFO", "replication")

    def __enter__(self) -> Server:
        return self.start()

    def _launch(self) -> None:
        where = ("--port", str(self.port), "--bind", HOST, "--unixsocket", str(self.socket))
        command: Sequence[str] = (str(self._binary), *self._first_words(), *where)
        self._start([*command, *self.args], self.folder, self._env, 'kill -9 "$1"')

    def _first_words(self) -> Sequence[str]:
        if not self._sentinel:
            return ("--dir", str(self.folder), *_QUIET)
        config = self.folder / "sentinel.conf"  # it writes what it learns into this file
        if not config.exists():
            config.write_text(f"dir {self.folder}\n")
        return (str(config), "--sentinel")

    def _answers(self) -> bool:
        with closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.connect(str(self.socket))  # opened after its port; behind that there might be another server
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH", b"-DENIED", b"-NOPERM"))


def await_stop(pid: int) -> None:
    """Until the process stands still, or has ended."""
    until(lambda: process_state(pid) in "TZ", f"process {pid} to stand still")
