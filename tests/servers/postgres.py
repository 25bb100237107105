"""One PostgreSQL server of the tests' own, and replicas of it.

Decides: how a server is started, when it counts as up, and that it never outlives the tests.
Leaves to `postgres_programs`: which installation. Leaves to `postgres_shared`: who uses one together.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.servers.launching import ServerProcess
from tests.servers.postgres_programs import NEWEST, give, lesser, programs
from tests.servers.processes import children_of
from tests.servers.server import HOST, await_stop, free_port

USER = "lockfast"
_SETTINGS = {
    "fsync": "off",  # a killed process loses nothing by that, only a machine does
    "max_connections": "100",
    "dynamic_shared_memory_type": "mmap",  # inside the data, so none is left when it is killed
    "max_wal_size": "128MB",
    "shared_buffers": "16MB",
    "autovacuum_naptime": "1h",
    "log_min_messages": "warning",
}


@cache
def _cluster(bin: Path) -> Path:
    """A fresh cluster to copy from: `initdb` takes longer than a start."""
    folder = Path(tempfile.mkdtemp(prefix="lockfast-initdb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    give(folder)
    words = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", USER, "-D", str(folder / "data")]
    subprocess.run([*lesser(), str(bin / "initdb"), *words], check=True, capture_output=True, cwd="/")
    return folder / "data"


class ReachablePostgres:
    """A server that answers at a port, whichever process started it."""

    def __init__(self, port: int, bin: Path, folder: Path) -> None:
        self.port = port
        self.bin = bin
        self.folder = folder  # its socket is in it

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/{database}"

    def psql(self, sql: str, database: str = "postgres") -> str:
        """What psql prints: a line for each row, fields divided by `|`. Raises RuntimeError with its complaint."""
        words = [str(self.bin / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url_of(database), "-c", sql]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.strip()


class PostgresServer(ServerProcess, ReachablePostgres):
    """A server with a folder of its own, at a port and at a socket. What was committed survives `kill`.

    `settings` are those of postgresql.conf, e.g. {"max_connections": "5"}.
    """

    last_signal = signal.SIGQUIT

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        version: int = NEWEST,
        bin: Path | None = None,
        env: Mapping[str, str] | None = None,
        shared: bool = False,
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="lockfast-pg-"))
        ReachablePostgres.__init__(self, free_port(), bin or programs(version), folder)
        ServerProcess.__init__(self, folder, shared=shared)
        self.settings = {**_SETTINGS, **(settings or {})}
        self.data = self.folder / "data"
        self._env = env
        self._source: PostgresServer | None = None  # whom it replicates

    def children(self) -> list[int]:
        """The processes of the connections, and its helpers."""
        return children_of(self.pid)

    def start(self) -> PostgresServer:
        """Return once it answers."""
        assert not self.running
        for _ in range(20):
            self._prepare()
            self._launch()
            if self._comes_up(self._is_ready):
                return self
            if self.data.joinpath("PG_VERSION").exists() and "in use" not in self._log.read_text()[-500:]:
                break
            self.port = free_port()  # another process was faster
        raise RuntimeError(f"PostgreSQL does not start:\n{self._log.read_text()}")

    def stop(self) -> None:
        """Ask it to end at once and in order, as an operator does; connections are ended."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a power cut does; recovery comes with the next start."""
        self._end(signal.SIGKILL)

    def crash(self) -> None:
        """End it without a checkpoint, as an immediate shutdown does; recovery comes with the next start."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Kill it and start it at the same port, with what it had committed."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """From now on it answers nothing, but its kernel takes whatever is sent, new connections too."""
        os.kill(self.pid, signal.SIGSTOP)  # first: then it can start no more children
        await_stop(self.pid)
        for child in self.children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)
                await_stop(child)

    def go_on(self) -> None:
        for child in (*self.children(), self.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)

    def replica(self, settings: Mapping[str, str] | None = None) -> PostgresServer:
        """A streaming replica, not started yet. It is read-only until `promote`."""
        copy = PostgresServer({**self.settings, **(settings or {})}, bin=self.bin)
        copy._source = self
        return copy

    def promote(self) -> None:
        """A replica becomes a primary; the old one does not learn of it."""
        assert self.psql("SELECT pg_promote(true, 30)") == "t"

    def __enter__(self) -> PostgresServer:
        return self.start()

    def _prepare(self) -> None:
        if self.data.exists():
            return
        if self._source is None:
            shutil.copytree(_cluster(self.bin), self.data)
            self.data.chmod(0o700)
        else:
            words = ["-D", str(self.data), "-d", self._source.url, "-R", "-X", "stream", "-c", "fast", "--no-sync"]
            give(self.folder)
            command = [*lesser(), str(self.bin / "pg_basebackup"), *words]
            subprocess.run(command, check=True, capture_output=True, cwd="/")
        give(self.folder)

    def _launch(self) -> None:
        where = ["-D", str(self.data), "-p", str(self.port), "-h", HOST, "-k", str(self.folder)]
        options = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        words = [*lesser(), str(self.bin / "postgres"), *where, *options]
        end = 'kill -QUIT "$1"; kill -CONT "$1"; sleep 1; kill -9 "$1"'  # in order, so that its own processes end too
        self._start(words, Path("/"), self._env, end)

    def _is_ready(self) -> bool:
        said = self.data.joinpath("postmaster.pid").read_text().splitlines()
        return len(said) >= 8 and int(said[0]) == self.pid and said[7].split()[:1] == ["ready"]
