"""Where the stories of the lock table on a PostgreSQL server in trouble run: both worlds, in real time.

Decides: that a chapter's stories share one server, which answers when a story begins. Names are a story's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from lockfast._model import LockInfo
from lockfast.backends.postgres_table.schema import LISTENER
from lockfast.testing.awaited import AwaitedLocks
from lockfast.testing.stage import Actor, Stage
from tests.adversity.postgres_advisory.stage import OnPostgres
from tests.servers.postgres import USER, PostgresServer
from tests.servers.postgres_tables import empty_table
from tests.servers.proxy import Proxy
from tests.servers.server import HOST

_OURS = "datname = current_database() AND application_name = 'lockfast'"


class OnTable(OnPostgres):
    """The base of each chapter."""

    @pytest.fixture(scope="class")
    @classmethod
    def chapter(cls) -> Iterator[PostgresServer]:
        with PostgresServer(cls.settings) as server:
            empty_table(server.url)
            yield server

    @pytest.fixture(autouse=True)
    def _table(self, _servers: None) -> None:
        empty_table(self.server.url)
        self.where = self.server.url

    async def ready(self, stage: Stage, **options: Any) -> AwaitedLocks:
        """A client that is connected, and has asked what it is going to ask."""
        locks = stage.locks(**options)
        lease = await locks.lock("ready", renew=False).take()
        await lease.extend(1)
        await lease.release()
        return locks

    @contextmanager
    def wire(self) -> Iterator[Proxy]:
        """Connections from here on go through a proxy that can cut them."""
        before = self.where
        with Proxy(self.server) as proxy:  # type: ignore[arg-type]
            self.where = f"postgresql://{USER}@{HOST}:{proxy.port}/postgres"
            try:
                yield proxy
            finally:
                self.where = before

    @contextmanager
    def straight(self) -> Iterator[None]:
        """Connections from here on go past the proxy."""
        before, self.where = self.where, self.server.url
        try:
            yield
        finally:
            self.where = before

    @contextmanager
    def stuck(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction in whose way nothing can be granted; it is rolled back by the end."""
        with psycopg.connect(self.server.url) as other:
            other.execute("LOCK TABLE distributed_locks IN EXCLUSIVE MODE")
            yield other
            other.rollback()

    async def pause(self, stage: Stage) -> None:
        """The server stands still; the event loop of the waiters does not, as it would if it waited for that itself."""
        stopping = threading.Thread(target=self.server.pause)
        stopping.start()
        await stage.until(lambda: not stopping.is_alive(), "the server to stand still")

    def ask(self, sql: str) -> str:
        return self.server.psql(sql)

    def ours(self, only: str = "true") -> int:
        """How many connections are ours."""
        return int(self.ask(f"SELECT count(*) FROM pg_stat_activity WHERE {_OURS} AND {only}"))

    def pids(self, only: str) -> set[str]:
        """Those of ours, by their process."""
        return set(self.ask(f"SELECT pid FROM pg_stat_activity WHERE {_OURS} AND {only}").split())

    def end_ours(self, only: str = "true") -> int:
        """End those connections with pg_terminate_backend; how many there were."""
        ended = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {_OURS} AND {only}"
        return int(self.ask(ended))

    def listeners(self) -> set[str]:
        """The connections that are known to receive wake-ups, by their process."""
        known = f"locktype = 'advisory' AND classid = {LISTENER} AND objsubid = 2 AND granted"
        return set(self.ask(f"SELECT pid FROM pg_locks WHERE {known}").split())

    def held(self) -> int:
        return int(self.ask("SELECT count(*) FROM distributed_locks WHERE expires_at > clock_timestamp()"))

    def queued(self, stage: Stage, waiter: Actor[Any]) -> Callable[[], Any]:
        """Whether one waits for "x", or is done with it: where time is short, that may have come first."""

        async def waits() -> bool:
            return waiter.done or (await stage.info("x")).waiters == 1

        return waits

    def free(self, stage: Stage, name: str) -> Callable[[], Any]:
        async def is_free() -> bool:
            return await stage.info(name) == LockInfo(name)

        return is_free
