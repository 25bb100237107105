"""PostgreSQL, for both drivers: what is said on a connection, and what the server's errors mean.

Decides: the steps of connecting and of one statement, and how a refusal is told.
Leaves to the drivers of either world: to wait for the socket. The steps are generators that yield what they wait for.

psycopg's wrapper of libpq is used directly: its cursors cost as much as the server does for one of our statements.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

import psycopg
from psycopg import pq

from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.errors import BackendUnavailable

Waiting = Generator[tuple[int, Literal["r", "w"]], None, Any]  # until that socket can be read from, or written to
_logger = logging.getLogger("lockfast")
_parsed = json.JSONDecoder().decode
_TUPLES: Final = pq.ExecStatus.TUPLES_OK
_OK: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_CONNECTED: Final = (pq.PollingStatus.OK, pq.PollingStatus.FAILED)  # or not at all
_TRY_AGAIN: Final = ("40001", "40P01")  # serialization failure, deadlock: rolled back, and worth another try at once
_CHECKS: Final = 500  # milliseconds after which the server looks whether we are still there
_LOCK_TIMEOUT: Final = "55P03"
_NO_SCHEMA: Final = ("42P01", "42883", "3F000", "42703")  # no such table, function, schema, column
NO_RIGHTS: Final = "42501"
_GOES_AWAY: Final = "57P"  # ended by an operator
_READ_ONLY: Final = "25006"  # not the primary any more, or told to be so
_IN_PASSING: Final = ("08", "57", "53", "40")  # beginnings of codes: connection, operator, resources, rollback
_FULL: Final = "53100"  # the disk
_LASTING: Final = re.compile(  # why a connection is refused, and will be: libpq tells no code, so only words say so
    "authentication failed|no password supplied|no pg_hba.conf entry|certificate|does not exist|is not permitted to log"
    "|[Pp]ermission denied|is not currently accepting|does not support SSL|definition of service|service file"
    "|invalid (\\S+ )?value|must be an integer|unrecognized configuration|unterminated quoted|connection option"
)
_QUESTION: Final = re.compile(r" Is the server running .*\?$")  # which libpq asks after its reason
_open: weakref.WeakSet[Any] = weakref.WeakSet()  # libpq's connections of this process, also those that are being made


class Statement(NamedTuple):
    name: bytes  # it is prepared under
    sql: bytes


class Refused(BackendUnavailable):
    """The server understood, and did nothing."""


class NameInUse(Refused):
    """Somebody's transaction is at that very name, and does not end."""


class NoRights(Refused):
    """Somebody has to be granted a right first."""


class TryAgain(Exception):
    """Nothing happened, because of others who were at it at the same time."""


class Broken(Exception):
    """The connection is of no use any more; how it ended."""

    @property
    def told(self) -> str:
        return f"ended the connection: {self}"


class ReadOnly(Broken):
    """Nothing can be written on it any more; another one may lead to whoever can be written to."""

    @property
    def told(self) -> str:
        return f"is read-only: {self}"


def unavailable(endpoint: str, what: str, *, transient: bool = True) -> BackendUnavailable:
    return BackendUnavailable(f"PostgreSQL at {endpoint} {what}", transient=transient)


def for_one(error: BackendUnavailable, *, last: bool = False) -> BackendUnavailable:
    """One of its own for each who was asked for together: an exception remembers where it was raised."""
    return type(error)(str(error), transient=error.transient and not last, sent=error.sent)


# Connecting, and one statement


def connect(conninfo: bytes) -> Waiting:
    """A connection. Raises Broken. Its socket may change on the way, and there is none once it has failed."""
    try:
        pg = pq.PGconn.connect_start(conninfo)
        _open.add(pg)  # before the first step: a fork may come at any of them
        status: int = pq.PollingStatus.WRITING
        while pg.status != pq.ConnStatus.BAD and status not in _CONNECTED:
            yield pg.socket, "r" if status == pq.PollingStatus.READING else "w"
            status = pg.connect_poll()
        if status != pq.PollingStatus.OK:
            raise Broken(_of(pg))
        pg.nonblocking = 1
    except psycopg.Error as error:
        raise Broken(_one_line(str(error))) from error
    return pg


def talk(pg: pq.abc.PGconn, send: Callable[[], None]) -> Waiting:
    """The last result of what `send` asks. Raises Broken."""
    try:
        send()
        while pg.flush():
            yield pg.socket, "w"
        last = None
        while True:
            while pg.is_busy():
                yield pg.socket, "r"
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                return last
            last = result
    except psycopg.Error as error:
        raise Broken(_one_line(str(error))) from error


