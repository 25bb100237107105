"""One connection to PostgreSQL, as both worlds use it: one statement at a time, read by one caller at a time.

Decides: the settings of a session, which servers are refused, and what the server's errors mean.
Leaves to the two drivers: how to wait for the socket. Leaves to the backend: the statements.

A statement whose answer is late stays in flight: the session may hold locks, so it is not closed. The next caller that
uses the session reads that answer first. `PendingStatement.done` is called with it, whether or not a caller waits.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, inf
from typing import Any, Final, NamedTuple

from psycopg import pq

from lockfast._time import boot_now
from lockfast.backends.postgres.io.endpoint import SAFE_PATH, PostgresEndpoint, conninfo
from lockfast.backends.postgres.io.refusals import Broken, error_of, is_transient, no_connection, unavailable
from lockfast.backends.postgres.io.resolver import Names, each_address
from lockfast.backends.postgres.io.stepping import Late, run_first_ready
from lockfast.backends.postgres.io.wire import MIN_PIPELINE, Steps, connect, last_result, pipelined
from lockfast.errors import BackendUnavailable, Unsupported

_PATIENT = (
    "lock_timeout",
    "statement_timeout",
    "transaction_timeout",
    "idle_session_timeout",
    "idle_in_transaction_session_timeout",
)
KEPT_S = 120  # for which the server keeps a session whose client's host is silent; more if a ttl needs it
SLACK_S = 10  # more than a ttl: a wait of that length needs no ping after the grant
RATE_MARGIN: Final = 1.02  # how far the server's timers may differ from our clock, and more
_KEEPALIVE_IDLE_S = 60  # before the server probes a silent client
_KEEPALIVE_PROBES = 60  # how often it does
_SETTINGS: Final = {
    **dict.fromkeys(_PATIENT, "0"),  # a role's own limits would end what we wait for and hold
    "client_connection_check_interval": "1000",  # so that a dead client does not stand in a queue
}
# A server that does not acknowledge data is given up after a minute; an idle connection, by the endpoint's keepalives.
_OF_CLIENT: Final = {"tcp_user_timeout": "60000"}
ANSWER_WITHIN_S: Final = 3.0  # after which a session that has not answered counts as silent
# A setting would stay for other clients of a pooler that is refused afterwards. So nothing is set if there may be one.
_SET_PATH: Final = f"SELECT pg_catalog.set_config('search_path', '{SAFE_PATH}', false) WHERE {{allowed}}"
_IS_DIRECT: Final = "pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) {pid}"
_SET: Final = (
    "SELECT set_config(name, CASE name {settings} END, false) FROM pg_settings WHERE name IN ({names}) AND {allowed}"
)
_IDENTIFY: Final = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery()"
REPORTS_END: Final = hasattr(select, "POLLRDHUP")  # whether the system reports an end that has not been read up to
_ARRIVED: Final = getattr(select, "POLLRDHUP", select.POLLIN)
_ROWS: Final = int(pq.ExecStatus.TUPLES_OK)
_ERROR: Final = int(pq.ExecStatus.FATAL_ERROR)
_DONE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_LAST: Final = (b"FATAL", b"PANIC")  # errors after which the server ends the session
_INTERRUPTED: Final = ConnectionAbortedError("an interrupt came in the middle of a request")
Params = Sequence[int | bytes]
Rows = list[list[bytes | None]]
Statements = Mapping[bytes, tuple[tuple[int, ...], str]]  # by name: the types of the parameters, and the SQL


def kept_for(ttl: float) -> int:
    """Seconds for which the server must keep a silent session, so that its holder has stopped believing before.

    The holder counts from before its last request, the server from when it received that; only their rates can differ.
    """
    return max(KEPT_S, ceil(ttl * RATE_MARGIN + SLACK_S))


def keeping(seconds: int) -> dict[str, int]:
    """The settings that make the server keep a silent session for that long, and no longer."""
    return {
        "tcp_user_timeout": seconds * 1000,  # where there is such a thing it decides, also if an answer is on its way
        "tcp_keepalives_idle": _KEEPALIVE_IDLE_S,
        "tcp_keepalives_interval": ceil((seconds - _KEEPALIVE_IDLE_S) / _KEEPALIVE_PROBES),
        "tcp_keepalives_count": _KEEPALIVE_PROBES,
    }


Done = Callable[["PendingStatement"], None]
OnSession = Callable[["AdvisorySession"], None]


class PendingStatement:
    """A statement for a session, and its outcome."""

    __slots__ = ("answer", "answer_within", "done", "error", "finished", "name", "params", "sent_at", "urgent")

    def __init__(self, name: bytes, params: Params = (), done: Done | None = None) -> None:
        self.name = name
        self.params = params
        self.done = done  # called once, with the answer or the error
        self.answer_within = ANSWER_WITHIN_S
        self.urgent = False  # sent before others: it renews a lease, or lets a waiter in
        self.answer: Rows = []
        self.error: BackendUnavailable | None = None
        self.finished = False
        self.sent_at = 0.0

    def finish(self, error: BackendUnavailable | None = None) -> None:
        if not self.finished:
            self.finished, self.error = True, error
            if self.done is not None:
                self.done(self)

    def rows(self) -> Rows:
        if self.error is not None:
            raise self.error
        return self.answer


class StatementCancelled(BackendUnavailable):
    """The server cancelled the statement: on request, or because of a time limit of its own."""


class _NoticeHandler:
    """Receives notices while no statement is in flight; libpq passes even a fatal error on as a notice.

    Not a method of the session: libpq would keep that alive.
    """

    def __init__(self) -> None:
        self.error = ""  # with which the server ended the session

    def __call__(self, result: Any) -> None:
        if _is_last(result):
            self.error = error_of(result)[1]


class Dialled(NamedTuple):
    pgconn: pq.abc.PGconn
    pid: int  # the server's own number for the session; by way of a pooler libpq knows only an invented one


class AdvisorySession:
    """A session of the server. Each driver has a subclass."""

    def __init__(self, dialled: Dialled, name: str) -> None:
        self.pgconn = pgconn = dialled.pgconn
        self.name = name
        self.socket = pgconn.socket
        self.pid = dialled.pid
        self.alive = True
        self.interrupted = False  # an interrupt ended it here, and not the server
        self.in_flight: PendingStatement | None = None
        self.idle_since = 0.0
        self.retired = False  # it was the main session, and fell silent
        self.holds = False  # a lock that was acquired there: then it does not count as one that waits
        self.keeps(KEPT_S)
        self.proven_at = 0.0  # when the last statement that was answered was sent
        self.named = pgconn.parameter_status(b"application_name") != b"lockfast"
        pgconn.nonblocking = 1
        self._notices = pgconn.notice_handler = _NoticeHandler()

    def keeps(self, seconds: int) -> None:
        """The server keeps it for that long while the client is silent."""
        self.kept = seconds
        self.longest_ttl = (seconds - SLACK_S) / RATE_MARGIN

    @property
    def silent_at(self) -> float:
        """When it counts as silent, unless it answers before."""
        in_flight = self.in_flight
        return inf if in_flight is None else in_flight.sent_at + in_flight.answer_within

    def send(self, statement: PendingStatement) -> None:
        """Send it. Every statement before it has been answered."""
        try:
            self.in_flight = statement
            statement.sent_at = boot_now()
            params = [value if isinstance(value, bytes) else b"%d" % value for value in statement.params]
            self.pgconn.send_query_prepared(statement.name, params)
        except Exception as error:
            self.end(error)
        except BaseException:
            self.end(_INTERRUPTED)  # it is unknown whether it was sent
            raise

    def read_ready(self) -> bool:
        """Read what has arrived; True if no statement is in flight any more. Calls `done` of the statement.

        An interrupt ends the session: it may have cut an answer short, which could not be read again.
        """
        try:
            return self._read_ready()
        except Exception:  # raised by a callback
            raise
        except BaseException:
            self.end(_INTERRUPTED)
            raise

    def _read_ready(self) -> bool:
        pgconn, in_flight = self.pgconn, self.in_flight
        try:
            pgconn.consume_input()
            if in_flight is None:
                pgconn.is_busy()  # parses notices, and the error with which the server ends a session
                if self._notices.error:
                    raise ConnectionAbortedError(self._notices.error)
                return True
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    break
                self._take(in_flight, result)
            else:
                pgconn.flush()  # a part of the statement may not have been sent
                return False
        except Exception as error:
            self.end(error)
            return True
        self.in_flight = None
        self.proven_at = in_flight.sent_at
        self._deliver(in_flight)
        return True

    def _deliver(self, answered: PendingStatement) -> None:
        """Overridden: where its caller is."""
        answered.finish(answered.error)

    def _take(self, in_flight: PendingStatement, result: Any) -> None:
        status = result.status
        if status == _ROWS:
            value, fields = result.get_value, range(result.nfields)
            in_flight.answer = [[value(row, field) for field in fields] for row in range(result.ntuples)]
        elif status == _ERROR and _is_last(result):  # the socket may stay open, but nothing is held
            raise ConnectionAbortedError(error_of(result)[1])
        elif status == _ERROR:
            in_flight.error = refusal(self.name, result)

    def end_arrived(self) -> bool:
        """Whether its end has arrived here; where the system does not report that, whether anything has."""
        poll = select.poll()  # of our own: another thread may ask too, and Python refuses two at one poll object
        poll.register(self.socket, _ARRIVED)  # the system adds errors
        return bool(poll.poll(0))

    def read_end(self) -> None:
        """Read up to its end, which has arrived, or may have."""
        if not REPORTS_END:
            self.read_ready()
            return
        while self.alive and not self.read_ready():
            pass  # the answer or the end has arrived: nothing more comes
        if self.alive:
            self.end(ConnectionResetError("end of stream"))

    def end(self, error: BaseException) -> None:
        """The session is over, and with it everything that it held."""
        if self.alive:
            self.alive = False
            self.interrupted = error is _INTERRUPTED
            said = _first_line(self.pgconn.error_message) or str(error)
            try:
                self._disconnect()
            finally:  # a callback may raise
                in_flight, self.in_flight = self.in_flight, None
                if in_flight is not None:
                    in_flight.finish(unavailable(self.name, f"ended the session: {said}"))

    def _disconnect(self) -> None:
        """Overridden: stop watching the socket, and close it."""
        self.pgconn.finish()


def dial(endpoint: PostgresEndpoint, holder: str, statements: Statements, within: float) -> Dialled:
    """A session that is ready. Blocks. Raises BackendUnavailable, or Unsupported behind a pooler."""
    until = boot_now() + within
    called = {}
    if holder and "fallback_application_name" not in endpoint.params:
        called = {"fallback_application_name": short(holder)}
    reasons: list[Exception] = []
    for params, end in each_address(Names(), endpoint, until, reasons):
        try:
            steps = partial(_dial, endpoint, conninfo({**_OF_CLIENT, **params, **called}), statements)
            dialled: Dialled = run_first_ready(endpoint.second_tries, steps, end)
            endpoint.remember(params)
            return dialled
        except (Late, Broken, BackendUnavailable) as reason:
            reasons.append(reason)
    if isinstance(reasons[-1], BackendUnavailable):
        raise reasons[-1]
    raise no_connection(endpoint, reasons)


def _dial(endpoint: PostgresEndpoint, params: bytes, statements: Statements) -> Steps:
    """Raises Broken, BackendUnavailable or Unsupported."""
    pgconn = yield from connect(params)
    try:
        settings = {**_SETTINGS, **keeping(KEPT_S)}
        names = ", ".join(f"'{name}'" for name in settings)
        cases = " ".join(f"WHEN '{name}' THEN '{value}'" for name, value in settings.items())
        allowed = "true" if endpoint.pooler == "session" else _IS_DIRECT.format(pid=pgconn.backend_pid)
        queries = [
            _SET_PATH.format(allowed=allowed),
            _SET.format(settings=cases, names=names, allowed=allowed),
            _IDENTIFY,
        ]
        sends = [partial(pgconn.send_query_params, sql.encode(), None) for sql in queries]
        sends += [partial(pgconn.send_prepare, name, sql.encode(), types) for name, (types, sql) in statements.items()]
        results = yield from _exchange(pgconn, sends)
        for result in results:
            if result.status not in _DONE:
                raise refusal(endpoint.name, result)
        result = results[2]
        dialled = Dialled(pgconn, int(result.get_value(0, 0)))
        _must_hold_locks(dialled, endpoint, result.get_value(0, 1))
    except BaseException:
        pgconn.finish()
        raise
    return dialled


def _exchange(pgconn: pq.abc.PGconn, sends: Sequence[Callable[[], None]]) -> Steps:
    """The result of each request, up to the first error; in one round trip, if libpq can. Raises Broken."""
    if pq.version() < MIN_PIPELINE:
        results = []
        for send in sends:
            results.append((yield from last_result(pgconn, send)))
        return results
    return (yield from pipelined(pgconn, sends))


def _must_hold_locks(dialled: Dialled, endpoint: PostgresEndpoint, replica: bytes | None) -> None:
    if replica == b"t":
        raise unavailable(endpoint.name, "is a replica: a lock there would exclude no client of the primary")
    if dialled.pid != dialled.pgconn.backend_pid and endpoint.pooler != "session":
        raise Unsupported(
            f"{endpoint.name} is reached through a pooler (PgBouncer or the like): unless that pools whole sessions, a "
            "session's advisory locks would be granted twice or never be freed. Connect to PostgreSQL itself, use "
            "postgresql:// (the lock table), or add ?pooler=session if its pool_mode is `session`"
        )


def refusal(name: str, result: Any) -> BackendUnavailable:
    state, said = error_of(result)
    if state in ("57014", "55P03", "40P01"):  # cancelled, lock_timeout, deadlock: nothing is wrong with the session
        return StatementCancelled(f"PostgreSQL at {name} gave the statement up: {said}", sqlstate=state)
    if state == "53200":
        said += "; it has room for too few locks: raise max_locks_per_transaction"
    return unavailable(name, f"refuses: {said} ({state})", transient=is_transient(state))


def _is_last(result: Any) -> bool:
    return result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) in _LAST


def _first_line(message: bytes | None) -> str:
    return (message or b"").decode(errors="replace").strip().partition("\n")[0]


def short(holder: str) -> str:
    """What fits into `application_name`: 63 bytes, and ASCII only, or the server would show question marks."""
    return holder.encode("ascii", "replace")[:63].decode()
