"""What is asked of PostgreSQL, and how many requests of one process become one statement.

Decides: which request goes first, which requests may share a statement, and what becomes of each when it fails.
Leaves to `blocking` and `asyncio_`: when a statement is sent, with which requests, on which connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from lockfast.backends.postgres.io.refusals import NameInUse, RolledBack, StatementRefused, copy_of, unavailable
from lockfast.backends.postgres_table.io.session import PreparedStatement
from lockfast.errors import BackendUnavailable

MAX_BATCH: Final = 500  # requests in one statement: the server does nothing else on that connection meanwhile
MAX_CONNECTIONS: Final = 2  # for requests: while the server works on one batch, the next is gathered
MIN_TO_SPLIT: Final = 32  # requests that are worth dividing between them
MAX_SPARE: Final = 4  # more connections, for when all others have run one statement for longer than
STUCK_AFTER_S: Final = 0.05  # this: an open transaction of another client has locked one of their names
LISTEN_WITHIN_S: Final = 2.0  # the most that a waiter gives to the connection that would wake it
UNLISTEN_WITHIN_S: Final = 0.5  # to take a LISTEN back behind a pooler
LISTEN_AGAIN_AFTER_S: Final = 5.0  # after a connection for wake-ups could not be made
BEHIND_AFTER_S: Final = 0.5  # without a reply, after which what takes a request back is sent behind it
CLEAN_UP_WITHIN_S: Final = 1.0  # for taking back, once and after close(), what was asked for before
MAX_TRIES: Final = 20  # of a request that the server rolls back because of concurrent transactions


class TableRequest:
    """`columns` are what differs between requests of a kind, `tail` is what does not.

    The columns of a request for a claim begin with its name and its id. Where requests of a kind can be batched, the
    tail begins with the milliseconds that the server waits for a name that an open transaction has locked.
    """

    __slots__ = ("alone", "blocked", "columns", "is_cleanup", "kind", "statement", "tail")

    def __init__(
        self,
        statement: PreparedStatement,
        columns: Sequence[str | None],
        tail: Sequence[str | None] = (),
        kind: str = "",
    ) -> None:
        self.statement = statement
        self.columns = columns
        self.tail = tail
        self.kind = kind  # of requests that can be batched; empty for one that cannot
        self.alone = not kind
        self.is_cleanup = False  # it takes back what was asked for before, so it is sent even after close()
        self.blocked = False  # its name was locked: from then on it is batched only with requests for that name

    @property
    def name(self) -> Sequence[str | None]:
        """With its namespace."""
        return self.columns[:2]

    def follows(self, other: TableRequest) -> bool:
        """Whether it takes back what the other one asks for."""
        return self.is_cleanup and other.kind == "acquire" and self.columns[:3] == other.columns[:3]


class Many(NamedTuple):
    """The statement for a batch: the arrays of each kind, and then a tail."""

    statement: PreparedStatement
    kinds: tuple[tuple[str, int], ...]


class Retry:
    """In place of a reply: send this request once more, in another way."""

    def prepare(self, request: TableRequest) -> None:
        request.alone = True


class _RetryBlocked(Retry):
    """Its name is locked, and must not delay requests for other names."""

    def prepare(self, request: TableRequest) -> None:
        request.blocked = True


RETRY_ALONE: Final = Retry()
RETRY_BLOCKED: Final = _RetryBlocked()


class Pending(Protocol):
    """A request on its way, in either world."""

    request: TableRequest


P = TypeVar("P", bound=Pending)


def first_of(waiting: Sequence[P], *, others_first: bool) -> P:
    """The request to send next. A blocked one may keep its connection for a while: if one just did, others go first."""
    first = waiting[0]
    if others_first and first.request.blocked:
        return next((one for one in waiting if not one.request.blocked), first)
    return first


def may_join(request: TableRequest, first: TableRequest) -> bool:
    """Whether both can be in one statement."""
    if request.alone or first.alone or request.blocked != first.blocked:
        return False
    return not request.blocked or request.name == first.name


def alone(request: TableRequest) -> tuple[PreparedStatement, list[bytes | None]]:
    return request.statement, [None if one is None else one.encode() for one in (*request.columns, *request.tail)]


def statement_for(batch: Sequence[TableRequest], many: Many) -> tuple[PreparedStatement, list[bytes | None]]:
    if len(batch) == 1:
        return alone(batch[0])
    params: list[bytes | None] = []
    for kind, columns in many.kinds:
        chosen = [request.columns for request in batch if request.kind == kind]
        params += [array(column).encode() for column in zip(*chosen, strict=True)] if chosen else [b"{}"] * columns
    _, now = batch[0].tail
    params += [_patience(batch), None if now is None else now.encode()]
    return many.statement, params


def _patience(batch: Sequence[TableRequest]) -> bytes | None:
    """That of the least patient request. A batch for several names waits for none of them."""
    return b"%d" % min(int(request.tail[0] or 0) for request in batch) if batch[0].blocked else None


def replies_of(batch: Sequence[TableRequest], reply: Any, many: Many) -> list[Any]:
    """The reply to each, in their order."""
    if len(batch) == 1:
        return [reply]
    rows = {kind: iter(replies) for (kind, _), replies in zip(many.kinds, reply, strict=True)}
    each = (next(rows[request.kind]) for request in batch)
    return [RETRY_BLOCKED if one is None else one for one in each]


def failures_of(batch: Sequence[TableRequest], error: Exception) -> list[Any]:
    """What becomes of each. If the server refused a batch, one request may be the reason: then each goes alone."""
    of_all = len(batch) == 1 or (batch[0].blocked and isinstance(error, NameInUse))
    return [RETRY_ALONE if isinstance(error, StatementRefused) and not of_all else error] * len(batch)


def is_sent_again(request: TableRequest, answer: Any) -> bool:
    """Whether the request is to be sent once more, which it is ready for then."""
    if isinstance(answer, Retry):
        answer.prepare(request)
        return True
    return isinstance(answer, RolledBack)


def settled(answer: Any, *, closed: bool) -> Any:
    """The answer. Raises the error that came instead; after close() there is no other try."""
    if isinstance(answer, BackendUnavailable):
        raise copy_of(answer, last=closed)
    return answer


def rolled_back_again(endpoint: str) -> BackendUnavailable:
    return unavailable(endpoint, "rolled the request back again and again: concurrent transactions on the same rows")


def array(values: Sequence[str | None]) -> str:
    """An array literal. Mostly no value is null and none needs escapes, or all are null."""
    if None not in values:
        text = '","'.join(values)  # type: ignore[arg-type]
        if "\\" not in text and text.count('"') == 2 * (len(values) - 1):
            return f'{{"{text}"}}' if values else "{}"
    elif values.count(None) == len(values):
        return f"{{{'NULL,' * (len(values) - 1)}NULL}}"
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: str | None) -> str:
    if value is None:
        return "NULL"
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'