class PostgresSession:
    """One connection: what it has been told before, and what its answers mean."""

    def __init__(self, pg: Any, endpoint: PostgresEndpoint) -> None:
        self.pg = pg
        self.pooled = False  # something stands between: each statement may be for another server process
        self._endpoint = endpoint
        self._prepared: set[bytes] = set()
        self._before: list[bytes] = []  # what each statement asks for first, by way of a pooler

    def greet(self, version: int) -> Waiting:
        """Learn who is there, and settle what is good for every statement. With a version, see that it is there."""
        self.must_keep_every_name()
        schema = self._endpoint.schema
        arrive = f'"{schema}".lockfast_arrive()'.encode()
        asked = f"""SELECT pg_backend_pid(), current_setting('default_transaction_isolation'),
            to_regclass('"{schema}".lockfast_schema'), pg_is_in_recovery(),
            current_setting('default_transaction_read_only')"""
        ((pid, isolation, found, replica, read_only),) = yield from self.say_plainly(asked.encode())
        if replica == b"t":
            raise Broken("it is a replica, and grants nothing until it is promoted")
        if read_only == b"on":
            what = "default_transaction_read_only is on, for the server, this database or this role"
            raise unavailable(self._endpoint.name, f"grants nothing: {what}", transient=False)
        self.pooled = int(pid) != self.pg.backend_pid
        commit = self._endpoint.synchronous_commit
        if self.pooled:  # each statement may be the first of ours there, and a setting would stay behind for the next
            self._before = [arrive]
            self._before += [b"set_config('synchronous_commit', '%b', true)" % commit.encode()] if commit else []
        else:
            settings = [] if isolation == b"read committed" else ["default_transaction_isolation = 'read committed'"]
            settings += [f"synchronous_commit = {commit}"] if commit else []
            yield from self._settle(settings)
        if version:
            yield from self._check(found, version)
        if found is not None:
            yield from self.say_plainly(b"SELECT " + arrive)

    def must_keep_every_name(self) -> None:
        """Raises BackendUnavailable for a database in which not every name and no metadata could be written."""
        encoding = self.pg.parameter_status(b"server_encoding") or b"UTF8"
        if encoding != b"UTF8":
            what = f"keeps this database in {encoding.decode()}, and the lock table needs one in UTF8"
            how = "CREATE DATABASE locks ENCODING 'UTF8' TEMPLATE template0"
            raise unavailable(self._endpoint.name, f"{what}; for example: {how}", transient=False)

    def _settle(self, settings: list[str]) -> Waiting:
        """A request that we give up must not go on to wait for a lock there; but not every system can notice that."""
        try:
            yield from self._set([*settings, f"client_connection_check_interval = {_CHECKS}"])
        except Refused:
            yield from self._set(settings)

    def _set(self, settings: list[str]) -> Waiting:
        if settings:
            yield from self.say_plainly("; ".join(f"SET {one}" for one in settings).encode())

    def _check(self, found: bytes | None, version: int) -> Waiting:
        there: Any = [[b"0"]]
        if found is not None:
            question = f'SELECT coalesce(max(version), 0) FROM "{self._endpoint.schema}".lockfast_schema'
            there = yield from self.say_plainly(question.encode())
        if int(there[0][0]) < version:
            what = "has no lock table" if found is None else "has an old lock table"
            raise unavailable(self._endpoint.name, f"{what}; {how_to_migrate(self._endpoint.url)}", transient=False)

    def execute(self, statement: Statement, params: Sequence[bytes | None]) -> Waiting:
        """The answer, from JSON. Raises TryAgain, BackendUnavailable, and Broken if the connection is."""
        pg = self.pg
        if self.pooled:
            sql = statement.sql.replace(b"SELECT ", b"SELECT " + b", ".join([*self._before, b""]), 1)
            return self._answer((yield from talk(pg, lambda: pg.send_query_params(sql, params))))
        if statement.name not in self._prepared:
            self._rows((yield from talk(pg, lambda: pg.send_prepare(statement.name, statement.sql))))
            self._prepared.add(statement.name)
        return self._answer((yield from talk(pg, lambda: pg.send_query_prepared(statement.name, params))))

    def say_plainly(self, sql: bytes) -> Waiting:
        """The rows of the last of these statements."""
        return self._rows((yield from talk(self.pg, lambda: self.pg.send_query(sql))))

    def heard(self) -> list[str]:
        """What was notified since the last time, from what has arrived. Raises Broken."""
        try:
            self.pg.consume_input()
        except psycopg.Error as error:
            raise Broken(_one_line(str(error))) from error
        told = []
        while (note := self.pg.notifies()) is not None:
            told.append(note.extra.decode())
        return told

    def _rows(self, result: Any) -> list[list[bytes | None]]:
        if result is None:
            raise Broken("no answer")
        if result.status not in _OK:
            self._refuse(result)
        return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]

    def _answer(self, result: Any) -> Any:
        if result is not None and result.status == _TUPLES:
            text = result.get_value(0, len(self._before))
            if text == b"true":  # the answer to most releases
                return True
            return None if text is None else self._read(text)
        return self._rows(result)

    def _read(self, text: bytes) -> Any:
        try:
            return _parsed(text.decode())
        except (ValueError, RecursionError) as error:
            what = f"gives an answer that cannot be read: {error}"
            raise Refused(f"PostgreSQL at {self._endpoint.name} {what}", transient=False) from error

    def _refuse(self, result: Any) -> None:
        code, text = complaint(result)
        if code in _TRY_AGAIN:
            raise TryAgain(text)
        if code == _READ_ONLY:
            raise ReadOnly(text)
        if self.pg.status == pq.ConnStatus.BAD or code.startswith(_GOES_AWAY) or not code:
            raise Broken(text or _of(self.pg))
        raise self._refusal(code, text)

    def _refusal(self, code: str, text: str) -> Refused:
        return refusal(self._endpoint, code, text)

    def close(self) -> None:
        self.pg.finish()


