"""Run a script on a PostgreSQL server: migrations.

Decides: how long that may take, how it ends early, what to advise a role that may not, and which messages are reported.
Leaves to the script: its transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Any, Final

import psycopg
from psycopg import pq

from lockfast._reentry import NoThread, start_thread
from lockfast._time import boot_now
from lockfast.backends.postgres.io.endpoint import SAFE_PATH, PostgresEndpoint, conninfo
from lockfast.backends.postgres.io.refusals import (
    NO_RIGHTS,
    Broken,
    NoRights,
    RolledBack,
    StatementRefused,
    is_transient,
    no_connection,
    unavailable,
)
from lockfast.backends.postgres.io.stepping import Late, run
from lockfast.backends.postgres.io.wire import Steps, connect
from lockfast.backends.postgres_table.io.session import TableSession

_CONNECT_WITHIN_S = 10.0  # seconds, for each host
_RUN_WITHIN_S = 60.0
_CANCEL_WITHIN_S = 5.0
_INFO: Final = b"INFO"  # the severity of messages that the script means for its user
Report = Callable[[str], None]


class _Script(TableSession):
    """A connection on which a refusal is about the script itself: no other command would fix it."""

    unreported: Exception | None = None  # why the first message that could not be reported was not

    def prepare(self) -> Steps:
        """The server stops if this process is killed. A pooler would keep that setting for its next client."""
        self.require_utf8()
        ((pid,),) = yield from self.simple_query(b"SELECT pg_catalog.pg_backend_pid()")
        if int(pid) == self.pg.backend_pid:
            yield from self._set_with_check([f"search_path = {SAFE_PATH}"])

    def _refusal(self, code: str, text: str) -> StatementRefused:
        at = f"PostgreSQL at {self._endpoint.name} refuses: {text}"
        if code == NO_RIGHTS:
            return NoRights(at, transient=False)
        return StatementRefused(f"{at} ({code})", transient=is_transient(code))

    def report_to(self, report: Report) -> None:
        """Pass on the messages of the script while it runs."""

        def on_notice(notice: Any) -> None:
            if notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == _INFO:
                text = notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY).decode(errors="replace")
                try:
                    report(text)
                except Exception as error:  # which psycopg would drop
                    self.unreported = self.unreported or error

        self.pg.notice_handler = on_notice

    def close(self) -> None:
        """A script that is not at its end is cancelled: the server would go on with it."""
        try:
            if self.pg.transaction_status == pq.TransactionStatus.ACTIVE:
                done = Event()
                start_thread("lockfast-cancel", _cancel, self.pg.get_cancel(), done)  # which cannot be interrupted
                done.wait(_CANCEL_WITHIN_S)
        except (psycopg.Error, NoThread):
            pass  # it notices that the connection is closed
        finally:
            super().close()


def _cancel(request: pq.abc.PGcancel, done: Event) -> None:
    with suppress(psycopg.Error):
        request.cancel()
    done.set()


def run_script(endpoint: PostgresEndpoint, text: str, report: Report) -> None:
    """Raises BackendUnavailable. Messages are reported while the script runs; an error in that is raised afterwards."""
    reasons: list[Exception] = []
    for params in endpoint.hosts:
        try:
            session = _Script(run(connect(conninfo(params)), boot_now() + _CONNECT_WITHIN_S), endpoint)
        except (Late, Broken) as reason:
            reasons.append(reason)
        else:
            session.report_to(report)
            _run(session, endpoint, text)
            if session.unreported is not None:
                raise session.unreported
            return
    raise no_connection(endpoint, reasons)


def _run(session: _Script, endpoint: PostgresEndpoint, text: str) -> None:
    try:
        run(_steps(session, endpoint, text.encode()), boot_now() + _RUN_WITHIN_S)
    except Late:
        raise unavailable(endpoint.name, "did not answer in time; what was begun is rolled back") from None
    except RolledBack as again:
        raise unavailable(
            endpoint.name, f"has rolled it back because of concurrent transactions: {again}; another try may succeed"
        ) from again
    except Broken as broken:
        raise unavailable(endpoint.name, f"{broken.message}; what was begun is rolled back") from broken
    finally:
        session.close()


def _steps(session: _Script, endpoint: PostgresEndpoint, script: bytes) -> Steps:
    yield from session.prepare()
    try:
        yield from session.simple_query(script)
    except NoRights as error:
        yield from session.simple_query(b"ROLLBACK")
        ((advice,),) = yield from session.simple_query(_advice(endpoint.schema))
        raise NoRights(f"{error}; {advice.decode()}. Nothing was changed", transient=False) from error


def _advice(schema: str) -> bytes:
    """A query: what must be granted to the current role before it can run the script. It qualifies all names."""
    return f"""SELECT CASE
        WHEN it.home IS NULL THEN pg_catalog.format(
            'the schema does not exist, and the owner of the database can run: GRANT CREATE ON DATABASE %I TO %I',
            pg_catalog.current_database(), current_user)
        WHEN NOT pg_catalog.has_schema_privilege(it.home, 'CREATE')
            OR NOT pg_catalog.has_schema_privilege(it.home, 'USAGE') THEN pg_catalog.format(
            'the owner of the schema can run: GRANT USAGE, CREATE ON SCHEMA %I TO %I', '{schema}', current_user)
        ELSE pg_catalog.format(
            'what is there belongs to %s: run it as that role', coalesce((
                SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(owner)) FROM (
                    SELECT relowner FROM pg_catalog.pg_class
                        WHERE relnamespace = it.home AND relname IN ('lockfast_schema', 'distributed_locks')
                    UNION ALL SELECT proowner FROM pg_catalog.pg_proc
                        WHERE pronamespace = it.home AND proname IN ('acquire_lock', 'release_lock', 'extend_lock')
                ) AS made (owner) WHERE NOT pg_catalog.pg_has_role(owner, 'USAGE') LIMIT 1), 'another one'))
        END FROM (SELECT pg_catalog.to_regnamespace('"{schema}"')::oid AS home) AS it""".encode()
