"""What is asked of PostgreSQL, and how many requests of one process become one statement.

Decides: which requests may travel together, and what becomes of each when that goes wrong.
Leaves to the drivers of either world: when there is something to take along, and the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lockfast.backends.postgres.io.refusals import NameInUse, Refused
from lockfast.backends.postgres_table.io.session import PreparedStatement

MOST: Final = 500  # requests in one statement: the server does nothing else on that connection meanwhile
LANES: Final = 2  # connections for requests: while the server works on one batch, the next is gathered
SPLIT: Final = 32  # requests that are worth to be divided between them
SPARE: Final = 4  # more of them, for when all of those have been at one statement for
STUCK: Final = 0.05  # so many seconds: somebody's transaction is at one of their names
LISTENS: Final = 2.0  # seconds at most that a waiter gives to the connection that it would be woken by
LISTENS_AGAIN: Final = 5.0  # seconds after which one that could not listen tries to again
LAST: Final = 1.0  # seconds in which what was closed meanwhile takes back what it asked for; it tries that once
TRIES: Final = 20  # for what the server has rolled back because of others


class Job:
    """One request. `columns` are what differs between requests of a kind, `tail` is what does not.

    Of a kind that can travel together the columns begin with the name, and the tail with the milliseconds that a name
    is waited for which a transaction of somebody else's is at.
    """

    __slots__ = ("alone", "cleans", "columns", "kind", "met", "statement", "tail")

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
        self.kind = kind  # of requests that can travel together; empty for one that cannot
        self.alone = not kind
        self.cleans = False  # it takes back what somebody asked for, which is done even by what is closed
        self.met = False  # somebody at its name: from then on it travels only with those that wait for that one too

    @property
    def name(self) -> Sequence[str | None]:
        """With what qualifies it."""
        return self.columns[:2]


class Many(NamedTuple):
    """How requests become one statement: for each kind that many arrays, and then a tail."""

    statement: PreparedStatement
    kinds: tuple[tuple[str, int], ...]


class Again:
    """In place of an answer: ask for this one in another way."""

    def prepare(self, job: Job) -> None:
        job.alone = True


class Meets(Again):
    """Somebody is at its name, who must not hold up those of other names."""

    def prepare(self, job: Job) -> None:
        job.met = True


AGAIN: Final = Again()
MEETS: Final = Meets()


def may_join(job: Job, first: Job) -> bool:
    """Whether they can be one statement."""
    if job.alone or first.alone or job.met != first.met:
        return False
    return not job.met or job.name == first.name


def as_statement(jobs: Sequence[Job], many: Many) -> tuple[PreparedStatement, list[bytes | None]]:
    """What to send for these."""
    if len(jobs) == 1:
        job = jobs[0]
        return job.statement, [None if one is None else one.encode() for one in (*job.columns, *job.tail)]
    params: list[bytes | None] = []
    for kind, columns in many.kinds:
        chosen = [job.columns for job in jobs if job.kind == kind]
        params += [array(column).encode() for column in zip(*chosen, strict=True)] if chosen else [b"{}"] * columns
    _, now = jobs[0].tail
    params += [_patience(jobs), None if now is None else now.encode()]
    return many.statement, params


def _patience(jobs: Sequence[Job]) -> bytes | None:
    """Of the least patient. Those of several names wait for none of them."""
    return b"%d" % min(int(job.tail[0] or 0) for job in jobs) if jobs[0].met else None


def as_answers(jobs: Sequence[Job], answer: Any, many: Many) -> list[Any]:
    """What was said to each, in their order."""
    if len(jobs) == 1:
        return [answer]
    rows = {kind: iter(answers) for (kind, _), answers in zip(many.kinds, answer, strict=True)}
    said = (next(rows[job.kind]) for job in jobs)
    return [MEETS if one is None else one for one in said]


def as_failures(jobs: Sequence[Job], error: Exception) -> list[Any]:
    """What becomes of each. If the server refused, and nothing happened, that may be the fault of one of them."""
    of_all = len(jobs) == 1 or (jobs[0].met and isinstance(error, NameInUse))
    return [AGAIN if isinstance(error, Refused) and not of_all else error] * len(jobs)


def array(values: Sequence[str | None]) -> str:
    """As PostgreSQL reads one. Mostly all are there and none needs care, or none is there."""
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
