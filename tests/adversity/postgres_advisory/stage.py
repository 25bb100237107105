"""Where the stories of a PostgreSQL server in trouble run: a chapter's own server, both worlds, in real time.

Decides: nothing about locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lockfast._connect import open_backend
from lockfast._worlds import Clock, World
from lockfast.backends.base import Backend
from lockfast.testing.contract import Promise, on_the_real_clock
from lockfast.testing.stage import Stage
from tests.servers.postgres import USER, PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.server import HOST

_SESSIONS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


class OnPostgres(Promise):
    """The base of each chapter. Clients connect directly, or where `where` says."""

    can = frozenset()
    guest = "DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"  # for whom room is short
    settings: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        for name, story in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, pytest.mark.slow(on_the_real_clock(story)))
        super().__init_subclass__()

    @pytest.fixture(scope="class")
    @classmethod
    def chapter(cls) -> Iterator[PostgresServer]:
        """One server for all stories of the chapter: to start one takes longer than most of them."""
        with PostgresServer(cls.settings) as server:
            yield server

    @pytest.fixture(autouse=True)
    def _servers(self, chapter: PostgresServer) -> Iterator[None]:
        self.server, self.where = chapter, advisory_url(chapter)
        if not chapter.running:
            chapter.start()
        yield
        if chapter.running:
            chapter.go_on()

    def make_backend(self, tmp_path: Path, world: World, clock: Clock | None) -> Backend:
        return open_backend(self.where, world, clock)

    def through(self, proxy: Proxy, stage: Stage, **options: Any) -> Any:
        """A client behind a wire that can be cut."""
        before, self.where = self.where, f"postgresql+advisory://{USER}@{HOST}:{proxy.port}/postgres"
        try:
            return stage.locks(**options)
        finally:
            self.where = before

    def sessions(self) -> int:
        return int(self.server.psql(f"SELECT count(*) {_SESSIONS}"))

    def terminate(self, *, only: str = "true") -> None:
        self.server.psql(f"SELECT count(pg_terminate_backend(pid)) {_SESSIONS} AND {only}")

    def held(self) -> int:
        """How many locks the server knows to be held."""
        return int(self.server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"))

    def nothing_left(self) -> Callable[[], bool]:
        return lambda: self.held() == 0


def advisory_url(*servers: PostgresServer) -> str:
    hosts = ",".join(f"{HOST}:{server.port}" for server in servers)
    return f"postgresql+advisory://{USER}@{hosts}/postgres"