def _close_copies() -> None:
    """In a forked child: a copy of a socket would keep the parent's session alive when the parent is killed.

    What is left of the connections here knows that it is in another process, and ends nothing.
    """
    for pg in list(_open):
        with suppress(OSError, psycopg.Error):  # which the parent may have lost, or not have got yet
            os.close(pg.socket)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


def complaint(result: Any) -> tuple[str, str]:
    """The code and the text of an error."""
    code = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
    return code.decode(), text.decode(errors="replace")


def refusal(endpoint: PostgresEndpoint, code: str, text: str) -> Refused:
    """What an error of the server's means for whoever asked."""
    at = f"PostgreSQL at {endpoint.name}"
    if code == _LOCK_TIMEOUT:
        return NameInUse(f"{at}: a transaction of somebody else's is at that lock, and does not end")
    if code in _NO_SCHEMA:
        return Refused(
            f"{at} has no lock table, or an old one: {text}; {how_to_migrate(endpoint.url)}", transient=False
        )
    if code == NO_RIGHTS:
        return NoRights(f"{at} refuses: {text}; {how_to_grant(endpoint)}", transient=False)
    return Refused(f"{at} refuses: {text} ({code})", transient=passes(code))


def passes(code: str) -> bool:
    """Whether an error is of a kind that another try may not meet."""
    return code.startswith(_IN_PASSING) and code != _FULL


def how_to_migrate(url: str) -> str:
    return f"run: lockfast migrate {shlex.quote(url)} (as a user who may create tables there)"


def how_to_grant(endpoint: PostgresEndpoint) -> str:
    schema, user = (
        f'"{name}"' for name in (endpoint.schema, endpoint.params.get("user", "the_user").replace('"', '""'))
    )
    return (
        f"whoever ran `lockfast migrate` can run: GRANT USAGE ON SCHEMA {schema} TO {user}; "
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}; "
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {user}"
    )


def no_connection(
    endpoint: PostgresEndpoint, reasons: Sequence[Exception] = (), *, sent: bool = True
) -> BackendUnavailable:
    """Why none of its hosts could be reached: the last one's reason, which passes if one of them does.

    It is not `sent` if all that was to be sent was to go over this connection.
    """
    told = [_QUESTION.sub("", str(reason)) for reason in reasons]
    lasts = bool(told) and all(_LASTING.search(reason) for reason in told)
    reason = (told[-1] if told else "") or "no answer in time"
    text = f"{endpoint.url} cannot be used: {reason}" if lasts else f"cannot reach {endpoint.url}: {reason}"
    return BackendUnavailable(text, transient=not lasts, sent=sent)


def _of(pg: Any) -> str:
    return _one_line(pg.get_error_message() if hasattr(pg, "get_error_message") else pg.error_message.decode())


def _one_line(text: str) -> str:
    return " ".join(text.split())


# Wake-ups


ECHO_WITHIN_S: Final = 0.7  # how long an echo may take; less than the second after which silence is reported


def echo(channel: str) -> tuple[Statement, tuple[str, str]]:
    """A statement that tells whoever listens there."""
    return Statement(b"lockfast_echo", b"SELECT to_json(pg_notify($1, $2)::text)"), (channel, "")


def present(endpoint: PostgresEndpoint, channel: str) -> bytes:
    """What a connection that listens says, so that others know that it does; an operator sees what it is for."""
    return f"LISTEN {channel}; SELECT \"{endpoint.schema}\".lockfast_listens('{channel}')".encode()


def tell_deaf_for_now(reason: BackendUnavailable) -> None:
    _logger.warning(
        "waiters look for themselves until there is a connection that they can be woken by; locks are safe, hand-overs "
        "are slower: %s",
        reason,
    )


def tell_deaf(endpoint: PostgresEndpoint) -> None:
    _logger.warning(
        "PostgreSQL at %s is reached by way of a pooler that gives each transaction to another connection, so LISTEN "
        "does not work there and waiters look for themselves; locks are safe, hand-overs are slower. Connect to the "
        "server itself, or by way of a pool in session mode",
        endpoint.name,
    )
