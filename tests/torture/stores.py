"""Where the locks are: the servers of one kind, the wires to them, and the faults that it survives as documented.

Decides: what every store has. Workers are divided between several routes; each has a wire of its own to each server.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, ClassVar

from tests.servers.proxy import Proxy
from tests.torture.faults import Fault, Heal, wire_faults

ROUTES = 2


class Store:
    """Servers of one kind. `with` starts and ends them."""

    options: ClassVar[dict[str, Any]] = {}  # of `connect`
    loses_with_sessions: ClassVar[bool] = False  # as documented: an ended session ends a hold before its holder knows

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.routes: list[list[Proxy]] = [[] for _ in range(ROUTES)]  # to each server, in their order

    def start(self) -> None:
        raise NotImplementedError

    def url(self, route: int) -> str:
        """As the workers of that route reach it."""
        raise NotImplementedError

    @property
    def straight(self) -> str:
        """As it is reached past all wires, when the faults are over."""
        raise NotImplementedError

    def own_faults(self) -> Iterator[Fault]:
        raise NotImplementedError

    def connections(self) -> int:
        """How many the servers have."""
        raise NotImplementedError

    def faults(self) -> list[Fault]:
        return [*self.own_faults(), *wire_faults(self.some_wires)]

    def some_wires(self, random: Random) -> Sequence[Proxy]:
        """Those of one route, or of all."""
        routes = self.routes if random.random() < 0.3 else [random.choice(self.routes)]
        return [wire for route in routes for wire in route]

    def add_server(self, server: Any) -> None:
        for route in self.routes:
            route.append(self.stack.enter_context(Proxy(server)))

    def forget_traffic(self) -> None:
        """Proxies keep what clients have said, for tests that look at it."""
        for route in self.routes:
            for wire in route:
                wire.sent.clear()

    def __enter__(self) -> Store:
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stack.close()


class SqliteStore(Store):
    def start(self) -> None:
        self._file = (
            Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="lockfast-torture-"))) / "locks.db"
        )

    def url(self, route: int) -> str:
        return f"sqlite:///{self._file}"

    @property
    def straight(self) -> str:
        return self.url(0)

    def connections(self) -> int:
        return 0

    def own_faults(self) -> Iterator[Fault]:
        yield Fault("write lock", self._lock, 0.1, 2.0)
        yield Fault("long read", self._read, 0.1, 2.0)

    def faults(self) -> list[Fault]:
        return list(self.own_faults())

    def _lock(self, random: Random) -> Heal:
        """Another program is in the middle of a transaction."""
        return self._begin("BEGIN IMMEDIATE")

    def _read(self, random: Random) -> Heal:
        """Another program does not finish reading, so the log cannot be emptied."""
        return self._begin("BEGIN; SELECT * FROM sqlite_master")

    def _begin(self, sql: str) -> Heal:
        other = sqlite3.connect(self._file, timeout=5, isolation_level=None, check_same_thread=False)
        other.executescript(sql)

        def end() -> None:
            with closing(other):
                other.rollback()

        return end
