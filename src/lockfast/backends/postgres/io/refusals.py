"""What PostgreSQL's errors mean for a caller.

Decides: which errors are worth another try, which end a connection, and what each message advises.
Leaves to the drivers: to raise them, or to try again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

from psycopg import pq

from lockfast.backends.postgres.io.endpoint import PostgresEndpoint
from lockfast.errors import BackendUnavailable

NO_RIGHTS: Final = "42501"
_ROLLED_BACK: Final = ("40001", "40P01")  # serialization failure, deadlock: worth another try at once
_LOCK_TIMEOUT: Final = "55P03"
_NO_SCHEMA: Final = ("42P01", "42883", "3F000", "42703")  # no such table, function, schema, column
_SHUTDOWN: Final = "57P"  # an operator ended the session or the server
_READ_ONLY: Final = "25006"  # it is no longer the primary, or an operator made it read-only
_TRANSIENT: Final = ("08", "57", "53", "40")  # classes of codes: connection, operator, resources, rollback
_DISK_FULL: Final = "53100"
# Why a server refuses every connection until an operator acts. libpq has no code for it, so only the words say so.
_PERMANENT: Final = re.compile(
    "authentication failed|no password supplied|no pg_hba.conf entry|pg_hba.conf rejects|certificate|does not exist"
    "|is not permitted to log|[Pp]ermission denied|is not currently accepting|does not support SSL"
    "|definition of service|service file|invalid (\\S+ )?value|must be an integer|unrecognized configuration"
    "|unterminated quoted|connection option"
)
_QUESTION: Final = re.compile(r" Is the server running .*\?$")  # libpq adds it to its reason


class StatementRefused(BackendUnavailable):
    """The server understood the statement and did nothing."""


class NameInUse(StatementRefused):
    """An open transaction of another client has locked that name."""


class NoRights(StatementRefused):
    """The role lacks a right."""


class RolledBack(Exception):
    """The server rolled the statement back because of concurrent transactions. It had no effect."""


class Broken(Exception):
    """The connection can no longer be used; the text says how it ended."""

    @property
    def message(self) -> str:
        return f"ended the connection: {self}"


class ReadOnly(Broken):
    """This server accepts no writes; a new connection may lead to one that does."""

    @property
    def message(self) -> str:
        return f"is read-only: {self}"


def unavailable(endpoint: str, what: str, *, transient: bool = True, sent: bool = True) -> BackendUnavailable:
    return BackendUnavailable(f"PostgreSQL at {endpoint} {what}", transient=transient, sent=sent)


def copy_of(error: BackendUnavailable, *, last: bool = False) -> BackendUnavailable:
    """Several callers of one statement each raise a copy: an exception remembers where it was raised."""
    return type(error)(str(error), transient=error.transient and not last, sent=error.sent)


def error_of(result: Any) -> tuple[str, str]:
    """The code and the text of an error."""
    code = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
    return code.decode(), text.decode(errors="replace")


def connection_error(code: str, text: str, *, ended: bool) -> RolledBack | Broken | None:
    """None if the server refused only this statement. `ended`: the connection is known to have ended."""
    if code in _ROLLED_BACK:
        return RolledBack(text)
    if code == _READ_ONLY:
        return ReadOnly(text)
    return Broken(text) if ended or code.startswith(_SHUTDOWN) or not code else None


def refusal(endpoint: PostgresEndpoint, code: str, text: str) -> StatementRefused:
    at = f"PostgreSQL at {endpoint.name}"
    if code == _LOCK_TIMEOUT:
        return name_in_use(endpoint)
    if code in _NO_SCHEMA:
        return StatementRefused(
            f"{at} has no lock table, or one of another version: {text}; {how_to_migrate(endpoint.url)}",
            transient=False,
        )
    if code == NO_RIGHTS:
        return NoRights(f"{at} refuses: {text}; {how_to_grant(endpoint)}", transient=False)
    return StatementRefused(f"{at} refuses: {text} ({code})", transient=is_transient(code))


def name_in_use(endpoint: PostgresEndpoint) -> NameInUse:
    return NameInUse(f"PostgreSQL at {endpoint.name}: an open transaction of another client has locked that name")


def is_transient(code: str) -> bool:
    """Whether another try may succeed."""
    return code.startswith(_TRANSIENT) and code != _DISK_FULL


def how_to_migrate(url: str) -> str:
    return f"run: lockfast migrate {shlex.quote(url)} (as a user who may create tables there)"


def how_to_grant(endpoint: PostgresEndpoint) -> str:
    schema, user = (
        f'"{name}"' for name in (endpoint.schema, endpoint.params.get("user", "the_user").replace('"', '""'))
    )
    return (
        f"the role that ran `lockfast migrate` can run: GRANT USAGE ON SCHEMA {schema} TO {user}; "
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}; "
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {user}; "
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {user}"
    )


def no_connection(
    endpoint: PostgresEndpoint, reasons: Sequence[Exception] = (), *, sent: bool = True
) -> BackendUnavailable:
    """Why no host could be reached: the reason of the last one. Transient if that of any host is.

    Not `sent` if the request was to go over this connection only.
    """
    texts = [_QUESTION.sub("", str(reason)) for reason in reasons]
    permanent = bool(texts) and all(_PERMANENT.search(text) for text in texts)
    reason = (texts[-1] if texts else "") or "no answer in time"
    text = f"{endpoint.url} cannot be used: {reason}" if permanent else f"cannot reach {endpoint.url}: {reason}"
    return BackendUnavailable(text, transient=not permanent, sent=sent)


def message_of(pg: Any) -> str:
    """The last error of a connection of libpq's."""
    return one_line(pg.get_error_message() if hasattr(pg, "get_error_message") else pg.error_message.decode())


def one_line(text: str) -> str:
    return " ".join(text.split())
