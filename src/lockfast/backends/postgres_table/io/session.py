"""A session on a server that has the lock table: what is set up in it, and how statements and their replies are read.

Decides: which settings each session has, how a pooler is recognised, and what is sent to listen for wake-ups.
Leaves to `wire`: the exchange itself. Leaves to `refusals`: what an error means.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq

from lockfast._time import boot_now
from lockfast.backends.postgres.io.endpoint import SAFE_PATH, PostgresEndpoint, conninfo
from lockfast.backends.postgres.io.refusals import (
    Broken,
    StatementRefused,
    connection_error,
    error_of,
    how_to_migrate,
    message_of,
    name_in_use,
    one_line,
    refusal,
    unavailable,
)
from lockfast.backends.postgres.io.wire import Steps, connect, last_result, pipelined, send_behind
from lockfast.errors import BackendUnavailable

_logger = logging.getLogger("lockfast")
_parse = json.JSONDecoder().decode
_TUPLES: Final = pq.ExecStatus.TUPLES_OK
_OK: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
ECHO_WITHIN_S: Final = 0.7  # how long an echo may take; less than the second after which silence is reported
IN_USE: Final = b'{"in_use": true}'  # the reply if an open transaction has locked the name for too long
MAX_UNLISTENS: Final = 20  # tries to reach one session of a pooler
_WHERE: Final = "SELECT pg_catalog.pg_backend_pid()"
_CHECK_INTERVAL_MS: Final = 500  # how often the server checks that a client whose statement it runs is still there
SUSPECT_AFTER_S: Final = 10.0  # a connection that was idle for longer is probed: a NAT may have forgotten it
MAX_PROBE_S: Final = 1.0  # how long the reply to that may take,
PROBE_SHARE: Final = 0.25  # and which part of the time that a request has: the rest is for a new connection
LONG_AGO: Final = float("-inf")  # when a connection was last used that is probed in any case
SILENT_S: Final = 1.0  # without a reply, after which all connections that have received nothing since are suspect
MIN_PROBE_S: Final = 0.25  # with less there is no probe: it would take a slow connection for one that is dead


def is_suspect(idle_since: float) -> bool:
    """Whether the connection may be dead after that time; the time that the machine slept counts."""
    return boot_now() - idle_since >= SUSPECT_AFTER_S


def probe_within(left: float) -> float | None:
    """Seconds for a probe before a request that has `left` seconds; None if the request is sent without."""
    within = min(MAX_PROBE_S, left * PROBE_SHARE)
    return within if within >= MIN_PROBE_S else None


class PreparedStatement(NamedTuple):
    name: bytes
    sql: bytes


class TableSession:
    def __init__(self, pg: Any, endpoint: PostgresEndpoint) -> None:
        self.pg = pg
        self.pooled = False  # behind a pooler each statement may reach another server process
        self.takes_more = False  # while a statement is under way, another request can be sent behind it
        self.used_up = False  # one was
        self._endpoint = endpoint
        self._prepared: set[bytes] = set()
        self._preamble: list[bytes] = []  # what each statement selects first, behind a pooler

    def set_up(self, version: int) -> Steps:
        """Settings for all later statements. With a version, check that the schema has it.

        Raises Broken on a replica, and BackendUnavailable where no lock can be granted.
        """
        self.require_utf8()
        schema = self._endpoint.schema
        arrive = f'"{schema}".lockfast_check_restart()'.encode()
        query = f"""SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('default_transaction_isolation'),
            pg_catalog.to_regclass('"{schema}".lockfast_schema'), pg_catalog.pg_is_in_recovery(),
            pg_catalog.current_setting('default_transaction_read_only')"""
        ((pid, isolation, found, replica, read_only),) = yield from self.simple_query(query.encode())
        if replica == b"t":
            raise Broken("it is a replica, and grants nothing until it is promoted")
        if read_only == b"on":
            what = "default_transaction_read_only is on, for the server, this database or this role"
            raise unavailable(self._endpoint.name, f"grants nothing: {what}", transient=False)
        self.pooled = int(pid) != self.pg.backend_pid
        commit = self._endpoint.synchronous_commit
        if self.pooled:  # any statement may be the first in its server process, and a SET would stay for other clients
            self._preamble = [arrive]
            self._preamble += (
                [b"pg_catalog.set_config('synchronous_commit', '%b', true)" % commit.encode()] if commit else []
            )
        else:
            settings = [f"search_path = {SAFE_PATH}"]
            settings += [] if isolation == b"read committed" else ["default_transaction_isolation = 'read committed'"]
            settings += [f"synchronous_commit = {commit}"] if commit else []
            yield from self._set_with_check(settings)
        if version:
            yield from self._check(found, version)
        if found is not None:
            yield from self.simple_query(b"SELECT " + arrive)

    def require_utf8(self) -> None:
        """Raises BackendUnavailable for a database that cannot store every name and all metadata."""
        encoding = self.pg.parameter_status(b"server_encoding") or b"UTF8"
        if encoding != b"UTF8":
            what = f"keeps this database in {encoding.decode()}, and the lock table needs one in UTF8"
            how = "CREATE DATABASE locks ENCODING 'UTF8' TEMPLATE template0"
            raise unavailable(self._endpoint.name, f"{what}; for example: {how}", transient=False)

    def _set_with_check(self, settings: list[str]) -> Steps:
        """A request that we gave up must not wait for a lock there; but not every system lets the server notice."""
        try:
            yield from self._set([*settings, f"client_connection_check_interval = {_CHECK_INTERVAL_MS}"])
        except StatementRefused:
            yield from self._set(settings)

    def _set(self, settings: list[str]) -> Steps:
        if settings:
            yield from self.simple_query("; ".join(f"SET {one}" for one in settings).encode())

    def _check(self, found: bytes | None, version: int) -> Steps:
        there: Any = [[b"0"]]
        if found is not None:
            query = f'SELECT coalesce(pg_catalog.max(version), 0) FROM "{self._endpoint.schema}".lockfast_schema'
            there = yield from self.simple_query(query.encode())
        if int(there[0][0]) > version:
            warn_newer_schema(self._endpoint, int(there[0][0]), version)
        if int(there[0][0]) < version:
            what = "has no lock table" if found is None else "has an old lock table"
            raise unavailable(self._endpoint.name, f"{what}; {how_to_migrate(self._endpoint.url)}", transient=False)

    def execute(self, statement: PreparedStatement, params: Sequence[bytes | None]) -> Steps:
        """The reply, from JSON. Raises RolledBack, BackendUnavailable, and Broken if the connection is."""
        pg = self.pg
        if self.pooled:
            sql = statement.sql.replace(b"SELECT ", b"SELECT " + b", ".join([*self._preamble, b""]), 1)
            return self._reply((yield from last_result(pg, lambda: pg.send_query_params(sql, params))))
        if statement.name not in self._prepared:
            self._rows((yield from last_result(pg, lambda: pg.send_prepare(statement.name, statement.sql))))
            self._prepared.add(statement.name)
        if not self.takes_more:
            return self._reply((yield from last_result(pg, lambda: pg.send_query_prepared(statement.name, params))))
        results = yield from pipelined(pg, [lambda: pg.send_query_prepared(statement.name, params)])
        return self._reply(results[-1] if results else None)

    def send_behind(self, statement: PreparedStatement, params: Sequence[bytes | None]) -> bool:
        """Have the server carry it out after the statement that is under way, whether or not a reply is read here.

        False if that cannot be done. Else the session is used up: there is no reply, and no other statement.
        """
        if not send_behind(self.pg, lambda: self.pg.send_query_params(statement.sql, params)):
            return False
        self.used_up = True
        return True

    def probe(self) -> Steps:
        """Ends once the server has replied. Raises Broken, and BackendUnavailable."""
        yield from self.simple_query(b"SELECT 1")

    def simple_query(self, sql: bytes) -> Steps:
        """The rows of the last of these statements."""
        return self._rows((yield from last_result(self.pg, lambda: self.pg.send_query(sql))))

    def stop_listening(self, channel: str, pid: bytes) -> Steps:
        """Behind a pooler that gives each transaction to any of its sessions: ask until it was the one that listens.

        That session lives on with other clients, and would get notifications for ever.
        """
        for _ in range(MAX_UNLISTENS):
            ((where,),) = yield from self.simple_query(f"UNLISTEN {channel}; {_WHERE}".encode())
            if where == pid:
                return

    def notifications(self) -> list[str]:
        """The payloads that have arrived since the last call. Raises Broken."""
        try:
            self.pg.consume_input()
        except psycopg.Error as error:
            raise Broken(one_line(str(error))) from error
        payloads = []
        while (notify := self.pg.notifies()) is not None:
            payloads.append(notify.extra.decode())
        return payloads

    def _rows(self, result: Any) -> list[list[bytes | None]]:
        if result is None:
            raise Broken("no answer")
        if result.status not in _OK:
            self._raise(result)
        return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]

    def _reply(self, result: Any) -> Any:
        if result is not None and result.status == _TUPLES:
            text = result.get_value(0, len(self._preamble))
            if text == b"true":  # the reply to most releases
                return True
            if text == IN_USE:
                raise name_in_use(self._endpoint)
            return None if text is None else self._parsed(text)
        return self._rows(result)

    def _parsed(self, text: bytes) -> Any:
        try:
            return _parse(text.decode())
        except (ValueError, RecursionError) as error:
            what = f"gives an answer that cannot be read: {error}"
            raise StatementRefused(f"PostgreSQL at {self._endpoint.name} {what}", transient=False) from error

    def _raise(self, result: Any) -> None:
        code, text = error_of(result)
        ended = self.pg.status == pq.ConnStatus.BAD
        raise connection_error(code, text or message_of(self.pg), ended=ended) or self._refusal(code, text)

    def _refusal(self, code: str, text: str) -> StatementRefused:
        return refusal(self._endpoint, code, text)

    def close(self) -> None:
        self.pg.finish()


def open_session(endpoint: PostgresEndpoint, params: Mapping[str, str], version: int) -> Steps:
    """A session that is connected and set up. Raises as `connect` and `set_up` do; then it is closed."""
    session = TableSession((yield from connect(conninfo(params))), endpoint)
    try:
        yield from session.set_up(version)
    except BaseException as error:
        session.close()
        if isinstance(error, BackendUnavailable):
            error.sent = False  # no request is sent before
        raise
    return session


# Wake-ups


def echo(channel: str) -> tuple[PreparedStatement, tuple[str, str]]:
    """A statement that notifies the sessions that listen there."""
    return PreparedStatement(b"lockfast_echo", b"SELECT pg_catalog.to_json(pg_catalog.pg_notify($1, $2)::text)"), (
        channel,
        "",
    )


def listen(channel: str) -> bytes:
    """The reply is the number of the session that listens now."""
    return f"LISTEN {channel}; {_WHERE}".encode()


def register(endpoint: PostgresEndpoint, channel: str) -> bytes:
    """Other clients see from this that a session listens; its text in pg_stat_activity says what it is for."""
    return f"LISTEN {channel}; SELECT \"{endpoint.schema}\".lockfast_register_listener('{channel}')".encode()


def warn_newer_schema(endpoint: PostgresEndpoint, found: int, known: int) -> None:
    _logger.warning(
        "the lock table of PostgreSQL at %s has version %d, and this lockfast knows version %d: a newer one has "
        "migrated it. Update lockfast here",
        endpoint.name,
        found,
        known,
    )


def warn_polling_for_now(reason: BackendUnavailable) -> None:
    _logger.warning(
        "waiters poll until there is a connection that wakes them; locks are safe, hand-overs are slower: %s", reason
    )


def warn_cannot_listen(endpoint: PostgresEndpoint) -> None:
    _logger.warning(
        "PostgreSQL at %s is behind a pooler that gives each transaction to another connection, so LISTEN does not "
        "work there and waiters poll; locks are safe, hand-overs are slower. Connect to the server itself, or "
        "through a pool in session mode",
        endpoint.name,
    )
