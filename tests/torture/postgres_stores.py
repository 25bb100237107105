"""PostgreSQL: a primary and a synchronous standby, for the lock table and for advisory locks.

Decides: which faults their pages say that exclusion survives. Advisory locks survive no end of their session, so the
faults that end sessions are marked; see `verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import ClassVar

from tests.servers.postgres import USER, PostgresServer
from tests.servers.postgres_tables import empty_table
from tests.servers.server import HOST
from tests.servers.waiting import until
from tests.torture.faults import Fault, Heal, nothing
from tests.torture.stores import Store

_SESSIONS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
_SYNCHRONOUS = "synchronous_standby_names"
_SETTINGS = {
    "max_connections": "400",
    "autovacuum_naptime": "10s",
    "wal_retrieve_retry_interval": "200ms",  # while its standby is away the primary commits nothing
}


class PostgresTableStore(Store):
    scheme: ClassVar[str] = "postgresql"

    def start(self) -> None:
        self.primary = PostgresServer(_SETTINGS).start()
        self.stack.callback(lambda: self.primary.close())
        empty_table(self.primary.url)
        self.standby: PostgresServer | None = None
        self.stack.callback(self._end_standby)
        self._add_standby()
        self.add_server(self.primary)

    def url(self, route: int) -> str:
        return self._url(self.routes[route][0].port)

    @property
    def straight(self) -> str:
        return self._url(self.primary.port)

    def _url(self, port: int) -> str:
        return f"{self.scheme}://{USER}@{HOST}:{port}/postgres"

    def connections(self) -> int:
        return int(self.primary.psql(f"SELECT count(*) {_SESSIONS}"))

    def own_faults(self) -> Iterator[Fault]:
        yield Fault("server stopped", self._stop, 0.1, 4.0)
        yield Fault("server killed", self._kill, 0.0, 1.0, ends_sessions=True)
        yield Fault("immediate stop", self._crash, 0.0, 1.0, ends_sessions=True)
        yield Fault("restart", self._restart, 0.0, 1.0, ends_sessions=True)
        yield Fault("pg_terminate_backend", self._terminate, ends_sessions=True)
        yield Fault("pg_cancel_backend", self._cancel)
        yield Fault("failover", self._fail_over, ends_sessions=True)

    def _stop(self, random: Random) -> Heal:
        self.primary.pause()
        return self.primary.go_on

    def _kill(self, random: Random) -> Heal:
        self.primary.kill()
        return self._start

    def _crash(self, random: Random) -> Heal:
        self.primary.crash()
        return self._start

    def _restart(self, random: Random) -> Heal:
        self.primary.stop()
        return self._start

    def _start(self) -> None:
        self.primary.start()

    def _terminate(self, random: Random) -> Heal:
        share = random.choice((0.2, 1.0))
        self.primary.psql(f"SELECT count(pg_terminate_backend(pid, 5000)) {_SESSIONS} AND random() < {share}")
        return nothing

    def _cancel(self, random: Random) -> Heal:
        self.primary.psql(f"SELECT count(pg_cancel_backend(pid)) {_SESSIONS} AND state = 'active'")
        return nothing

    def _fail_over(self, random: Random) -> Heal:
        """The primary dies, and its synchronous standby leads, behind the same addresses."""
        assert self.standby is not None
        self._await_standby()
        before, self.primary = self.primary, self.standby
        before.kill()
        self.primary.promote()
        for route in self.routes:
            route[0].lead_to(self.primary)  # type: ignore[arg-type]
        before.close()
        self.standby = None
        return self._add_standby

    def _add_standby(self) -> None:
        self.standby = self.primary.replica().start()
        _set(self.standby, _SYNCHRONOUS, "")  # it is the primary's, and would wait for a standby of its own
        _set(self.primary, _SYNCHRONOUS, "*")
        self._await_standby()

    def _end_standby(self) -> None:
        if self.standby is not None:
            self.standby.close()

    def _await_standby(self) -> None:
        state = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        until(lambda: self.primary.psql(state) == "sync", "the standby to be synchronous", despite=(RuntimeError,))


class PostgresAdvisoryStore(PostgresTableStore):
    scheme = "postgresql+advisory"
    loses_with_sessions = True


def _set(server: PostgresServer, name: str, value: str) -> None:
    server.psql(f"ALTER SYSTEM SET {name} = '{value}'")
    server.psql("SELECT pg_reload_conf()")
    until(lambda: server.psql(f"SHOW {name}") == value, f"{name} to be {value!r}")
